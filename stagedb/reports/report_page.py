"""A report: one HTML file that shows what a step on a system does."""

from stagedb.reports.advice_section import advice_section
from stagedb.reports.memory_sections import curve_section, peaks_section
from stagedb.reports.page_frame import page
from stagedb.reports.path_section import path_section
from stagedb.reports.pipeline_chart import gantt, lanes_shown
from stagedb.reports.plan_and_system import plan_and_system
from stagedb.reports.provenance_section import Made, provenance_section
from stagedb.reports.report_head import report_head
from stagedb.reports.roofline_chart import roofline
from stagedb.reports.step_sections import communication, pipeline, stages
from stagedb.reports.step_view import StepView


def render(job: StepView, made: Made | None = None) -> str:
    """The report of a step. made: facts of its provenance by name."""
    lanes = lanes_shown(job)
    chart = gantt(job, lanes)
    title = f"{job.workload.name} on {job.system.name}"
    sections = [
        pipeline((chart,)),
        path_section(job),
        f'<div class="columns">{stages(job, lanes)}{peaks_section(job)}</div>',
        curve_section(job),
        communication(job),
        advice_section(job),
        roofline(job),
        plan_and_system(job),
        provenance_section([("", made or {})]),
    ]
    footer = (
        "Counts are exact; times are those of a model of the system, or measured where durations were given. "
        f"Instance {job.workload.instance}. Written by stagedb."
    )
    return page(f"{title}: a training step", report_head(job, title), "".join(sections), footer, (chart,))
