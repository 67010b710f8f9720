"""An instance as columns: the ops, edges and tasks of each rank class, the ranks, the groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb import workflows
from stagedb.ir.facts import OpFacts

Ints = npt.NDArray[np.int64]
TEMPLATES = tuple(workflows.TEMPLATES)
TYPES = ("compute", "collective", "send", "recv")
WHENS = ("every", "first", "last", "closed")
TASK_KINDS = tuple(workflows.TASK_KINDS)
EDGE_KINDS = ("data", "program", "limit")

COMPUTE, COLLECTIVE, SEND, RECV = range(4)
EVERY, FIRST, LAST, CLOSED = range(4)
DATA, PROGRAM, LIMIT = range(3)

RING_AXES = ("cp", "cpr")
"""Axes of messages around a ring: all ranks of cp, or the places between which neighbours exchange heads."""

CACHES = "cache"
"""The axis of messages with caches, from the ranks of one instance to those of another."""

RUNS: Mapping[int, tuple[int, ...]] = {
    number: tuple(TEMPLATES.index(template.name) for template in kind.templates)
    for number, kind in enumerate(workflows.TASK_KINDS.values())
}
"""Templates that a task of each kind (an index of TASK_KINDS) runs."""

UPWARD = np.array([template.upward for template in workflows.TEMPLATES.values()])
"""Whether a template walks a stage from first block to last and sends to the next stage; by index of TEMPLATES."""
ONCE = np.array([template.once for template in workflows.TEMPLATES.values()])
"""Whether a template runs once a step, for all chunks; by index of TEMPLATES."""
OPENS = np.array([kind.differentiates for kind in workflows.TASK_KINDS.values()])
"""Whether a task is a part of a backward; by index of TASK_KINDS."""
SENDS = np.array([kind.sends for kind in workflows.TASK_KINDS.values()])
"""Whether a task sends to the next or the previous stage; by index of TASK_KINDS."""
ONCE_A_STEP = np.array([kind.once for kind in workflows.TASK_KINDS.values()])
"""Whether a task runs once a step, for no micro-batch; by index of TASK_KINDS."""


@dataclass(frozen=True)
class Ops:
    """The operators of a rank class, one a row. `template`, `type` and `when` are indexes of the tuples above.

    Compute: `flops`, with `dtype` if there are some, `bytes` (read and written), `dims` of a matmul (`[batch,] m, n,
    k`; of experts with uneven loads as if all had that of the fullest, so that `flops` are fewer) or an attention
    (batch, heads, heads of keys, queries, keys, head, and a value if that differs). Others: `size` (of the call, which
    is one for all of its members: their largest operand), this rank's `operand` and `result` in bytes, `axis`, `dtype`;
    messages: `peer` (how many stages away the other end is; around a ring, how many ranks of cp; of caches, its place
    in `RankTable.others`), `towards` (the direction of the other end: 1 the next stage or rank of a ring, -1 the one
    before; around the ends too; 0 of caches), `step` (of a send between stages, the chunk of the other end minus its
    own). `turn`: of its loop, from 0; -1 outside loops. `facts`: what it is to its model. A field that an op does not
    have is 0 or "".
    """

    name: tuple[str, ...]
    chunk: Ints
    template: Ints
    order: Ints
    type: Ints
    when: Ints
    kind: tuple[str, ...]
    phase: tuple[str, ...]
    axis: tuple[str, ...]
    dtype: tuple[str, ...]
    flops: Ints
    bytes: Ints
    size: Ints
    operand: Ints
    result: Ints
    peer: Ints
    towards: Ints
    step: Ints
    dims: tuple[tuple[int, ...], ...]
    turn: Ints
    facts: tuple[OpFacts, ...]

    def __len__(self) -> int:
        return len(self.name)

    @property
    def rings(self) -> npt.NDArray[np.bool_]:
        """Which ops are messages around a ring of context parallelism."""
        return self._messages(RING_AXES)

    @property
    def handed(self) -> npt.NDArray[np.bool_]:
        """Which ops are messages with caches. Those that are on no ring either are between stages."""
        return self._messages((CACHES,))

    def _messages(self, axes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        along = np.array([axis in axes for axis in self.axis], bool)
        found: npt.NDArray[np.bool_] = along & ((self.type == SEND) | (self.type == RECV))
        return found

    def tags(self, tasks: "Tasks") -> Ints:
        """The part of a message's tag by which messages of one task differ.

        One for each direction and step between the chunks of both ends, since a message may lead to another chunk of
        the other end. Messages of a ring come after these, numbered within the task; sender and receiver count them
        alike.
        """
        tags: Ints = ~UPWARD[self.template] + 2 * self.step
        on_ring = np.flatnonzero(self.rings)
        part = (self.chunk * 2 + ~UPWARD[self.template]) * len(TYPES) + self.type
        on_ring = on_ring[np.lexsort((self.order[on_ring], part[on_ring]))]
        begins = np.flatnonzero(np.diff(part[on_ring], prepend=-1))
        number = np.arange(len(on_ring)) - np.repeat(begins, np.diff(np.append(begins, len(on_ring))))
        tags[on_ring] += tasks.span * (1 + number)
        return tags


@dataclass(frozen=True)
class Edges:
    """`source` (a row of Ops) before `target`, for a reason of `kind` (an index of EDGE_KINDS)."""

    source: Ints
    target: Ints
    kind: Ints


@dataclass(frozen=True)
class Tasks:
    """The tasks of a rank class in the order in which they run, one a row.

    kind: an index of TASK_KINDS. microbatch, chunk: 0 for a task that runs once a step. first, last: whether it is the
    first and the last of its kind and chunk.
    """

    kind: Ints
    microbatch: Ints
    chunk: Ints
    first: npt.NDArray[np.bool_]
    last: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def opened(self) -> npt.NDArray[np.bool_]:
        """By task, whether a backward of its chunk ran since the chunk's latest forward."""
        found = np.zeros(len(self), bool)
        for chunk in np.unique(self.chunk):
            own = self.chunk == chunk
            latest = np.maximum.accumulate(np.where(own & SENDS[self.kind], np.arange(len(self)), -1))
            before = np.concatenate([[-1], latest[:-1]])
            found |= own & (before >= 0) & OPENS[self.kind[before]]
        return found

    @property
    def tags(self) -> Ints:
        """The first tag of each task's messages: by micro-batch, then by the chunk that they are for."""
        chunks = 1 + int(self.chunk.max(initial=0))
        tags: Ints = 2 * (self.microbatch * chunks + self.chunk)
        return tags

    @property
    def span(self) -> int:
        """The number of tags of messages between stages."""
        return 2 * (1 + int(self.microbatch.max(initial=0))) * (1 + int(self.chunk.max(initial=0)))


