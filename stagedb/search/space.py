"""The plans of a search: a closed grammar of words, in the order in which they are chosen.

Three steps lead to a plan. A *group* is a choice of degrees and micro-batch: how a layer is divided. A *cell* of it
adds what dp shards, what is computed again and how ranks are placed. The *plans* of a cell add the order of tasks, the
chunks of stages and which layers recompute. Numbers that cannot divide are left out: degrees whose product is not the
world, a micro-batch that does not divide the batch. All other rules are those of plans, which refuse a plan with their
own reason.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.frameworks import FRAMEWORKS, Framework
from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.mentions import Word
from stagedb.plans import GraphOptions
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.plans.aspects.degrees import RANK_ORDER
from stagedb.plans.layer_split import uneven_chunks
from stagedb.plans.strategies import rules
from stagedb.plans.strategy_files import AXES, Strategy, canonical_strategy, parse_strategy
from stagedb.schedules import DEFAULT, SCHEDULES

# The strategies of a search: a closed grammar of sharding rules, region by region.
#
# Where tp is above 1, each region has the built-in rules or a choice. Under a choice the ranks of tp share tokens
# instead of heads, columns or rows of the vocabulary: each computes whole layers of its region for its own tokens.
# `gathered` keeps the region's weights in parts over tp and gathers them before use, `copied` keeps them whole. Tokens
# are parts of sequences, or with `tokens by batch` whole sequences of a micro-batch, between operators and in all
# chosen regions. Attention reads every position, so that its tokens are whole sequences in both cases.

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

Words = Mapping[str, Any]
"""Words of a plan."""

GROUPS: Mapping[str, str] = {
    "cp": "the degree of context parallelism, and its kinds that the recipe has",
    "zero": "the ZeRO stages that the recipe has",
    "hsdp": "copies of what ZeRO shards",
    "sp": "sequence parallelism on and off; otherwise it is on wherever tp is above 1",
    "recompute": "what is computed again (none, full, core, pointwise), in every K-th layer",
    "schedule": "all pipeline schedules; otherwise 1f1b, and interleaved with several chunks a stage",
    "recipe": "the recipes of all frameworks",
    "overlap": "messages of stages in parts, and forwards that run together with backwards",
    "dispatch": "how tokens are sent to experts: once a choice, a rank or a node",
    "expert_tp": "experts that tp cuts, or whole experts on the ranks of tp",
    "order": "the order of mesh axes on the machine",
    "strategies": "sharding rules of each region of the model, where tp is above 1, which move weights or activations",
    "splits": "layers dealt to stages with the embedding and the loss counted, and chunks of unequal depth",
}
"""Words that a search may vary beyond tp, pp, dp, ep, the micro-batch and chunks of stages."""

USUAL = ("zero", "recompute", "schedule")
"""The groups of a search that names none."""

KINDS = ("none", "full", "core", "pointwise")
"""What a search may have computed again. Lists of operators or modules are a choice of the user's."""

NODE = 8
"""Accelerators of a node, to which tokens of experts may be sent once."""


ONLY_NAMED = ("strategies", "splits")
"""Groups that `all` leaves out: each multiplies the plans."""


def groups_of(names: Sequence[str]) -> tuple[str, ...]:
    """The groups of these names, in one order; `all` but `ONLY_NAMED`, `none`. Raises UsageError for an unknown one."""
    if list(names) in (["all"], ["none"]):
        return tuple(name for name in GROUPS if name not in ONLY_NAMED) if names[0] == "all" else ()
    for name in names:
        if name not in GROUPS:
            raise UsageError(
                f"unknown group of words {shown(name)}: {Word('allow')} takes {', '.join(GROUPS)}, all or none"
            )
    return tuple(name for name in GROUPS if name in names)


