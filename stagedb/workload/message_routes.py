"""Where messages between stages lead: the direction of the other end, and its chunk, from the chunk placement."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stagedb.schedules import LOOP, placement_of
from stagedb.workload.instance_columns import RECV, RING_AXES, SEND, UPWARD, ClassColumns, Ints


def towards(axis: tuple[str, ...], template: Ints, type_: Ints, peer: Ints) -> Ints:
    """For each message, the direction of its other end in a loop of stages: 1 to the next stage, -1 to the one before.

    axis, template, type_, peer: columns of `Ops`.
    """
    along: Ints = np.where(UPWARD[template] == (type_ == SEND), 1, -1)
    return np.where(_on_ring(axis), np.sign(peer), along)


def steps(axis: tuple[str, ...], type_: Ints, peer: Ints, direction: Ints) -> Ints:
    """For each send in a loop of stages, the chunk of its other end minus its own.

    It is one chunk where a message goes around the ends. axis, type_, peer: columns of `Ops`. direction: of `towards`.
    """
    around = (type_ == SEND) & (peer * direction < 0) & ~_on_ring(axis)
    found: Ints = np.where(around, direction, 0)
    return found


def placed(each: ClassColumns, plan: Mapping[str, Any]) -> ClassColumns:
    """A class whose messages lead where the plan places its chunks, in place of a loop. plan: its words."""
    placement, stages = placement_of(plan["schedule"], plan.get("chunk_placement")), int(plan["pp"])
    if placement is LOOP:
        return each
    ops, stage = each.ops, each.stages[0]
    direction, step = ops.towards.copy(), ops.step.copy()
    for op in (row for row, axis in enumerate(ops.axis) if axis == "pp" and ops.type[row] in (SEND, RECV)):
        onwards, sends = (1 if UPWARD[ops.template[op]] else -1), ops.type[op] == SEND
        chunk = int(ops.chunk[op])
        way = placement.route(placement.position(stage, chunk, stages), onwards if sends else -onwards, stages)
        # With two stages each is next to the other in both directions.
        if stages > 2:
            direction[op] = 1 if way.hop % stages == 1 else -1
        step[op] = way.step if sends else 0
    return replace(each, ops=replace(ops, towards=direction, step=step))


def _on_ring(axis: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([each in RING_AXES for each in axis], bool)
