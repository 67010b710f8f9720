"""The curves of a system's tables for a terminal: a bar for each size."""

from collections.abc import Mapping, Sequence
from typing import Any

BAR = 20
"""Columns of a bar at the whole peak."""


def draw_curves(points: Sequence[Mapping[str, Any]]) -> str:
    """A block of lines for each table, of at most 80 columns: size, rate, and its share of the peak as a bar."""
    lines: list[str] = []
    drawn = None
    for point in points:
        table = point["operator"], point["dtype"]
        if table != drawn:
            whole = "bandwidth" if point["unit"] == "GB/s" else "peak"
            lines += ["", f"{point['operator']} {point['dtype']}: {point['unit']}, share of the {whole}"]
            drawn = table
        share = min(point["share"], 1.0)
        bar = "█" * round(share * BAR)
        lines.append(f"  {point['size']:<36} {point['rate']:>8,.5g} {bar:<{BAR}} {point['share']:>5.0%}")
    return "\n".join(lines[1:])
