"""A graph under a plan before its copy: checks, values, rank classes and groups, and the id of the instance."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.graphs.optimizer_step import ORTHOGONALISATION
from stagedb.ir.packed_weights import PACKED
from stagedb.ir.quotients import symbols
from stagedb.lowering.bucket_members import Bucket, BucketOp, fill
from stagedb.lowering.graph_values import Evaluated, GraphRows, evaluate_graph
from stagedb.lowering.rank_classes import (
    ChunkWork,
    Member,
    Parameters,
    RankClass,
    StageWork,
    Weight,
    classify,
    dealt,
    owner_places,
    parameter_group,
    symbols_of_owned,
)
from stagedb.lowering.stage_blocks import Place, lay_out
from stagedb.mentions import Word
from stagedb.plans import AxisGroups, Plan, groups, members
from stagedb.plans.expert_checks import uneven
from stagedb.plans.layer_split import spelled_out
from stagedb.plans.nearest_plans import Change, Misfit, Way, nearest

# Rank classes where each rank of dp updates whole weights of its own: the work of a stage, split by what ranks own.


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


# Weights in 4 bits whose groups of numbers share a scale: no rank has a part of a group.
#
# Engines refuse such parts too: vLLM's AWQ and GPTQ name a tensor parallelism that is too large
# (`The input size is not aligned with the quantized weight shape`).


def check_groups(graph: GraphRows, plan: Plan) -> None:
    """Raise UsageError, with the nearest valid plan, if ranks of a plan would have parts of a group.

    graph: with the matmuls that read such weights. plan: checked for the graph's model.
    """

    def tried(change: Change) -> None:
        other = plan.changed(change)
        other.check(graph.sizes)
        if other.options == plan.options:  # others have another graph, whose experts or weights are whole
            _check(graph, other)

    try:
        _check(graph, plan)
    except Misfit as misfit:
        raise misfit.tried(tried) from None


def _check(graph: GraphRows, plan: Plan) -> None:
    env = plan.env(graph.sizes)
    for op in graph.ops:
        reason = _reason(op, plan, env)
        if reason:
            divides = op["experts"] and plan.tp > 1 and not _reason(op, plan, {**env, "tp": 1})
            experts = [Way({"ep": plan.tp, "expert_tp": False})] if divides else []
            raise Misfit(
                f"{_place(op, plan)} has {reason}",
                nearest("tp", plan.tp, plan.tp, lambda tp: True),
                [*experts, Way({"weight_dtype": "same"})],
            )


def _place(op: Mapping[str, Any], plan: Plan) -> str:
    if plan.tp == 1:
        return f"the weight of {op['name']}"
    return f"with tp {plan.tp} a rank's part of the weight of {op['name']}"


def _reason(op: Mapping[str, Any], plan: Plan, env: Mapping[str, int]) -> str:
    """What is no whole number of groups in a matmul's weight; empty if all are whole. env: the values of symbols."""
    if op["packed"] is None:
        return ""
    rows, inputs = (plan.evaluate(text, env) for text in op["dims"][-2:])  # of one matrix on one rank
    of = PACKED[op["packed"]]
    word = Word("weight_dtype", of.name)
    if inputs % of.group:
        return f"{inputs:,} inputs, and {word} has groups of {of.group} that share a scale"
    if rows % of.together:
        return f"{rows:,} outputs, and {word} stores {of.together} of them in one integer"
    return ""


FORMAT = 6
"""Version of the contents of an instance; part of its id."""


