"""Rank classes: stages whose ranks do the same, found by the digest of what they do."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagedb.instance.buckets import Bucket
from stagedb.instance.layout import IssueOrder, Stage
from stagedb.parallel import Task, receiver


@dataclass(frozen=True)
class ChunkWork:
    """What one chunk (virtual stage) holds: its blocks, and its buckets, which are its own.

    `wraps`: whether a message before it and after it (along the pipeline) goes around the ends of the stages.
    """

    stage: Stage
    order: IssueOrder
    buckets: tuple[Bucket, ...]
    wraps: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class StageWork:
    """What one stage does: its chunks, its task order."""

    index: int
    chunks: tuple[ChunkWork, ...]
    tasks: tuple[Task, ...]

    @property
    def layers(self) -> int:
        """Layers of all chunks."""
        return sum(chunk.stage.layers for chunk in self.chunks)


@dataclass(frozen=True)
class RankClass:
    """Stages with equal work. `work` is that of the first of them; peers and groups are relative, so it serves all.

    first_layers: of each stage, chunk after chunk, what makes a layer's number on the stage that in the model.
    """

    number: int
    digest: str
    stages: tuple[int, ...]
    first_layers: tuple[int, ...]
    work: StageWork


@dataclass(frozen=True, order=True)
class Feed:
    """A task of one class waits for a message of a task (by index) of the class `hop` stages away.

    Between chunks a message goes around the ends: from the last stage to the first the hop is 1 less their number.
    """

    source_class: int
    source: int
    target_class: int
    target: int
    hop: int


def work_digest(work: StageWork, common: Mapping[str, object]) -> str:
    """sha256 of all that a rank of this stage does; its layers' global numbers, peers and groups are left out.

    `common` is what all stages share: the graph, and its expressions' values by variant.
    """
    content = {
        **common,
        "tasks": [[task.kind, task.microbatch, task.chunk] for task in work.tasks],
        "chunks": [_content(chunk) for chunk in work.chunks],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _content(work: ChunkWork) -> Mapping[str, object]:
    return {
        "blocks": [place.block for place in work.stage.with_cuts()],
        "variants": [place.variant for place in work.stage.with_cuts()],
        "ends": [work.stage.has_previous, work.stage.has_next, *work.wraps],
        "buckets": [
            [
                bucket.op,
                bucket.bytes_in,
                bucket.bytes_out,
                bucket.base + bucket.slot,
                [[m.position, m.weight] for m in bucket.members],
            ]
            for bucket in work.buckets
        ],
    }


def classify(works: Sequence[StageWork], common: Mapping[str, object]) -> tuple[RankClass, ...]:
    """Classes in the order of their first stages."""
    stages: dict[str, list[StageWork]] = {}
    for work in works:
        stages.setdefault(work_digest(work, common), []).append(work)
    return tuple(
        RankClass(
            number,
            digest,
            tuple(work.index for work in members),
            tuple(chunk.stage.first_layer - chunk.stage.counted for work in members for chunk in work.chunks),
            members[0],
        )
        for number, (digest, members) in enumerate(stages.items())
    )


def feeds(classes: Sequence[RankClass]) -> list[Feed]:
    """Which task's message which task waits for, between classes; a class may feed itself."""
    class_of = {stage: each for each in classes for stage in each.stages}
    indexes = {each.number: {task: index for index, task in enumerate(each.work.tasks)} for each in classes}
    found: set[Feed] = set()
    for stage, each in class_of.items():
        for index, task in enumerate(each.work.tasks):
            to = receiver(task, stage, len(class_of), len(each.work.chunks))
            if to is not None:
                target = class_of[to[0]].number
                found.add(Feed(each.number, index, target, indexes[target][to[1]], to[0] - stage))
    return sorted(found)
