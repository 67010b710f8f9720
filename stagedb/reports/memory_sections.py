"""The sections of a report about memory."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from stagedb.files import GB
from stagedb.memory import Category, ClassMemory, Point
from stagedb.reports.page_parts import Bar, BarPart, bars, legend, level_ticks, percent, time_ticks
from stagedb.reports.step_view import Held, StepView, held, task_words
from stagedb.reports.terminal_chart import span
from stagedb.timing import Lane

# Memory over a step as pieces of a curve: over the time of a profile, or over the tasks of a rank class.

MOMENTS = 600
"""Moments of a memory curve. With more, the fullest of several consecutive ones represents them."""


@dataclass(frozen=True)
class MemoryCurve:
    """Memory over an axis: from each of `starts` to the next, the last until `end`.

    points: the fullest moment of each piece. sizes: bytes by category at these. timed: whether the axis is time [ns].
    """

    starts: Sequence[float]
    end: float
    points: Sequence[Point]
    sizes: Mapping[str, Sequence[int]]
    timed: bool = True

    @property
    def fullest(self) -> int:
        """The piece with the most bytes."""
        totals = [sum(sizes) for sizes in zip(*self.sizes.values(), strict=True)]
        return totals.index(max(totals))


@dataclass(frozen=True)
class TaskSpans:
    """When each task of a rank class runs in a step, by its place in the schedule. starts, finishes, step: ns."""

    starts: Sequence[int]
    finishes: Sequence[int]
    step: int

    @property
    def order(self) -> list[int]:
        """The places in the order in which they begin."""
        found: list[int] = np.argsort(self.starts, kind="stable").tolist()
        return found


@dataclass(frozen=True)
class Levels:
    """Memory of a rank of a lane over the time of a step [ns]: the peak within each task."""

    lane: Lane
    memory: ClassMemory
    curve: MemoryCurve

    @property
    def sizes(self) -> Mapping[str, Sequence[int]]:
        """By category, the bytes of each piece of the curve."""
        return self.curve.sizes


def levels(job: StepView) -> Levels | None:
    """Memory of a rank of the fullest lane over the step. None if it is not computed."""
    if not job.memory:
        return None
    fullest = max(job.memory, key=lambda each: sum(each.usage.at(each.peak).values()))
    lane = next(lane for lane in job.of_stages(None) if lane.rank_class == fullest.rank_class.number)
    starts = job.times.lanes[lane.number].tasks.start
    order = np.argsort(starts, kind="stable").tolist()
    pieces = [(int(starts[task]), piece) for task in order for _, piece in _pieces(fullest, task, 1)]
    return Levels(lane, fullest, _curve(fullest, pieces, job.times.step))


def curve_of(memory: ClassMemory) -> MemoryCurve:
    """Memory of a rank of a class over the tasks of its step, in their order: each has one unit of the axis."""
    count = len(memory.usage.tasks)
    parts = max(MOMENTS // max(count, 1), 1)
    pieces = [(task + begin, piece) for task in range(count) for begin, piece in _pieces(memory, task, parts)]
    return dataclasses.replace(_curve(memory, pieces, count), timed=False)


def curve_over_time(memory: ClassMemory, times: TaskSpans) -> MemoryCurve:
    """Memory of a rank of a class over the time of its step; the moments of a task are spread evenly over its time."""
    order = times.order
    parts = max(MOMENTS // max(len(order), 1), 1)
    pieces = []
    for task, following in zip(order, [*order[1:], None], strict=True):
        start = times.starts[task]
        end = times.finishes[task] if following is None else min(times.finishes[task], times.starts[following])
        pieces += [(start + begin * max(end - start, 0), piece) for begin, piece in _pieces(memory, task, parts)]
    return _curve(memory, pieces, times.step)


_Piece = tuple[int, int, list[int]]
"""The task and the item of the fullest moment of a piece, and its bytes by category."""


def _pieces(memory: ClassMemory, task: int, parts: int) -> Iterator[tuple[float, _Piece]]:
    """A task in at most `parts` pieces: where each begins in the task, from 0 to 1, and its fullest moment."""
    found = memory.usage.levels(task)
    totals = found.sum(axis=0)
    length = len(totals)
    size = -(-length // parts)
    for begin in range(0, length, size):
        at = begin + int(totals[begin : begin + size].argmax())
        yield begin / length, (task, at, [int(value) for value in found[:, at]])


def _curve(memory: ClassMemory, pieces: Sequence[tuple[float, _Piece]], end: float) -> MemoryCurve:
    """A curve of some pieces."""
    size = -(-len(pieces) // MOMENTS)
    picks = [
        # Several pieces become one: it begins where the first of them does, and has the levels of the fullest.
        (pieces[at][0], max((piece for _, piece in pieces[at : at + size]), key=lambda piece: sum(piece[2])))
        for at in range(0, len(pieces), size)
    ]
    sizes = {
        str(category): [column[row] for _, (_, _, column) in picks]
        for row, category in enumerate(Category)
        if any(column[row] for _, (_, _, column) in picks)
    }
    points = [memory.usage.fuller(task, index) for _, (task, index, _) in picks]
    return MemoryCurve([begin for begin, _ in picks], end, points, sizes)


CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer_state",
    "master_weights",
    "inputs_and_buffers",
    "activations",
    "recomputed",
    "gathered_parameters",
    "communication_buffers",
    "temporaries",
    "cache",
)
"""Categories of memory, from the bottom of a chart to its top."""


def room_of(job: StepView) -> float:
    """Bytes of an accelerator's memory that are for tensors; infinite without a limit."""
    room = job.system.accelerator.room
    return math.inf if room is None else float(room)


