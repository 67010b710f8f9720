"""The sections of a report about memory."""

import math
from collections.abc import Sequence
from html import escape

from stagedb.outputs import GB
from stagedb.reports.figures import Held, Levels, held, levels
from stagedb.reports.page_parts import Bar, BarPart, bars, legend, level_ticks, time_ticks
from stagedb.reports.step_view import StepView

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


def curve_section(job: StepView) -> str:
    """Memory of the fullest stage over the step; empty if it is not computed."""
    found = levels(job)
    if found is None:
        return ""
    room, step = room_of(job), job.times.step or 1
    top = max(sum(sizes) for sizes in zip(*found.sizes.values(), strict=True))
    whole = max([top] + ([] if math.isinf(room) or room > 4 * top else [room])) * 1.06 or 1
    shown = [each for each in CATEGORIES if each in found.sizes]
    limit = ""
    if room <= whole:
        y = 1000 * (1 - room / whole)
        limit = f'<path class="limit" d="M0 {y:.0f}h100000"/>'
    items = [(f"m{CATEGORIES.index(each)}", each.replace("_", " ")) for each in reversed(shown)]
    return (
        f"<section><h2>Memory over the step</h2><p>One rank's memory in {escape(job.label(found.lane))}, the fullest: "
        "the peak within each task"
        f"{f', and the {limit_words(job)} of an accelerator' if limit else ''}.</p>"
        f"{legend([*items, *([('dashed', limit_words(job))] if limit else [])])}"
        f'<div class="plot">{level_ticks(whole, GB, "GB")}<svg viewBox="0 0 100000 1000" preserveAspectRatio="none" '
        f'role="img" aria-label="Memory over time">{_areas(found, shown, whole, step)}{limit}</svg>'
        f"{time_ticks(step)}</div></section>"
    )


def _areas(found: Levels, shown: Sequence[str], whole: float, step: int) -> str:
    """Categories on top of each other, each from the top of the one below."""
    across = [round(time / step * 100_000) for time in (*found.times, step)]
    below = [0] * len(found.times)
    text = ""
    for category in shown:
        above = [low + size for low, size in zip(below, found.sizes[category], strict=True)]
        steps = []
        for line in (above, below):
            points = [
                f"{x},{1000 * (1 - value / whole):.1f}"
                for at, value in enumerate(line)
                for x in (across[at], across[at + 1])
            ]
            steps.append(points)
        outline = " ".join([*steps[0], *reversed(steps[1])])
        text += f'<polygon class="m{CATEGORIES.index(category)}" points="{outline}"/>'
        below = above
    return text
