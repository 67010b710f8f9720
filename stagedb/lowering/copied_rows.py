"""Rows of the copy of a graph under a plan: those that the statements of `cypher/instantiate` take.

The places of blocks on rank classes, and the copies that run there; buckets and their links; classes, tasks and ranks.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from stagedb.ir.symbolic_graph import OpType, When
from stagedb.lowering.graph_values import Evaluated, GraphRows
from stagedb.lowering.rank_classes import ChunkWork, Member, RankClass, feeds
from stagedb.lowering.stage_blocks import BUCKET, Stage
from stagedb.plans import AxisGroups, Plan, RankLayout, members
from stagedb.schedules import ChunkPlacement, task_positions
from stagedb.workflows import TEMPLATES, Template, template_named

# The ops of a rank class, with the id, number and count of each copy: the rows that the copying statements unwind.
#
# A class is a row of *places* for each of its chunks, in forward order. A place is a block of the graph at a position:
#
#     position    -1         0           1         2         n-1      n
#     block       cut    embedding     layer     layer  …    head    cut
#                  ▲                     │                            ▲
#         messages of the                │ a copy of every op of the block that is
#         stage before                   │ present here, and of its edges
#                                        ▼
#     order    forward, step: positions go up      base(position) + op's order · slots
#              backward:      positions go down    base(n - position - 1) + op's order · slots
#
# A place that has loops has one more row for each turn. The cut before the first block receives forwards and sends
# backwards, the cut after the last block does the opposite. Between the numbers of two ops there are free numbers
# (`slots`) for buckets, which are issued after the last op that they wait for.

Row = dict[str, Any]


def place_rows(instance: str, classes: Sequence[RankClass], width: int = 0) -> list[Row]:
    """One row for each block at a position of a class, cuts included. A block with loops has one more for each turn.

    Each row has what copying ops and edges needs. `here`, `before` and `after` are the beginnings of the ids of ops at
    this position and at the neighbouring ones, which another chunk of the stage may have. `single` is the same for each
    block that the stage has once. `mark` ends the ids of a turn's ops. width: the issue numbers that a turn takes.
    instance: its id, with which the ids of ops begin.
    """
    rows = []
    for rank_class, number, work in chunks_of(classes):
        stage = work.stage
        single = {block: op_prefix(instance, rank_class, number, at) for block, at in stage.single_blocks().items()}
        neighbours = _neighbours(instance, rank_class, number, stage)
        for place in stage.with_cuts():
            turns = [{"step": turn, "variant": of} for turn, of in enumerate(place.steps)]
            rows += [
                {
                    "class": rank_class.number,
                    "chunk": number,
                    "variant": variant,
                    "step": step,
                    "mark": "" if step is None else f".{step}",
                    "before_mark": "" if step is None else f".{step - 1}",
                    "turns": turns,
                    "block": place.block,
                    "position": place.position,
                    "layer": place.layer,
                    "end": place.end,
                    "peer": _peer(work, place.end),
                    "here": op_prefix(instance, rank_class, number, place.position),
                    "before": neighbours[place.position - 1],
                    "after": neighbours[place.position + 1],
                    "single": single,
                }
                for step, variant in ((None, place.variant), *enumerate(place.steps))
            ]
    return rows


def _neighbours(instance: str, rank_class: RankClass, number: int, stage: Stage) -> Mapping[int, str]:
    """By position, from before the first cut to after the last: the beginnings of the ids of the ops there.

    Where another chunk of the stage hands over, its last position or its first one is in the place of the cut.
    """
    count = len(stage.places)
    prefixes = {at: op_prefix(instance, rank_class, number, at) for at in range(-2, count + 2)}
    if stage.given is not None:
        prefixes[-1] = op_prefix(
            instance, rank_class, stage.given, len(rank_class.work.chunks[stage.given].stage.places) - 1
        )
    if stage.gives is not None:
        prefixes[count] = op_prefix(instance, rank_class, stage.gives, 0)
    return prefixes


def bucket_rows(instance: str, graph: str, classes: Sequence[RankClass]) -> list[Row]:
    """One row for each bucket's collective, with the weights that it carries. instance, graph: their ids."""
    return [
        {
            "id": bucket_id(instance, rank_class, number, bucket.position, bucket.op, bucket.index),
            "class": rank_class.number,
            "chunk": number,
            "op": bucket.op,
            "name": f"{bucket.op}.{bucket.index}",
            "position": bucket.position,
            "order": bucket.base + bucket.slot,
            "bytes_in": bucket.bytes_in,
            "bytes_out": bucket.bytes_out,
            "members": [
                {
                    "weight": f"{graph}/{member.weight}",
                    "number": at,
                    "position": member.position,
                    "chunk": member.chunk_of(number),
                    "layer": rank_class.work.chunks[member.chunk_of(number)].stage.places[member.position].layer,
                }
                for at, member in enumerate(bucket.members)
            ],
        }
        for rank_class, number, work in chunks_of(classes)
        for bucket in work.buckets
    ]


