"""The rows that the copying statements unwind: places, buckets, tasks, axes and groups of an instance."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from stagedb.instance.classes import ChunkWork, Member, RankClass, feeds
from stagedb.parallel import AxisGroups, Mesh, Plan, expert_axis, first_and_last, members

Row = dict[str, Any]


def class_rows(classes: Sequence[RankClass], plan: Plan) -> list[Row]:
    """One row a rank class."""
    ranks: Counter[int] = Counter()
    of_members = members(plan)
    for (_, member), number in member_classes(classes, plan).items():
        ranks[number] += of_members[member]
    return [
        {
            "class": each.number,
            "digest": each.digest,
            "stages": list(each.stages),
            "first_layers": list(each.first_layers),
            "layers": each.work.layers,
            "ranks": ranks[each.number],
            "tasks": len(each.work.tasks),
        }
        for each in classes
    ]


def place_rows(instance: str, classes: Sequence[RankClass], width: int = 0) -> list[Row]:
    """One row a block at a position of a class, cuts included, with the ids' beginnings that its edges hop to.

    Where it has loops, one more for each of their turns. width: the issue numbers that a turn takes.
    """
    stages = 1 + max(stage for each in classes for stage in each.stages)
    rows = []
    for each, number, work in _chunks(classes):
        stage, order = work.stage, work.order
        standing = {block: _at(instance, each, number, position) for block, position in stage.standing().items()}
        for place in stage.with_cuts():
            rows += [
                {
                    "class": each.number,
                    "chunk": number,
                    "variant": variant,
                    "step": step,
                    "mark": "" if step is None else f".{step}",
                    "before_mark": "" if step is None else f".{step - 1}",
                    "turns": [{"step": turn, "variant": of} for turn, of in enumerate(place.steps)],
                    "offset": 0 if step is None else step * width,
                    "block": place.block,
                    "position": place.position,
                    "layer": place.layer,
                    "end": place.end,
                    "peer": _peer(work, place.end, stages),
                    "slots": order.slots,
                    "upward": order.upward(place.position),
                    "downward": order.downward(place.position),
                    "here": _at(instance, each, number, place.position),
                    "before": _at(instance, each, number, place.position - 1),
                    "after": _at(instance, each, number, place.position + 1),
                    "standing": standing,
                }
                for step, variant in ((None, place.variant), *enumerate(place.steps))
            ]
    return rows


def _chunks(classes: Sequence[RankClass]) -> Iterator[tuple[RankClass, int, ChunkWork]]:
    """Every chunk of every class, with its number on the stage."""
    return ((each, number, work) for each in classes for number, work in enumerate(each.work.chunks))


def _peer(work: ChunkWork, end: str | None, stages: int) -> int | None:
    """Stages from here to the other end of a cut's messages; from the last stage to the first between two chunks."""
    if end is None:
        return None
    if end == "previous":
        return stages - 1 if work.wraps[0] else -1
    return 1 - stages if work.wraps[1] else 1


def bucket_rows(instance: str, classes: Sequence[RankClass]) -> list[Row]:
    """One row a bucket collective."""
    return [
        {
            "id": _bucket(instance, each, number, bucket.position, bucket.op, bucket.index),
            "class": each.number,
            "chunk": number,
            "op": bucket.op,
            "index": bucket.index,
            "position": bucket.position,
            "order": bucket.base + bucket.slot,
            "bytes_in": bucket.bytes_in,
            "bytes_out": bucket.bytes_out,
        }
        for each, number, work in _chunks(classes)
        for bucket in work.buckets
    ]


def bucket_links(instance: str, classes: Sequence[RankClass]) -> tuple[list[Row], list[Row]]:
    """What the first bucket of each weight waits for, and what waits for its last one.

    The first list has edges (source, target, kind): gradient to bucket, bucket to the next bucket of the same weight;
    gathered parameters to what reads them, and what must be done before they are gathered.
    The second has (bucket, gradient): whatever of the step reads that gradient waits for that bucket.
    """
    edges: dict[tuple[str, str, str], None] = {}
    readers: dict[tuple[str, str], None] = {}
    for each, number, work in _chunks(classes):
        passed: dict[tuple[int, str], dict[int, str]] = {}
        gradients: dict[tuple[int, str], list[str]] = {}
        for bucket in work.buckets:
            own = _bucket(instance, each, number, bucket.position, bucket.op, bucket.index)
            limits = [_at(instance, each, number, position) + op for position, op in bucket.after]
            edges |= dict.fromkeys((source, own, "limit") for source in limits)
            for member in bucket.members:
                key = (member.position, member.weight)
                sources = [_at(instance, each, number, position) + op for position, op in member.gradients]
                if bucket.gathers:
                    reading = [_at(instance, each, number, position) + op for position, op in member.readers]
                    edges |= dict.fromkeys((source, own, "data") for source in sources)
                    edges |= dict.fromkeys((own, reader, "data") for reader in reading)
                else:
                    passed.setdefault(key, {})[member.turn] = own
                    gradients[key] = sources
        for key, turns in passed.items():
            buckets = [turns[turn] for turn in sorted(turns)]
            edges |= dict.fromkeys((gradient, buckets[0], "data") for gradient in gradients[key])
            edges |= dict.fromkeys((source, target, "data") for source, target in pairwise(buckets))
            readers |= dict.fromkeys((buckets[-1], gradient) for gradient in gradients[key])
    return (
        [{"source": source, "target": target, "kind": kind} for source, target, kind in edges],
        [{"bucket": bucket, "gradient": gradient} for bucket, gradient in readers],
    )


