"""The section of a report about what a step would gain: the what-ifs of `advise`."""

from html import escape

from stagedb.reports.page_parts import Cell, TableColumn, table
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import span
from stagedb.search.trials import bound_of
from stagedb.search.what_ifs import what_ifs


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