def limit_words(job: StepView) -> str:
    """The name of the line at which an accelerator's memory for tensors ends."""
    return "capacity less the reserve" if job.system.accelerator.reserve else "capacity"


def peaks_section(job: StepView, title: str = "") -> str:
    """Memory at the peak, by stage; empty if it is not computed. title: what its heading ends in."""
    peaks = held(job)
    if not peaks:
        return ""
    room = room_of(job)
    whole = max([peak.total for peak in peaks] + ([] if math.isinf(room) else [room])) * 1.02
    limit = None if math.isinf(room) else (room, f"{room / GB:,.4g} GB of an accelerator for tensors")
    shown = [each for each in CATEGORIES if any(peak.sizes.get(each) for peak in peaks)]
    several = len({peak.stages for peak in peaks}) < len(peaks)
    rows = [
        Bar(
            _class(peak) + (f", class {peak.rank_class}" if several else ""),
            [_part(peak, each) for each in shown],
            f"{peak.total / GB:,.1f} GB",
        )
        for peak in peaks
    ]
    items = [(f"m{CATEGORIES.index(each)}", each.replace("_", " ")) for each in shown]
    items += [("dashed", limit_words(job))] if limit else []
    fullest = max(peaks, key=lambda peak: peak.total)
    return (
        f"<section><h2>Memory at the peak{escape(title)}</h2><p>One rank's memory, by category. The fullest is at its "
        f"peak in {escape(fullest.when)}.</p>{legend(items)}{bars(rows, whole, limit)}</section>"
    )


def _part(peak: Held, category: str) -> BarPart:
    size = peak.sizes.get(category, 0)
    return BarPart(f"m{CATEGORIES.index(category)}", size, f"{category.replace('_', ' ')}: {size / GB:,.2f} GB")


def _class(peak: Held) -> str:
    first, last = peak.stages[0], peak.stages[-1]
    if first == last:
        return f"stage {first}"
    return f"stages {first}–{last}" if last - first + 1 == len(peak.stages) else f"stages {first}, …, {last}"


MomentLink = Callable[[int, Point], str]
"""The address of a page of the tensors of a moment, of a rank class and one of its points."""


