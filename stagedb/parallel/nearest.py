"""The nearest numbers that would do, for those whose own do not."""

from collections.abc import Callable

from stagedb.parallel.words import option


def nearest(value: int, limit: int, valid: Callable[[int], bool]) -> list[int]:
    """The valid numbers next to `value`, below and above (up to `limit`)."""
    below = next((n for n in range(min(value - 1, limit), 0, -1) if valid(n)), None)
    above = next((n for n in range(value + 1, limit + 1) if valid(n)), None)
    return [n for n in (below, above) if n is not None]


def either(word: str, values: list[int]) -> str:
    """The options that say them: `--ep 3 or --ep 6`."""
    return " or ".join(f"{option(word)} {value}" for value in values)
