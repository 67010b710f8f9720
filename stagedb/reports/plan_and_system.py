"""The sections of a report with the whole plan and the whole system."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from stagedb.files import GB
from stagedb.reports.page_parts import facts
from stagedb.reports.step_view import StepView
from stagedb.systems.system import plain
from stagedb.timing.expected_errors import error_words


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
