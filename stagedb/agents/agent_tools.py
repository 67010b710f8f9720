"""Tools: typed arguments with their JSON schema, the function that answers, and messages in the words of agents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from stagedb.agents.bounded_answers import MOST_SKIPPED, AnswerLimits, PagedTable, ToolAnswer, paged
from stagedb.api import Rows, Stagedb
from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
from stagedb.mentions import OPTIONS, Form, VerbCall, Word, call, value_text
from stagedb.models import card_names
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.plans.written_words import typed_words
from stagedb.systems.system_files import system_names

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


# Messages as agents see them: arguments and names of tools, and commands for what only a person can do.

_ARGUMENTS: Mapping[str, str] = {"param": "params", "timeout": "seconds", "sort": "sort", "limit": "rows"}
"""Arguments that have another name than the word."""

_TOOLS: Final = frozenset(
    ("ls", "show", "find", "diff", "report", "queries", "models", "systems", "advise", "sweep", "replay")
)
"""Verbs that are tools of the same name. The tools `search` and `profile` keep nothing, which those verbs do."""


class _Tools(Form):
    """Arguments of tools: `tp: 4`, the tool `ls`."""

    def word(self, word: Word) -> str:
        """`tp: 4`, `sp: false`."""
        name = _ARGUMENTS.get(word.name, word.name)
        if word.value is None:
            return name
        return f"{name}: {str(word.value).lower() if isinstance(word.value, bool) else value_text(word.value)}"

    def words(self, words: tuple[Word, ...]) -> str:
        """`tp: 4, pp: 2`."""
        return ", ".join(map(self.word, words))

    def call(self, call: VerbCall) -> str:
        """The tool; the command where there is none, as it writes."""
        if call.verb not in _TOOLS:
            return OPTIONS.call(call)
        given = " ".join([*call.arguments, *([self.words(call.words)] if call.words else [])])
        return f"the tool {call.verb}" + (f" ({given})" if given else "")


TOOLS = _Tools()

# Words that verbs read files by: a tool takes names of the libraries, and values, in their place.

NO_FILES: Final = "tools read no files"

_STRATEGY, _SCHEDULE = "strategy", "schedule"


def known_system(name: str | None) -> str | None:
    """A preset's name, or None for the default one. Raises UsageError for other words, which may be paths."""
    return name if name is None else _known(name, system_names(), "system", "systems")


def known_model(name: str) -> str:
    """A name of the library of models. Raises UsageError for other words, which may be paths."""
    return _known(name, card_names(), "model", "models")


def _known(name: str, names: Sequence[str], what: str, verb: str) -> str:
    if name in names:
        return name
    hint = did_you_mean(name.lower(), names, most=3, cutoff=0.4)
    raise UsageError(f"no {what} of the library is named {shown(name)}{hint}: {call(verb)} lists them, and {NO_FILES}")


def plan_words(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan, checked. Raises UsageError for a name of a file, for other words, and for wrong types."""
    found = {str(word).replace("-", "_"): value for word, value in words.items()}
    typed_words(words)
    for word, value in found.items():
        check_value(word, value)
    return found


def check_value(word: str, value: Any) -> None:
    """Raise UsageError for a text that a plan would read as the name of a file.

    word: its name. value: as a request has it.
    """
    if not isinstance(value, str) or not value:
        return
    if word == _STRATEGY and not value.lstrip().startswith("{"):
        raise UsageError(f"{word} {shown(value)} is no strategy: give its JSON, as {NO_FILES}")
    if word == _SCHEDULE and not value.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"{word} {shown(value)} is no name of a schedule: give a name or task_order, as {NO_FILES}")
    if PLAN_WORDS[word].about.file:
        raise UsageError(f"{word} {shown(value)} is no list: give its values as a list, as {NO_FILES}")
