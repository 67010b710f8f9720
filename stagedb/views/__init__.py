"""What a step on a system looks like: a trace for Perfetto's viewer, a chart for a terminal, a page for a browser.

Each is a pure function of a `Job`, which holds what is known of the step; `check` says where a file of it may go.
"""

from stagedb.views.chart import draw
from stagedb.views.figures import Hotspot, Shares, hotspots, shares
from stagedb.views.files import check
from stagedb.views.job import Job
from stagedb.views.page import render
from stagedb.views.tracing import Traced, trace

__all__ = [
    "Hotspot",
    "Job",
    "Shares",
    "Traced",
    "check",
    "draw",
    "hotspots",
    "render",
    "shares",
    "trace",
]