@dataclass(frozen=True)
class Space:
    """All plans of a model on so many ranks.

    sizes: of the model. words: those that every plan has, `global_batch_size` among them. allow: groups that vary.
    framework: runs the plans, so that others are left out. It implies further words of each, and what may be computed
    again; None for none. regions: of the model, each with the axes of its weights; strategies are rules of these.
    """

    sizes: Mapping[str, int]
    words: Words
    ranks: int
    allow: tuple[str, ...] = USUAL
    framework: FrameworkProfile | None = None
    regions: Regions = field(default_factory=dict)
    _counts: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _strategies: dict[int, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.words.get("global_batch_size"), int):
            raise UsageError(
                f"a search needs the sequences of a step, which all its plans have: {Word('global_batch_size', 'N')}"
            )

    @property
    def batch(self) -> int:
        """Number of sequences of a step."""
        return int(self.words["global_batch_size"])

    def groups(self) -> Iterator[dict[str, Any]]:
        """The words of each group, those of all plans included."""
        return self._product(dict(self.words), _GROUP_AXES)

    def cells(self, group: Words) -> Iterator[dict[str, Any]]:
        """The words of each cell of a group."""
        return self._product(group, _CELL_AXES)

    def plans(self, cell: Words) -> Iterator[dict[str, Any]]:
        """The words of each plan of a cell."""
        return self._product(cell, _PLAN_AXES)

    def orders(self, cell: Words) -> Iterator[dict[str, Any]]:
        """The words of each plan of a cell, but for the layers that recompute."""
        return self._product(cell, _PLAN_AXES[:-1])

    def choices(self, words: Words) -> list[Words]:
        """The changes of these words that choose the layers which recompute, from those of all layers on."""
        return list(self._changes(words, _which))

    def count(self, cell: Words) -> int:
        """The number of plans of a cell."""
        key = tuple(cell.get(word) for word in _COUNTED)
        if key not in self._counts:
            self._counts[key] = sum(1 for _ in self.plans(cell))
        return self._counts[key]

    def count_group(self, group: Words) -> int:
        """The number of plans of a group."""
        return sum(self._arrangements(words) * self.count(words) for words in self._product(group, _HELD_AXES))

    def _arrangements(self, words: Words) -> int:
        """The ways to send and to place ranks: up to 48 of a cell, which no other word of a plan follows from."""
        key = ("arranged", "scatter_gather" in words, *(words[axis] > 1 for axis in RANK_ORDER))
        if key not in self._counts:
            self._counts[key] = sum(1 for _ in self._product(words, _ARRANGED_AXES))
        return self._counts[key]

    def size(self) -> int:
        """The number of plans."""
        return sum(map(self.count_group, self.groups()))

    def _product(self, words: Words, axes: Sequence["_Axis"]) -> Iterator[dict[str, Any]]:
        if not axes:
            yield dict(words)
            return
        for change in self._changes(words, axes[0]):
            yield from self._product({**words, **change}, axes[1:])

    def _changes(self, words: Words, axis: "_Axis") -> Iterator[Words]:
        """The changes of words that may follow, without those that the framework cannot run."""
        for change in axis(self, words):
            if axis is _implied or all(self.can_run(word, value) for word, value in change.items()):
                yield change

    def strategies(self, cp: int) -> Sequence[str]:
        """The strategies of the model but for the built-in one. cp: the degree of context parallelism."""
        if cp not in self._strategies:
            self._strategies[cp] = list(strategies(self.regions, cp))[1:]
        return self._strategies[cp]

    def can_run(self, word: str, value: Any) -> bool:
        """Whether the framework can run plans with a value of a word; any that all plans have, or without one."""
        return self.framework is None or word in self.words or self.framework.can_run(word, value)

    def is_open(self, word: str, group: str = "") -> bool:
        """Whether the search chooses a word, because the request does not set it.

        group: a group of words that a search leaves alone unless the request allows the group; empty: always chosen.
        """
        return word not in self.words and (not group or group in self.allow)


CHOOSE_LAYERS = ("recompute_every", "recompute_first")
"""The words of a plan that choose which layers recompute."""

_Axis = Callable[[Space, Words], Iterator[Words]]
"""A function of a space and the words so far, which gives the changes that may follow."""

_COUNTED = ("pp", "dp", "ep", "micro_batch_size", "recompute")
"""The words of a cell that the number of its leaves follows from."""


def framework_of(words: Words) -> Framework:
    """The framework of a plan's words. UsageError for an unknown recipe."""
    name = words.get("recipe", PLAN_WORDS["recipe"].default)
    PLAN_WORDS["recipe"].check(name)
    return FRAMEWORKS[name]