@dataclass(frozen=True)
class Origins:
    """Where the ops and tasks of a rank class come from, in the order of its `Ops` and `Tasks`.

    id: the id of each op in the store. sym: name of its symbolic op. block, position: its block and the block's
    position on the stage. layer: counted over the chunks of the stage, -1 outside layers. temporary: bytes that it
    allocates only while it runs. tasks: ids of the tasks. first_layers: by stage and chunk, the number to add to a
    layer's number to get its number in the model. member: coordinates on cp, ep and dp of the ranks that do this work.
    """

    id: tuple[str, ...] = ()
    sym: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    position: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    layer: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    temporary: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    tasks: tuple[str, ...] = ()
    first_layers: tuple[int, ...] = ()
    member: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class ClassColumns:
    """A rank class: the columns that all its ranks have in common.

    number, digest: of the class. stages: indexes of the pipeline stages with this work. origins: where ops and tasks
    come from. pairs: tasks that run together, operator by operator: the place of the first task of each pair, and that
    after its last.
    """

    number: int
    digest: str
    stages: tuple[int, ...]
    ops: Ops
    edges: Edges
    tasks: Tasks
    origins: Origins = Origins()
    pairs: tuple[tuple[int, int], ...] = ()

    def layer_in_model(self, op: int, stage: int) -> int | None:
        """The number of an op's layer in the model, on one of the class's stages; None outside layers.

        op: its row in the class. stage: of the pipeline.
        """
        layer, first = int(self.origins.layer[op]), self.origins.first_layers
        if layer < 0:
            return None
        chunks = len(first) // len(self.stages)
        return first[self.stages.index(stage) * chunks + int(self.ops.chunk[op])] + layer


