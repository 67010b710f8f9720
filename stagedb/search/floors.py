"""Lower bounds of layers for every micro-batch at once: degrees that cannot win are known before micro-batches are.

On a system without launches and latencies, on which all sizes have the best rate of any size, the time of a layer is
proportional to the sequences of a micro-batch. No layer is faster on the system itself. Sizes that are rounded up are
taken from a multiple of all micro-batches: for a sequence they are never smaller than there.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from stagedb.lowering.columns import ClassColumns
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.plans import Plan
from stagedb.search.miniatures import PartTimes, only_chunk, part_times, parts_of
from stagedb.search.transfers import Part
from stagedb.systems import System
from stagedb.systems.system import ASTRA_SIM, FLAT, Accelerator, Curve, Dimension, Number
from stagedb.systems.tables.operator_times import OperatorTimes

MARGIN = Fraction(99, 100)
"""A factor of floors, so that sizes that are rounded down do not make a plan faster: see `rounds_little`."""


def fastest(system: System) -> System | None:
    """The system at its best rates of all sizes, without launches and latencies; None for the rules of a simulator."""
    if system.collectives.model == ASTRA_SIM:
        return None
    tables = OperatorTimes(system)
    inner, *others = map(_at_best, system.dimensions)
    collective = tables.table("collective", "bf16")
    if collective is not None:
        # The highest rate that was measured, on a switch: its ring sends the fewest bytes of all algorithms.
        rate: Number = Fraction(collective.fastest_bytes)
        inner = replace(inner, kind="switch", bandwidth=max(inner.bandwidth, rate))
    return replace(
        system,
        accelerator=_accelerator(system, tables),
        dimensions=(inner, *others),
        # Kernels that are faster in a step than alone are in the rates of `_accelerator`, which divides by the factor.
        overlap=replace(system.overlap, stretch=(), taken=0),
        tables=(),
    )


def _accelerator(system: System, tables: OperatorTimes) -> Accelerator:
    own, shorter = system.accelerator, min((Fraction(1), *dict(system.overlap.stretch).values()))
    peak, attention = dict[str, Number](), Fraction(0)
    for dtype, rate in own.peak.items():
        # Both as shares of the file's peak, which a measurement may exceed.
        shares = {
            name: max([_best(curve), *(_share(tables, operator, dtype, rate) for operator in operators)])
            for name, curve, operators in (
                ("matmul", own.matmul, ("matmul", "experts")),
                ("attention", own.attention, ("attention",)),
            )
        }
        most = max(shares.values()) / shorter
        peak[dtype] = rate * most
        attention = max(attention, shares["attention"] / shorter / most)
    return replace(
        own,
        peak=peak,
        launch=Fraction(0),
        graph_launch=Fraction(0),
        matmul=FLAT,
        attention=_level(attention),
        memory=_level(_best(own.memory)),
        power=None,
    )


def _share(tables: OperatorTimes, operator: str, dtype: str, peak: Number) -> Fraction:
    """The highest rate of a table as a share of the peak; 0 without a table."""
    table = tables.table(operator, dtype)
    if table is None or peak == float("inf"):
        return Fraction(0)
    share = Fraction(table.fastest) / (1000 * Fraction(peak))
    # Without the cast that was measured with it, a matmul may reach the peak.
    return share if operator == "attention" else max(share, Fraction(1))


def _at_best(dimension: Dimension) -> Dimension:
    share, own = _best(dimension.efficiency), dimension.custom_all_reduce
    share = share if own is None else max(share, own.share)
    return replace(
        dimension, latency=Fraction(0), bandwidth=dimension.bandwidth * share, efficiency=FLAT, custom_all_reduce=None
    )


def _best(curve: Curve) -> Fraction:
    return max(share for _, share in curve.points)


def _level(share: Fraction) -> Curve:
    return Curve(((Fraction(1), share),))


def rounds_little(plan: Plan) -> bool:
    """Whether `MARGIN` is more than what sizes lose by being rounded down.

    Only the copies of tokens for the ranks of ep are rounded down, by less than one a rank, and a sequence has at least
    one copy of each of its tokens.
    """
    tokens = plan.seq_len // (plan.cp * (plan.tp if plan.options.sp else 1))
    return plan.options.dispatch == "copies" or plan.ep <= (1 - MARGIN) * tokens


def floor_times(graph: IndexedGraph, plan: Plan, system: System) -> Mapping[str, Mapping[Part, PartTimes]]:
    """The least times of a shortened graph's parts, by the name of a kind of task.

    plan: one stage, with a multiple of all micro-batches. system: as `fastest` has it. Collectives that run in chunks
    during matmuls count for nothing, as what is left of them depends on how both are long.
    """
    program = lower(graph, plan, first_of_cp=True)
    parts = parts_of(only_chunk(program))
    workload = replace(program.workload, classes=tuple(map(_least_work, program.workload.classes)))
    found = part_times(replace(program, workload=workload), parts, system)
    if not system.overlap.chunked:
        return found
    return {
        kind: {part: replace(one, chain=one.busy, exposed={}) for part, one in of.items()} for kind, of in found.items()
    }


def _least_work(columns: ClassColumns) -> ClassColumns:
    """A class whose matmuls move nothing: tables of measured times may be faster than the memory."""
    ops = columns.ops
    return replace(columns, ops=replace(ops, bytes=np.where(ops.flops > 0, 0, ops.bytes)))
