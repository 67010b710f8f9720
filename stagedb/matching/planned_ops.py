"""What a plan expects of each rank, in the order of issue: its matmuls, its attentions and what it communicates."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stagedb.lowering import Program
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, RECV, SEND, ClassColumns, Ints
from stagedb.lowering.issue_order import issued
from stagedb.plans import Mesh
from stagedb.schedules import Task

MATMUL, ATTENTION = "matmul", "attention"

WORK = (MATMUL, ATTENTION)
"""Kinds of what is computed and compared."""


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """An op that a run should have.

    op: row of the class's `Ops`. task: place in the tasks of the rank. kind: matmul, attention, all_gather, send …
    name: its module's path and what it does there, such as `layer.1.attn.wq.weight_gradient`. layer: its number in the
    model. phase: forward, backward, recompute or optimizer. dims: of a matmul `[batch,] m, n, k` with m and n sorted;
    of an attention as in `Ops`; empty for others. group: global ranks, in ring order; for a message this rank and its
    peer. axis: of the group. sent, received: bytes of a rank's operand and result. dtype: on the wire, or of operands.
    """

    op: int
    task: int
    kind: str
    name: str
    layer: int | None
    phase: str
    dims: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    axis: str = ""
    sent: int = 0
    received: int = 0
    dtype: str = ""


def matmul_dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions `[batch,] m, n, k` of a matmul, the same if its two sides change places; a batch of 1 is none.

    dims: as the plan or the recording has them.
    """
    *batch, m, n, k = dims
    return (*(each for each in batch if each != 1), *sorted((m, n)), k)


@dataclass(frozen=True)
class PlannedRun:
    """The ops that a program's ranks should run, computed rank by rank."""

    program: Program

    @cached_property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.program.workload.ranks)

    @cached_property
    def groups(self) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
        """By axis, the ranks of the group that each rank is in."""
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        groups, first = self.program.workload.groups, 0
        for axis, size in zip(groups.axis, groups.sizes.tolist(), strict=True):
            ranks = tuple(groups.ranks[first : first + size].tolist())
            found.setdefault(axis, {}).update(dict.fromkeys(ranks, ranks))
            first += size
        return found

    @property
    def stops_early(self) -> bool:
        """Whether a recomputation ends as soon as all that the backward reads is there."""
        options = self.program.plan.options
        return options.framework.early_stop if options.early_stop is None else options.early_stop

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return int(Mesh.of(self.program.plan).coordinates(rank)["pp"])

    def tasks_of(self, rank: int) -> tuple[Task, ...]:
        """The tasks of a rank, in their order."""
        return tuple(self.program.plan.tasks()[self.stage_of(rank)])

    def alike(self, rank: int) -> tuple[int, int]:
        """Class and stage: ranks with the same ones expect the same ops, on other groups.

        rank: its number in the world.
        """
        return int(self.program.workload.ranks.number[rank]), self.stage_of(rank)

    def ops(self, rank: int) -> list[PlannedOp]:
        """What a rank should run, in the order of issue."""
        columns, stage = self.program.workload.class_of(rank), self.stage_of(rank)
        order = issued(self.program.plan, columns, stage)
        rows = {op: self._op(columns, op, stage, rank) for op in np.unique(order.op).tolist()}
        pairs = zip(order.op.tolist(), order.task.tolist(), strict=True)
        return [replace(found, task=task) for op, task in pairs if (found := rows[op]) is not None]

    def _op(self, columns: ClassColumns, op: int, stage: int, rank: int) -> PlannedOp | None:
        ops, kind = columns.ops, columns.ops.kind[op]
        layer = columns.layer_in_model(op, stage)
        # A layer's number is that in the model, and in a chunk's names it is that in the chunk.
        name = ops.name[op]
        if layer is not None:
            name = f"layer.{layer}.{name.split('.', 2)[2]}" if name.startswith("layer.") else name
        if ops.type[op] == COMPUTE:
            if kind not in WORK:
                return None
            dims = matmul_dims(ops.dims[op]) if kind == MATMUL else ops.dims[op]
            return PlannedOp(op, 0, kind, name, layer, ops.phase[op], dims, dtype=ops.dtype[op])
        axis = ops.axis[op]
        group = self._ends(columns, op, rank) if ops.type[op] in (SEND, RECV) else self.groups[axis].get(rank, (rank,))
        if ops.type[op] == COLLECTIVE and len(group) < 2:
            return None
        sizes = int(ops.operand[op]), int(ops.result[op])
        return PlannedOp(op, 0, kind, name, layer, ops.phase[op], (), group, axis, *sizes, ops.dtype[op])

    def _ends(self, columns: ClassColumns, op: int, rank: int) -> tuple[int, ...]:
        """The two ranks of a message, this one first."""
        ops, ranks = columns.ops, self.program.workload.ranks
        onwards = int(ops.towards[op]) > 0
        table: Ints
        if ops.rings[op]:
            table = ranks.ring_next if onwards else ranks.ring_previous
            other = rank
            for _ in range(max(1, abs(int(ops.peer[op])))):
                other = int(table[other])
            return rank, other
        table = ranks.next if onwards else ranks.previous
        return rank, int(table[rank])
