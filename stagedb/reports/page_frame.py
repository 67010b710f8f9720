"""The frame of a page: one HTML file that fetches nothing.

All text is escaped, and data are JSON that cannot end a script, because names come from a store that others write to.
"""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from stagedb.reports.pipeline_chart import Gantt
from stagedb.reports.terminal_chart import WORDS

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(title: str, head: str, sections: str, footer: str, charts: tuple[Gantt, ...], *, picture: bool = False) -> str:
    """A page. head, sections: HTML. title, footer: plain text. charts: the pipelines, in the order of the page.
    picture: whether it has the picture of a search.
    """
    names = ("parts", "candidates") if picture else ("parts",)
    styles = "".join(_own(f"{name}.css") for name in ("shared/colors", "report", *(f"shared/{each}" for each in names)))
    scripts = "".join(_own(f"shared/{name}.js") for name in names)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="stagedb">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{styles}</style></head>"
        f'<body><main class="parts">{head}{sections}{chart_data(charts)}<footer>{escape(footer)}</footer></main>'
        f"<script>{scripts}</script></body></html>\n"
    )


def chart_data(charts: Sequence[Gantt]) -> str:
    """What `shared/parts.js` needs: the content of charts, and the box for the details of a span."""
    data = {"words": WORDS, "charts": [{"step": each.step, "whole": each.whole, "lanes": each.data} for each in charts]}
    return f'<div id="tip"></div><script type="application/json" id="data">{as_json(data)}</script>'


def as_json(value: Any) -> str:
    """JSON for a script of a page. Nothing in it can end the script. value: plain data."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _own(name: str) -> str:
    return files("stagedb.reports").joinpath(name).read_text(encoding="utf-8")
