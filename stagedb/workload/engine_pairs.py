"""Two engines as one workload: one that computes prompts sends their caches to one that goes on with the answers.

Ranks of the second are numbered behind those of the first. Each rank of the first sends after its last task, and a rank
of the second begins when it has all its messages, one from each rank that has a part of its caches. Both wait on their
own ranks alone: a message is for two ranks, and no two are for the same two, so that all have the tag 0.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans import Plan
from stagedb.workflows import TRANSFER_TASK
from stagedb.workload.added_messages import messages_of, origins_with_messages, with_messages
from stagedb.workload.cache_shares import CacheSide, by_rank, messages
from stagedb.workload.instance_columns import (
    CACHES,
    DATA,
    RECV,
    SEND,
    TASK_KINDS,
    TEMPLATES,
    TYPES,
    ClassColumns,
    Edges,
    Ints,
    Ops,
    Origins,
    RankTable,
    Tasks,
    Workload,
)
from stagedb.workload.windows import joined_groups

NOBODY = -1
"""The place of a rank behind the last one that it sends to, or gets something from."""


@dataclass(frozen=True)
class EnginePair:
    """The workload of two engines, and where its classes come from.

    sides: the workloads of both, windows of several steps among them. classes: by class of the pair, the side and the
    number of the class there that has the same tasks, but for the messages.
    """

    workload: Workload
    sides: tuple[Workload, Workload]
    classes: tuple[tuple[int, int], ...]

    def first_rank(self, side: int) -> int:
        """The number of the first rank of a side."""
        return len(self.sides[0].ranks) * side


def engine_pair(sender: CacheSide, receiver: CacheSide, windows: tuple[Workload, Workload]) -> EnginePair:
    """Two instances and the caches between them.

    sender, receiver: the step that leaves the caches, and the one that finds them. windows: all steps of each side, one
    after another, which end and begin with these (`stagedb.workload.windows.window`). Raises UsageError for instances
    that no cache goes between.
    """
    sent = messages(sender, receiver)
    worlds = [len(each.ranks) for each in windows]
    classes: list[ClassColumns] = []
    numbers, tables, origins = [], [], []
    for side, (window, world) in enumerate(zip(windows, worlds, strict=True)):
        sizes, table = by_rank(sent, world, side)
        number = np.empty(world, np.int64)
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        for rank in range(world):
            key = int(window.ranks.number[rank]), tuple(sizes[rank])
            if key not in known:
                known[key] = len(classes)
                columns, chunks = window.class_of(rank), _chunks(receiver.workload, rank) if side else 0
                classes.append(_with_messages(columns, len(classes), key[1], chunks))
                origins.append((side, key[0]))
            number[rank] = known[key]
        numbers.append(number)
        tables.append(np.where(table == NOBODY, NOBODY, table + worlds[0] * (1 - side)))
    first, second = windows
    digest = hashlib.sha256("+".join((first.instance, second.instance, "sends")).encode()).hexdigest()
    made = Workload(
        instance=digest[: len(first.instance)],
        name=f"{first.name} to {second.name}",
        graph=first.graph,
        model=first.model,
        plan=first.plan,
        degrees=pair_degrees(first.degrees, second.degrees),
        classes=tuple(classes),
        ranks=_ranks(windows, numbers, tables),
        groups=joined_groups([first.groups, replace(second.groups, ranks=second.groups.ranks + worlds[0])]),
        engines=tuple(each.steps or ((each.instance, each.plan),) for each in windows),
    )
    return EnginePair(made, windows, tuple(origins))


def pair_degrees(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The degrees of one mesh that has the ranks of two engines, innermost first.

    first, second: the degrees of each engine. Equal engines: these degrees, and an axis of 2. Others: groups of the
    greatest number of ranks that divides both engines, and the number of such groups.
    """
    if tuple(first) == tuple(second):
        return *first, 2
    ranks, others = math.prod(first), math.prod(second)
    common = math.gcd(ranks, others)
    return common, (ranks + others) // common


def _chunks(step: Workload, rank: int) -> int:
    """The chunks of a rank in a step, the first one of a window."""
    return 1 + int(step.class_of(rank).ops.chunk.max(initial=0))