def task_rows(instance: str, classes: Sequence[RankClass]) -> Iterator[Row]:
    """One row a task of each class, in the order in which it runs them."""
    for each in classes:
        marks = first_and_last(each.work.tasks)
        for index, (task, (first, last)) in enumerate(zip(each.work.tasks, marks, strict=True)):
            yield {
                "id": _task(instance, each.number, index),
                "class": each.number,
                "index": index,
                "kind": str(task.kind),
                "microbatch": task.microbatch,
                "chunk": task.chunk,
                "first": first,
                "last": last,
            }


def task_order_rows(instance: str, classes: Sequence[RankClass]) -> list[Row]:
    """One row a task and the one after it."""
    return [
        {"source": _task(instance, each.number, index), "target": _task(instance, each.number, index + 1)}
        for each in classes
        for index in range(len(each.work.tasks) - 1)
    ]


def task_feed_rows(instance: str, classes: Sequence[RankClass]) -> list[Row]:
    """One row a task and the task of a neighbouring stage that receives its message."""
    return [
        {
            "source": _task(instance, feed.source_class, feed.source),
            "target": _task(instance, feed.target_class, feed.target),
            "hop": feed.hop,
        }
        for feed in feeds(classes)
    ]


def coordinate_classes(classes: Sequence[RankClass], plan: Plan) -> list[int]:
    """The class of each stage and coordinates on cp and ep, that of ep counted first; -1 where there is no rank."""
    found = member_classes(classes, plan)
    return [
        found.get((stage, (cp, ep)), -1) for stage in range(plan.pp) for cp in range(plan.cp) for ep in range(plan.ep)
    ]


def member_classes(classes: Sequence[RankClass], plan: Plan) -> dict[tuple[int, Member], int]:
    """The class of each stage and member."""
    number = {place: each.number for each in classes for place in each.places}
    of_cp, of_ep = (any(member[axis] for _, member in number) for axis in (0, 1))
    return {
        (stage, (cp, ep)): number[stage, (cp if of_cp else 0, ep if of_ep else 0)]
        for stage in range(plan.pp)
        for cp, ep in members(plan)
    }


def mesh_axes(plan: Plan) -> Row:
    """Degree and stride of every mesh axis. `ep` numbers neighbours along those that experts see."""
    mesh = Mesh.of(plan)
    axes = {axis: {"size": size, "stride": mesh.stride(axis)} for axis, size in mesh.axes}
    return {**axes, "ep": {"size": plan.ep, "stride": mesh.stride(expert_axis(plan))}}


def group_axes(groups: Sequence[AxisGroups]) -> Mapping[str, Row]:
    """The numbers from which a rank finds its group on each axis that has some."""
    return {made.axis: {"first": made.first, "stride": made.stride, "span": made.stride * made.size} for made in groups}


def group_rows(groups: Sequence[AxisGroups], most: int) -> list[Row]:
    """Ranges of groups, each with at most `most` ranks listed in it (or one group)."""
    rows = []
    for made in groups:
        step = max(1, most // made.members)
        for first in range(0, made.count, step):
            rows.append(
                {
                    "axis": made.axis,
                    "first": made.first,
                    "first_index": first,
                    "last_index": min(first + step, made.count) - 1,
                    "stride": made.stride,
                    "span": made.stride * made.size,
                    "members": made.members,
                    "step": made.step,
                }
            )
    return rows


def rank_rows(world: int, most: int) -> list[Row]:
    """Ranges of at most `most` ranks."""
    return [{"first": first, "last": min(first + most, world) - 1} for first in range(0, world, most)]


def _at(instance: str, each: RankClass, chunk: int, position: int) -> str:
    """How the ids of the ops at a position of a chunk of a class begin."""
    return f"{instance}/{each.number}/{chunk}/{position}/"


def _bucket(instance: str, each: RankClass, chunk: int, position: int, op: str, index: int) -> str:
    return f"{_at(instance, each, chunk, position)}{op}.{index}"


def _task(instance: str, number: int, index: int) -> str:
    return f"{instance}/{number}/task/{index}"
