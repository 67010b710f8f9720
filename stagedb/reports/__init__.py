"""Views of a step on a system: a trace for Perfetto's viewer, a chart for a terminal, a page for a browser.

Each is a pure function of a `StepView`, which has all data of the step. `check` decides where a file of it may go.
"""

from stagedb.reports.figures import Hotspot, Shares, hotspots, shares
from stagedb.reports.perfetto_trace import Traced, trace
from stagedb.reports.report_page import render
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import draw
from stagedb.reports.view_files import check

__all__ = [
    "Hotspot",
    "Shares",
    "StepView",
    "Traced",
    "check",
    "draw",
    "hotspots",
    "render",
    "shares",
    "trace",
]
