"""What the operators and collectives of a stored graph mean on the ranks of one pipeline stage, in numpy.

Nothing here has state: a value is a list of arrays, one a rank, and every function makes a new one of it.
"""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scripts.recording.drawn_values import drawn_table
from stagedb.frameworks import find_framework
from stagedb.graphs.sharing import group_of
from stagedb.ir.expressions import evaluate
from stagedb.ir.interpreter import Interpreter
from stagedb.ir.layouts import Layout, parse_layout
from stagedb.ir.operators import Array, RankPlace, Receive, Redistribution, Rotate, Send
from stagedb.ir.operators.token_copies import ExchangeTokens
from stagedb.ir.symbolic_graph import BlockSpec, OpType, SymOp, SymTensor
from stagedb.workflows import Template
from tests.symbolic_rows import parameter, peer, previous

Value = list[Array]
"""What each rank of a stage holds of a tensor, in the order of `SimulatedMesh.ranks`."""

REPLICABLE = ("kv_heads",)

NORMS = "bucket.norms."
"""The beginning of the names of collectives over norms of gradients."""


@dataclass(frozen=True)
class Update:
    """The way of a weight's gradient to its optimizer.

    `gradient` is the tensor that the backward makes, `buckets` are the collectives that it passes as one of many (those
    that the degrees leave), `reductions` the operators of the step that reduce it on its own, after those. `norms` are
    the collectives that reduce its norm.
    """

    weight: SymTensor
    gradient: str
    buckets: tuple[SymOp, ...]
    reductions: tuple[SymOp, ...]
    norms: tuple[SymOp, ...] = ()

    @property
    def sharded(self) -> bool:
        """Whether the buckets leave a part of the gradient on each rank."""
        return any(bucket.kind == "reduce_scatter" for bucket in self.buckets)


@functools.cache
def _layout(texts: tuple[str, ...]) -> Layout:
    return parse_layout(texts)


@functools.cache
def _cuts(texts: tuple[str, ...], axis: str) -> tuple[str, ...]:
    """What `Layout.cuts` has of a stored layout: ops ask for it on each rank of each run."""
    return _layout(texts).cuts(axis)


