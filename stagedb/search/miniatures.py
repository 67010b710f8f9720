"""What one layer of each kind takes and holds under a plan: lower bounds for stages of any depth.

A miniature is the program of a model with two or four layers of each kind on one stage, made by the code that makes
that of the whole model. Its figures are of one rank:

- ns that the compute stream needs for a layer and a template, with the communication that the layer waits for: the
  longest path from the end of what computes before it to the end of the layer. Paths of consecutive layers follow each
  other, so that their sum is a path through a task of a stage.
- bytes that the forward of a layer saves for its backward, and bytes of its parameters, gradients and optimizer states.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from stagedb.ir.symbolic_graph import BlockSpec, SymGraph
from stagedb.lowering.copied_rows import IndexedGraph
from stagedb.lowering.program import Program, lower
from stagedb.lowering.stage_blocks import PSEUDO_BLOCKS
from stagedb.memory.chunk_tensors import Chunk
from stagedb.memory.class_program import ChunkProgram, PlacedWeight, programs
from stagedb.memory.resident_state import states_at
from stagedb.memory.tensor_lifetimes import saved
from stagedb.plans import Plan
from stagedb.systems import System
from stagedb.timing.hidden_communication import DATA_AXES
from stagedb.timing.step_profile import lane_durations
from stagedb.workload.instance_columns import COLLECTIVE, COMPUTE, DATA, EVERY, RUNS, TASK_KINDS, ClassColumns, Ints

Part = tuple[str, bool]
"""A block of the model, and whether it is a layer that recomputes."""

K = TypeVar("K", tuple[str, bool], str)


@dataclass(frozen=True)
class PartTimes:
    """Lower bounds of the time of a part in a kind of task, ns: `chain` with what it waits for, `busy` without it.

    exposed: by axis, the ns of `chain` in which the part waits for communication along it.
    """

    chain: int
    busy: int
    exposed: Mapping[str, int]


@dataclass(frozen=True)
class Miniature:
    """The figures of each part of a model under a plan.

    times: by the name of a kind of task and part. saved: bytes that a forward saves for its backward. held: by block,
    bytes of parameters, gradients that a framework keeps, and states of the optimizer.
    """

    times: Mapping[str, Mapping[Part, PartTimes]]
    saved: Mapping[Part, int]
    held: Mapping[str, int]


def shortened(graph: SymGraph, copies: int) -> SymGraph:
    """The graph of a model with a few layers of each kind, in the order in which the kinds begin."""
    layers = [block for block in graph.blocks if _is_layer(block)]
    alternating = [block for block in layers if block.layers is not None]
    blocks = []
    for block in graph.blocks:
        if block in layers:
            at = alternating.index(block) * copies if block.layers is not None else 0
            numbers = tuple(range(at, at + copies)) if block.layers is not None else None
            block = replace(block, repeat=str(copies), layers=numbers)
        blocks.append(block)
    return replace(graph, blocks=tuple(blocks), sizes={**graph.sizes, "L": copies * len(layers)})


def _is_layer(block: BlockSpec) -> bool:
    return not block.once and block.name not in PSEUDO_BLOCKS


def miniature(graph: IndexedGraph, plan: Plan, system: System | None) -> Miniature:
    """The figures of a shortened graph. plan: one stage. system: None leaves out the times.

    Raises UsageError if the plan does not suit the model, or the system has no rate for it.
    """
    program = lower(graph, plan)
    columns = program.workload.classes[0]
    carried = {op: tuple(PlacedWeight(*each) for each in of) for op, of in program.carried[columns.number].items()}
    made = programs(program.graph, plan, columns, carried)[0]
    parts = {
        position: (block, made.layers[position] is not None and plan.recomputes(made.layers[position] or 0))
        for position, block in made.places
    }
    times = {} if system is None else _times(program, plan, system, parts)
    return Miniature(
        times, _least(_saved(made, parts)), _least(_held(Chunk(made, plan, plan.options.framework.memory)))
    )


def _least(found: Iterable[tuple[K, int]]) -> dict[K, int]:
    """By part or block, the least of its places."""
    least: dict[K, int] = {}
    for part, size in found:
        least[part] = min(size, least.get(part, size))
    return least


def _saved(made: ChunkProgram, parts: Mapping[int, Part]) -> Iterator[tuple[Part, int]]:
    for position, tensors in saved(made).items():
        yield parts[position], sum(tensors.values())


def _held(chunk: Chunk) -> Iterator[tuple[str, int]]:
    program, shared = chunk.program, chunk.shared_buffer
    words = {
        t.facts.word: t.dtype
        for t in program.tensors.values()
        if t.role == "optimizer_state" and t.name in program.sizes
    }
    width = sum(chunk.width(dtype) for dtype in words.values())
    for position, block in program.places:
        size = sum(state.bytes for state in states_at(chunk, position, block))
        if shared is not None:
            # The optimizer's states of a buffer are those of a part of it; its padding is left out here.
            whole, part = shared
            mine = [name for name, at in chunk.buffered if at == position]
            elements = sum(program.sizes[name] for name in mine) // chunk.width("param")
            size += elements * width * part // whole
        yield block, size


def _times(program: Program, plan: Plan, system: System, parts: Mapping[int, Part]) -> dict[str, dict[Part, PartTimes]]:
    columns = program.workload.classes[0]
    ns = lane_durations(program.workload, system).ns[0]
    found: dict[str, dict[Part, PartTimes]] = {}
    for kind in plan.workflow.kinds:
        if kind.once:
            continue
        for position, times in _segments(columns, ns, RUNS[TASK_KINDS.index(kind.name)], parts).items():
            part, of_kind = parts[position], found.setdefault(kind.name, {})
            if part not in of_kind or times.chain < of_kind[part].chain:
                of_kind[part] = times
    return found


def _segments(
    columns: ClassColumns, ns: Ints, templates: Sequence[int], parts: Mapping[int, Part]
) -> dict[int, PartTimes]:
    """The times of each position in a task of these templates.

    The compute stream runs the operators in their order. Time begins for a position when the operator that computed
    last before it is over; what else came before it is taken to be over too. Only what every micro-batch runs counts.
    """
    ops, origins = columns.ops, columns.origins
    rows = np.flatnonzero(np.isin(ops.template, templates) & (ops.when == EVERY))
    rows = rows[np.argsort(ops.order[rows], kind="stable")]
    before = defaultdict[int, list[int]](list)
    for source, target, kind in zip(
        columns.edges.source.tolist(), columns.edges.target.tolist(), columns.edges.kind.tolist(), strict=True
    ):
        if kind == DATA:
            before[target].append(source)
    ends: dict[int, int] = {}
    found: dict[int, PartTimes] = {}
    clock, busy, exposed = 0, 0, Counter[str]()
    last = {int(origins.position[row]): row for row in rows.tolist() if ops.type[row] == COMPUTE}
    for row in rows.tolist():
        computes = ops.type[row] == COMPUTE
        if not computes and (ops.type[row] != COLLECTIVE or ops.axis[row] in DATA_AXES):
            continue
        awaited = max(before[row], key=lambda source: ends.get(source, 0), default=row)
        begin = max(ends.get(awaited, 0), clock if computes else 0)
        ends[row] = begin + int(ns[row])
        if not computes:
            continue
        if begin > clock:
            exposed[ops.axis[awaited]] += begin - clock
        clock, busy = ends[row], busy + int(ns[row])
        position = int(origins.position[row])
        if last[position] == row and position in parts:
            found[position] = PartTimes(clock, busy, dict(exposed))
            clock, busy, exposed = 0, 0, Counter[str]()
            ends.clear()
    return found
