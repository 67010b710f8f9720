"""A web application over one store: what is there, plans, memory, reports, comparisons, queries, the graph.

It is a thin layer over `stagedb.api`, as the command line is. `access` decides who may ask, `page_frames` how answers
become pages, and a module for each subject has its pages. Every page has its whole state in its address. All of it
reads, but for what `write_pages` does for those with the writers' token.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.serve.listening import Listening, listen
    from stagedb.serve.page_routes import Limits, application

__all__ = ["Limits", "Listening", "application", "listen"]

# Only `stagedb serve` needs the framework and the server.
__getattr__ = lazily(__name__, {"page_routes": ("Limits", "application"), "listening": ("Listening", "listen")})
__dir__ = listed(globals())
