"""The rows of a graph that lowering needs, and the values of its expressions under a plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from stagedb.collectives import gathers
from stagedb.errors import StagedbError
from stagedb.files import shown
from stagedb.frameworks import bucket_policy
from stagedb.ir.expressions import evaluate
from stagedb.ir.quotients import symbols
from stagedb.ir.symbolic_graph import BlockSpec
from stagedb.lowering.bucket_members import BucketOp, OpPlace, Part, Weight
from stagedb.lowering.rank_classes import Member, all_owned
from stagedb.lowering.stage_blocks import BUCKET, Block, ExpertSpan, spans
from stagedb.plans import GROUP_AXES, Plan, members
from stagedb.plans.expert_checks import uneven
from stagedb.plans.token_copies import COPY_SYMBOLS
from stagedb.schedules import splits
from stagedb.workflows import RECOMPUTE, template_named

COSTS = ("flops", "bytes_read", "bytes_written", "comm_bytes", "comm_out_bytes", "peer")
"""Columns of a symbolic op that hold one expression each; `dims` holds several."""


OP_COLUMNS = (
    *("name", "block", "template", "phase", "type", "kind", "when", "order", "axis", "flops", "bytes_read"),
    *("bytes_written", "temporary", "comm_bytes", "comm_out_bytes", "dims", "peer", "present", "times", "loop"),
    *("bucket", "depth", "experts", "packed"),
)
WEIGHT_COLUMNS = (
    *("name", "block", "order", "elements", "shard", "present", "buckets", "grads", "gathers", "readers"),
    *("depth", "joined", "axes"),
)
"""Properties of ops and of weights that lowering reads: the columns of `instantiate/ops` and `instantiate/weights`."""


@dataclass(frozen=True)
class GraphRows:
    """The rows of a stored graph that decide the shape of its instances: a few hundred for every depth of the model.

    id, name: of the graph. options: of `GraphOptions`. sizes: the model's symbols. blocks: in forward order. ops,
    weights: properties of the nodes. edge_conditions: the distinct expressions by which edges are present.
    """

    id: str
    name: str
    options: Mapping[str, Any]
    sizes: Mapping[str, int]
    blocks: tuple[BlockSpec, ...]
    ops: tuple[Mapping[str, Any], ...]
    weights: tuple[Mapping[str, Any], ...]
    edge_conditions: tuple[str, ...]


@dataclass(frozen=True)
class Evaluated:
    """A graph under a plan: the value of every expression of a present op, edge or weight.

    `values` has the distinct maps (`Place.variant`), the first for blocks outside layers. The maps differ between
    layers that recompute and layers that do not, between ranks of cp and of ep, and between the turns of a loop.
    `variants` gives the place of the map for each (whether it recomputes, member, turn). A member's coordinate is 0
    where ranks along the axis do not differ. temporaries: for each map, bytes that ops allocate while they run. They
    are separate because two ranks that differ in nothing else are of one class. envs: for each map, the values of its
    symbols. ragged: matmuls of experts with uneven loads, which have no dims. loops: blocks that have loops. turns:
    the number of each loop. width: the largest number of ops of a loop.
    """

    values: tuple[Mapping[str, int], ...]
    temporaries: tuple[Mapping[str, int], ...]
    envs: tuple[Mapping[str, int], ...]
    variants: Mapping[tuple[bool, Member, int], int]
    ragged: tuple[str, ...]
    loops: frozenset[str]
    turns: int
    width: int
    blocks: tuple[Block, ...]
    weights: Mapping[str, tuple[Weight, ...]]
    buckets: tuple[BucketOp, ...]
    axes: Mapping[str, str]  # by mesh axis, the name of a collective on it
    orders: int
    last: Mapping[tuple[str, str], str]  # by block and phase, the op that computes last
    parts: Mapping[str, tuple[Part, ...]]  # by block, its parts whose weights are units
    experts: Mapping[str, ExpertSpan] | None = None  # by block, its experts, if they are units of their own


def evaluate_graph(graph: GraphRows, plan: Plan, first_of_cp: bool = False) -> Evaluated:
    """Evaluate each distinct expression once. Those of absent ops are left out: they may give fractions.

    first_of_cp: whether all ranks of cp have the values of the first one.
    """
    env = _env(plan, graph)
    values = _Values(plan, env)
    # An op of a loop that the first iteration on the first rank leaves out may be in another iteration.
    ops = [op for op in graph.ops if values.present(op, op["name"]) or op["times"] is not None]
    for op in ops:
        if op["times"] is not None:
            values.of(op["times"], f"turns of {op['name']}")
        if op["block"] == BUCKET:
            continue  # the costs of a bucket are sums over its weights
        for column in COSTS:
            if op[column] is not None:
                values.of(op[column], f"{column} of {op['name']}")
        for dim in op["dims"] or ():
            values.of(dim, f"dims of {op['name']}")
    for condition in graph.edge_conditions:
        values.of(condition, "the condition of an edge")
    by_name = {op["name"]: op for op in ops}
    blocks = tuple(
        Block(block.name, None if block.once else values.of(block.repeat, f"repeat of {block.name}"), block.layers)
        for block in graph.blocks
    )
    looped = [op for op in ops if op["times"] is not None]
    turns = _turns(looped, values, graph)
    maps, envs, variants = _variants(values.known, plan, graph, turns, env, first_of_cp)
    apart = of_experts(graph)
    split = plan.may_split and any(map(splits, plan.orders()))
    held = {op["temporary"] for op in ops if op["block"] != BUCKET and op["temporary"] is not None}
    return Evaluated(
        values=maps,
        temporaries=tuple({text: plan.evaluate(text, env) for text in held} for env in envs),
        envs=envs,
        variants=variants,
        ragged=_ragged(ops, plan, graph.sizes),
        loops=frozenset(op["block"] for op in looped),
        turns=turns,
        width=max((1 + op["order"] - op["loop"] for op in looped), default=0),
        blocks=blocks,
        weights=_weights(graph, by_name, values),
        buckets=tuple(_bucket(op, plan, plan.env(graph.sizes), apart) for op in ops if op["block"] == BUCKET),
        axes=_axes(ops),
        orders=1 + max((op["order"] for op in graph.ops), default=0),
        last=_last(ops, split),
        parts=_parts(ops, split),
        experts=spans(ops) if graph.options.get("expert_unit") else None,
    )


def _env(plan: Plan, graph: GraphRows) -> dict[str, int]:
    """The values of symbols on the first rank, which updates all weights of its stage where ranks own some."""
    env = plan.env(graph.sizes)
    if plan.options.owns_layers:
        env |= all_owned(plan, env, [block.name for block in graph.blocks], graph.weights)
    return env


def _ragged(ops: Iterable[Mapping[str, Any]], plan: Plan, sizes: Mapping[str, int]) -> tuple[str, ...]:
    if not uneven(plan, sizes):
        return ()
    return tuple(op["name"] for op in ops if op["dims"] and "load_here" in symbols(op["flops"]))


def _turns(looped: Iterable[Mapping[str, Any]], values: "_Values", graph: GraphRows) -> int:
    numbers = {values.known[op["times"]] for op in looped}
    if len(numbers) > 1:
        raise StagedbError(f"graph {graph.id} has loops of {sorted(numbers)} turns, which this version cannot unroll")
    return numbers.pop() if numbers else 0


def _variants(
    known: Mapping[str, int], plan: Plan, graph: GraphRows, turns: int, env: Mapping[str, int], first_of_cp: bool
) -> tuple[tuple[Mapping[str, int], ...], tuple[Mapping[str, int], ...], dict[tuple[bool, Member, int], int]]:
    """The distinct maps, the values of the symbols in each, and which map holds where.

    The last result is by whether a layer recomputes, member and turn, from 0. env: the values of all symbols on the
    first rank.
    """
    used = {text: symbols(text) for text in known}
    of_experts = {"load_here", "load_dealt", *COPY_SYMBOLS}
    changing = {
        text: sorted(own_names)
        for text, names in used.items()
        if (own_names := names & {"runs", "cp_rank", "step", *of_experts})
    }
    of_cp = not first_of_cp and any("cp_rank" in names for names in used.values())
    read = sorted(of_experts & {name for names in used.values() for name in names})
    of_ep = bool(read) and len({tuple(map(own.get, read)) for own in plan.symbols_of_ep(graph.sizes)}) > 1
    apart = sorted({(cp if of_cp else 0, ep if of_ep else 0, 0) for cp, ep, _ in members(plan)})
    map_of: dict[tuple[int, ...], int] = {}
    maps: list[Mapping[str, int]] = []
    envs: list[Mapping[str, int]] = []
    variants = {}
    seen: dict[tuple[object, ...], int] = {}  # most texts have the same value for many ranks and turns

    def value(text: str, names: Sequence[str], own: Mapping[str, int]) -> int:
        key = (text, *map(own.get, names))
        if key not in seen:
            seen[key] = plan.evaluate(text, own)
        return seen[key]

    for again in (True,) if plan.recomputes_all else (False, True):
        for member in apart:
            ranked = {**env, **plan.rank_symbols(graph.sizes, *member[:2])}
            for step in range(max(turns, 1)):
                own = {**ranked, "runs": 1 + again, "step": step + 1}
                changed = tuple(value(text, names, own) for text, names in changing.items())
                if changed not in map_of:
                    map_of[changed] = len(maps)
                    maps.append({**known, **dict(zip(changing, changed, strict=True))})
                    envs.append(own)
                variants[again, member, step] = map_of[changed]
    return tuple(maps), tuple(envs), variants


def of_experts(graph: GraphRows) -> frozenset[str]:
    """The buckets that only weights pass whose parts are shared by the ranks with the same experts."""
    axes = {op["name"]: op["axis"] for op in graph.ops if op["block"] == BUCKET}
    all_apart: dict[str, bool] = {}
    for row in graph.weights:
        names = (*(row["buckets"] or ()), *(row["gathers"] or ()))
        apart = any(axes.get(name) == "edp" for name in names)
        all_apart |= {name: all_apart.get(name, True) and apart for name in names}
    return frozenset(name for name, apart in all_apart.items() if apart)


def _bucket(op: Mapping[str, Any], plan: Plan, env: Mapping[str, int], apart: frozenset[str]) -> BucketOp:
    @cache
    def sizes(elements: int, shard: int) -> tuple[int, int]:
        known = {**env, "elements": elements, "shard": shard}
        return (
            evaluate(op["comm_bytes"], known, what=f"comm_bytes of {op['name']}"),
            evaluate(op["comm_out_bytes"], known, what=f"comm_out_bytes of {op['name']}"),
        )

    parts = plan.edp // plan.hsdp if op["name"] in apart else plan.shards
    template, policy = template_named(op["template"]), bucket_policy(op["bucket"])
    again = op["phase"] == RECOMPUTE
    return BucketOp(
        op["name"], policy, op["order"], template, gathers(op["kind"]), parts, sizes, op["name"] in apart, again
    )


def _last(ops: Iterable[Mapping[str, Any]], split: bool) -> dict[tuple[str, str], str]:
    """The last compute op of a block's forward and backward. If the backward is split: of the half for parameters."""
    last_of: dict[tuple[str, str], str] = {}
    for op in sorted(ops, key=lambda op: int(op["order"])):
        template = template_named(op["template"])
        served = not template.once and not (split and template.gradients == "weights")
        if op["type"] == "compute" and served:
            last_of[op["block"], template.phase] = op["name"]
    return last_of


