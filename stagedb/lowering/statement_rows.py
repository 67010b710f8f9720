"""Rows for statements, apart from copies: classes, links of buckets, tasks, the layout of ranks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

from stagedb.lowering.class_digests import Member, RankClass, feeds
from stagedb.lowering.copies import Row, bucket_id, chunks_of, op_prefix
from stagedb.plans import AxisGroups, Plan, RankLayout, members
from stagedb.schedules import ChunkPlacement, task_positions


def class_rows(classes: Sequence[RankClass], plan: Plan, ops: Mapping[int, int]) -> list[Row]:
    """One row a rank class. ops: the number of ops of each."""
    ranks: Counter[int] = Counter()
    of_members = members(plan)
    for (_, member), number in member_classes(classes, plan).items():
        ranks[number] += of_members[member]
    return [
        {
            "class": rank_class.number,
            "digest": rank_class.digest,
            "stages": list(rank_class.stages),
            "first_layers": list(rank_class.first_layers),
            "layers": rank_class.work.layers,
            "cp": rank_class.work.member[0],
            "ep": rank_class.work.member[1],
            "dp": rank_class.work.member[2],
            "ranks": ranks[rank_class.number],
            "ops": ops[rank_class.number],
            "tasks": len(rank_class.work.tasks),
        }
        for rank_class in classes
    ]


def bucket_links(instance: str, classes: Sequence[RankClass]) -> tuple[list[Row], list[Row]]:
    """The dependencies of each weight's first bucket, and the ops that wait for its last one.

    The first list has edges (source, target, kind): gradient to bucket, bucket to the next bucket of the same weight;
    gathered parameters to their readers, and the ops that must end before the gather. The second has (bucket,
    gradient): every op of the step that reads the gradient waits for the bucket. instance: its id, with which the ids
    of ops begin.
    """
    edges: dict[tuple[str, str, str], None] = {}
    readers: dict[tuple[str, str], None] = {}
    for rank_class, number, work in chunks_of(classes):
        passed: dict[tuple[int, str], dict[int, str]] = {}
        gradients: dict[tuple[int, str], list[str]] = {}
        for bucket in work.buckets:
            own = bucket_id(instance, rank_class, number, bucket.position, bucket.op, bucket.index)
            limits = [op_prefix(instance, rank_class, number, position) + op for position, op in bucket.after]
            edges |= dict.fromkeys((source, own, "limit") for source in limits)
            for member in bucket.members:
                key, chunk = (member.position, member.weight), member.chunk_of(number)
                sources = [op_prefix(instance, rank_class, chunk, position) + op for position, op in member.gradients]
                if bucket.gathers:
                    reading = [op_prefix(instance, rank_class, chunk, position) + op for position, op in member.readers]
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
    """One row a task of each class, in the order in which it runs them. instance: its id."""
    for rank_class in classes:
        for index, (task, mark) in enumerate(
            zip(rank_class.work.tasks, task_positions(rank_class.work.tasks), strict=True)
        ):
            yield {
                "id": _task(instance, rank_class.number, index),
                "class": rank_class.number,
                "index": index,
                "kind": str(task.kind),
                "microbatch": task.microbatch,
                "chunk": task.chunk,
                "first": mark.first,
                "last": mark.last,
            }


def task_order_rows(instance: str, classes: Sequence[RankClass]) -> list[Row]:
    """One row a task and the one after it. instance: its id. Each row has the ids `source` and `target`."""
    return [
        {"source": _task(instance, rank_class.number, index), "target": _task(instance, rank_class.number, index + 1)}
        for rank_class in classes
        for index in range(len(rank_class.work.tasks) - 1)
    ]


def task_feed_rows(instance: str, classes: Sequence[RankClass], placement: ChunkPlacement) -> list[Row]:
    """One row a task and the task of a neighbouring stage that receives its message.

    instance: its id. placement: of chunks on stages.
    """
    return [
        {
            "source": _task(instance, feed.source_class, feed.source),
            "target": _task(instance, feed.target_class, feed.target),
            "hop": feed.hop,
        }
        for feed in feeds(classes, placement)
    ]


def rank_layout(classes: Sequence[RankClass], plan: Plan, groups: Sequence[AxisGroups]) -> RankLayout:
    """The numbers from which all ranks and groups of an instance follow."""
    number = {place: rank_class.number for rank_class in classes for place in rank_class.places}
    cps, eps, dps = (
        size if any(member[at] for _, member in number) else 1 for at, size in enumerate((plan.cp, plan.ep, plan.dp))
    )
    places = product(range(plan.pp), range(cps), range(eps), range(dps))
    table = tuple(number.get((stage, (cp, ep, dp)), -1) for stage, cp, ep, dp in places)
    return RankLayout(plan, table, cps, eps, dps, tuple(groups))


def member_classes(classes: Sequence[RankClass], plan: Plan) -> dict[tuple[int, Member], int]:
    """The number of the rank class of each stage and member (coordinates on cp, ep and dp)."""
    number = {place: rank_class.number for rank_class in classes for place in rank_class.places}
    of_cp, of_ep, of_dp = (any(member[axis] for _, member in number) for axis in range(3))
    return {
        (stage, (cp, ep, dp)): number[stage, (cp if of_cp else 0, ep if of_ep else 0, dp if of_dp else 0)]
        for stage in range(plan.pp)
        for cp, ep, dp in members(plan)
    }


def _task(instance: str, number: int, index: int) -> str:
    return f"{instance}/{number}/task/{index}"