def with_copies(
    graph: GraphRows, evaluated: Evaluated, classes: Sequence[RankClass], places: list[Row], buckets: list[Row]
) -> tuple[list[Row], list[Row]]:
    """The places with the ops that are copied there, and the buckets, all numbered.

    A place gets `copies`: for each symbolic op, by name, `order` (its issue number), `index` (its place among all ops
    of the class, by chunk, template and issue number) and `runs` (how often a rank runs it in a step). A bucket gets
    `index` and `runs` of its own.
    """
    by_block: dict[str, list[Mapping[str, Any]]] = {}
    for op in graph.ops:
        by_block.setdefault(op["block"], []).append(op)
    by_name = {op["name"]: op for op in by_block.get(BUCKET, ())}
    runs = {rank_class.number: _runs(rank_class) for rank_class in classes}
    works = {(rank_class.number, number): work for rank_class, number, work in chunks_of(classes)}
    numbered: dict[int, list[tuple[tuple[int, int, int], Row]]] = {rank_class.number: [] for rank_class in classes}

    def number(row: Row, op: Mapping[str, Any], order: int) -> Row:
        copy = {"order": order, "runs": runs[row["class"]].get((op["template"], op["when"], row["chunk"]), 0)}
        key = (row["chunk"], _CODES[op["template"]], order)
        numbered[row["class"]].append((key, copy))
        return copy

    placed = []
    for row in places:
        work, values = works[row["class"], row["chunk"]], evaluated.values[row["variant"]]
        present = [op for op in by_block.get(row["block"], ()) if _is_copied(op, row, values)]
        copies = {op["name"]: number(row, op, _order(op, row, work, evaluated.width)) for op in present}
        placed.append({**row, "copies": copies})
    dealt = [{**row, "copy": number(row, by_name[row["op"]], row["order"])} for row in buckets]
    for entries in numbered.values():
        for index, (_, copy) in enumerate(sorted(entries, key=lambda entry: entry[0])):
            copy["index"] = index
    return placed, dealt


def count_ops(placed: Sequence[Row], dealt: Sequence[Row]) -> dict[int, int]:
    """The number of ops of each class."""
    counts: dict[int, int] = {}
    for row in placed:
        counts[row["class"]] = counts.get(row["class"], 0) + len(row["copies"])
    for row in dealt:
        counts[row["class"]] = counts.get(row["class"], 0) + 1
    return counts


def chunks_of(classes: Sequence[RankClass]) -> Iterator[tuple[RankClass, int, ChunkWork]]:
    """Every chunk of every class, with its number on the stage."""
    return ((rank_class, number, work) for rank_class in classes for number, work in enumerate(rank_class.work.chunks))


def op_prefix(instance: str, rank_class: RankClass, chunk: int, position: int) -> str:
    """The beginning of the ids of the ops at a position of a chunk of a class.

    instance: its id. chunk: its number on the stage. position: of the block on the stage.
    """
    return f"{instance}/{rank_class.number}/{chunk}/{position}/"


def bucket_id(instance: str, rank_class: RankClass, chunk: int, position: int, op: str, index: int) -> str:
    """The id of the collective of one bucket.

    instance: its id. chunk: its number on the stage. position: on the stage, where the collective is issued. op: the
    name of the symbolic collective. index: of the bucket among those of this op.
    """
    return f"{op_prefix(instance, rank_class, chunk, position)}{op}.{index}"


_CODES = {name: code for code, name in enumerate(TEMPLATES)}


def _is_copied(op: Mapping[str, Any], row: Row, values: Mapping[str, int]) -> bool:
    """Whether an op of a block is copied to a place: it is present, of this turn, and of this end of the stage."""
    if op["present"] is not None and values[op["present"]] <= 0:
        return False
    if (op["times"] is None) != (row["step"] is None):
        return False
    return is_at_end(row["end"], OpType(op["type"]), template_named(op["template"]))


def is_at_end(end: str | None, type_: OpType, template: Template) -> bool:
    """Whether an op runs at this end of a stage. end: `previous`, `next`, or None inside a block, where all ops run.

    A forward is received (and gathered) at `previous` and sent at `next`; a backward the other way round. type_: send,
    receive, or else. template: forward or backward.
    """
    return end is None or (end == "previous") == ((type_ is not OpType.SEND) == template.upward)


def _order(op: Mapping[str, Any], row: Row, work: ChunkWork, width: int) -> int:
    """The issue number of an op at a place."""
    order, loop = work.order, op["order"] if op["loop"] is None else op["loop"]
    begin = order.upward if template_named(op["template"]).upward else order.downward
    turn = 0 if row["step"] is None else row["step"] * width
    return int(begin(row["position"]) + loop * order.slots + turn + op["order"] - loop)


def _runs(each: RankClass) -> dict[tuple[str, str, int], int]:
    """How often ops run in a step: by template, `when` and chunk. The ops of a step run once, for every chunk."""
    tasks = each.work.tasks
    times: dict[tuple[str, str, int], int] = {}
    for task, mark in zip(tasks, task_positions(tasks), strict=True):
        fits = {When.EVERY: True, When.FIRST: mark.first, When.LAST: mark.last, When.CLOSED: not mark.opened}
        chunks = range(len(each.work.chunks)) if task.kind.once else (task.chunk,)
        for template in task.kind.templates:
            for when in (when for when, fit in fits.items() if fit):
                for chunk in chunks:
                    key = (str(template), str(when), chunk)
                    times[key] = times.get(key, 0) + 1
    return times


def _peer(work: ChunkWork, end: str | None) -> int | None:
    """Stages to the other end of a cut's messages; between two chunks, from the last stage to the first."""
    if end is None:
        return None
    way = work.before if end == "previous" else work.after
    return None if way is None else way.hop


# Rows for statements, apart from copies: classes, links of buckets, tasks, the layout of ranks.


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