def _parts(ops: Iterable[Mapping[str, Any]], split: bool) -> dict[str, tuple[Part, ...]]:
    """The layers of multi-token prediction, by block."""
    inside: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    opened: dict[str, int] = {}
    for op in sorted(ops, key=lambda op: int(op["order"])):
        depth, template = op["depth"], template_named(op["template"])
        # Collectives do not count: one is named after the tensor that it passes on, and may come after the layer.
        if depth is not None and op["type"] == "compute" and not template.once:
            inside.setdefault((op["block"], depth), []).append(op)
        if op["kind"] == "matmul" and template.differentiates:
            # The ops of a backward before its first matmul are those of the loss.
            opened.setdefault(op["block"], op["order"])
    parts_of: dict[str, tuple[Part, ...]] = {}
    for (block, _), own in sorted(inside.items(), key=lambda each: each[0]):
        orders: dict[str, list[int]] = {}
        for op in own:
            orders.setdefault(template_named(op["template"]).phase, []).append(op["order"])
        first, end = ({phase: pick(each) for phase, each in orders.items()} for pick in (min, max))
        last = {phase: name for (_, phase), name in _last(own, split).items()}
        parts_of[block] = (*parts_of.get(block, ()), Part(first, end, last, opened.get(block, 0)))
    return parts_of