@dataclass(frozen=True)
class Groups:
    """The communicator groups of an instance.

    gid, axis: id and mesh axis, by group. sizes: ranks, by group. ranks: the ranks of all groups in ring order, in one
    list.
    """

    gid: Ints
    axis: tuple[str, ...]
    sizes: Ints
    ranks: Ints

    def of_axis(self, axis: str, world: int) -> Ints:
        """For every rank the id of its group on an axis, 0 for a rank without one.

        world: ranks of the job.
        """
        found = np.zeros(world, np.int64)
        chosen = np.array([each == axis for each in self.axis], bool)
        found[self.ranks[np.repeat(chosen, self.sizes)]] = np.repeat(self.gid[chosen], self.sizes[chosen])
        return found


@dataclass(frozen=True)
class RankTable:
    """By rank, its class and its neighbours.

    number: of the class. next, previous: ranks of the neighbouring stages, around the ends of the pipeline. ring_next,
    ring_previous: neighbours on the ring of cp. others: a row a rank, the ranks of another instance that it sends
    caches to or gets them from; -1 fills a row up.
    """

    number: Ints
    next: Ints
    previous: Ints
    ring_next: Ints
    ring_previous: Ints
    others: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def of(cls, coordinates: Mapping[str, Ints], number: Ints, distance: int = 1) -> "RankTable":
        """The table from each rank's coordinates on `tp`, `cp`, `dp` and `pp`.

        number: each rank's class. distance: how many ranks of cp apart neighbours on a ring are (above 1 if Ulysses
        groups are inside the ring).
        """
        return cls(number, *_neighbours(coordinates, "pp", 1), *_neighbours(coordinates, "cp", distance))


def _neighbours(coordinates: Mapping[str, Ints], along: str, distance: int) -> tuple[Ints, Ints]:
    """For every rank the ranks at this distance forwards and backwards along an axis, around its ends."""
    lines = np.lexsort((coordinates[along], *(coordinates[axis] for axis in ("pp", "dp", "cp", "tp") if axis != along)))
    # In this order the ranks of one row of the mesh along the axis are next to each other.
    rows = lines.reshape(-1, int(coordinates[along].max(initial=0)) + 1)
    onwards, back = np.empty(len(lines), np.int64), np.empty(len(lines), np.int64)
    onwards[rows] = np.roll(rows, -distance, axis=1)
    back[rows] = np.roll(rows, distance, axis=1)
    return onwards, back


Step = tuple[str, Mapping[str, Any]]
"""An instance, and its plan."""


@dataclass(frozen=True)
class Workload:
    """An instance in the form that exports and timelines need.

    instance, name, graph, model: ids of the instance and of its graph, and the names of the instance and of the model.
    plan: the words of the plan. degrees: of the mesh, innermost first. classes, ranks, groups: columns of all of them.
    steps: the instances that a window runs one after another (`stagedb.workload.windows`), each with its plan; empty
    for one step. engines: the steps of each of two instances on ranks of their own, one numbered behind the other
    (`stagedb.workload.engine_pairs`).
    """

    instance: str
    name: str
    graph: str
    model: str
    plan: Mapping[str, Any]
    degrees: tuple[int, ...]
    classes: tuple[ClassColumns, ...]
    ranks: RankTable
    groups: Groups
    steps: tuple[Step, ...] = ()
    engines: tuple[tuple[Step, ...], ...] = ()

    def class_of(self, rank: int) -> ClassColumns:
        """The columns of the class of a rank."""
        number = int(self.ranks.number[rank])
        return next(each for each in self.classes if each.number == number)
