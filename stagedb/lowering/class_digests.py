"""Rank classes: stages whose ranks do the same work, found by the digest of that work."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagedb.lowering.bucket_members import Bucket
from stagedb.lowering.stage_blocks import IssueOrder, Stage
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