def _with_messages(columns: ClassColumns, number: int, sizes: tuple[int, ...], chunks: int) -> ClassColumns:
    """A class with these messages: sent after its last task, or, where chunks is above 0, awaited before its first.

    chunks: those of the step that reads the caches.
    """
    text = f"{columns.digest}+{'recv' if chunks else 'send'}+{sizes}"
    digest = hashlib.sha256(text.encode()).hexdigest()[: len(columns.digest)]
    if not sizes:
        return replace(columns, number=number, digest=digest)
    begins = _begins(columns, chunks)
    made = _ops(columns.ops, sizes, RECV if chunks else SEND)
    rows = np.arange(len(columns.ops), len(made))
    edges = columns.edges
    source, target = (each.reshape(-1) for each in np.meshgrid(rows, begins))
    task = _task(columns)
    tasks = (task, columns.tasks) if chunks else (columns.tasks, task)
    shift = len(task) if chunks else 0
    return replace(
        columns,
        number=number,
        digest=digest,
        ops=made,
        edges=Edges(
            np.concatenate([edges.source, source]),
            np.concatenate([edges.target, target]),
            np.concatenate([edges.kind, np.full(len(source), DATA)]),
        ),
        tasks=Tasks(*(np.concatenate([getattr(each, part.name) for each in tasks]) for part in fields(Tasks))),
        origins=_origins(columns, len(sizes), first=bool(chunks)),
        pairs=tuple((begin + shift, end + shift) for begin, end in columns.pairs),
    )


def _begins(columns: ClassColumns, chunks: int) -> Ints:
    """The ops of the first chunks that wait for nothing on their rank: with them a task begins to compute."""
    ops, edges = columns.ops, columns.edges
    inside = (ops.chunk[edges.source] == ops.chunk[edges.target]) & (ops.type[edges.source] != RECV)
    waits = np.zeros(len(ops), bool)
    waits[edges.target[inside]] = True
    found: Ints = np.flatnonzero(~waits & (ops.chunk < chunks) & (ops.type != RECV) & (ops.type != SEND))
    return found


def _ops(ops: Ops, sizes: tuple[int, ...], type_: int) -> Ops:
    """The ops, and behind them the messages of these bytes."""
    count = len(sizes)
    made = messages_of(
        type_,
        np.array(sizes, np.int64),
        name=[f"{CACHES}.{TYPES[type_]}.{at}" for at in range(count)],
        template=TEMPLATES.index(TRANSFER_TASK.templates[0].name),
        phase=TRANSFER_TASK.phase,
        axis=CACHES,
        order=np.arange(count),
        peer=np.arange(count),
    )
    return with_messages(ops, made, count)


def _task(columns: ClassColumns) -> Tasks:
    one, yes = np.zeros(1, np.int64), np.ones(1, bool)
    return Tasks(one + TASK_KINDS.index(TRANSFER_TASK.name), one, one, yes, yes)


def _origins(columns: ClassColumns, count: int, *, first: bool) -> Origins:
    """The origins of a class whose last ops are messages. first: its first task has them, and not its last one."""
    own = origins_with_messages(columns.origins, count, CACHES)
    if not own.id:
        return own
    return replace(own, tasks=("", *own.tasks) if first else (*own.tasks, ""))


def _ranks(windows: tuple[Workload, Workload], numbers: Sequence[Ints], tables: Sequence[Ints]) -> RankTable:
    """The ranks of both engines, one behind the other."""
    before = len(windows[0].ranks)
    width = max(each.shape[1] for each in tables)
    wide = [np.pad(each, ((0, 0), (0, width - each.shape[1])), constant_values=NOBODY) for each in tables]
    neighbours = {
        name: np.concatenate([getattr(windows[0].ranks, name), getattr(windows[1].ranks, name) + before])
        for name in ("next", "previous", "ring_next", "ring_previous")
    }
    return RankTable(np.concatenate(numbers), **neighbours, others=np.concatenate(wide))


def check_chunks(steps: Sequence[tuple[str, Plan]]) -> None:
    """Raise UsageError unless each step of prefill computes the next part of the same prompts.

    steps: the name and the plan of each step of the engine that sends. The last one leaves the caches that are sent.
    """
    for (before, first), (name, second) in pairwise(steps):
        alike = all(getattr(first, word) == getattr(second, word) for word in ("micro_batch_size", "microbatches"))
        lists = first.requests or second.requests
        if lists or not alike or second.cache_len != first.cache_len + first.seq_len:
            raise UsageError(
                f"{name} does not go on with the prompts of {before}: steps of prefill whose caches are sent compute "
                "one part after another of the same requests of one length, each with the parts before it in the cache "
                f"({Word('cache_len')})"
            )
