"""A report: one HTML file that shows what a step on a system does. It fetches nothing.

All text is escaped, and data are JSON that cannot end a script, because names come from a store that others write to.
"""

import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from stagedb.reports.figures import GB, held, hotspots, shares
from stagedb.reports.memory_sections import curve_section, peaks_section, room_of
from stagedb.reports.page_parts import Bar, BarPart, Cell, TableColumn, bars, facts, legend, table
from stagedb.reports.pipeline_chart import STYLES, Gantt, gantt, lanes_shown
from stagedb.reports.roofline_chart import roofline
from stagedb.reports.spans import WORDS, Doing
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import span
from stagedb.systems.system import plain
from stagedb.timing import Lane
from stagedb.timing.figures_of_merit import Merit

EXACT = 6
"""Digits of the step. They distinguish two reports."""

HOTSPOTS = 40
"""Rows of the table of communication."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(job: StepView) -> str:
    """The report of a step."""
    found, lanes = job.merit, lanes_shown(job)
    chart = gantt(job, lanes)
    workload = job.workload
    title = f"{workload.name} on {job.system.name}"
    data = {"step": job.times.step, "words": WORDS, "lanes": chart.data}
    sections = [
        _pipeline(job, chart),
        f'<div class="columns">{_stages(job, lanes)}{peaks_section(job)}</div>',
        curve_section(job),
        _communication(job),
        roofline(job),
        _facts(job),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="stagedb">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: a training step</title><style>{_own('report.css')}</style></head>"
        f"<body><main>{_head(job, found, title)}{''.join(sections)}"
        "<footer>Counts are exact; times are those of a model of the system, or measured where durations were given. "
        f"Instance {escape(workload.instance)}. Written by stagedb.</footer></main>"
        f'<div id="tip"></div><script type="application/json" id="data">{as_json(data)}</script>'
        f"<script>{_own('report.js')}</script></body></html>\n"
    )


def as_json(value: Any) -> str:
    """JSON for a script of a page. Nothing in it can end the script."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _own(name: str) -> str:
    return files("stagedb.reports").joinpath(name).read_text(encoding="utf-8")


def _head(job: StepView, found: Merit, title: str) -> str:
    plan = job.workload.plan
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
    chips = "".join(f"<li>{escape(name)} <b>{escape(str(value))}</b></li>" for name, value in shown.items())
    ranks = f"{found.world:,} × {job.system.accelerator.name}" if found.world > 1 else job.system.accelerator.name
    return (
        f"<header><h1>{escape(title)}</h1><p>One training step of {escape(job.workload.model)} on {escape(ranks)}</p>"
        f'<ul class="chips">{chips}</ul><dl class="tiles">{_tiles(job, found)}</dl>'
        f'<p class="lead">{escape(_summary(job))}</p></header>'
    )


