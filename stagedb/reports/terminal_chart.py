"""A step's Gantt chart for a terminal: a row for each lane, columns of time."""

import textwrap
from collections.abc import Sequence

import numpy as np

from stagedb.errors import UsageError
from stagedb.lowering.columns import Ints
from stagedb.mentions import OPTIONS, Word
from stagedb.reports.spans import WORDS, Doing, covered, shares, spans
from stagedb.reports.step_view import StepView

LETTERS = "fbwrsc."
"""By `Doing`; capitals on the critical path, `*` if the lane of the critical path waits."""

COLORS = ("34", "33", "36", "35", "32", "31", "90")
"""Terminal colours, by `Doing`."""

NARROWEST = 24
"""Columns that a chart needs in addition to its labels and shares."""


def draw(job: StepView, width: int, stages: Sequence[int] | None = None, color: bool = False) -> str:
    """The chart as lines of at most `width` columns. stages: rows for these only; color: with terminal colours.

    A cell shows what its lane does for most of its time. In each column, the lane in which the critical path spends
    most of it has capitals, if that lane is shown. Raises UsageError for a width that is too small, and for a stage
    that does not exist.
    """
    lanes = job.of_stages(stages)
    labels = [job.label(lane) for lane in lanes]
    margin = max(map(len, labels)) + len(" | 100% busy")
    columns = width - margin
    if columns < NARROWEST:
        raise UsageError(
            f"a chart of {width} columns leaves {max(columns, 0)} for time: it needs {NARROWEST + margin} "
            f"({Word('width')})"
        )
    marked = _marked(job, columns)
    lines = [_head(job, columns, margin)]
    found = [spans(job, lane) for lane in lanes]
    for lane, label, each in zip(lanes, labels, found, strict=True):
        cells = shares(each, job.times.step, columns).argmax(axis=1)
        busy = round(100 * job.times.lanes[lane.number].busy / job.times.step) if job.times.step else 0
        row = _row(cells.tolist(), (marked == lane.number).tolist(), color)
        lines.append(f"{label:<{margin - 12}} {row} {busy:3}% busy".rstrip())
    lines += _legend(width)
    lengths = np.concatenate([(each.finish - each.start)[each.task >= 0] for each in found])
    usual = float(np.median(lengths)) if len(lengths) else 0.0
    if usual * columns < job.times.step:
        lines += textwrap.wrap(
            f"A column is longer than most tasks ({span(usual)}): shorter work in it does not show. A larger "
            f"{OPTIONS.word(Word('width'))} shows more.",
            width,
        )
    return "".join(f"{line}\n" for line in lines)


def _marked(job: StepView, columns: int) -> Ints:
    """For each column of time, the lane in which the critical path spends most of it."""
    legs = job.times.path.legs()
    edges = np.linspace(0, job.times.step, columns + 1)
    spent = np.zeros((len(job.lanes), columns))
    for lane in np.unique(legs.lane).tolist():
        here = legs.lane == lane
        spent[lane] = np.diff(covered(legs.start[here], legs.finish[here], edges))
    most: Ints = spent.argmax(axis=0)
    return most


def _row(cells: Sequence[int], marked: Sequence[bool], color: bool) -> str:
    text, last = "", ""
    for doing, critical in zip(cells, marked, strict=True):
        letter = LETTERS[doing]
        if critical:
            letter = "*" if doing == Doing.IDLE else letter.upper()
        style = f"{COLORS[doing]};1;4" if critical else COLORS[doing]
        if color and style != last:
            text += f"\033[0;{style}m"
            last = style
        text += letter
    return f"{text}\033[0m" if color else text


def _head(job: StepView, columns: int, margin: int) -> str:
    left, right = "0", span(job.times.step)
    each = f"a column {span(job.times.step / columns)}"
    line = f"{left}{each:^{max(columns - len(left) - len(right), len(each) + 2)}}{right}"
    if len(line) > columns:
        line = f"{left}{right:>{columns - 1}}"
    return f"{'':<{margin - 12}} {line}"


def _legend(width: int) -> list[str]:
    words = [f"{LETTERS[doing]} {WORDS[doing]}" for doing in Doing]
    words += ["CAPITALS critical path", "* it waits here"]
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 3 + len(word) > width:
            lines.append("")
        lines[-1] += f"   {word}" if lines[-1] else word
    return lines


def span(ns: float, digits: int = 3, zeros: bool = False) -> str:
    """A duration in a readable unit. ns: the duration. digits: significant ones. zeros: keep those at its end."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{_digits(ns / size, digits, zeros)} {unit}"
    return f"{_digits(ns, digits, zeros and ns != round(ns))} ns"


def _digits(value: float, digits: int, zeros: bool) -> str:
    before = len(f"{value:.0f}") if value >= 1 else 1
    text = f"{value:.{max(digits - before, 0)}f}"
    if zeros:
        return text
    return text.rstrip("0").rstrip(".") if "." in text else text
