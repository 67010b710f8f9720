"""Columns of exact integers as people read them in a table: ns as ms, bytes as GB, ratios in percent."""

from collections.abc import Sequence
from typing import Any

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")),
    "flop": ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")),
    "tokens/s": ((1, "tokens/s"),),
}
"""For each unit of a column the units of people, the largest first. A column has one for all its rows."""


def shown_column(name: str, unit: str | None, values: Sequence[Any]) -> tuple[str, list[str]] | None:
    """The head of a column with its unit, and its cells; None for a column that is shown as it is.

    unit: the column's unit, as in a statement's header. name: of the column. values: of its cells.
    """
    numbers = [value for value in values if value is not None]
    if not numbers or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers):
        return None
    if unit == "ratio":
        return f"{name} %", [_text(None if value is None else 100 * value, 1) for value in values]
    scales = _SCALES.get(unit or "")
    if scales is None:
        return None
    if name == unit:
        name = "time" if unit == "ns" else "size"
    largest = max(abs(value) for value in numbers)
    scale, word = next((each for each in scales if largest >= each[0]), scales[-1])
    digits = 0 if scale == 1 and all(float(value).is_integer() for value in numbers) else 3 if scale > 1 else 1
    return f"{name} {word}", [_text(None if value is None else value / scale, digits) for value in values]


def _text(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    least = 10.0**-digits
    if 0 < abs(value) < least / 2:
        return f"<{least:.{digits}f}" if value > 0 else f">-{least:.{digits}f}"
    return f"{value:,.{digits}f}"
