"""The meaning of a stored graph, run in numpy: whole, or partitioned on a simulated mesh of ranks.

It reads nothing but the stored form, so what it proves (autodiff, layouts, collective matching) holds for what the
database holds. Sizes must be tiny; all arithmetic is in double precision.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.graph.layout import MESH_AXES, Layout, parse_layout
from stagedb.graph.operators import AdamW, Array, Place, Redistribution, load
from stagedb.graph.symbolic import SymGraph, SymOp, SymTensor, Template
from stagedb.symbols import evaluate

Key = tuple[str, int]
"""A tensor (or weight) of the block at a position."""

REPLICABLE = ("kv_heads",)


@dataclass(frozen=True)
class Run:
    """What one step computes: the loss and each weight's gradient, whole. Keys are (weight, position of its block)."""

    loss: float
    gradients: Mapping[Key, Array]


def positions(graph: SymGraph, env: Mapping[str, int]) -> list[str]:
    """The blocks of an unpipelined model in forward order."""
    return [block.name for block in graph.blocks for _ in range(evaluate(block.repeat, env))]


def weight_shapes(graph: SymGraph, env: Mapping[str, int]) -> dict[Key, tuple[int, ...]]:
    """The whole shapes of all weights; a tied copy has none of its own."""
    rows = [t for t in graph.tensors if t.role == "weight" and t.tied is None]
    return {
        (row.name, place): tuple(evaluate(expr, env, what=row.name) for expr in row.shape)
        for place, block in enumerate(positions(graph, env))
        for row in rows
        if row.block == block
    }


def run(
    graph: SymGraph,
    env: Mapping[str, int],
    weights: Mapping[Key, Array],
    tokens: Array,
    labels: Array,
    recompute_every: int = 1,
) -> Run:
    """One training step of the whole global micro-batch on dp·cp·tp simulated ranks.

    recompute_every: in which layers, counted from 1, what the graph recomputes is recomputed.
    """
    return _Step(graph, env, recompute_every).run(weights, tokens, labels)


