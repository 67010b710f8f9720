"""Messages about a plan whose words are in a file: keys of that file in place of options."""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from stagedb.files import path_text
from stagedb.mentions import OPTIONS, Options, Word, shown_in, value_text
from stagedb.plans.aspects import PLAN_WORDS


@dataclass(frozen=True)
class PlanFileKeys(Options):
    """Keys of a plan's file, `tp: 4`; options for words that the command line gives, and for others than a plan's."""

    file: Path
    given: Set[str]

    def word(self, word: Word) -> str:
        """`tp: 4`, with the marks of code; the name alone without a value."""
        if word.name not in PLAN_WORDS or word.name in self.given:
            return super().word(word)
        if word.value is None:
            return word.name
        return f"`{word.name}: {str(word.value).lower() if isinstance(word.value, bool) else value_text(word.value)}`"

    def words(self, words: tuple[Word, ...]) -> str:
        """Words as keys of a file, such as `tp: 4, pp: 2`. words: with their values."""
        return ", ".join(map(self.word, words))

    def whole(self, text: str, message: str) -> str:
        """The message after the file's name, if it names keys of the file.

        text: the message in the file's words. message: as the core has it.
        """
        place = path_text(self.file)
        return text if place in text or text == shown_in(OPTIONS, message) else f"{place}: {text}"
