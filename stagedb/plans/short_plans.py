"""A plan in short, from its words alone: lists of plans are read without the declarations of words."""

from collections.abc import Mapping

AXES = ("tp", "pp", "cp", "ep", "dp")
"""The degrees of parallelism in the order in which people read them."""


def place_of(word: str) -> int:
    """The place of a word among those of a plan: degrees first, in the order of `AXES`."""
    return AXES.index(word) if word in AXES else len(AXES)


def short_plan(words: Mapping[str, object]) -> str:
    """A plan by its degrees above 1, such as `tp8 pp4 dp32`; `1 rank` if all of them are 1.

    words: of the plan, by name.
    """
    degrees = [(axis, words.get(axis, 1)) for axis in AXES]
    return " ".join(f"{axis}{degree}" for axis, degree in degrees if degree != 1) or "1 rank"
