"""A report: one HTML file that shows what a step on a system does."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

import numpy as np

from stagedb.files import GB
from stagedb.files.texts import bytes_text
from stagedb.lowering.columns import Ints
from stagedb.plans import Plan
from stagedb.reports.candidates_chart import MS, axis_over, grid_of
from stagedb.reports.memory_sections import MomentLink, curve_section, peaks_section, room_of
from stagedb.reports.page_frame import chart_data, page
from stagedb.reports.page_parts import (
    EXPOSED,
    TERM_STYLES,
    Bar,
    BarPart,
    Cell,
    TableColumn,
    bars,
    facts,
    legend,
    percent,
    table,
)
from stagedb.reports.pipeline_chart import KEYS, STYLES, ZOOM, Gantt, gantt, lanes_shown
from stagedb.reports.roofline_chart import roofline
from stagedb.reports.step_view import StepView, held, hotspots, place_of, shares
from stagedb.reports.terminal_chart import WORDS, Doing, span
from stagedb.search.trials import BatchPoint, bound_of
from stagedb.search.what_ifs import what_ifs
from stagedb.systems.system import plain
from stagedb.timing import Lane, Reason
from stagedb.timing.expected_errors import error_of_step, error_words
from stagedb.timing.host_waits import host_notes, longest_wait
from stagedb.timing.step_profile import Merit
from stagedb.workflows import TASK_KINDS

# The section of a report about what a step would gain: the what-ifs of `advise`.


def advice_section(job: StepView) -> str:
    """What bounds the step, and the step with less of each loss."""
    found = what_ifs(job.times, job.durations, job.system, job.blocking)
    step = job.times.step
    if not found or not step:
        return ""
    peak = max((sum(each.usage.at(each.peak).values()) for each in job.memory), default=None)
    bound = bound_of(job.times, peak, job.system.accelerator.room)
    share = f"{bound.share:.0%} of {'the memory of an accelerator' if bound.kind == 'memory' else 'the step'}"
    columns = [TableColumn("If"), TableColumn("Step", True), TableColumn("Saves", True, True)]
    saved = [(step - each.step) / step for each in found]
    rows: list[list[Cell]] = [
        [each.name, (span(each.step), each.step), (f"{share:.1%}", share)]
        for each, share in zip(found, saved, strict=True)
    ]
    return (
        f"<section><h2>What would help</h2><p>The step is bound by {escape(bound.words)} ({escape(share)}). Each row "
        "is the step with less of one loss and all else as it is. <code>stagedb advise</code> also tries the plans "
        f"near this one.</p>{table(columns, rows, [max(each, 0.0) for each in saved])}</section>"
    )


# The critical path of a report, as a table: its legs in order, with the operator that takes most of each.

ROWS = 16
"""Rows of the table. A longer path has consecutive legs of a stage in one row, and then short neighbours too."""

_KINDS = tuple(TASK_KINDS.values())

WAITED = {
    Reason.START: "the beginning of the step",
    Reason.DEPENDENCY: "the work before it",
    Reason.STREAM: "its stream",
    Reason.MEMBER: "a rank of its group",
    Reason.MESSAGE: "a message",
}
"""What the first operator of a leg waited for."""


@dataclass(frozen=True)
class PathRow:
    """Consecutive legs of the critical path. first, last: places on the path of their first and last legs.

    start, ns: when the first leg begins, and how long all take. operator, operator_ns: what takes most of that, and its
    time. waited_for: why it begins no earlier.
    """

    first: int
    last: int
    lanes: tuple[int, ...]
    start: int
    ns: int
    tasks: str
    operator: str
    operator_ns: int
    waited_for: str


def path_rows_of(job: StepView, most: int = ROWS) -> list[PathRow]:
    """The critical path in rows from the beginning of the step to its end; together they are as long as the step.

    most: the largest number of rows.
    """
    legs = job.times.path.legs()
    count = len(legs.lane)
    if not count:
        return []
    firsts = np.arange(count)
    if count > most:
        fresh = np.ones(count, bool)
        fresh[1:] = legs.lane[1:] != legs.lane[:-1]
        firsts = np.flatnonzero(fresh)
    if len(firsts) > most:
        firsts = _without_short(firsts, np.append(legs.start[firsts], job.times.step), most)
    lasts = np.append(firsts[1:], count) - 1
    return [_row(job, first, last) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]


def _without_short(firsts: Ints, times: Ints, most: int) -> Ints:
    """The first rows of groups: each of the longest rows, joined with its short neighbours."""
    length = np.diff(times)
    kept = np.zeros(len(firsts), bool)
    kept[np.argsort(-length, kind="stable")[: most // 2]] = True
    # Short rows after each other are joined: a long one, and the first short one after it, begin a row.
    begins = kept.copy()
    begins[0] = True
    begins[1:] |= kept[:-1]
    return firsts[begins]


def _row(job: StepView, first: int, last: int) -> PathRow:
    path, legs = job.times.path, job.times.path.legs()
    nodes = slice(int(legs.first[first]), int(legs.first[last + 1]) if last + 1 < len(legs.first) else len(path))
    spent: Counter[str] = Counter()
    columns = job.times.network.columns
    lanes, ops, lengths = path.lane[nodes].tolist(), path.op[nodes].tolist(), path.length[nodes].tolist()
    for lane, op, ns in zip(lanes, ops, lengths, strict=True):
        of = columns[lane].ops
        name = place_of(of.name[op], of.kind[op], of.axis[op])
        spent[f"{name} ({of.axis[op]} {of.kind[op]})" if of.axis[op] else f"{name} ({of.kind[op]})"] += ns
    operator, operator_ns = spent.most_common(1)[0]
    start = int(legs.start[first])
    return PathRow(
        first,
        last,
        tuple(dict.fromkeys(legs.lane[first : last + 1].tolist())),
        start,
        int(legs.finish[last]) - start,
        _tasks(job, first, last),
        operator,
        operator_ns,
        WAITED[Reason(int(path.reason[nodes.start]))],
    )


def _tasks(job: StepView, first: int, last: int) -> str:
    """The tasks of some legs, in words."""
    legs, columns = job.times.path.legs(), job.times.network.columns
    pairs = dict.fromkeys(zip(legs.lane[first : last + 1].tolist(), legs.task[first : last + 1].tolist(), strict=True))
    kinds = [_KINDS[int(columns[lane].tasks.kind[task])] for lane, task in pairs]
    batches = [int(columns[lane].tasks.microbatch[task]) for lane, task in pairs]
    if len(pairs) == 1:
        return kinds[0].words if kinds[0].once else f"{kinds[0].words} of micro-batch {batches[0]}"
    words = [f"{count} {word}" if count > 1 else word for word, count in Counter(kind.words for kind in kinds).items()]
    some = [batch for kind, batch in zip(kinds, batches, strict=True) if not kind.once]
    if not some:
        return ", ".join(words)
    of = f"micro-batch {some[0]}" if min(some) == max(some) else f"micro-batches {min(some)}–{max(some)}"
    return f"{', '.join(words)} of {of}"


def _where(job: StepView, lanes: Sequence[int]) -> str:
    named = {lane.number: lane for lane in job.lanes}
    if len(lanes) <= 2:
        return " and ".join(job.label(named[lane]) for lane in lanes)
    stages = sorted({named[lane].stage for lane in lanes})
    return f"stages {stages[0]}–{stages[-1]}" if len(stages) > 1 else f"{len(lanes)} lanes of stage {stages[0]}"


def path_section(job: StepView) -> str:
    """The section of a report on the critical path, as HTML."""
    rows, step = path_rows_of(job), job.times.step or 1
    if not rows:
        return ""
    legs = rows[-1].last + 1
    columns = [
        TableColumn("#", True),
        TableColumn("stage"),
        TableColumn("time", True),
        TableColumn("of the step", True),
        TableColumn("task"),
        TableColumn("most of it"),
        TableColumn("begins", True),
        TableColumn("after"),
    ]
    cells: list[list[Cell]] = [
        [
            (f"{row.first + 1}" if row.first == row.last else f"{row.first + 1}–{row.last + 1}", row.first),
            _where(job, row.lanes),
            (span(row.ns), row.ns),
            (f"{row.ns / step:.1%}", row.ns / step),
            row.tasks,
            f"{row.operator}, {row.operator_ns / row.ns:.0%}" if row.ns else row.operator,
            (span(row.start) if row.start else "0", row.start),
            row.waited_for,
        ]
        for row in rows
    ]
    most = max(row.ns for row in rows) or 1
    joined = (
        f"Its {legs:,} legs, each inside one task, are joined into {len(rows)} rows of neighbours."
        if legs > len(rows)
        else "Each row is a part of it inside one task."
    )
    return (
        '<section class="long"><h2>The critical path</h2><p>What the length of the step consists of, in order: if any '
        f"of this takes longer, so does the step. {joined}</p>"
        f"{table(columns, cells, [row.ns / most for row in rows], 'busy')}</section>"
    )


# The sections of a report with the whole plan and the whole system.


def plan_and_system(job: StepView) -> str:
    """The sections of a report on the whole plan and the whole system, as HTML."""
    workload, system = job.workload, job.system
    accelerator = system.accelerator
    rates = ", ".join(f"{dtype} {_plain(rate)}" for dtype, rate in accelerator.peak.items())
    machine = {
        "accelerator": accelerator.name,
        "peak, TFLOP/s": rates,
        "memory": f"{_plain(accelerator.capacity)} GB at {_plain(accelerator.bandwidth)} GB/s",
        "of it reserved": _reserve(accelerator.reserve),
        "for tensors": "unlimited" if accelerator.room is None else f"{accelerator.room / GB:,.3f} GB",
        "a kernel's launch": f"{_plain(accelerator.launch)} ns",
        "computes": f"{system.overlap.compute}; communication streams: {system.overlap.streams}",
        "collectives": f"{system.collectives.model}; parts: {system.collectives.parts}",
    }
    if job.scalings:
        machine["as if"] = ", ".join(map(str, job.scalings))
    if job.blocking:
        machine["waits for communication on"] = ", ".join(job.blocking)
    sizes = {each.name: each.size for each in system.dimensions if each.use}
    for each in system.network(len(workload.ranks)):
        of = f"{each.size} of {sizes[each.name]}" if each.name in sizes else f"{each.size}"
        machine[each.name] = f"{of} places, {each.kind}, {_plain(each.bandwidth)} GB/s, {_plain(each.latency)} ns"
    measured = job.durations.coverage
    machine["measured"] = (
        f"{measured.share_of_time:.0%} of the time, {measured.share_of_ops:.0%} of the operators"
        if measured.measured_ops
        else "nothing: all times are the model's"
    )
    machine["error of predicted steps"] = error_text(job)
    machine["this step"] = f"{job.times.step:,} ns"
    plan = {"model": workload.model, "ranks": f"{len(workload.ranks):,}"}
    plan |= shown_plan(job)
    words, third = list(plan.items()), -(-len(plan) // 3)
    parts = "".join(facts(dict(words[at : at + third])) for at in range(0, len(words), third))
    sources = {str(at): source for at, source in enumerate(system.sources, 1)}
    return (
        f'<section><h2>The plan</h2><div class="thirds">{parts}</div></section>'
        f"<section><h2>The system</h2>{facts(machine)}<details><summary>Where its numbers are from</summary>"
        f"{facts(sources)}</details></section>"
    )


def _reserve(reserve: Sequence[tuple[str, Fraction]]) -> str:
    """What is held next to tensors, and how much."""
    return ", ".join(f"{name} {_plain(size)} GB" for name, size in reserve) or "nothing"


def shown_plan(job: StepView) -> dict[str, str]:
    """The words of the plan that have a value, as text."""
    return {name: _word(value) for name, value in sorted(job.workload.plan.items()) if _word(value)}


def _word(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> str:
    shown = plain(value)
    return "unlimited" if shown == ".inf" else f"{shown:,g}" if isinstance(shown, float) else f"{shown:,}"


def error_text(job: StepView) -> str:
    """The error to expect of the step, in words, with the published steps that it comes from."""
    return error_words(job.system, job.workload)


# The section of a report about its provenance: versions, inputs by their digests, the commands that make it again.

Made = Mapping[str, str]
"""Facts of a provenance by name."""


def provenance_section(made: Sequence[tuple[str, Made]], what: str = "page") -> str:
    """The section; empty without facts. made: the facts of each step, with its name where there are several. what: the
    same inputs make again.
    """
    shown = [(name, each) for name, each in made if each]
    if not shown:
        return ""
    parts = [f"{f'<h3>{escape(name)}</h3>' if name else ''}{facts(each)}" for name, each in shown]
    columns = f'<div class="columns">{"".join(f"<div>{part}</div>" for part in parts)}</div>'
    return (
        "<section><h2>How this was made</h2><p>The same inputs, by their digests, with the same versions make the same "
        f"{what}.</p>{columns if len(parts) > 1 else parts[0]}</section>"
    )


# The head of a report: the plan in short, figures of merit, and the most important facts in a sentence or two.

SHOWN = 4
"""Digits of the step. Its error is larger than what the fifth would add; the facts of the system have all of them."""


def report_head(job: StepView, title: str, figures: str) -> str:
    """The head of a page. figures: of `report_figures`. title: of the page."""
    ranks = ranks_of(job)
    return (
        f"<header><h1>{escape(title)}</h1><p>One training step of {escape(job.workload.model)} on {escape(ranks)}</p>"
        f"{figures}</header>"
    )


def report_figures(job: StepView) -> str:
    """The plan in short, figures of merit, and a summary."""
    return f'{chips(job)}<dl class="tiles">{_tiles(job, job.merit)}</dl><p class="lead">{escape(_summary(job))}</p>'


def ranks_of(job: StepView) -> str:
    """The accelerators of a step."""
    name, world = job.system.accelerator.name, job.merit.world
    return f"{world:,} × {name}" if world > 1 else name


def chips(job: StepView) -> str:
    """The plan in short, as HTML: a chip for each degree and word that matters."""
    plan, found = job.workload.plan, job.merit
    degrees = {axis: plan[axis] for axis in ("tp", "cp", "ep", "pp", "dp") if plan.get(axis, 1) != 1}
    words = {
        "micro-batch": plan["micro_batch_size"],
        "global batch": found.tokens // int(plan["seq_len"]),
        "sequence": f"{plan['seq_len']:,}",
        "schedule": plan["schedule"] if plan["pp"] > 1 else None,
        "virtual stages": plan["virtual_stages"] if plan["virtual_stages"] > 1 else None,
        "ZeRO": plan["zero"] or None,
        "recompute": None if plan["recompute"] == "none" else plan["recompute"],
        "recipe": plan["recipe"],
        "dtype": plan["dtype"],
    }
    shown = {**degrees, **({"sp": "on"} if plan.get("sp") else {}), **{k: v for k, v in words.items() if v is not None}}
    items = "".join(f"<li>{escape(name)} <b>{escape(str(value))}</b></li>" for name, value in shown.items())
    return f'<ul class="chips">{items}</ul>'


def _tiles(job: StepView, found: Merit) -> str:
    spent, again = shares(job), found.hardware_flops > found.model_flops and found.hfu is not None
    number, unit = span(found.step, SHOWN, zeros=True).split(" ")
    rate = found.model_flops / found.world / found.step * 1e-3 if found.step else math.inf
    more = f", {found.hfu:.1%} with recomputing" if again else ""
    tiles = [
        ("Step time", number, unit, f"{found.tokens:,} tokens; {error_in_short(job)}"),
        ("MFU", "–" if found.mfu is None else f"{100 * found.mfu:.1f}", "%", f"{rate:,.0f} TFLOP/s each{more}"),
        (
            "Tokens/s a rank",
            _short(found.tokens_per_second_per_accelerator or math.inf),
            "",
            f"{_short(found.tokens_per_second or math.inf)} a second in all",
        ),
        ("Communication", f"{100 * spent.exposed:.1f}", "%", "of the step is exposed: nothing is computed meanwhile"),
        ("Bubble", f"{100 * spent.bubble:.1f}", "%", "of the step: waiting for other stages"),
    ]
    text = "".join(tile(*each) for each in tiles)
    peaks = held(job)
    if peaks:
        most, room = max(peak.total for peak in peaks), room_of(job)
        note = (
            "no limit is known"
            if math.isinf(room)
            else f"of {room / GB:,.4g} GB for tensors: " + ("fits" if most <= room else "does not fit")
        )
        text += tile("Memory at the peak", f"{most / GB:,.1f}", "GB", note, bad=most > room)
    return text


def tile(name: str, value: str, unit: str, note: str, bad: bool = False) -> str:
    """A figure with its name and a note. bad: in the colour of what does not fit.

    unit: of the figure, in small letters; empty: none. value: the figure as a text.
    """
    style = ' class="bad"' if bad else ""
    small = f" <small>{escape(unit)}</small>" if unit else ""
    return (
        f'<div class="tile"><dt>{escape(name)}</dt><dd{style}>{escape(value)}{small}</dd>'
        f"<dd><p{style}>{escape(note)}</p></dd></div>"
    )


def _summary(job: StepView) -> str:
    """The most important facts, in a sentence or two."""
    spent = shares(job)
    parts = {"computing": spent.busy, "exposed communication": spent.exposed, "pipeline bubble": spent.bubble}
    parts["other waiting"] = spent.idle
    shown = [f"{share:.0%} {name}" for name, share in parts.items() if share >= 0.005]
    stages = job.times.path.parts("stage")
    kinds = job.times.path.parts("kind")
    text = f"An accelerator's step is {', '.join(shown)}."
    if stages and job.times.step and len(job.lanes) > 1:
        stage, time = next(iter(stages.items()))
        kind, most = next(iter(kinds.items()))
        share = time / job.times.step
        where = (
            f"spends {share:.0%} of its time in stage {stage}"
            if share >= 0.4
            else f"runs through {len(stages)} stages, longest through stage {stage} ({share:.0%})"
        )
        text += f" The critical path {where}; {most / job.times.step:.0%} of it are operators of kind {kind}."
    return text


def _short(value: float) -> str:
    if math.isinf(value):
        return "∞"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return (
                f"{value / (1e3 if letter == 'k' else size):,.3g}{letter}" if letter != "k" else f"{value / 1e3:,.3g}k"
            )
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def error_in_short(job: StepView) -> str:
    """The error to expect of such a prediction, in a few words."""
    if job.scalings:
        return "a what-if"
    if job.durations.coverage.measured_ops:
        return f"{job.durations.coverage.share_of_time:.0%} measured"
    expected = error_of_step(job.system, job.workload)
    if expected is None:
        return "error unknown"
    return f"expected error {expected.mean:.0%} on average, {expected.worst:.0%} at worst"


# The section of a report about requests at once: tokens a second against the time a token, and memory.


def requests_section(job: StepView) -> str:
    """The section of a report on other numbers of requests, as HTML; empty for a step without them."""
    points = job.batches
    if len(points) < 2:
        return ""
    prompts = not Plan.from_mapping(job.workload.plan).workflow.decodes
    waits = "time to the first token" if prompts else "time a token"
    columns = [
        TableColumn("Requests", True),
        TableColumn(waits.capitalize(), True),
        TableColumn("Tokens/s an accelerator", True),
        TableColumn("Memory, GB", True),
        TableColumn(""),
    ]
    rows: list[list[Cell]] = [
        [
            (f"{each.requests:,}", each.requests),
            (span(each.wait), each.wait),
            ("", 0.0) if each.tokens is None else (f"{each.tokens:,.1f}", each.tokens),
            (f"{each.peak / GB:,.1f}", each.peak),
            ", ".join(text for text, is_so in (("this plan", each.own), ("does not fit", not each.fits)) if is_so),
        ]
        for each in points
    ]
    drawn = "" if any(each.tokens is None for each in points) else _curve(points, waits)
    most = max((each.tokens or 0.0 for each in points), default=0.0)
    shares = [(each.tokens or 0.0) / most for each in points] if most else []
    return (
        "<section><h2>More requests at once</h2><p>The step with other numbers of requests, each as long as those of "
        f"this plan, up to the first that does not fit.</p>{drawn}{table(columns, rows, shares)}</section>"
    )


def _curve(points: Sequence[BatchPoint], waits: str) -> str:
    """Tokens a second over the time a token, a mark for each number of requests."""
    x = axis_over([each.wait / MS for each in points])
    y = axis_over([each.tokens or 0.0 for each in points])
    places = [(100 * x.at(each.wait / MS), 100 * (1 - y.at(each.tokens or 0.0))) for each in points]
    lines = "".join(
        f'<line class="front" x1="{left:.2f}%" y1="{above:.2f}%" x2="{right:.2f}%" y2="{below:.2f}%"/>'
        for (left, above), (right, below) in itertools.pairwise(places)
    )
    marks = "".join(
        _mark(each, waits, percent(at / 100, 1), percent(up / 100, 1))
        for each, (at, up) in zip(points, places, strict=True)
    )
    labels = "".join(
        f'<text class="named" x="{at:.2f}%" y="{up:.2f}%" dx="8" dy="-6">{each.requests:,}</text>'
        for each, (at, up) in zip(points, places, strict=True)
        if each.own or each.requests == max(one.requests for one in points if one.fits or one.own)
    )
    best = max((each for each in points if each.fits), key=lambda each: each.tokens or 0.0, default=None)
    about = (
        "None of these numbers of requests fits."
        if best is None
        else f"With {best.requests:,} requests it has the most tokens a second that fit: {best.tokens:,.1f} an "
        f"accelerator, {waits} {span(best.wait)}. An open mark does not fit."
    )
    return (
        '<figure class="candidates requests"><div class="area"><p class="unit">tokens/s an accelerator</p>'
        '<div class="field"><svg role="img" aria-labelledby="requests-title">'
        f'<title id="requests-title">{escape(f"Tokens a second by {waits}: {about}")}</title>'
        f'{grid_of(x, y)}{lines}<g class="marks">{marks}</g>{labels}</svg></div>'
        f'<p class="axis">{escape(waits)}, ms</p></div><figcaption>{escape(about)}</figcaption></figure>'
    )


def _mark(point: BatchPoint, waits: str, x: str, y: str) -> str:
    text = (
        f"{point.requests:,} requests: {point.tokens:,.1f} tokens/s an accelerator, {waits} {span(point.wait)}, "
        f"{point.peak / GB:,.1f} GB{'' if point.fits else ', does not fit'}"
    )
    style = f"k0{' best' if point.own else ''}{'' if point.fits else ' set'}"
    return f'<circle class="{style}" cx="{x}" cy="{y}" r="5"><title>{escape(text)}</title></circle>'


# Sections of a report: the pipeline, where the time of the stages goes, and what they communicate.

HOTSPOTS = 40
"""Rows of the table of communication."""


def pipeline(charts: Sequence[Gantt], heading: str = "The pipeline") -> str:
    """The section with the chart of a step, or with those of two on one scale. heading: of the section."""
    lanes = [lane for chart in charts for lane in chart.data]
    doings = [Doing(value) for value in sorted({row[2] for lane in lanes for row in lane["spans"]})]
    doings = doings or list(Doing)[:-1]
    items = [(STYLES[doing], WORDS[doing]) for doing in [*doings, Doing.IDLE] if doing != Doing.IDLE]
    items += [("waiting", "waiting"), ("stroke", "critical path")]
    left_out = dict.fromkeys(each for chart in charts for each in chart.left_out)
    note = "".join(f'<p class="small">{escape(each[0].upper() + each[1:])}.</p>' for each in left_out)
    return (
        f"<section><h2>{escape(heading)}</h2><p>What every stage does over time. A block is filled up to its share of "
        "compute; the pale part above communicates or waits. Neighbouring micro-batches differ in shade. The line is "
        "the critical path: the step gets shorter only if something on this path does.</p>"
        f"{legend(items).removesuffix('</div>')}{ZOOM}</div>{''.join(chart.html for chart in charts)}{KEYS}{note}"
        "</section>"
    )


def stages(job: StepView, lanes: Sequence[Lane], heading: str = "Where the time goes") -> str:
    """The section with the shares of the step, by stage. heading: of the section."""
    step = job.times.step or 1
    words = (
        (TERM_STYLES["busy"], "computing"),
        (EXPOSED, "exposed communication"),
        (TERM_STYLES["bubble"], "bubble"),
        (TERM_STYLES["idle"], "idle"),
    )
    rows = []
    for lane in lanes:
        times = job.times.lanes[lane.number]
        values = (times.busy, times.exposed, times.bubble, times.idle)
        parts = [
            BarPart(style, value, f"{word}: {span(value)}, {value / step:.1%}")
            for (style, word), value in zip(words, values, strict=True)
        ]
        rows.append(Bar(job.label(lane), parts, f"{times.busy / step:.0%} busy"))
    waited = longest_wait(job.times.network.columns, job.durations)
    notes = "".join(
        f" {escape(note[0].upper() + note[1:])}." for note in host_notes(waited, job.times.step, job.workload.plan)
    )
    return (
        f"<section><h2>{escape(heading)}</h2><p>By stage, as shares of the step. Communication counts if the stage "
        f"computes nothing meanwhile.{notes}</p>{legend(words)}{bars(rows, step)}</section>"
    )


def communication(job: StepView) -> str:
    """The section with the communication, the most exposed first."""
    rows, step = hotspots(job), job.times.step or 1
    if not rows:
        return "<section><h2>Communication</h2><p>There is none.</p></section>"
    shown = rows[:HOTSPOTS]
    most = max(row.time for row in rows) or 1
    columns = [
        TableColumn("axis"),
        TableColumn("kind"),
        # The sorted column comes first, because a phone shows only the first ones.
        TableColumn("exposed", True, first=True),
        TableColumn("of the step", True),
        TableColumn("place in the model"),
        TableColumn("time a rank", True),
        TableColumn("bytes", True),
        TableColumn("on the wire", True),
        TableColumn("calls", True),
    ]
    cells: list[list[Cell]] = [
        [
            row.axis,
            row.kind.replace("_", "-"),
            (span(row.exposed), row.exposed),
            (f"{row.exposed / step:.1%}", row.exposed / step),
            row.place,
            (span(row.time), row.time),
            (bytes_text(row.bytes), row.bytes),
            (bytes_text(row.wire), row.wire),
            (f"{row.calls:,}", row.calls),
        ]
        for row in shown
    ]
    rest = rows[HOTSPOTS:]
    more = (
        f'<p class="small">{len(rest)} more take {span(sum(row.time for row in rest))} a rank together.</p>'
        if rest
        else ""
    )
    return (
        '<section class="long"><h2>Communication</h2><p>All layers together. Calls, bytes (operands) and the bytes '
        "sent into the network are sums over all ranks; times are means over all ranks. Exposed is what no computing "
        "hides.</p>"
        f"{table(columns, cells, [row.exposed / most for row in shown])}{more}</section>"
    )


@dataclass(frozen=True)
class PageParts:
    """The parts of a report, as HTML for an element of the class `parts`.

    figures: the plan in short, figures of merit and a summary. sections: all others.
    """

    figures: str
    sections: str
    charts: tuple[Gantt, ...]

    @property
    def html(self) -> str:
        """Figures and sections as one HTML text, with the data that its script needs."""
        return f"{self.figures}{self.sections}{chart_data(self.charts)}"


def step_parts(job: StepView, link: MomentLink | None = None) -> PageParts:
    """The parts of the report of a step. link: of the moments of memory, on pages."""
    lanes = lanes_shown(job)
    chart = gantt(job, lanes)
    sections = [
        pipeline((chart,)),
        path_section(job),
        f'<div class="columns">{stages(job, lanes)}{peaks_section(job)}</div>',
        curve_section(job, link),
        communication(job),
        requests_section(job),
        advice_section(job),
        roofline(job),
        plan_and_system(job),
    ]
    return PageParts(report_figures(job), "".join(sections), (chart,))


def render(job: StepView, made: Made | None = None) -> str:
    """The report of a step. made: facts of its provenance by name."""
    title = f"{job.workload.name} on {job.system.name}"
    parts = step_parts(job)
    sections = parts.sections + provenance_section([("", made or {})])
    footer = (
        "Counts are exact; times are those of a model of the system, or measured where durations were given. "
        f"Instance {job.workload.instance}. Written by stagedb."
    )
    head, draws = report_head(job, title, parts.figures), bool(job.batches)
    step = f"a step of {job.workload.plan['workflow']}"
    return page(f"{title}: {step}", head, sections, footer, parts.charts, picture=draws)