class _Step:
    """One step's state: each value is a list of arrays, one a rank."""

    def __init__(self, graph: SymGraph, env: Mapping[str, int], recompute_every: int) -> None:
        self.graph, self.env = graph, env
        self.tensors = {t.name: t for t in graph.tensors}
        self.layouts = {t.name: parse_layout(t.layout) for t in graph.tensors}
        self.degrees = {axis: env[axis] for axis in MESH_AXES}
        ranges = [range(self.degrees[axis]) for axis in MESH_AXES]
        self.ranks = [dict(zip(MESH_AXES, c, strict=True)) for c in itertools.product(*ranges)]
        self.sizes = {
            axis: evaluate(expr, env, what=t.name)
            for t in graph.tensors
            for axis, expr in zip(t.axes, t.shape, strict=True)
        }
        self.operators = {op.name: load(op.semantics) for op in graph.ops if op.block not in ("cut", "bucket")}
        self.values: dict[Key, list[Array]] = {}
        layers = [place for place, block in enumerate(positions(graph, env)) if self.repeated(block)]
        self.recomputing = frozenset(layers[recompute_every - 1 :: recompute_every])
        self.shards = env["dp"] // env["hsdp"]
        self.templates = {op.name: op.template for op in graph.ops}
        self.buckets = {
            op.name: op
            for op in graph.ops
            if op.block == "bucket" and (op.present is None or evaluate(op.present, env) > 0)
        }
        # Parts of sharded weights, by rank: all that there is of them where nothing has gathered them.
        self.parts: dict[Key, list[Array]] = {}

    def run(self, weights: Mapping[Key, Array], tokens: Array, labels: Array) -> Run:
        places = list(enumerate(positions(self.graph, self.env)))
        specs = {block.name: block for block in self.graph.blocks}
        for place, block in places:
            self.bring_in(place, block, weights, tokens, labels)
        for place, block in places:
            self.link(specs[block].input, place, place and specs[places[place - 1][1]].output, place - 1)
            self.gather_parameters(place, block, Template.FORWARD)
            self.block(place, block, (Template.FORWARD,))
            self.give_back(place, block)
        last = len(places) - 1
        result = f"{places[last][1]}.loss"
        self.values[f"{result}.gradient", last] = [np.asarray(1.0) for _ in self.ranks]
        for place, block in reversed(places):
            if place < last:
                self.link(specs[block].output_gradient, place, specs[places[place + 1][1]].input_gradient, place + 1)
            self.gather_parameters(place, block, Template.INPUT_GRADIENT)
            self.block(place, block, (Template.INPUT_GRADIENT, Template.WEIGHT_GRADIENT))
        loss = sum(float(v) for v in self.distinct(self.values[result, last], result))
        return Run(loss, self.reduced_gradients(places))

    def bring_in(self, place: int, block: str, weights: Mapping[Key, Array], tokens: Array, labels: Array) -> None:
        for row in self.graph.tensors:
            if row.block != block:
                continue
            if row.role == "weight":
                source = row.tied or row.name
                at = 0 if row.tied else place
                value = self.scatter(weights[source, at], row)
                if self.shards > 1 and any(self.templates[name] is not Template.STEP for name in row.gathers):
                    self.parts[row.name, place] = self.split(value, row)
                else:
                    self.values[row.name, place] = value
            elif row.role == "input":
                self.values[row.name, place] = self.scatter(tokens if "tokens" in row.name else labels, row)

    def gather_parameters(self, place: int, block: str, template: Template) -> None:
        """Put the parts of a block's weights together, where a bucket of this template does; what stands outside layers
        keeps them from the forward."""
        repeated = self.repeated(block)
        for row in self.graph.tensors:
            if row.block != block or (row.name, place) not in self.parts:
                continue
            for name in row.gathers:
                bucket = self.buckets.get(name)
                if bucket is not None and bucket.template is template and (repeated or bucket.bucket != "layers"):
                    self.values[row.name, place] = self.join(self.parts[row.name, place], row)

    def give_back(self, place: int, block: str) -> None:
        """After the forward a layer's weights are parts again, where its backward gathers them once more."""
        for row in self.graph.tensors:
            again = any(self.templates[name] is Template.INPUT_GRADIENT for name in row.gathers)
            if again and row.block == block and (row.name, place) in self.parts and self.repeated(block):
                self.values.pop((row.name, place), None)

    def repeated(self, block: str) -> bool:
        return next(spec.repeat != "1" for spec in self.graph.blocks if spec.name == block)

    def split(self, value: list[Array], row: SymTensor) -> list[Array]:
        """Each rank's part of a weight that a dp group shares: rows in equal parts, the last ones padded."""
        out = []
        for rank, array in zip(self.ranks, value, strict=True):
            rows = array.reshape(int(np.prod(array.shape[: row.rows])), -1)
            each = -(-len(rows) // self.shards)
            padded = np.pad(rows, ((0, each * self.shards - len(rows)), (0, 0)))
            out.append(np.split(padded, self.shards)[rank["dp"] % self.shards])
        return out

    def join(self, value: list[Array], row: SymTensor) -> list[Array]:
        """The weight that the parts of a group make."""
        out = []
        for rank in self.ranks:
            rows = np.concatenate([value[member] for member in self.group("dp", rank)])
            shape = [length for _, length in (self.part(a, self.layouts[row.name].cuts(a), rank) for a in row.axes)]
            out.append(rows[: int(np.prod(shape[: row.rows]))].reshape(shape))
        return out

    def link(self, target: str | None, place: int, source: str | int | None, source_place: int) -> None:
        if target is not None and isinstance(source, str):
            self.values[target, place] = self.values[source, source_place]

    def block(self, place: int, block: str, templates: Sequence[Template]) -> None:
        ops = [op for op in self.graph.ops if op.block == block and op.template in templates]
        for op in sorted(ops, key=lambda op: op.order):
            self.issue(op, place)

    def issue(self, op: SymOp, place: int) -> None:
        if op.phase == "recompute" and place not in self.recomputing:
            return
        operator = self.operators[op.name]
        inputs = [self.values[self.there(name, place), place] for name in op.reads]
        if isinstance(operator, Redistribution):
            if op.present is not None and evaluate(op.present, self.env) <= 0:
                outputs = inputs
            else:
                outputs = [self.redistribute(operator, inputs[0], self.tensors[op.reads[0]])]
        else:
            rank_results = [
                operator.run(self.place(op, rank), [value[i] for value in inputs]) for i, rank in enumerate(self.ranks)
            ]
            outputs = [list(column) for column in zip(*rank_results, strict=True)]
        for name, value in zip(op.writes, outputs, strict=True):
            self.values[name, place] = value

    def there(self, name: str, place: int) -> str:
        """The tensor, or that which it repeats where it is not computed again."""
        origin = self.tensors[name].repeats
        return name if origin is None or place in self.recomputing else origin

    def place(self, op: SymOp, rank: Mapping[str, int]) -> Place:
        starts, lengths = {}, {}
        leader = True
        for name in (*op.reads, *op.writes):
            layout = self.layouts[name]
            for axis in self.tensors[name].axes:
                cut = layout.cuts(axis)
                if axis not in lengths or cut:
                    starts[axis], lengths[axis] = self.part(axis, cut, rank)
        for name in op.writes:
            leader = leader and all(rank[m] == 0 for m in self.layouts[name].partials())
        return Place(self.sizes, starts, lengths, leader)

    def part(self, axis: str, cuts: tuple[str, ...], rank: Mapping[str, int]) -> tuple[int, int]:
        """The first index and the length of a rank's part of an axis."""
        index, parts = 0, 1
        for mesh_axis in cuts:
            index, parts = index * self.degrees[mesh_axis] + rank[mesh_axis], parts * self.degrees[mesh_axis]
        size = self.sizes[axis]
        if axis in REPLICABLE and parts > size:
            return index * size // parts, 1
        if size % parts:
            raise ValueError(f"axis {axis} of size {size} does not divide by {'·'.join(cuts)} = {parts}")
        return index * (size // parts), size // parts

    def window(self, row: SymTensor, layout: Layout, rank: Mapping[str, int]) -> tuple[slice, ...]:
        parts = [self.part(axis, layout.cuts(axis), rank) for axis in row.axes]
        return tuple(slice(start, start + length) for start, length in parts)

    def scatter(self, whole: Array, row: SymTensor) -> list[Array]:
        return [whole[self.window(row, self.layouts[row.name], rank)] for rank in self.ranks]

    def group(self, axis: str, rank: Mapping[str, int]) -> list[int]:
        """The ranks that share a collective on an axis with this one, in order."""
        if axis == "kv":
            size = max(self.env["tp"] // self.env["KV"], 1)
            peers = range(rank["tp"] // size * size, (rank["tp"] // size + 1) * size)
            same = [{**rank, "tp": tp} for tp in peers]
        elif axis in ("dp", "dp_replicate"):
            first, own = rank["dp"] // self.shards * self.shards, rank["dp"] % self.shards
            near, apart = range(first, first + self.shards), range(own, self.degrees["dp"], self.shards)
            same = [{**rank, "dp": dp} for dp in (near if axis == "dp" else apart)]
        else:
            same = [{**rank, axis: i} for i in range(self.degrees[axis])]
        return [self.ranks.index(member) for member in same]

    def redistribute(self, move: Redistribution, value: list[Array], row: SymTensor) -> list[Array]:
        out = []
        for rank in self.ranks:
            members = self.group(move.mesh_axis, rank)
            own = members.index(self.ranks.index(rank))
            shares = [value[m] for m in members]
            target = row.axes.index(move.target) if move.target else None
            if move.move == "slice":
                whole = value[self.ranks.index(rank)]
            elif move.move in ("all_reduce", "reduce_scatter"):
                whole = np.maximum.reduce(shares) if move.reduces == "max" else np.sum(shares, axis=0)
            else:
                whole = np.concatenate(shares, axis=row.axes.index(move.source or ""))
            if target is not None:
                whole = np.split(whole, len(members), axis=target)[own]
            out.append(whole)
        return out

    def distinct(self, value: list[Array], name: str) -> list[Array]:
        """One array for each different share of a partial value: replicas are checked to agree and left out."""
        partial = self.layouts[name].partials()
        chosen: dict[tuple[int, ...], Array] = {}
        for rank, array in zip(self.ranks, value, strict=True):
            share = tuple(rank[m] for m in partial)
            if share in chosen:
                np.testing.assert_allclose(array, chosen[share], err_msg=f"replicas of {name} differ")
            chosen[share] = array
        return list(chosen.values())

    def reduced_gradients(self, places: list[tuple[int, str]]) -> dict[Key, Array]:
        """The gradients that the optimizers read, after buckets and once-a-step reductions, put together."""
        found: dict[Key, Array] = {}
        for place, block in places:
            step = [op for op in self.graph.ops if op.block == block and op.template is Template.STEP]
            writers = {name: op for op in step for name in op.writes if op.type == "collective"}
            for op in step:
                if not isinstance(self.operators[op.name], AdamW):
                    continue
                rows = [self.tensors[name] for name in op.reads if self.tensors[name].role == "weight"]
                grads = [name for name in op.reads if self.tensors[name].role == "gradient"]
                for row, final in zip(rows, grads, strict=True):
                    chain: list[SymOp] = []
                    base = final
                    while base in writers:
                        chain.insert(0, writers[base])
                        base = writers[base].reads[0]
                    sharded = self.reduce(base, place, row)
                    for reduction in chain:
                        self.issue(reduction, place)
                    value = self.values[final, place]
                    whole = self.gather(self.join(value, row) if sharded else value, row)
                    key = (row.tied, 0) if row.tied else (row.name, place)
                    found[key] = found[key] + whole if key in found else whole
        return found

    def reduce(self, gradient: str, place: int, row: SymTensor) -> bool:
        """Lead a gradient through its weight's buckets. True where a part of it is left on each rank."""
        sharded = False
        for bucket in (self.buckets[name] for name in row.buckets if name in self.buckets):
            move = Redistribution("all_reduce", bucket.axis or "")
            value = self.redistribute(move, self.values[gradient, place], row)
            if bucket.kind == "reduce_scatter":
                value, sharded = self.split(value, row), True
            self.values[gradient, place] = value
        return sharded

    def gather(self, value: list[Array], row: SymTensor) -> Array:
        """A weight-shaped value put together; every rank's part must agree with its replicas."""
        layout = self.layouts[row.name]
        whole = np.full([self.sizes[axis] for axis in row.axes], np.nan)
        for rank, array in zip(self.ranks, value, strict=True):
            window = self.window(row, layout, rank)
            known = whole[window]
            if not np.isnan(known).all():
                np.testing.assert_allclose(array, known, rtol=1e-9, atol=1e-12, err_msg=f"{row.name}: replicas differ")
            whole[window] = array
        return whole
