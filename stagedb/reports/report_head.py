"""The head of a report: the plan in short, figures of merit, and the most important facts in a sentence or two."""

import math
from html import escape

from stagedb.files import GB
from stagedb.reports.figures import held, shares
from stagedb.reports.memory_sections import room_of
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import span
from stagedb.timing.expected_errors import error_of_step
from stagedb.timing.step_profile import Merit

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