def curve_section(job: StepView, link: MomentLink | None = None) -> str:
    """Memory of the fullest stage over the step; empty if it is not computed. link: of moments, on pages."""
    found = levels(job)
    if found is None:
        return ""
    room, curve, number = room_of(job), found.curve, found.memory.rank_class.number
    limit = (room, limit_words(job)) if room <= _top(curve, room) else None
    links = [] if link is None else moment_marks(found.memory, curve, link)
    more = ""
    if link is not None:
        to = escape(link(number, found.memory.peak))
        more = f' A click opens the tensors of a moment. <a href="{to}">The moment of the peak</a>'
    return (
        f"<section><h2>Memory over the step</h2><p>One rank's memory in {escape(job.label(found.lane))}, the fullest: "
        "the peak within each task"
        f"{f', and the {limit_words(job)} of an accelerator' if limit else ''}.{more}</p>"
        f"{curve_chart(curve, limit, time_ticks(job.times.step or 1), links, most=room)}</section>"
    )


@dataclass(frozen=True)
class MomentMark:
    """Where the tensors of a moment are, and what it is in words."""

    to: str
    text: str


def moment_marks(memory: ClassMemory, curve: MemoryCurve, link: MomentLink) -> list[MomentMark]:
    """A mark for each piece of a curve."""
    totals = [sum(sizes) for sizes in zip(*curve.sizes.values(), strict=True)]
    return [
        MomentMark(
            link(memory.rank_class.number, point),
            f"{size / GB:,.2f} GB in {task_words(memory.usage.tasks[point.task])}"
            + (f", at {span(start) if start else '0'} of the step" if curve.timed else ""),
        )
        for point, size, start in zip(curve.points, totals, curve.starts, strict=True)
    ]


def _top(curve: MemoryCurve, room: float) -> float:
    """Bytes at the top of a chart: a limit is on it if the memory comes near."""
    top = max(sum(sizes) for sizes in zip(*curve.sizes.values(), strict=True))
    return max([top] + ([] if math.isinf(room) or room > 4 * top else [room])) * 1.06 or 1


def curve_chart(
    curve: MemoryCurve,
    limit: tuple[float, str] | None,
    axis: str,
    links: Sequence[MomentMark] = (),
    chosen: int | None = None,
    most: float = math.inf,
) -> str:
    """A curve as areas by category. limit: bytes and name of a line. axis: HTML of the marks below it.

    links: one for each piece. chosen: the piece that is marked. most: bytes that the top may be.
    """
    whole, end = _top(curve, most), curve.end or 1
    shown = [each for each in CATEGORIES if each in curve.sizes]
    items = [(f"m{CATEGORIES.index(each)}", each.replace("_", " ")) for each in reversed(shown)]
    line = "" if limit is None else f'<path class="limit" d="M0 {1000 * (1 - limit[0] / whole):.0f}h100000"/>'
    edges = [*curve.starts, curve.end]
    marks = ""
    for at, mark in enumerate(links):
        x, wide = percent(edges[at], end), percent(edges[at + 1] - edges[at], end)
        style = ' class="chosen"' if at == chosen else ""
        marks += (
            f'<a href="{escape(mark.to)}" tabindex="-1"{style}><rect x="{x}" width="{wide}" height="100%">'
            f"<title>{escape(mark.text)}</title></rect></a>"
        )
    over = f'<svg class="moments" aria-hidden="true">{marks}</svg>' if marks else ""
    return (
        f"{legend([*items, *([('dashed', limit[1])] if limit else [])])}"
        f'<div class="plot">{level_ticks(whole, GB, "GB")}<svg viewBox="0 0 100000 1000" preserveAspectRatio="none" '
        f'role="img" aria-label="Memory over the step, by category">{_areas(curve, shown, whole)}{line}</svg>'
        f"{over}{axis}</div>"
    )


def _areas(curve: MemoryCurve, shown: Sequence[str], whole: float) -> str:
    """Categories on top of each other, each from the top of the one below."""
    across = [round(each / (curve.end or 1) * 100_000) for each in (*curve.starts, curve.end)]
    below = [0] * len(curve.starts)
    text = ""
    for category in shown:
        above = [low + size for low, size in zip(below, curve.sizes[category], strict=True)]
        steps = []
        for values in (above, below):
            points = [
                f"{x},{1000 * (1 - value / whole):.1f}"
                for at, value in enumerate(values)
                for x in (across[at], across[at + 1])
            ]
            steps.append(points)
        outline = " ".join([*steps[0], *reversed(steps[1])])
        text += f'<polygon class="m{CATEGORIES.index(category)}" points="{outline}"/>'
        below = above
    return text
