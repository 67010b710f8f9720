"""Rank classes: stages whose ranks do the same work, and which rank of dp updates which weights."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.graphs.optimizer_step import EXPERTS, owned_symbol
from stagedb.lowering.bucket_members import Bucket
from stagedb.lowering.stage_blocks import IssueOrder, Stage
from stagedb.plans import Mesh, Plan, groups
from stagedb.plans.mesh import OWNED_AXES
from stagedb.schedules import LOOP, ChunkPlacement, ChunkRoute, Task, pairs, receiver, sending, sent

Member = tuple[int, int, int]
"""A rank's coordinates on cp, ep and dp."""


@dataclass(frozen=True)
class ChunkWork:
    """The blocks and buckets of one chunk (virtual stage).

    stage: its blocks. order: the issue numbers of its ops. before, after: the way of a message to the previous and to
    the next chunk of the pipeline; None at the pipeline's ends.
    """

    stage: Stage
    order: IssueOrder
    buckets: tuple[Bucket, ...]
    before: ChunkRoute | None = None
    after: ChunkRoute | None = None

    @property
    def ends(self) -> list[object]:
        """For the digest: whether chunks follow at either end, and on which stage.

        In a loop of stages, where means whether messages go around its ends.
        """
        ways = ((self.before, -1), (self.after, 1))
        there = [way is not None for way, _ in ways]
        if all(_looped(way, towards) for way, towards in ways):
            return [*there, *(way is not None and way.step != 0 for way, _ in ways)]
        return [*there, *([] if way is None else [way.hop, way.step] for way, _ in ways)]


def _looped(way: ChunkRoute | None, towards: int) -> bool:
    """Whether a way is one of a loop of stages: to the next stage, or around an end to another chunk."""
    return way is None or (way.hop, way.step) == (towards, 0) or (way.step == towards and way.hop * towards < 0)


@dataclass(frozen=True)
class StageWork:
    """The work of a rank of one stage.

    index: of the stage. chunks: in their order on the stage. tasks: in the order in which they run. member: coordinates
    on cp, ep and dp of the rank; 0 along an axis whose ranks do the same.
    """

    index: int
    chunks: tuple[ChunkWork, ...]
    tasks: tuple[Task, ...]
    member: Member = (0, 0, 0)

    @property
    def layers(self) -> int:
        """The number of layers of the stage, in all of its chunks."""
        return sum(chunk.stage.layers for chunk in self.chunks)


@dataclass(frozen=True)
class RankClass:
    """Stages whose ranks do the same work.

    number: of the class. digest: of the work. stages: their indexes. first_layers: for each stage, chunk after chunk,
    the number to add to a layer's number on the stage to get its number in the model. work: that of the first stage;
    peers and groups are relative in it, so it serves all stages. places: (stage, member) of all ranks; the member (0,
    0, 0) represents all where none differ.
    """

    number: int
    digest: str
    stages: tuple[int, ...]
    first_layers: tuple[int, ...]
    work: StageWork
    places: tuple[tuple[int, Member], ...] = ()


@dataclass(frozen=True, order=True)
class Feed:
    """A message between tasks of two rank classes: the target waits for it.

    source_class, target_class: numbers of the classes. source, target: indexes of their tasks. hop: how many stages
    further the target is. Between chunks a message may go around the ends: from the last stage to the first the hop is
    1 minus the number of stages. With hop 0 a stage hands over to itself, without a message.
    """

    source_class: int
    source: int
    target_class: int
    target: int
    hop: int


