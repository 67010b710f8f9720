"""Rank classes: stages whose ranks do the same, found by the digest of what they do."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagedb.instance.buckets import Bucket
from stagedb.instance.layout import IssueOrder, Stage
from stagedb.parallel import Task, receiver


@dataclass(frozen=True)
class StageWork:
    """What one stage does: its blocks, its buckets, its task order; on one rank of cp, where these differ."""

    stage: Stage
    order: IssueOrder
    buckets: tuple[Bucket, ...]
    tasks: tuple[Task, ...]
    cp_rank: int = 0


@dataclass(frozen=True)
class RankClass:
    """Stages with equal work, `stages`, and (stage, rank of cp) of each: rank 0 stands for all where none differ.

    `work` is that of the first of them; peers and groups are relative, so it serves all.
    """

    number: int
    digest: str
    stages: tuple[int, ...]
    first_layers: tuple[int, ...]
    work: StageWork
    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, order=True)
class Feed:
    """A task of one class waits for a message of a task (by index) of the class `hop` stages away."""

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
        "blocks": [place.block for place in work.stage.with_cuts()],
        "variants": [[place.variant, *place.steps] for place in work.stage.with_cuts()],
        "ends": [work.stage.has_previous, work.stage.has_next],
        "tasks": [[task.kind, task.microbatch, task.chunk] for task in work.tasks],
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
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def classify(works: Sequence[StageWork], common: Mapping[str, object]) -> tuple[RankClass, ...]:
    """Classes in the order of their first stages."""
    stages: dict[str, list[StageWork]] = {}
    for work in works:
        stages.setdefault(work_digest(work, common), []).append(work)
    return tuple(
        RankClass(
            number,
            digest,
            tuple(dict.fromkeys(work.stage.index for work in members)),
            tuple({work.stage.index: work.stage.first_layer for work in members}.values()),
            members[0],
            tuple((work.stage.index, work.cp_rank) for work in members),
        )
        for number, (digest, members) in enumerate(stages.items())
    )


def feeds(classes: Sequence[RankClass]) -> list[Feed]:
    """Which task's message which task waits for, between classes; a class may feed itself."""
    class_of = {place: each for each in classes for place in each.places}
    stages = 1 + max(stage for stage, _ in class_of)
    indexes = {each.number: {task: index for index, task in enumerate(each.work.tasks)} for each in classes}
    found: set[Feed] = set()
    for (stage, rank), each in class_of.items():
        for index, task in enumerate(each.work.tasks):
            to = receiver(task, stage, stages)
            if to is not None:
                target = class_of[to[0], rank].number
                found.add(Feed(each.number, index, target, indexes[target][to[1]], to[0] - stage))
    return sorted(found)
