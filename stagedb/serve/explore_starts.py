"""Where to begin on the page Explore: the newest things of the store, critical paths, and layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.files import printable, shown
from stagedb.serve.explore_scene import Scene
from stagedb.store import load

NEWEST = 5
"""Things of each kind that are offered."""

STARTS: Mapping[str, tuple[str, str]] = {
    "critical_path": ("explore/critical_path", "the critical path of a profile"),
    "slow_ops": ("explore/slow_ops", "the slowest operators of a profile, and what they are copies of"),
    "layer": ("explore/layer", "the operators of a layer"),
}
"""Queries whose answers are drawn, by the word of an address: their statement, and what it shows."""


@dataclass(frozen=True)
class StartLink:
    """Something to begin with: its name, what it is, and its address."""

    name: str
    about: str
    to: str


def start_text(name: str) -> str:
    """The Cypher of a start. name: one of `STARTS`. Raises UsageError for an unknown one."""
    if name not in STARTS:
        raise UsageError(f"there is no start {shown(name)}: it is one of {', '.join(STARTS)}")
    return load(STARTS[name][0]).text


def starts(db: Stagedb) -> dict[str, list[StartLink]]:
    """What there is to begin with, by kind."""
    instances, profiles = db.instances()[:NEWEST], db.profiles()[:NEWEST]
    found = {
        "Critical paths": [
            _link(each.instance_name, f"on {each.system}", Scene(start="critical_path", asked={"profile": each.id}))
            for each in profiles
        ],
        "Slowest operators": [
            _link(each.instance_name, f"on {each.system}", Scene(start="slow_ops", asked={"profile": each.id}))
            for each in profiles
        ],
        "Layers": [
            _link(each.name or each.model, "layer 0 of its first rank class", _layer(each.id)) for each in instances
        ],
        "Instances": [
            _link(each.name or each.model, f"{each.ranks:,} ranks", _open("Instance", each.id)) for each in instances
        ],
        "Graphs": [_link(each.name, each.recipe, _open("Graph", each.id)) for each in db.graphs()[:NEWEST]],
        "Searches": [_link(each.model, "a search", _open("Search", each.id)) for each in db.searches()[:NEWEST]],
        "Runs": [_link(each.name or each.id[:12], each.extent, _open("Run", each.id)) for each in db.runs()[:NEWEST]],
    }
    return {kind: links for kind, links in found.items() if links}


def _open(label: str, id_: str) -> Scene:
    return Scene(node=(f"{label}/{id_}",))


def _layer(instance: str) -> Scene:
    return Scene(start="layer", asked={"instance": instance, "$class": "0", "$layer": "0"})


def _link(name: Any, about: str, scene: Scene) -> StartLink:
    return StartLink(printable(str(name), kept=""), printable(about, kept=""), scene.address)
