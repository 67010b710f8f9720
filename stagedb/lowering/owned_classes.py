"""Rank classes where each rank of dp updates whole weights of its own: the work of a stage, split by what ranks own."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagedb.graphs.muon import ORTHOGONALISATION
from stagedb.ir.quotients import symbols
from stagedb.lowering.bucket_members import Bucket, BucketOp
from stagedb.lowering.class_digests import Member, StageWork
from stagedb.lowering.graph_values import Evaluated, GraphRows
from stagedb.lowering.layer_owners import (
    Parameters,
    Weight,
    dealt,
    owner_places,
    parameter_group,
    symbols_of_owned,
)
from stagedb.lowering.stage_blocks import Place
from stagedb.plans import Plan, members


def with_owners(
    graph: GraphRows, plan: Plan, evaluated: Evaluated, works: Sequence[StageWork]
) -> tuple[Evaluated, list[StageWork]]:
    """The work of each rank of a stage by what it owns, and the values of expressions with those of its weights.

    works: by stage and member (coordinates on cp and ep, 0 where ranks do not differ), as if ranks owned all.
    """
    splitting = _Splitting.of(graph, plan, evaluated)
    base = {work.member for work in works}
    along_cp, along_ep = (any(member[axis] for member in base) for axis in (0, 1))
    found = []
    for work in works:
        for cp, ep, dp in sorted(members(plan)):
            if work.member[:2] == (cp if along_cp else 0, ep if along_ep else 0):
                found.append(splitting.work(work, (cp, ep if along_ep else 0, dp)))
    values, temporaries = tuple(splitting.values), tuple(splitting.temporaries)
    return replace(evaluated, values=values, temporaries=temporaries), found


def digest_of(values: Sequence[Mapping[str, int]]) -> str:
    """sha256 of the values of expressions in all variants. There may be many, which the digest of each class has."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class _Splitting:
    """The tables for splitting the work of a stage.

    groups: by weight, the place of its parameter group. axes: by bucket, that of its collective. symbols: by block and
    name of a weight, its symbol. texts: by block, the expressions that have symbols of its weights. values,
    temporaries: as in `evaluated`, with those of further variants. made: by variant and values of symbols, the place of
    a further variant among these: ranks that own other weights have other ones, even if these cost the same. shares: by
    stage, member and gather, the weights of each of the ranks that share it.
    """

    plan: Plan
    evaluated: Evaluated
    groups: Mapping[str, int]
    axes: Mapping[str, str]
    symbols: Mapping[tuple[str, str], str]
    texts: Mapping[str, tuple[str, ...]]
    values: list[Mapping[str, int]]
    temporaries: list[Mapping[str, int]]
    made: dict[tuple[int, tuple[tuple[str, int], ...]], int] = field(default_factory=dict)
    shares: dict[tuple[int, Member, str], tuple[Counter[Weight], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: GraphRows, plan: Plan, evaluated: Evaluated) -> "_Splitting":
        """The tables of a graph under a plan."""
        blocks = [block.name for block in graph.blocks]
        named = symbols_of_owned(blocks, graph.weights)
        own = {block: {symbol for (of, _), symbol in named.items() if of == block} for block in blocks}
        used = {text: symbols(text) for text in evaluated.values[0]}
        texts = {block: tuple(text for text, found in used.items() if found & own[block]) for block in blocks}
        ops = {op["name"]: op for op in graph.ops}
        return cls(
            plan,
            evaluated,
            {
                row["name"]: parameter_group(row["name"], row["axes"], f"{row['name']}.{ORTHOGONALISATION}" in ops)
                for row in graph.weights
            },
            {name: op["axis"] for name, op in ops.items() if op["axis"] is not None},
            named,
            texts,
            [*evaluated.values],
            [*evaluated.temporaries],
        )

    def work(self, work: StageWork, member: Member) -> StageWork:
        """The work of the ranks of a stage with these coordinates."""
        places, counts = owner_places(self.plan, member), dict[Weight, int]()
        gathers: list[Bucket] = []
        for op in self.evaluated.buckets:
            if op.gathers and (parameters := self._parameters(work, op.name)):
                own = self._dealt(work, op, parameters)[places[self.axes[op.name]]]
                counts |= {each.weight: own[each.weight] for each in parameters}
                gathers.append(self._gather(work, op, parameters, own, len(gathers) + 1))
        chunks = []
        for number, chunk in enumerate(work.chunks):
            owned = {(at, name): count for (of, at, name), count in counts.items() if of == number}
            variants = tuple(replace(place, variant=self._variant(place, owned)) for place in chunk.stage.places)
            buckets = [bucket for bucket in chunk.buckets if not bucket.gathers]
            buckets += gathers if number == len(work.chunks) - 1 else []
            chunks.append(replace(chunk, stage=replace(chunk.stage, places=variants), buckets=tuple(buckets)))
        return replace(work, chunks=tuple(chunks), member=member)

    def _dealt(self, work: StageWork, op: BucketOp, parameters: Sequence[Parameters]) -> tuple[Counter[Weight], ...]:
        """By place of a rank, its parameters of each weight that a gather carries."""
        key = work.index, work.member, op.name
        if key not in self.shares:
            self.shares[key] = dealt(parameters, op.parts)
        return self.shares[key]

    def _parameters(self, work: StageWork, gather: str) -> list[Parameters]:
        """The parameters of the weights that a gather carries, in the order of the model. gather: its name."""
        return [
            Parameters(
                (number, place.position, weight.name),
                weight.shard,
                weight.elements // weight.shard,
                self.groups[weight.name],
            )
            for number, chunk in enumerate(work.chunks)
            for place in chunk.stage.places
            for weight in self.evaluated.weights.get(place.block, ())
            if gather in weight.gathers
        ]

    def _gather(
        self, work: StageWork, op: BucketOp, parameters: Sequence[Parameters], own: Mapping[Weight, int], slot: int
    ) -> Bucket:
        """The gather of a rank, which passes in what it has updated, after the updates of all chunks.

        slot: its place among the gathers.
        """
        last = work.chunks[-1]
        width, _ = op.bytes(1, 1)
        carried = [
            replace(member, chunk=None if number == len(work.chunks) - 1 else number)
            for number, chunk in enumerate(work.chunks)
            for bucket in chunk.buckets
            if bucket.op == op.name
            for member in bucket.members
        ]
        end = last.order.upward(last.order.positions) + (last.order.orders - 1) * last.order.slots
        return Bucket(
            op=op.name,
            gathers=True,
            index=0,
            bytes_in=width * sum(each.elements * own[each.weight] for each in parameters),
            bytes_out=width * sum(each.elements * each.count for each in parameters),
            position=last.order.positions - 1,
            base=end,
            members=tuple(carried),
            slot=slot,
        )

    def _variant(self, place: Place, owned: Mapping[tuple[int, str], int]) -> int:
        """The variant of a block at a place where a rank owns these numbers of parameters of its weights.

        owned: by position and name, those of its chunk.
        """
        base, known = place.variant, self.evaluated.envs[place.variant]
        own = {self.symbols[place.block, name]: 1 + n for (at, name), n in owned.items() if at == place.position}
        if all(known[symbol] == value for symbol, value in own.items()):
            return base
        key = base, tuple(sorted(own.items()))
        if key not in self.made:
            self.made[key] = len(self.values)
            changed = {text: self.plan.evaluate(text, {**known, **own}) for text in self.texts[place.block]}
            self.values.append({**self.values[base], **changed})
            self.temporaries.append(self.temporaries[base])
        return self.made[key]
