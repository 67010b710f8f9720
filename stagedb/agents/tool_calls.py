"""Calls of tools: checked, answered in a thread when it is their turn, and errors as texts."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from stagedb.agents.agent_tools import TOOLS as IN_TOOLS
from stagedb.agents.agent_tools import AgentTool
from stagedb.agents.bounded_answers import AnswerLimits
from stagedb.agents.computing_tools import COMPUTING_TOOLS
from stagedb.agents.run_tools import RUN_TOOLS
from stagedb.agents.store_tools import STORE_TOOLS
from stagedb.errors import StagedbError
from stagedb.files import printable, shown
from stagedb.serve.shared_store import SharedStore, hidden, traceback_of
from stagedb.store.failures import ConnectionLost

AGENT_TOOLS: Final[Mapping[str, AgentTool[Any]]] = {
    each.name: each for each in (*STORE_TOOLS, *RUN_TOOLS, *COMPUTING_TOOLS)
}
"""Every tool by its name."""

TURNS = 2
"""Time-outs for which a call waits for its turn."""
MOST_ERROR = 4_000
"""Characters of the longest error."""

_log = logging.getLogger("stagedb.agents")


@dataclass(frozen=True)
class CallOutcome:
    """The text of an answer, or of an error."""

    text: str
    failed: bool = False


class ToolCalls:
    """Answers calls over one store. limits: bounds of an answer, and how many are answered at once."""

    def __init__(self, shared: SharedStore, limits: AnswerLimits) -> None:
        self._shared, self.limits = shared, limits
        self._asking = anyio.Semaphore(limits.asking)
        self._computing = anyio.Semaphore(limits.computing)

    async def outcome(self, name: str, arguments: Mapping[str, Any]) -> CallOutcome:
        """The outcome of a call. A call whose caller has gone goes on until its time is over.

        name: of a tool. arguments: as the tool's schema has them.
        """
        tool = AGENT_TOOLS.get(name)
        if tool is None:
            return CallOutcome(f"no tool is named {shown(name)}: they are {', '.join(AGENT_TOOLS)}", failed=True)
        turns = self._computing if tool.computes else self._asking
        with anyio.move_on_after(TURNS * self.limits.seconds) as waiting:
            await turns.acquire()
        if waiting.cancelled_caught:
            return CallOutcome("this server is busy with other calls: try again later", failed=True)
        try:
            return await anyio.to_thread.run_sync(partial(self.answered, tool, arguments))
        finally:
            turns.release()

    def answered(self, tool: AgentTool[Any], arguments: Mapping[str, Any]) -> CallOutcome:
        """The outcome of a call in this thread.

        name: of a tool. arguments: as the tool's schema has them.
        """
        try:
            return CallOutcome(self._shared.read(lambda db: tool.answer(db, arguments, self.limits)))
        except ConnectionLost:
            return CallOutcome("the store does not answer at the moment: try again in a minute", failed=True)
        except StagedbError as error:
            text = printable(hidden(error.text(IN_TOOLS)))
            return CallOutcome(text if len(text) <= MOST_ERROR else f"{text[:MOST_ERROR]}…", failed=True)
        except Exception as error:  # noqa: BLE001 - no error may reach the agent as a traceback
            _log.error("tool %s\n%s", tool.name, traceback_of(error))
            return CallOutcome(
                "stagedb itself failed, and this server has written the details to its log: please report what you "
                "asked for. Other calls work",
                failed=True,
            )
