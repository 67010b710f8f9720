"""Sharding strategies of users: rules by region, as data, which change the built-in table.

    regions:
      ffn: {batch: [dp], seq: [cp, tp]}
    weights:
      ffn: {ffn: [tp]}

`regions` gives the mesh axes that partition each logical axis of an operator's tensors in a region. A region that is
named has these rules and no others. `weights` gives the layout of a region's weights in memory, if it differs from the
one that its operators read: the matcher then gathers them before each use, and scatters their gradients.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import parse_json, read_document, shown
from stagedb.mentions import Word
from stagedb.models.kinds import PARTS
from stagedb.models.kinds.part import UserRegion

Rules = Mapping[str, Mapping[str, tuple[str, ...]]]

MESH = ("dp", "cp", "tp")
_ENDS: tuple[Mapping[str, UserRegion], Mapping[str, UserRegion]] = (
    {
        "embedding": UserRegion(
            ("batch", "seq", "vocab", "hidden", "positions"),
            {"positions": "a rank reads the rows of its own positions"},
        ),
        "between": UserRegion(("batch", "seq", "hidden"), {"hidden": "norms read all values of a token"}),
    },
    {
        "head": UserRegion(("batch", "seq", "vocab", "hidden")),
        "loss": UserRegion(("batch", "seq", "vocab")),
    },
)
"""The regions before and behind those of the parts of layers."""

USER_REGIONS: Mapping[str, UserRegion] = {
    **_ENDS[0],
    **{region: about for part in PARTS for region, about in part.user.items()},
    **_ENDS[1],
}
"""The regions that a strategy may name."""

REGIONS = tuple(USER_REGIONS)

AXES: Mapping[str, tuple[str, ...]] = {region: about.axes for region, about in USER_REGIONS.items()}
"""The logical axes of each region that rules may partition. Attention reads every position of the sequence."""

WHOLE: Mapping[str, Mapping[str, str]] = {region: about.whole for region, about in USER_REGIONS.items() if about.whole}
"""The logical axes that operators of a region need whole, and why. Weights may be kept in parts of them."""

PLANNED: Mapping[str, str] = {
    **{region: why for part in PARTS for region, why in part.left.items()},
    "prediction": "which is column-parallel over tp",
    "gathered": "which is whole on all ranks of tp",
    "ep": f"which only partitions experts ({Word('ep')})",
    "pp": f"which splits layers ({Word('layers_per_stage')})",
}
"""Regions and mesh axes that the plan decides, with the words that they follow."""


@dataclass(frozen=True)
class Strategy:
    """Rules that replace those of the named regions, and the layouts of regions' weights in memory."""

    regions: Rules
    weights: Rules


def read_strategy(path: Path) -> str:
    """The text of a strategy's file (YAML or JSON). UsageError, which names file and key, if it is no strategy."""
    content = read_document(path, "strategy", option=str(Word("strategy")))
    return _text(_strategy(content, str(path)))


def canonical_strategy(text: str) -> str:
    """The canonical text of a strategy. A path is read. An empty text stays empty."""
    if not text:
        return ""
    if not text.lstrip().startswith("{"):
        return read_strategy(Path(text))
    return _canonical(text)


@lru_cache(256)
def _canonical(text: str) -> str:
    return _text(parse_strategy(text))


@lru_cache(256)
def parse_strategy(text: str) -> Strategy:
    """The strategy of a text. UsageError if it is none. A search makes many plans of few strategies."""
    return _strategy(parse_json(text, "the strategy"), "the strategy")


def _text(strategy: Strategy) -> str:
    tables = {"regions": strategy.regions, "weights": strategy.weights}
    return json.dumps(
        {
            name: {region: {axis: list(over) for axis, over in rules.items()} for region, rules in table.items()}
            for name, table in tables.items()
            if table
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def _strategy(content: Any, where: str) -> Strategy:
    if not isinstance(content, dict) or not content:
        raise UsageError(f"{where} has no rules: give `regions`, `weights`, or both")
    _known(content, ("regions", "weights"), where, "key")
    regions, weights = (_table(content.get(name) or {}, f"{where}: {name}") for name in ("regions", "weights"))
    for region, rules in regions.items():
        for axis, why in WHOLE.get(region, {}).items():
            if rules.get(axis):
                raise UsageError(
                    f"{where}: regions: {region} partitions {axis}, but {why}: leave it out there (weights in memory "
                    f"may be cut along it: weights: {{{region}: {{{axis}: [{', '.join(rules[axis])}]}}}})"
                )
    return Strategy(regions, weights)


def _table(content: Any, where: str) -> dict[str, dict[str, tuple[str, ...]]]:
    if not isinstance(content, dict):
        raise UsageError(f"{where} is {_kind(content)}: it takes rules by region ({', '.join(REGIONS)})")
    _known(content, REGIONS, where, "region")
    return {region: _rules(rules, region, f"{where}: {region}") for region, rules in sorted(content.items())}


def _rules(content: Any, region: str, where: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(content, dict):
        raise UsageError(f"{where} is {_kind(content)}: it takes mesh axes by logical axis, such as seq: [cp, tp]")
    _known(content, AXES[region], where, "logical axis")
    rules: dict[str, tuple[str, ...]] = {}
    for axis, over in sorted(content.items()):
        named = [over] if isinstance(over, str) else over
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise UsageError(f"{where}: {axis} is {_kind(over)}: it takes a list of mesh axes ({', '.join(MESH)})")
        _known(named, MESH, f"{where}: {axis}", "mesh axis")
        if len(set(named)) < len(named):
            raise UsageError(f"{where}: {axis} names the same mesh axis twice")
        # The first of several mesh axes cuts first: it is the outer one.
        rules[axis] = tuple(sorted(named, key=MESH.index))
    for mesh_axis in MESH:
        taken = [axis for axis, over in rules.items() if mesh_axis in over]
        if len(taken) > 1 and taken != ["heads", "kv_heads"]:  # no tensor has both of these
            raise UsageError(
                f"{where}: {mesh_axis} cannot partition both {' and '.join(taken)} of one tensor: leave one of them out"
            )
    if region == "attention" and rules.get("heads") != rules.get("kv_heads"):
        raise UsageError(
            f"{where}: query heads and their key/value heads go together: heads and kv_heads need the same rule"
        )
    return rules


def _known(given: Iterable[Any], known: tuple[str, ...], where: str, what: str) -> None:
    for name in given:
        if name not in known:
            why = PLANNED.get(name, "") if isinstance(name, str) else ""
            raise UsageError(
                f"{where} names "
                + (f"the {what} {shown(name)}, {why}" if why else f"an unknown {what} {shown(name)}")
                + f": it takes {', '.join(known)}"
            )


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {shown(value)}"