class _Values:
    """The expressions evaluated so far; each text once."""

    def __init__(self, plan: Plan, env: Mapping[str, int]) -> None:
        self._plan, self._env = plan, env
        self.known: dict[str, int] = {}

    def of(self, text: str, what: str) -> int:
        if text not in self.known:
            self.known[text] = self._plan.evaluate(text, self._env, what)
        return self.known[text]

    def present(self, row: Mapping[str, Any], what: str) -> bool:
        return row["present"] is None or self.of(row["present"], f"the condition of {what}") > 0


def _weights(graph: GraphRows, ops: Mapping[str, Mapping[str, Any]], values: _Values) -> dict[str, tuple[Weight, ...]]:
    weights: dict[str, list[Weight]] = {}
    for row in sorted(graph.weights, key=lambda row: (row["block"], row["order"])):
        buckets, gathers = (
            tuple(name for name in row[column] or () if name in ops) for column in ("buckets", "gathers")
        )
        if not (buckets or gathers) or not values.present(row, row["name"]):
            continue
        gradients, readers = (
            tuple(
                OpPlace(name, ops[name]["block"], ops[name]["order"], template_named(ops[name]["template"]))
                for name in row[column] or ()
                if name in ops
            )
            for column in ("grads", "readers")
        )
        weights.setdefault(row["block"], []).append(
            Weight(
                name=row["name"],
                block=row["block"],
                order=row["order"],
                elements=values.of(row["elements"], f"elements of {row['name']}"),
                shard=0 if row["shard"] is None else values.of(row["shard"], f"a part of {row['name']}"),
                gradients=gradients,
                buckets=buckets,
                gathers=gathers,
                readers=readers,
                part=None if row["depth"] is None else row["depth"] - 1,
            )
        )
    return {block: tuple(rows) for block, rows in weights.items()}


def _axes(ops: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    axes = {op["axis"]: op["name"] for op in ops if op["type"] == "collective"}
    unknown = sorted(set(axes) - set(GROUP_AXES))
    if unknown:
        raise StagedbError(f"the graph has collectives on axis {shown(unknown[0])}; known are {', '.join(GROUP_AXES)}")
    return axes
