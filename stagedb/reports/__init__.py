"""Views of a step on a system: a trace for Perfetto's viewer, a chart for a terminal, a page for a browser.

Each is a pure function of a `StepView`, which has all data of the step. `check` decides where a file of it may go.
"""

from stagedb.reports.pair_page import render_pair
from stagedb.reports.perfetto_trace import Traced, trace
from stagedb.reports.report_page import PageParts, render, step_parts
from stagedb.reports.step_difference import StepSums, sums_of, verdict
from stagedb.reports.step_view import Hotspot, Shares, StepView, hotspots, shares
from stagedb.reports.terminal_chart import draw
from stagedb.reports.view_files import check

__all__ = [
    "Hotspot",
    "PageParts",
    "Shares",
    "StepSums",
    "StepView",
    "Traced",
    "check",
    "draw",
    "hotspots",
    "render",
    "render_pair",
    "shares",
    "step_parts",
    "sums_of",
    "trace",
    "verdict",
]