def _tiles(job: StepView, found: Merit) -> str:
    spent, again = shares(job), found.hardware_flops > found.model_flops and found.hfu is not None
    number, unit = span(found.step, EXACT).split(" ")
    rate = found.model_flops / found.world / found.step * 1e-3 if found.step else math.inf
    more = f", {found.hfu:.1%} with recomputing" if again else ""
    tiles = [
        ("Step time", number, unit, f"{found.tokens:,} tokens"),
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
    text = "".join(_tile(*each) for each in tiles)
    peaks = held(job)
    if peaks:
        most, room = max(peak.total for peak in peaks), room_of(job)
        note = (
            "no limit is known"
            if math.isinf(room)
            else f"of {room / GB:,.4g} GB: " + ("fits" if most <= room else "does not fit")
        )
        text += _tile("Memory at the peak", f"{most / GB:,.1f}", "GB", note, bad=most > room)
    return text


def _tile(name: str, value: str, unit: str, note: str, bad: bool = False) -> str:
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


def _pipeline(job: StepView, chart: Gantt) -> str:
    doings = [Doing(value) for value in sorted({row[2] for lane in chart.data for row in lane["spans"]})]
    doings = doings or list(Doing)[:-1]
    items = [(STYLES[doing], WORDS[doing]) for doing in [*doings, Doing.IDLE] if doing != Doing.IDLE]
    items += [("waiting", "waiting"), ("stroke", "critical path")]
    note = "".join(f'<p class="small">{escape(each[0].upper() + each[1:])}.</p>' for each in chart.left_out)
    zoom = '<label class="zoom">Zoom <input id="zoom" type="range" min="0" max="6" step="0.25" value="0"></label>'
    return (
        "<section><h2>The pipeline</h2><p>What every stage does over time. A block is filled up to its share of "
        "compute; the pale part above communicates or waits. Neighbouring micro-batches differ in shade. The line is "
        "the critical path: the step gets shorter only if something on this path does.</p>"
        f"{legend(items).removesuffix('</div>')}{zoom}</div>{chart.html}{note}</section>"
    )


def _stages(job: StepView, lanes: Sequence[Lane]) -> str:
    step = job.times.step or 1
    words = (("busy", "computing"), ("communication", "exposed communication"), ("waiting", "bubble"), ("idle", "idle"))
    rows = []
    for lane in lanes:
        times = job.times.lanes[lane.number]
        values = (times.busy, times.exposed, times.bubble, times.idle)
        parts = [
            BarPart(style, value, f"{word}: {span(value)}, {value / step:.1%}")
            for (style, word), value in zip(words, values, strict=True)
        ]
        rows.append(Bar(job.label(lane), parts, f"{times.busy / step:.0%} busy"))
    return (
        "<section><h2>Where the time goes</h2><p>By stage, as shares of the step. Communication counts if the stage "
        f"computes nothing meanwhile.</p>{legend(words)}{bars(rows, step)}</section>"
    )


def _communication(job: StepView) -> str:
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
            (_bytes(row.bytes), row.bytes),
            (_bytes(row.wire), row.wire),
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


def _facts(job: StepView) -> str:
    workload, system = job.workload, job.system
    accelerator = system.accelerator
    rates = ", ".join(f"{dtype} {_plain(rate)}" for dtype, rate in accelerator.peak.items())
    machine = {
        "accelerator": accelerator.name,
        "peak, TFLOP/s": rates,
        "memory": f"{_plain(accelerator.capacity)} GB at {_plain(accelerator.bandwidth)} GB/s",
        "a kernel's launch": f"{_plain(accelerator.launch)} ns",
        "computes": f"{system.overlap.compute}; communication streams: {system.overlap.streams}",
    }
    if job.scalings:
        machine["as if"] = ", ".join(map(str, job.scalings))
    if job.blocking:
        machine["waits for communication on"] = ", ".join(job.blocking)
    for each in system.network(len(workload.ranks)):
        machine[each.name] = (
            f"{each.size} places, {each.kind}, {_plain(each.bandwidth)} GB/s, {_plain(each.latency)} ns"
        )
    measured = job.durations.coverage
    machine["measured"] = (
        f"{measured.share_of_time:.0%} of the time, {measured.share_of_ops:.0%} of the operators"
        if measured.measured_ops
        else "nothing: all times are the model's"
    )
    plan = {"model": workload.model, "ranks": f"{len(workload.ranks):,}"}
    plan |= {name: _word(value) for name, value in sorted(workload.plan.items()) if _word(value)}
    words, third = list(plan.items()), -(-len(plan) // 3)
    parts = "".join(facts(dict(words[at : at + third])) for at in range(0, len(words), third))
    sources = {str(at): source for at, source in enumerate(system.sources, 1)}
    return (
        f'<section><h2>The plan</h2><div class="thirds">{parts}</div></section>'
        f"<section><h2>The system</h2>{facts(machine)}<details><summary>Where its numbers are from</summary>"
        f"{facts(sources)}</details></section>"
    )


def _word(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> str:
    shown = plain(value)
    return "unlimited" if shown == ".inf" else f"{shown:,g}" if isinstance(shown, float) else f"{shown:,}"


def _short(value: float) -> str:
    if math.isinf(value):
        return "∞"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return (
                f"{value / (1e3 if letter == 'k' else size):,.3g}{letter}" if letter != "k" else f"{value / 1e3:,.3g}k"
            )
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} PB"
