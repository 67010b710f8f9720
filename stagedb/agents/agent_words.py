"""Messages as agents see them: arguments and names of tools, and commands for what only a person can do."""

from collections.abc import Mapping
from typing import Final

from stagedb.mentions import OPTIONS, Form, VerbCall, Word, value_text

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
