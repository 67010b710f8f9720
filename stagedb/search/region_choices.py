"""The strategies of a search: a closed grammar of sharding rules, region by region.

Where tp is above 1, each region has the built-in rules or a choice. Under a choice the ranks of tp share tokens instead
of heads, columns or rows of the vocabulary: each computes whole layers of its region for its own tokens. `gathered`
keeps the region's weights in parts over tp and gathers them before use, `copied` keeps them whole. Tokens are parts of
sequences, or with `tokens by batch` whole sequences of a micro-batch, between operators and in all chosen regions.
Attention reads every position, so that its tokens are whole sequences in both cases.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from stagedb.plans import GraphOptions
from stagedb.plans.strategies import rules
from stagedb.plans.strategy_files import AXES, Strategy, canonical_strategy, parse_strategy

Regions = Mapping[str, frozenset[str]]
"""The regions of a model, each with the axes of its weights."""

TOKENS = "tokens"
"""What is between regions, in the words of a choice."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    TOKENS: ("by batch",),
    "attention": ("gathered", "copied"),
    "ffn": ("gathered", "copied"),
    "head": ("gathered",),
    "embedding": ("gathered",),
}
"""By part of a model, its choices beyond the built-in rules. That of the head is also that of the loss."""

_REGIONS: Mapping[str, tuple[str, ...]] = {TOKENS: ("between",), "head": ("head", "loss")}
"""The regions of parts that are not called like their region."""

_BY_BATCH: Mapping[str, tuple[str, ...]] = {"batch": ("dp", "tp"), "seq": ("cp",)}
_BY_SEQUENCE: Mapping[str, tuple[str, ...]] = {"batch": ("dp",), "seq": ("cp", "tp")}

_BUILT_IN = rules(GraphOptions(), own=False)


@dataclass(frozen=True)
class RegionChoice:
    """A choice of a part of a model, such as `ffn gathered`."""

    part: str
    kind: str

    def __str__(self) -> str:
        return f"{self.part} {self.kind}"

    def tables(self, by_batch: bool) -> Strategy:
        """Its rules of tokens and weights. by_batch: whether tokens between regions are whole sequences."""
        regions = _REGIONS.get(self.part, (self.part,))
        weights = {self.part: cut_by_tp(self.part)} if self.kind == "gathered" else {}
        return Strategy({region: _of_tokens(region, by_batch) for region in regions}, weights)


def cut_by_tp(region: str) -> Mapping[str, tuple[str, ...]]:
    """The axes of a region's weights that the built-in rules partition over tp."""
    return {axis: over for axis, over in _BUILT_IN[region].items() if axis in AXES[region] and over == ("tp",)}


def strategies(regions: Regions, cp: int = 1) -> Iterator[str]:
    """The strategies of a model as texts of `stagedb.plans.strategy_files`, the built-in one first as an empty text.

    cp: the degree of context parallelism.
    """
    options = [[None, *choices] for choices in choices_of(regions, cp)]
    for chosen in product(*options):
        yield strategy_text([each for each in chosen if each is not None])


def choices_of(regions: Regions, cp: int = 1) -> list[list[RegionChoice]]:
    """The choices of each part that a model has. Weights are gathered only if they have the axes that tp cuts.

    Rules of attention have no sequence: with cp above 1 all of its ranks would compute the same, so that it has none.
    """
    found = []
    for part, kinds in CHOICES.items():
        alone = cp > 1 and "seq" not in AXES.get(part, ("seq",))
        if alone or not all(region in regions for region in _REGIONS.get(part, (part,))):
            continue
        whole = part == TOKENS or cut_by_tp(part).keys() <= regions[part]
        found.append([RegionChoice(part, kind) for kind in kinds if whole or kind != "gathered"])
    return found


def strategy_text(chosen: list[RegionChoice]) -> str:
    """The strategy of these choices; empty for none. chosen: at most one for each part of the model."""
    if not chosen:
        return ""
    tables: dict[str, dict[str, Any]] = {"regions": {}, "weights": {}}
    by_batch = RegionChoice(TOKENS, "by batch") in chosen
    for each in chosen:
        own = each.tables(by_batch)
        tables["regions"] |= own.regions
        tables["weights"] |= own.weights
    return canonical_strategy(json.dumps({name: table for name, table in tables.items() if table}))


def chosen_in(text: str) -> list[RegionChoice]:
    """The choices of a strategy of the grammar; an empty list for the built-in one and for any other strategy.

    text: the strategy as JSON; empty: the built-in one.
    """
    if not text:
        return []
    given = parse_strategy(text)
    found = [each for each in _EVERY if _names(given, each)]
    return found if strategy_text(found) == canonical_strategy(text) else []


def short_words(text: str) -> str:
    """The choices of a strategy in few words, such as `attention copied, ffn+head gathered`; empty for another one.

    text: the strategy as JSON.
    """
    parts: dict[str, list[str]] = {}
    for each in chosen_in(text):
        parts.setdefault(each.kind, []).append(each.part)
    return ", ".join(f"{'+'.join(own)} {kind}" for kind, own in parts.items())


def _names(given: Strategy, choice: RegionChoice) -> bool:
    kept = given.weights.get(choice.part)
    is_there = all(region in given.regions for region in _REGIONS.get(choice.part, (choice.part,)))
    return is_there and (choice.part == TOKENS or (kept is not None) == (choice.kind == "gathered"))


def _of_tokens(region: str, by_batch: bool) -> Mapping[str, tuple[str, ...]]:
    over = _BY_BATCH if by_batch or "seq" not in AXES[region] else _BY_SEQUENCE
    return {axis: over[axis] for axis in over if axis in AXES[region]}


_EVERY = tuple(RegionChoice(part, kind) for part, kinds in CHOICES.items() for kind in kinds)
