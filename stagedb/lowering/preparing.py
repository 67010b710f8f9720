"""A graph under a plan before its copy: checks, values, rank classes and groups, and the id of the instance."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.lowering.bucket_members import fill
from stagedb.lowering.class_digests import ChunkWork, Member, RankClass, StageWork, classify
from stagedb.lowering.graph_values import Evaluated, GraphRows, evaluate_graph
from stagedb.lowering.owned_classes import digest_of, with_owners
from stagedb.lowering.packed_groups import check_groups
from stagedb.lowering.stage_blocks import lay_out
from stagedb.mentions import Word
from stagedb.plans import AxisGroups, Plan, groups
from stagedb.plans.expert_checks import uneven
from stagedb.plans.layer_split import spelled_out

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