def work_digest(work: StageWork, common: Mapping[str, object]) -> str:
    """sha256 of the work of a rank of this stage, without the global numbers of layers, peers and groups.

    `common`: what all stages share, the graph and the values of its expressions by variant.
    """
    together = [list(each) for each in pairs(work.tasks)]
    content = {
        **common,
        **({"together": together} if together else {}),
        "tasks": [[task.kind.name, task.microbatch, task.chunk] for task in work.tasks],
        "chunks": [_content(chunk) for chunk in work.chunks],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def operators_digest(work: StageWork) -> str:
    """sha256 of what the operators of a stage and their edges follow from: all of its work but the order of tasks."""
    content = [_content(chunk) for chunk in work.chunks]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _content(work: ChunkWork) -> Mapping[str, object]:
    return {
        "blocks": [place.block for place in work.stage.with_cuts()],
        "variants": [[place.variant, *place.steps] for place in work.stage.with_cuts()],
        "ends": work.ends,
        "buckets": [
            [
                bucket.op,
                bucket.bytes_in,
                bucket.bytes_out,
                bucket.base + bucket.slot,
                [[m.position, m.weight, *([] if m.chunk is None else [m.chunk])] for m in bucket.members],
            ]
            for bucket in work.buckets
        ],
    }


def classify(works: Sequence[StageWork], common: Mapping[str, object]) -> tuple[RankClass, ...]:
    """The rank classes: stage works whose ranks run the same operators are one class.

    works: what the ranks of each stage run. common: what every class's digest includes. Returns the classes in the
    order of their first stages.
    """
    works_of: dict[str, list[StageWork]] = {}
    for work in works:
        works_of.setdefault(work_digest(work, common), []).append(work)
    return tuple(_class(number, digest, members) for number, (digest, members) in enumerate(works_of.items()))


def _class(number: int, digest: str, members: Sequence[StageWork]) -> RankClass:
    firsts = {work.index: [chunk.stage.first_layer - chunk.stage.counted for chunk in work.chunks] for work in members}
    return RankClass(
        number,
        digest,
        tuple(firsts),
        tuple(first for layers in firsts.values() for first in layers),
        members[0],
        tuple((work.index, work.member) for work in members),
    )


def feeds(classes: Sequence[RankClass], placement: ChunkPlacement = LOOP) -> list[Feed]:
    """Which task waits for the message of which task, between classes. A class may feed itself."""
    class_of = {place: rank_class for rank_class in classes for place in rank_class.places}
    stages = 1 + max(stage for stage, _ in class_of)
    indexes = {
        rank_class.number: {task: index for index, task in enumerate(rank_class.work.tasks)} for rank_class in classes
    }
    receiving = {rank_class.number: sending(rank_class.work.tasks) for rank_class in classes}
    fed: set[Feed] = set()
    for (stage, member), rank_class in class_of.items():
        for index, task in enumerate(rank_class.work.tasks):
            to = receiver(task, stage, stages, len(rank_class.work.chunks), placement)
            if to is not None:
                target = class_of[to[0], member].number
                task_there = receiving[target][sent(to[1])]
                fed.add(Feed(rank_class.number, index, target, indexes[target][task_there], to[0] - stage))
    return sorted(fed)


# Which rank of dp updates which weights, where each of them updates whole weights of its own.
#
# Megatron-Core 0.16.1, `LayerWiseDistributedOptimizer.shard_params` in megatron/core/optimizer/layer_wise_optimizer.py:
# the parameters of a stage in ascending order of their elements are dealt to the ranks there and back (the first to
# rank 0, …, n - 1, then n - 1, …, 0). Those of experts that ranks of ep divide are dealt to the ranks with the same
# experts, others to the ranks of dp and cp. Equal ones are in the order of the optimizer's parameter groups (matrices
# of Muon, then those of AdamW, then its vectors and biases), and there in that of the model.

Weight = tuple[int, int, str]
"""A weight of a stage: its chunk, its position there, and its name."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of the framework that a weight is: one, or the matrices of several experts.

    weight: which one. elements: those of each parameter. count: how many there are. group: the place of
    their parameter group among those of the optimizer (`parameter_group`).
    """

    weight: Weight
    elements: int
    count: int
    group: int


def parameter_group(name: str, axes: Sequence[str], muon: bool) -> int:
    """The place of a weight's parameter group among those of the optimizer, by which equal parameters are ordered.

    name: of the weight. axes: its axes. muon: whether Muon updates it. Returns 0 for those of Muon, 1 for other
    matrices, 2 for vectors and biases, which have no weight decay (`get_standard_config_overrides`).
    """
    own = [axis for axis in axes if axis != EXPERTS]
    return 0 if muon else 2 if len(own) < 2 or name.endswith(".bias") else 1


def dealt(parameters: Sequence[Parameters], ranks: int) -> tuple[Counter[Weight], ...]:
    """For each rank, how many parameters of each weight it updates.

    parameters: all of one group of ranks, in the order of the model. ranks: how many there are.
    """
    each = [one for one in parameters for _ in range(one.count)]
    each.sort(key=lambda one: (one.elements, one.group))
    turns = [*range(ranks), *reversed(range(ranks))]
    found: list[Counter[Weight]] = [Counter() for _ in range(ranks)]
    for number, one in enumerate(each):
        found[turns[number % len(turns)]][one.weight] += 1
    return tuple(found)


def owner_places(plan: Plan, member: Member) -> Mapping[str, int]:
    """The place of a rank among those that share weights (`dp`) and experts (`edp`), by axis; none where it is alone.

    member: its coordinates on cp, ep and dp.
    """
    rank = Mesh.of(plan).rank(cp=member[0], dp=member[2])
    return {group.axis: rank // group.stride % group.size for group in groups(plan, 1, OWNED_AXES)}


def symbols_of_owned(blocks: Iterable[str], weights: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """By block and name of a weight, the symbol of how many of its parameters are a rank's own.

    blocks: the names of a graph's blocks, in their order. weights: the rows of its weights.
    """
    numbers = {block: number for number, block in enumerate(blocks)}
    return {(row["block"], row["name"]): owned_symbol(numbers[row["block"]], row["order"]) for row in weights}


def all_owned(
    plan: Plan, env: Mapping[str, int], blocks: Iterable[str], weights: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """The values of these symbols on a rank that updates all weights of its stage.

    env: the values of other symbols. blocks, weights: as in `symbols_of_owned`.
    """
    named = symbols_of_owned(blocks, weights)
    found = {}
    for row in weights:
        there = row["present"] is None or plan.evaluate(row["present"], env) > 0
        elements, each = (plan.evaluate(row[column], env) for column in ("elements", "shard"))
        found[named[row["block"], row["name"]]] = 1 + (elements // each if there else 0)
    return found