def with_all_words(plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """The plan with all defaults and derived values written out: plans of equal meaning for a model become equal.

    sizes: the model's symbols, such as L for its layers.
    """
    split = spelled_out(plan, plan.chunk_layers(sizes["L"]))
    load = () if plan.routing else uneven(plan, sizes)
    return dataclasses.replace(plan.canonical, **split, expert_load=load)


def instance_id(graph: str, sizes: Mapping[str, int], plan: Plan) -> str:
    """The id of a graph's instance under a plan. graph: its id. sizes: those of its model.

    It is the digest of graph and plan. Two plans of equal meaning in different words have one id."""
    content = {"format": str(FORMAT), "graph": graph, "plan": with_all_words(plan, sizes).chosen}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Prepared:
    """An instance before its copy: its id, the graph's values under the plan, the rank classes and the groups."""

    id: str
    evaluated: Evaluated
    classes: tuple[RankClass, ...]
    groups: tuple[AxisGroups, ...]


def prepare(stored: GraphRows, plan: Plan, first_of_cp: bool = False) -> Prepared:
    """Evaluate a graph under a plan. Raises UsageError if the plan does not suit it.

    first_of_cp: whether all ranks of cp are taken to run what the first one does.
    """
    _check_options(stored, plan)
    plan.check(stored.sizes)
    check_groups(stored, plan)
    _check_fused(stored, plan)
    _check_ends(stored, plan)
    _check_backward(stored, plan)
    evaluated, classes = classes_of(stored, plan, evaluate_graph(stored, plan, first_of_cp))
    return Prepared(
        instance_id(stored.id, stored.sizes, plan),
        evaluated,
        classes,
        _groups(stored, plan, evaluated),
    )


def _check_options(stored: GraphRows, plan: Plan) -> None:
    chosen = plan.options.to_dict()
    for word, value in stored.options.items():
        if word in chosen and chosen[word] != value:
            raise UsageError(
                f"graph {stored.id} was built with {word} {shown(value)}, the plan has {shown(chosen[word])} "
                f"({Word(word)}): "
                "build the graph that the plan means, or leave the word out"
            )


def _check_fused(stored: GraphRows, plan: Plan) -> None:
    """Raise UsageError if one matmul makes q, k and v, and ranks of tp would have to repeat a key/value head of it."""
    kv_heads = stored.sizes["KV"]
    if plan.tp > kv_heads and any(row["joined"] for row in stored.weights):
        raise UsageError(
            f"tp {plan.tp} is more than the {kv_heads} key/value heads of {stored.name}, whose one projection of "
            f"queries, keys and values cannot repeat a head: take {Word('tp', kv_heads)}, or a card with `qkv: apart`"
        )


def _check_ends(stored: GraphRows, plan: Plan) -> None:
    """Raise UsageError if the two copies of a tied weight are not on the first and the last stage, which add them."""
    last = plan.pp * plan.virtual_stages - 1
    ends = tuple(plan.placement.stage(number, plan.pp) for number in (0, last))
    if plan.pp > 1 and ends != (0, plan.pp - 1) and any(op["axis"] == "embedding" for op in stored.ops):
        raise UsageError(
            f"the embedding and the head of graph {stored.id} are one weight, and this plan has them in chunks of "
            f"stages {ends[0]} and {ends[1]}: tied weights need the first and the last stage, so take a schedule with "
            f"its chunks in loops ({Word('schedule', 'interleaved-zb')}) or leave {Word('chunk_placement')} out"
        )


def _check_backward(stored: GraphRows, plan: Plan) -> None:
    """Raise UsageError for stages if the first layers have no backward, because nothing up to them is trained."""
    if (
        plan.pp > 1
        and plan.workflow.differentiates
        and any(block.layers and block.output_gradient is None for block in stored.blocks)
    ):
        raise UsageError(
            f"the first layers of graph {stored.id} are frozen and have no backward, so that stages with no others "
            f"would wait for gradients that nobody sends: take {Word('pp', 1)}, or train a part of all layers (leave "
            f"it out of {Word('frozen')})"
        )


def _groups(stored: GraphRows, plan: Plan, evaluated: Evaluated) -> tuple[AxisGroups, ...]:
    made = groups(plan, stored.sizes["KV"], evaluated.axes)
    for axis in evaluated.axes.keys() - {each.axis for each in made}:
        raise StagedbError(
            f"{evaluated.axes[axis]} of graph {stored.id} is a collective on axis {shown(axis)}, along which no two "
            "ranks communicate under this plan: the graph's condition for it is wrong"
        )
    return made


def classes_of(stored: GraphRows, plan: Plan, evaluated: Evaluated) -> tuple[Evaluated, tuple[RankClass, ...]]:
    """The rank classes of a graph under a plan, with the blocks, buckets and tasks of their stages.

    Returns the values of expressions too, which have more variants where ranks of dp update weights of their own.
    """
    orders, placement, last = plan.tasks(), plan.placement, plan.pp * plan.virtual_stages - 1
    works = []
    room = 1 + evaluated.turns * evaluated.width
    for member in sorted({member for _, member, _ in evaluated.variants}):

        def variants(layer: int, of_chunk: int, member: Member = member) -> tuple[int, ...]:
            again = plan.recomputes(layer, of_chunk)
            return tuple(evaluated.variants[again, member, step] for step in range(max(evaluated.turns, 1)))

        layers = plan.chunk_layers(stored.sizes["L"])
        chunks = []
        for number in lay_out(evaluated.blocks, layers, variants, evaluated.loops, plan.virtual_stages, placement):
            # torch's and Megatron's wrappers treat each chunk as a model of its own: no bucket holds weights of two
            # chunks.
            again = [
                place.position
                for place in number.places
                if place.layer is not None and plan.recomputes(place.layer, place.layer - number.counted)
            ]
            buckets, order = fill(
                number,
                evaluated.weights,
                evaluated.buckets,
                evaluated.orders,
                evaluated.last,
                room,
                evaluated.parts,
                evaluated.experts,
                again,
            )
            ways = (
                placement.route(number.index, towards, plan.pp) if 0 <= number.index + towards <= last else None
                for towards in (-1, 1)
            )
            chunks.append(ChunkWork(number, order, buckets, *ways))
        for stage in range(plan.pp):
            numbers = placement.chunks_of(stage, plan.pp, plan.virtual_stages)
            works.append(StageWork(stage, tuple(chunks[number] for number in numbers), orders[stage], member))
    values: object = evaluated.values
    if plan.options.owns_layers:
        evaluated, works = with_owners(stored, plan, evaluated, works)
        values = digest_of(evaluated.values)
    common = {"format": FORMAT, "graph": stored.id, "values": values, "dtypes": plan.dtypes.names()}
    return evaluated, classify(works, common)
