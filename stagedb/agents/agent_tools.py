"""What a tool is: its name, its typed arguments with their JSON schema, and the function that answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from stagedb.agents.bounded_answers import MOST_SKIPPED, AnswerLimits, PagedTable, ToolAnswer, paged
from stagedb.api import Rows, Stagedb
from stagedb.errors import UsageError

MOST_TEXT = 20_000
"""Characters of a query."""
MOST_WORD = 500
"""Characters of a name, an id, or a word of a plan."""


class ToolArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Arguments of a tool. Unknown ones are refused: a misspelt one would be without effect."""


Arguments = TypeVar("Arguments", bound=ToolArguments)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_WORD)]
"""A name, an id or the start of an id."""

RowCount = Annotated[
    int, msgspec.Meta(ge=1, description="The most rows of the answer; the server may have a lower bound.")
]
Skip = Annotated[int, msgspec.Meta(ge=0, le=MOST_SKIPPED, description="Rows to leave out before the first one.")]


class PageArguments(ToolArguments, kw_only=True):
    """Arguments of a tool whose answer has rows of a table."""

    rows: RowCount = 50
    skip: Skip = 0

    def wanted(self, limits: AnswerLimits) -> int:
        """How many rows the answer may have."""
        return min(self.rows, limits.rows)

    def page(self, found: Rows, limits: AnswerLimits) -> dict[str, PagedTable]:
        """The rows that are asked for, of a table that is in memory, as the table of an answer."""
        return {"": paged(found, self.skip, self.wanted(limits))}


@dataclass(frozen=True)
class AgentTool(Generic[Arguments]):
    """A tool.

    description: for the agent that chooses it. takes: the class of its arguments. answers: called with the store, the
    arguments and the limits. computes: it tries plans, which takes the machine's cores.
    """

    name: str
    description: str
    takes: type[Arguments]
    answers: Callable[[Stagedb, Arguments, AnswerLimits], ToolAnswer]
    computes: bool = False

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments: one object without references to itself."""
        whole = msgspec.json.schema(self.takes)
        parts = whole.pop("$defs")
        found: dict[str, Any] = parts.pop(whole["$ref"].rpartition("/")[2])
        found.pop("title", None)
        found.pop("description", None)
        return found

    def read(self, arguments: Mapping[str, Any]) -> Arguments:
        """The arguments, checked. Raises UsageError, which names those that the tool takes."""
        try:
            return msgspec.convert(dict(arguments), self.takes)
        except msgspec.ValidationError as error:
            known = ", ".join(field.name for field in msgspec.structs.fields(self.takes)) or "no arguments"
            text = str(error).replace("Object ", "it ")
            raise UsageError(
                f"the arguments of {self.name} cannot be read: {text[:MOST_WORD]}; it takes {known}"
            ) from None

    def answer(self, db: Stagedb, arguments: Mapping[str, Any], limits: AnswerLimits) -> str:
        """The answer as JSON. Raises UsageError for arguments that are not possible, and the errors of the verb."""
        return self.answers(db, self.read(arguments), limits).text(limits.bytes)
