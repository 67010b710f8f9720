"""A report: one HTML file that shows what a step on a system does."""

from dataclasses import dataclass

from stagedb.reports.advice_section import advice_section
from stagedb.reports.memory_sections import MomentLink, curve_section, peaks_section
from stagedb.reports.page_frame import chart_data, page
from stagedb.reports.path_section import path_section
from stagedb.reports.pipeline_chart import Gantt, gantt, lanes_shown
from stagedb.reports.plan_and_system import plan_and_system
from stagedb.reports.provenance_section import Made, provenance_section
from stagedb.reports.report_head import report_figures, report_head
from stagedb.reports.requests_section import requests_section
from stagedb.reports.roofline_chart import roofline
from stagedb.reports.step_sections import communication, pipeline, stages
from stagedb.reports.step_view import StepView


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
