"""A node's properties as people read them: with units, times as dates, and what each of them means."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.api.neighbourhood import GraphNode
from stagedb.files import GB
from stagedb.reports.terminal_chart import span
from stagedb.serve.page_frames import cell
from stagedb.store import LABELS, Property

HIDDEN = ("owner", "claim", "lease", "builder")
"""Properties of the store's own work."""

MS_SINCE_1970 = "ms since 1970"

_PROPERTIES: Mapping[str, Mapping[str, Property]] = {
    label.name: {each.name: each for each in label.properties} for label in LABELS
}


@dataclass(frozen=True)
class NodeFact:
    """A property: its name, its value as text, and its meaning."""

    name: str
    value: str
    about: str


def node_facts(node: GraphNode) -> list[NodeFact]:
    """The properties of a node by name, without those of the store's own work and those without a value."""
    known = _PROPERTIES[node.label]
    return [
        NodeFact(cell(name).text, with_unit(value, each.unit if each else None), each.description if each else "")
        for name, value in sorted(node.properties.items())
        for each in [known.get(name)]
        if name not in HIDDEN and value not in (None, "", [], ())
    ]


def with_unit(value: Any, unit: str | None) -> str:
    """A value with its unit; a time as a date (UTC), and long times and many bytes also in larger units."""
    text = cell(value).text
    if unit is None or isinstance(value, str) or not isinstance(value, int | float):
        return text if unit is None or unit == MS_SINCE_1970 else f"{text} {unit}"
    if unit == MS_SINCE_1970:
        return _date(value) or f"{text} ms since 1970"
    more = ""
    if unit == "ns" and abs(value) >= 1000:
        more = f" = {span(value)}"
    elif unit == "B" and abs(value) >= GB / 100:
        more = f" = {value / GB:,.2f} GB"
    return f"{text} {unit}{more}"


def _date(value: float) -> str | None:
    try:
        time = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
