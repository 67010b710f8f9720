"""Lists of numbers as text."""

from collections.abc import Iterable


def spans_of(numbers: Iterable[int]) -> str:
    """Ascending numbers with those that follow each other as one, such as `1-3, 5`."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
