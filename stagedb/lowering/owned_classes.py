"""Rank classes where each rank of dp updates whole weights of its own: the work of a stage, split by what ranks own."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagedb.build.muon import ORTHOGONALISATION
from stagedb.expressions import symbols
from stagedb.lowering.bucket_members import Bucket
from stagedb.lowering.class_digests import ChunkWork, Member, StageWork
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
    stage, member and index of a gather among the buckets, the weights of each of the ranks that share it.
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
    shares: dict[tuple[int, Member, int], tuple[Counter[Weight], ...]] = field(default_factory=dict)

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
        places = owner_places(self.plan, member)
        chunks = []
        for chunk in work.chunks:
            owned: dict[Weight, int] = {}
            buckets = []
            for at, bucket in enumerate(chunk.buckets):
                if not bucket.gathers:
                    buckets.append(bucket)
                    continue
                own = self._dealt(work, chunk, at)[places[self.axes[bucket.op]]]
                owned |= {(each.position, each.weight): own[each.position, each.weight] for each in bucket.members}
                buckets.append(self._gather(chunk, bucket, own))
            stage = replace(
                chunk.stage,
                places=tuple(replace(place, variant=self._variant(place, owned)) for place in chunk.stage.places),
            )
            chunks.append(replace(chunk, stage=stage, buckets=tuple(buckets)))
        return replace(work, chunks=tuple(chunks), member=member)

    def _dealt(self, work: StageWork, chunk: ChunkWork, at: int) -> tuple[Counter[Weight], ...]:
        """By place of a rank, its parameters of each weight that a gather carries. at: the gather among the buckets."""
        key = work.index, work.member, at
        if key not in self.shares:
            bucket = chunk.buckets[at]
            ranks = next(op.parts for op in self.evaluated.buckets if op.name == bucket.op)
            self.shares[key] = dealt([*self._parameters(chunk, bucket)], ranks)
        return self.shares[key]

    def _parameters(self, chunk: ChunkWork, bucket: Bucket) -> Iterator[Parameters]:
        """The parameters of the weights that a gather carries, in the order of the model."""
        carried = {(member.position, member.weight) for member in bucket.members}
        for place in chunk.stage.places:
            for weight in self.evaluated.weights.get(place.block, ()):
                key = place.position, weight.name
                if key in carried:
                    count = weight.elements // weight.shard
                    yield Parameters(key, weight.shard, count, self.groups[weight.name])

    def _gather(self, chunk: ChunkWork, bucket: Bucket, own: Mapping[Weight, int]) -> Bucket:
        """The gather of a rank: it passes in what it has updated."""
        op = next(op for op in self.evaluated.buckets if op.name == bucket.op)
        sizes = {each.weight: each.elements for each in self._parameters(chunk, bucket)}
        width, _ = op.bytes(1, 1)
        return replace(bucket, bytes_in=width * sum(sizes[weight] * count for weight, count in own.items()))

    def _variant(self, place: Place, owned: Mapping[Weight, int]) -> int:
        """The variant of a block at a place where a rank owns these numbers of parameters of its weights."""
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
