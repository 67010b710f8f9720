"""The ops of a rank class, with the id, number and count of each copy: the rows that the copying statements unwind.

A class is a row of *places* for each of its chunks, in forward order. A place is a block of the graph at a position:

    position    -1         0           1         2         n-1      n
    block       cut    embedding     layer     layer  …    head    cut
                 ▲                     │                            ▲
        messages of the                │ a copy of every op of the block that is
        stage before                   │ present here, and of its edges
                                       ▼
    order    forward, step: positions go up      base(position) + op's order · slots
             backward:      positions go down    base(n - position - 1) + op's order · slots

A place that has loops has one more row for each turn. The cut before the first block receives forwards and sends
backwards, the cut after the last block does the opposite. Between the numbers of two ops there are free numbers
(`slots`) for buckets, which are issued after the last op that they wait for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stagedb.ir.symbolic_graph import OpType, When
from stagedb.lowering.class_digests import ChunkWork, RankClass
from stagedb.lowering.graph_values import Evaluated, GraphRows
from stagedb.lowering.stage_blocks import BUCKET, Stage
from stagedb.schedules import task_positions
from stagedb.workflows import TEMPLATES, Template, template_named

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