def divisors(number: int) -> list[int]:
    """All divisors of a number, ascending."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _recipes(space: Space, words: Words) -> Iterator[Words]:
    if space.is_open("recipe", "recipe"):
        yield from ({"recipe": name} for name in FRAMEWORKS)
    else:
        yield {}


def _degrees(space: Space, words: Words) -> Iterator[Words]:
    for tp in _fixed_or(space, "tp", divisors(math.gcd(space.ranks, space.sizes["A"]))):
        for pp in _fixed_or(space, "pp", [each for each in divisors(space.ranks) if each <= space.sizes["L"]]):
            cps = divisors(space.ranks) if space.is_open("cp", "cp") else [words.get("cp", 1)]
            for cp in cps:
                dp, left = divmod(space.ranks, tp * pp * cp)
                fits = not left and dp == words.get("dp", dp) and space.batch % dp == 0
                if fits and words.get("seq_len", cp) % cp == 0:
                    yield {"tp": tp, "pp": pp, "cp": cp, "dp": dp}


def _fixed_or(space: Space, word: str, values: Sequence[int]) -> Sequence[int]:
    return values if space.is_open(word) else [space.words[word]]


def _contexts(space: Space, words: Words) -> Iterator[Words]:
    if words["cp"] == 1 or not space.is_open("cp_kind", "cp"):
        # A kind that all plans have is that of those whose ranks share sequences.
        yield {"cp_kind": PLAN_WORDS["cp_kind"].default} if words["cp"] == 1 and "cp_kind" in words else {}
        return
    for kind in framework_of(words).cp_kinds:
        if kind == "ulysses-ring":
            for near in divisors(words["cp"])[1:-1]:
                yield {"cp_kind": kind, "ulysses": near}
        else:
            yield {"cp_kind": kind}


def _experts(space: Space, words: Words) -> Iterator[Words]:
    if "E" not in space.sizes:
        yield {}
        return
    whole = [{"expert_tp": each} for each in (True, False) if space.can_run("expert_tp", each)] or [{}]
    for place in whole if words["tp"] > 1 and space.is_open("expert_tp", "expert_tp") else [{}]:
        ranks = words["dp"] * words["cp"] * (words["tp"] if place.get("expert_tp") is False else 1)
        for ep in _fixed_or(space, "ep", divisors(math.gcd(space.sizes["E"], ranks))):
            yield {**place, "ep": ep}


def _dispatches(space: Space, words: Words) -> Iterator[Words]:
    yield {}
    if words.get("ep", 1) == 1 or not space.is_open("dispatch", "dispatch"):
        return
    yield {"dispatch": "ranks"}
    near = NODE // (1 if words.get("expert_tp") is False else words["tp"])
    if 1 < near < words["ep"] and words["ep"] % near == 0:
        yield {"dispatch": "nodes", "node_ranks": near}


def _batches(space: Space, words: Words) -> Iterator[Words]:
    for size in _fixed_or(space, "micro_batch_size", divisors(space.batch // words["dp"])):
        yield {"micro_batch_size": size}


def _sequences(space: Space, words: Words) -> Iterator[Words]:
    if "sp" in space.words or words["tp"] == 1:
        yield {}
        return
    able = space.can_run("sp", True)
    if able:
        yield {"sp": True}
    if "sp" in space.allow or not able:
        yield {"sp": False}


def _strategies(space: Space, words: Words) -> Iterator[Words]:
    yield {}
    # On one rank of tp all of them are the built-in one.
    if words["tp"] > 1 and space.is_open("strategy", "strategies"):
        yield from ({"strategy": text} for text in space.strategies(words["cp"]))


def _sharding(space: Space, words: Words) -> Iterator[Words]:
    framework = framework_of(words)
    stages: list[Words] = [{}]
    if space.is_open("zero", "zero"):
        stages = [{"zero": stage} for stage in framework.zero_stages if stage == 0 or words["dp"] * words["cp"] > 1]
    for stage in stages:
        yield stage
        hybrid = {**words, **stage}.get("zero", 0) in framework.hybrid_stages
        if hybrid and space.is_open("hsdp", "hsdp"):
            for copies in divisors(words["dp"])[1:]:
                if copies < words["dp"] * words["cp"]:
                    yield {**stage, "hsdp": copies}


def _recomputing(space: Space, words: Words) -> Iterator[Words]:
    if not space.is_open("recompute", "recompute"):
        yield {}
        return
    if space.framework is not None:
        yield {"recompute": "none"}
        yield from _kinds_of(space.framework, words)
        return
    for kind in KINDS:
        if kind != "core" or words.get("attention") == "math":
            yield {"recompute": kind}


def _kinds_of(framework: FrameworkProfile, words: Words) -> Iterator[Words]:
    """The kinds of recomputation that a framework has, such as full layers, without the words that choose layers."""
    found: list[Words] = []
    kinds = [*framework.recompute.values()]
    if words.get("attention") == "math" and framework.settings and framework.settings.has("recompute", "core"):
        # What published tables call `core` is nothing only where attention is one kernel, which recomputes its scores.
        kinds.append({"recompute": "core"})
    for chosen in kinds:
        kind = {word: value for word, value in chosen.items() if word not in CHOOSE_LAYERS}
        if kind and kind not in found:
            found.append(kind)
            yield kind


def _implied(space: Space, words: Words) -> Iterator[Words]:
    """The words that the framework implies for those that are chosen."""
    found = space.framework.plan_words(words) if space.framework is not None else words
    yield {word: value for word, value in found.items() if word not in words}


def _messages(space: Space, words: Words) -> Iterator[Words]:
    yield {}
    given = "scatter_gather" in words
    if words["pp"] > 1 and words["tp"] > 1 and not given and space.is_open("scatter_gather", "overlap"):
        yield {"scatter_gather": True}


def _orders(space: Space, words: Words) -> Iterator[Words]:
    yield {}
    if not space.is_open("rank_order", "order"):
        return
    several = [axis for axis in RANK_ORDER if words[axis] > 1]
    alone = [axis for axis in RANK_ORDER if words[axis] == 1]
    for order in permutations(several):
        if order != tuple(several):
            yield {"rank_order": [*order, *alone]}


def _which(space: Space, words: Words) -> Iterator[Words]:
    """The words that choose which layers recompute, from all to few: every K-th layer, or the first K of a stage where
    the framework has only these.
    """
    yield {}
    kind = words.get("recompute", "none")
    if kind == "none" or not all(space.is_open(word, "recompute") for word in CHOOSE_LAYERS):
        return
    settings = space.framework.settings if space.framework is not None else None
    if settings is not None and settings.recomputes_first(kind):
        deepest = -(-space.sizes["L"] // (words["pp"] * words.get("virtual_stages", 1)))
        yield from ({"recompute_first": number} for number in range(deepest - 1, 0, -1))
        return
    for number in range(2, -(-space.sizes["L"] // words["pp"]) + 1):
        yield {"recompute_every": number}


def _splits(space: Space, words: Words) -> Iterator[Words]:
    yield {}
    given = any(word in space.words for word in ("layers_per_stage", "layers_per_chunk", "counted_ends"))
    if "splits" in space.allow and words["pp"] > 1 and not given:
        for counted in PLAN_WORDS["counted_ends"].choices:
            if counted != PLAN_WORDS["counted_ends"].default:
                yield {"counted_ends": counted}


def _schedules(space: Space, words: Words) -> Iterator[Words]:
    """Schedules, each with the numbers of chunks that divide the layers of a stage."""
    if not space.is_open("schedule") or words["pp"] == 1:
        yield {}
        return
    layers, rest = divmod(space.sizes["L"], words["pp"])
    microbatches = space.batch // (words["dp"] * words["micro_batch_size"])
    chunks = [] if rest else divisors(layers)[1:]
    uneven = "splits" in space.allow and "counted_ends" not in words
    for schedule in SCHEDULES.values():
        usual = schedule is DEFAULT or schedule.name == DEFAULT.chunked
        if not (usual or "schedule" in space.allow) or schedule.misfit(words["pp"], microbatches):
            continue
        if not schedule.several_chunks:
            yield {"schedule": schedule.name}
            continue
        for number in [schedule.chunks] if schedule.chunks else _fixed_or(space, "virtual_stages", chunks):
            change = {"schedule": schedule.name, "virtual_stages": number}
            if number in chunks or "virtual_stages" in space.words:
                yield change
            elif uneven and words["pp"] * number <= space.sizes["L"]:
                yield {**change, "layers_per_chunk": uneven_chunks(space.sizes["L"], words["pp"] * number)}


def _pairs(space: Space, words: Words) -> Iterator[Words]:
    yield {}
    schedule = SCHEDULES.get(words.get("schedule", DEFAULT.name))
    open_ = words.get("ep", 1) > 1 and space.is_open("overlap_experts", "overlap")
    if open_ and schedule is not None and schedule.has_pairs(words["pp"]):
        yield {"overlap_experts": True}


_GROUP_AXES: tuple[_Axis, ...] = (
    *(_recipes, _degrees, _contexts, _experts, _dispatches, _batches, _sequences, _strategies, _implied),
)
_HELD_AXES: tuple[_Axis, ...] = (_sharding, _implied, _recomputing)
_ARRANGED_AXES: tuple[_Axis, ...] = (_messages, _orders)
_CELL_AXES: tuple[_Axis, ...] = (*_HELD_AXES, *_ARRANGED_AXES)
_PLAN_AXES: tuple[_Axis, ...] = (_splits, _schedules, _pairs, _which)
