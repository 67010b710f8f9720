"""The verbs that read as tools for agents, over the Model Context Protocol (MCP).

A tool has typed arguments and an answer of bounded size. None writes to the store, and none takes, reads or writes a
file. The tools know nothing of the protocol: `transports` alone imports its package, which `stagedb[mcp]` installs.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.agents.bounded_answers import AnswerLimits
    from stagedb.agents.transports import serve_over_http, serve_over_stdio

__all__ = ["AnswerLimits", "serve_over_http", "serve_over_stdio"]

# Only `stagedb mcp` needs the protocol and its package.
__getattr__ = lazily(
    __name__, {"bounded_answers": ("AnswerLimits",), "transports": ("serve_over_http", "serve_over_stdio")}
)
__dir__ = listed(globals())