@dataclass(frozen=True)
class SimulatedMesh(Interpreter):
    """The dp·cp·tp ranks of one stage. `env` binds every symbol of the graph: degrees, sizes, B, S, dtype widths.

    expert_load: how many choices in a row go to each expert; empty: one to each. loss_share: the share of a micro-batch
    in the step's loss.
    """

    expert_load: tuple[int, ...] = ()
    loss_share: float = 1.0

    @cached_property
    def specs(self) -> Mapping[str, BlockSpec]:
        """The graph's blocks by name."""
        return {block.name: block for block in self.graph.blocks}

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of each tensor on the mesh."""
        return {t.name: _layout(tuple(t.layout)) for t in self.graph.tensors}

    @cached_property
    def ranks(self) -> Sequence[Mapping[str, int]]:
        """The coordinates of each rank, tp innermost."""
        ranges = [range(self.env[axis]) for axis in ("dp", "cp", "tp")]
        found = []
        for dp, cp, tp in itertools.product(*ranges):
            place = dp * self.env["cp"] + cp
            edp, ep = divmod(place * self.env["tp"] + tp if self.over_tp else place, self.env["ep"])
            cpr, cpa = divmod(cp, self.env["cpa"])
            epn, epr = divmod(ep, self.env["epr"])
            of_experts = {"edp": edp, "ep": ep, "epn": epn, "epr": epr}
            found.append({"dp": dp, **of_experts, "cp": cp, "cpr": cpr, "cpa": cpa, "tp": tp})
        return found

    @cached_property
    def present(self) -> frozenset[str]:
        """The ops that the degrees leave."""
        ops = self.graph.ops
        return frozenset(op.name for op in ops if op.present is None or evaluate(op.present, self.env) > 0)

    @cached_property
    def templates(self) -> Mapping[str, Template]:
        """Which kind of task runs each op."""
        return {op.name: op.template for op in self.graph.ops}

    @cached_property
    def buckets(self) -> Mapping[str, SymOp]:
        """The bucketed collectives that the degrees leave."""
        return {op.name: op for op in self.graph.ops if op.block == "bucket" and op.name in self.present}

    @cached_property
    def updates(self) -> Mapping[str, Sequence[Update]]:
        """How the gradient of each weight of a block reaches the optimizer."""
        return {block.name: self._updates(block.name) for block in self.graph.blocks}

    @property
    def shards(self) -> int:
        """Ranks that share something which dp shards: all of dp and cp, but for replicas."""
        return self.env["dp"] * self.together // self.env["hsdp"]

    @property
    def together(self) -> int:
        """Ranks of cp that gradients are reduced over."""
        return self.env["cp"] if json.loads(self.graph.options).get("cp_grad_sync", True) else 1

    @cached_property
    def over_tp(self) -> bool:
        """Whether the ranks of tp are among those of edp and ep."""
        options = json.loads(self.graph.options)
        return bool(options.get("sp", False)) and not options.get("expert_tp", True)

    @cached_property
    def deals_keys(self) -> bool:
        """Whether ranks of cp share caches by position."""
        return str(json.loads(self.graph.options)["cp_kind"]) == "allgather-lse"

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped by their norm."""
        return bool(json.loads(self.graph.options).get("clip_norm", False))

    def sharing(self, row: SymTensor) -> str:
        """The axis of the groups that share a weight: experts are shared by those who hold the same."""
        divided = self.env["ep"] * (self.env["tp"] if self.over_tp else 1) > 1
        return "edp" if divided and self.layouts[row.name].on("ep") is not None else "dp"

    def sharers(self, row: SymTensor) -> int:
        """Members of such a group."""
        return self.shards if self.sharing(row) == "dp" else self.env["edp"] // self.env["hsdp"]

    def weights(self, block: str) -> list[SymTensor]:
        """The weights of a block."""
        return [row for row in self.graph.tensors if row.block == block and row.role == "weight"]

    @cached_property
    def order(self) -> Array | None:
        """The tokens in the order in which ranks have them, where causal work is balanced: a chunk from the front and
        its counterpart from the back for each place of the ring; None where it is their own."""
        cp, options = self.env["cp"], json.loads(self.graph.options)
        if cp == 1 or options.get("cp_chunks") != "balanced":
            return None
        places = self.env["cpr"] if options["cp_kind"] == "ulysses-ring" else cp
        chunks = np.split(np.arange(self.env["S"]), 2 * places)
        return np.concatenate([chunks[i] for place in range(places) for i in (place, 2 * places - 1 - place)])

    def cut(self, end: OpType, template: Template) -> SymOp:
        """The stored op for one end of a message; ValueError where there is none."""
        ops = (op for op in self.graph.ops if op.block == "cut" and (op.type, op.template) == (end, template))
        found = next(ops, None)
        if found is None:
            raise ValueError(f"the graph has no {end} for what goes between stages in a {template}")
        return found

    def arriving(self, template: Template) -> list[SymOp]:
        """The op that receives a message, and those that make of it what the blocks read."""
        ops = [op for op in self.ops("cut", (template,)) if op.type is OpType.COLLECTIVE]
        return [self.cut(OpType.RECV, template), *ops]

    def turns(self, op: SymOp) -> int:
        """How often an op runs in turn."""
        return 1 if op.loop is None else evaluate(op.loop.times, self.env)

    def runs(self, op: SymOp, step: int, rank: Mapping[str, int] | None = None) -> bool:
        """Whether an op of a loop runs in a turn: on a rank, or on any."""
        if op.present is None:
            return True
        ranks = range(self.env["cp"]) if rank is None else (rank["cp"],)
        return any(evaluate(op.present, {**self.env, "step": step + 1, "cp_rank": cp + 1}) > 0 for cp in ranks)

    def execute(self, op: SymOp, inputs: list[Value], step: int = 0, layer: int = 0) -> list[Value]:
        """Run one op of a block on all ranks; a collective that the degrees leave out passes its input on.

        layer: the number of the layer, from 0.
        """
        operator = self.operators[op.name]
        if isinstance(operator, Rotate):
            (value,) = inputs
            return [[value[self._before(operator.mesh_axis, rank)] for rank in self.ranks]]
        if isinstance(operator, Redistribution):
            if op.name not in self.present:
                return inputs
            return [self._redistribute(operator, inputs[0], self.tensors[op.reads[0]], group_of(operator.mesh_axis))]
        if isinstance(operator, ExchangeTokens):
            source, target = ("sent", operator.hop)[:: -1 if operator.back else 1]
            move = Redistribution("all_to_all", operator.mesh_axis, source, target)
            return [
                self._redistribute(move, value, self.tensors[name], operator.mesh_axis)
                for name, value in zip(op.reads, inputs, strict=True)
            ]
        results = [
            self.apply(op, self._place(op, rank, step, layer), [value[i] for value in inputs])
            for i, rank in enumerate(self.ranks)
        ]
        return [list(column) for column in zip(*results, strict=True)]

    def turn(self, op: SymOp, held: Mapping[str, Value], step: int) -> list[Value]:
        """Run an op of a loop in a turn. What came is sent on in the place of the first; what is not there is empty.

        On a rank that leaves the turn out, what the op carries on stays as it was, and it makes nothing else.
        """
        if isinstance(self.operators[op.name], Rotate):
            return self.execute(op, [held[[name for name in op.reads if name in held][-1]]], step)
        empty: Value = [np.empty(0)] * len(self.ranks)
        inputs = [held.get(name, empty) for name in op.reads]
        results = []
        for i, rank in enumerate(self.ranks):
            if self.runs(op, step, rank):
                results.append(self.apply(op, self._place(op, rank, step), [each[i] for each in inputs]))
            else:
                kept = {name: held[name][i] for name in previous(op) if name in held}
                results.append([kept.get(name, np.empty(0)) for name in op.writes])
        return [list(column) for column in zip(*results, strict=True)]

    def sent(self, op: SymOp, held: Mapping[str, Value], step: int) -> list[Value]:
        """What a send puts on the wire in a turn: keys, in the backward then the sums of their gradients, as far as the
        turn has them to send."""
        operator = self.operators[op.name]
        if not isinstance(operator, Send):
            raise TypeError(f"{op.name} is not a send")
        first, came, *sums = op.reads
        keys = [held.get(came, held[first])]
        if not operator.back:
            return keys
        last = step == self.turns(op) - 1
        return [*([] if last else keys), *([held[sums[0]]] if step else [])]

    def received(self, op: SymOp, message: list[Value], step: int) -> list[Value]:
        """What a message leaves on the ranks that it goes to, in the place of each tensor that the receive writes."""
        operator = self.operators[op.name]
        if not isinstance(operator, Receive):
            raise TypeError(f"{op.name} is not a receive")
        hop = evaluate(peer(op), self.env)
        named = [(rank["dp"], rank["cp"], rank["tp"]) for rank in self.ranks]
        moved = []
        for value in message:
            sources = [(dp, (cp + hop) % self.env["cp"], tp) for dp, cp, tp in named]
            moved.append([value[named.index(source)] for source in sources])
        if not operator.back:
            return moved
        empty: Value = [np.empty(0)] * len(self.ranks)
        last = step == self.turns(op) - 1
        return [empty if last else moved[0], moved[-1] if step else empty]

    def reduce(self, bucket: SymOp, value: Value, weight: SymTensor) -> Value:
        """What a bucket leaves of a weight's gradient: its sum, or each rank's part of it."""
        axis = bucket.axis or ""
        value = self._redistribute(Redistribution("all_reduce", axis), value, weight, axis)
        return self.split(value, weight) if bucket.kind == "reduce_scatter" else value

    def square(self, update: Update, value: Value) -> Value:
        """The square of a gradient's norm on each rank, reduced over the axes of the mesh that shard the gradient.

        On an axis that does not, each rank has an equal share of it, as DTensor makes of what is replicated.
        """
        own: Value = [np.sum(np.square(part)) for part in value]
        for bucket in update.norms:
            axis = bucket.axis or ""
            if axis == "pp":
                continue
            shards = update.sharded if axis in ("dp", "edp") else self.layouts[update.weight.name].on(axis) is not None
            members = [self._group(axis, rank) for rank in self.ranks]
            own = [np.sum([own[m] for m in group], axis=0) / (1 if shards else len(group)) for group in members]
        return own

    def table(self, row: SymTensor) -> Value:
        """The parts of a table that chooses experts by tokens."""
        vocabulary, choices = (self.sizes[row.block][axis] for axis in row.axes)
        return self.scatter(drawn_table(vocabulary, choices, self.env["E"]), row)

    def scatter(self, whole: Array, row: SymTensor) -> Value:
        """The parts of a whole value, by the layout of its tensor."""
        if row.role == "input" and self.order is not None:
            whole = np.take(whole, self.order, axis=row.axes.index("seq"))
        return [whole[self._window(row, self.layouts[row.name], rank)] for rank in self.ranks]

    def gather(self, value: Value, row: SymTensor) -> Array:
        """A weight-shaped value put together; AssertionError where replicas of a part differ."""
        layout = self.layouts[row.name]
        whole = np.full([self.sizes[row.block][axis] for axis in row.axes], np.nan)
        for rank, array in zip(self.ranks, value, strict=True):
            window = self._window(row, layout, rank)
            known = whole[window]
            if not np.isnan(known).all():
                np.testing.assert_allclose(array, known, rtol=1e-9, atol=1e-12, err_msg=f"{row.name}: replicas differ")
            whole[window] = array
        return whole

    @property
    def near(self) -> int:
        """Neighbours that keep all parameters from a forward to its backward; 0 if all that shard them do."""
        return int(json.loads(self.graph.options).get("reshard_to") or 0)

    def split(self, value: Value, row: SymTensor, near: bool = False) -> Value:
        """Each rank's part of a weight that a dp group shares: rows in equal parts, the last ones padded. near: the
        part among its neighbours, of which each has those of several ranks."""
        if near:
            whole = self.join(self.split(value, row), row, padded=True)
            return [
                np.split(array, self.near)[self._group("dp_reshard", rank).index(self.ranks.index(rank))]
                for rank, array in zip(self.ranks, whole, strict=True)
            ]
        out, shards, axis = [], self.sharers(row), self.sharing(row)
        for rank, array in zip(self.ranks, value, strict=True):
            place = self._group(axis, rank).index(self.ranks.index(rank))
            if self.columns(row, rank):
                out.append(np.split(array, shards, axis=1)[place])
                continue
            rows = array.reshape(int(np.prod(array.shape[: parameter(row).rows])), -1)
            each = -(-len(rows) // shards)
            padded = np.pad(rows, ((0, each * shards - len(rows)), (0, 0)))
            out.append(np.split(padded, shards)[place])
        return out

    def columns(self, row: SymTensor, rank: Mapping[str, int]) -> bool:
        """Whether ranks cut a weight along its second axis: that of few experts that are divided."""
        cuts = find_framework(self.graph.recipe).cuts_columns and self.sharing(row) == "edp"
        _, experts = self._part(row.block, row.axes[0], self.layouts[row.name].cuts(row.axes[0]), rank)
        return cuts and self.sharers(row) > experts

    def join(self, value: Value, row: SymTensor, axis: str = "", padded: bool = False) -> Value:
        """The weight that the parts of a group make; padded: its rows as they are."""
        out = []
        for rank in self.ranks:
            parts = [value[member] for member in self._group(axis or self.sharing(row), rank)]
            if self.columns(row, rank):
                out.append(np.concatenate(parts, axis=1))
                continue
            rows = np.concatenate(parts)
            if padded:
                out.append(rows)
                continue
            window = self._window(row, self.layouts[row.name], rank)
            shape = [part.stop - part.start for part in window]
            wanted = int(np.prod(shape[: parameter(row).rows]))
            if len(rows) - wanted >= self.sharers(row):
                raise ValueError(f"{row.name}: {len(rows)} rows are gathered, and it has {wanted}")
            out.append(rows[:wanted].reshape(shape))
        return out

    def total(self, value: Value, name: str) -> float:
        """A scalar that may be partial: the sum of its different shares. AssertionError where replicas differ."""
        partial = self.layouts[name].partials()
        chosen: dict[tuple[int, ...], Array] = {}
        for rank, array in zip(self.ranks, value, strict=True):
            share = tuple(rank[m] for m in partial)
            if share in chosen:
                np.testing.assert_allclose(array, chosen[share], err_msg=f"replicas of {name} differ")
            chosen[share] = array
        return sum(float(array) for array in chosen.values())

    def check_same(self, source: str, target: str) -> None:
        """ValueError where a value cannot be handed from one tensor to another: their layouts differ."""
        if self.layouts[source] != self.layouts[target]:
            texts = [", ".join(self.layouts[name].texts()) or "whole" for name in (source, target)]
            raise ValueError(f"{source} has layout {texts[0]}, {target} {texts[1]}: nothing between them moves it")

    def check_local(self, value: Value, name: str) -> None:
        """ValueError where what a rank holds is not of the stored local shape."""
        local = tuple(evaluate(expr, self.env, what=name) for expr in self.tensors[name].local)
        for array in value:
            if array.shape != local:
                raise ValueError(f"{name} is {array.shape} on a rank, and stored as {local}")

    def _updates(self, block: str) -> list[Update]:
        found = []
        for name, path in self.paths(block).items():
            weight = self.tensors[name]
            there = [self.buckets[each] for each in parameter(weight).buckets if each in self.buckets]
            norms = tuple(each for each in there if each.name.startswith(NORMS))
            buckets = tuple(each for each in there if each not in norms)
            found.append(Update(weight, path.gradient, buckets, path.reductions, norms))
        return found

    @cached_property
    def _places(self) -> dict[tuple[str, tuple[int, ...], int, int], RankPlace]:
        """The places that were asked for, by op, rank, step and layer: each op runs many times."""
        return {}

    def _place(self, op: SymOp, rank: Mapping[str, int], step: int, layer: int = 0) -> RankPlace:
        key = op.name, tuple(rank.values()), step, layer
        if key not in self._places:
            self._places[key] = self._new_place(op, rank, step, layer)
        return self._places[key]

    def _new_place(self, op: SymOp, rank: Mapping[str, int], step: int, layer: int) -> RankPlace:
        starts, lengths = {}, {}
        leader = True
        for name in (*op.reads, *op.writes):
            row = self.tensors[name]
            for axis in row.axes:
                cut = _cuts(row.layout, axis)
                if axis not in lengths or cut:
                    starts[axis], lengths[axis] = self._part(row.block, axis, cut, rank)
        for name in op.writes:
            leader = leader and all(rank[m] == 0 for m in self.layouts[name].partials())
        load, share, earlier = self.expert_load, self.loss_share, self.env["SK"] - self.env["S"]
        sizes = self.sizes[op.block]
        return RankPlace(sizes, starts, lengths, leader, rank, step, self.order, load, self.env, share, earlier, layer)

    def _part(self, block: str, axis: str, cuts: tuple[str, ...], rank: Mapping[str, int]) -> tuple[int, int]:
        """The first index and the length of a rank's part of an axis in a block."""
        index, parts = 0, 1
        for mesh_axis in cuts:
            index, parts = index * self.env[mesh_axis] + rank[mesh_axis], parts * self.env[mesh_axis]
        size = self.sizes[block][axis]
        if axis == "kseq" and cuts == ("cp",) and self.deals_keys:
            return 0, len(range(rank["cp"], size, self.env["cp"]))  # every cp-th position
        if axis in REPLICABLE and parts > size:
            return index * size // parts, 1
        if size % parts:
            raise ValueError(f"axis {axis} of size {size} does not divide by {'·'.join(cuts)} = {parts}")
        return index * (size // parts), size // parts

    def _window(self, row: SymTensor, layout: Layout, rank: Mapping[str, int]) -> tuple[slice, ...]:
        parts = [self._part(row.block, axis, layout.cuts(axis), rank) for axis in row.axes]
        return tuple(slice(start, start + length) for start, length in parts)

    def _before(self, axis: str, rank: Mapping[str, int]) -> int:
        """The member before this one on a ring."""
        members = self._group(axis, rank)
        return members[members.index(self.ranks.index(rank)) - 1]

    def _group(self, axis: str, rank: Mapping[str, int]) -> list[int]:
        """The ranks that share a collective on an axis with this one, in order."""
        if axis == "kv":
            size = max(self.env["tp"] // self.env["KV"], 1)
            peers = range(rank["tp"] // size * size, (rank["tp"] // size + 1) * size)
            same = [{**rank, "tp": tp} for tp in peers]
        elif axis in ("dp", "dp_replicate"):
            copy = self.env["dp"] // self.env["hsdp"]
            first, own = rank["dp"] // copy * copy, rank["dp"] % copy
            within, across = range(first, first + copy), range(own, self.env["dp"], copy)
            same = [{**rank, "dp": dp} for dp in (within if axis == "dp" else across)]
            if axis == "dp" and self.together > 1:
                same = [{**member, "cp": cp} for member in same for cp in range(self.env["cp"])]
        elif axis == "dp_reshard":
            sharing = self._group("dp", rank)
            first = sharing.index(self.ranks.index(rank)) // self.near * self.near
            return sharing[first : first + self.near]
        elif axis == "data":
            same = [{**rank, "dp": dp} for dp in range(self.env["dp"])]
        elif axis in ("ep", "edp"):
            fixed = {"ep", "edp"} - {axis} | (set() if self.over_tp else {"tp"})
            same = [dict(other) for other in self.ranks if all(other[a] == rank[a] for a in fixed)]
            if axis == "edp":
                copy = self.env["dp"] // self.env["hsdp"]
                same = [other for other in same if other["dp"] // copy == rank["dp"] // copy]
        elif axis in ("epn", "epr"):
            others = {"epn", "epr"} - {axis}
            members = [self.ranks[member] for member in self._group("ep", rank)]
            same = [dict(other) for other in members if all(other[each] == rank[each] for each in others)]
        elif axis in ("cpr", "cpa"):
            near = self.env["cpa"]
            own = rank["cpa"] if axis == "cpr" else rank["cpr"] * near
            same = [{**rank, "cp": own + i * (near if axis == "cpr" else 1)} for i in range(self.env[axis])]
        else:
            same = [{**rank, axis: i} for i in range(self.env[axis])]
        # The place of a member on edp and ep follows from dp.
        named = [tuple(other[a] for a in ("dp", "cp", "tp")) for other in self.ranks]
        return [named.index(tuple(member[a] for a in ("dp", "cp", "tp"))) for member in same]

    def _redistribute(self, move: Redistribution, value: Value, row: SymTensor, axis: str) -> Value:
        """What a move leaves of a value, each rank in its group of an axis."""
        out = []
        for rank in self.ranks:
            members = self._group(axis, rank)
            own = members.index(self.ranks.index(rank))
            shares = [value[m] for m in members]
            target = row.axes.index(move.target) if move.target else None
            if move.move == "slice":
                whole = value[self.ranks.index(rank)]
            elif move.move == "share":
                whole = value[self.ranks.index(rank)] / len(members)
            elif move.move == "pad":
                others = [share if place == own else np.zeros_like(share) for place, share in enumerate(shares)]
                whole = np.concatenate(others, axis=row.axes.index(move.source or ""))
            elif move.move in ("all_reduce", "reduce_scatter"):
                whole = np.maximum.reduce(shares) if move.reduces == "max" else np.sum(shares, axis=0)
            else:
                whole = np.concatenate(shares, axis=row.axes.index(move.source or ""))
            if target is not None:
                whole = np.split(whole, len(members), axis=target)[own]
            out.append(whole)
        return out
