"""Numbers as text."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

EVEN = 5e-5
"""Steps whose rates differ by less than this share are equally fast: in percent with two digits, 0.00%."""


def spans_of(numbers: Iterable[int]) -> str:
    """Ascending numbers with those that follow each other as one, such as `1-3, 5`."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def parts_in(unit: int, parts: Sequence[int]) -> list[int]:
    """Integers in a larger unit, rounded so that they still add up: the sum is that of `parts`, rounded.

    Each is less than one unit away, and what is 0 remains 0.
    """
    sums = [(2 * each + unit) // (2 * unit) for each in accumulate(parts, initial=0)]
    return [after - before for before, after in pairwise(sums)]


def bytes_text(size: float, digits: int = 3) -> str:
    """Bytes, 0 or more, in a readable unit with `digits` significant digits: `22.17 MB`. size: in bytes."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.{digits}g} {unit}"
        size /= 1000
    return f"{size:,.{digits}g} PB"


def nth(number: int) -> str:
    """A place in English: 2nd, 11th, 23rd. number: from 0."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
