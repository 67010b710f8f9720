"""Words that were nearly written right: the known ones like them, and the question whether one of these is meant."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known words that are most like a word, the best first.

    most: how many at most. cutoff: the least similarity, from 0 to 1 (`difflib.SequenceMatcher.ratio`).
    """
    return get_close_matches(word, known, most, cutoff)


def question(near: Sequence[str], form: str = " ({})", between: str = " or ") -> str:
    """`did you mean tp or dp?` for the words in `near`, put into `form` in place of `{}`; empty without words.

    between: the text between two of the words.
    """
    return form.format(f"did you mean {between.join(near)}?") if near else ""


def did_you_mean(
    word: str, known: Iterable[str], form: str = " ({})", *, most: int = 1, cutoff: float = 0.6, between: str = " or "
) -> str:
    """The `question` whether a known word is meant; empty if none is like the word. most, cutoff: as in `nearest`.

    word: the unknown one. form, between: as in `question`.
    """
    return question(nearest(word, known, most, cutoff), form, between)
