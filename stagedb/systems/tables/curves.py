"""The curves of a system's tables at usual sizes, and how well a table gives shapes that it was not made from."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stagedb.systems.system import System
from stagedb.systems.tables.grids import Bools, Floats
from stagedb.systems.tables.measured_table import COLLECTIVES, WIDTHS, Columns, MeasuredTable
from stagedb.systems.tables.operator_times import OperatorTimes


@dataclass(frozen=True)
class CurvePoint:
    """A size of an operator. ns: its time. rate: TFLOP/s, or GB/s of a collective's buffer; share: of the peak."""

    operator: str
    dtype: str
    size: str
    ns: float
    rate: float
    unit: str
    share: float


SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384)
SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)
MESSAGES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
HEADS, HEAD = 32, 128


def curves(system: System) -> Iterator[CurvePoint]:
    """For each table of a system: square matmuls, causal attentions of 32 heads, experts, messages by size."""
    times = OperatorTimes(system)
    for each in system.tables:
        table = times.table(each.operator, each.dtype)
        if table is not None:
            yield from _DRAWN[each.operator](system, table, each.dtype)


def _flops(system: System, operator: str, dtype: str, size: str, flops: float, ns: float) -> CurvePoint:
    computed = "bf16" if WIDTHS[dtype] < 1 else dtype  # weights of 4 bits are multiplied in 16
    peak = float(system.accelerator.peak.get(computed, 0)) or float("inf")
    rate = flops / ns / 1000
    return CurvePoint(operator, dtype, size, ns, rate, "TFLOP/s", rate / peak)


def _matmul(system: System, table: MeasuredTable, dtype: str) -> Iterator[CurvePoint]:
    sides = np.array(SIDES, np.float64)
    for side, ns in zip(SIDES, table.ns({"m": sides, "n": sides, "k": sides}).tolist(), strict=True):
        yield _flops(system, "matmul", dtype, f"{side} x {side} x {side}", 2.0 * side**3, ns)


def _attention(system: System, table: MeasuredTable, dtype: str) -> Iterator[CurvePoint]:
    seq = np.array(SEQUENCES, np.float64)
    sizes = {"batch": 1, "heads": HEADS, "kv_heads": HEADS // 4, "head": HEAD}
    rows = {"seq": seq, **{name: np.full(len(seq), float(value)) for name, value in sizes.items()}}
    for length, ns in zip(SEQUENCES, table.ns(rows).tolist(), strict=True):
        size = f"{length} tokens, {HEADS} heads of {HEAD}"
        yield _flops(system, "attention", dtype, size, 2.0 * HEADS * length * (length + 1) * HEAD, ns)


def _experts(system: System, table: MeasuredTable, dtype: str) -> Iterator[CurvePoint]:
    hidden, ffn, experts = 4096.0, 1536.0, 16.0
    for tokens in (64, 256, 1024, 4096):
        one = [np.array([value]) for value in (tokens * experts, hidden, ffn, experts)]
        ns = float(table.local_experts(*one)[0])
        size = f"{int(experts)} of {int(hidden)} x {int(ffn)}, {tokens} tokens each"
        yield _flops(system, "experts", dtype, size, 6 * tokens * experts * hidden * ffn, ns)


def _collective(system: System, table: MeasuredTable, dtype: str) -> Iterator[CurvePoint]:
    inner = system.dimensions[0]
    ranks = min(inner.size or 8, 8)
    for number, kind in enumerate(COLLECTIVES):
        for size in MESSAGES:
            row = {"collective": number, "ranks": ranks, "bytes": size}
            ns = float(table.ns({name: np.array([float(value)]) for name, value in row.items()})[0])
            text = f"{kind} of {ranks}, {size:,} bytes"
            yield CurvePoint("collective", dtype, text, ns, size / ns, "GB/s", size / ns / float(inner.bandwidth))


_DRAWN = {"matmul": _matmul, "attention": _attention, "experts": _experts, "collective": _collective}

# How well a table gives the times of shapes that it was not made from.

SEED = 20
"""The draw of held-out rows that the tables which stagedb carries were made without."""

LARGE = 64 << 10
"""Bytes from which a message counts as large."""


@dataclass(frozen=True)
class TableError:
    """The errors of a table on rows that were held out: the mean and the worst of absolute relative errors.

    part: of the messages, `from 64 KB` or `below 64 KB`; empty for other tables. rows: their number.
    """

    part: str
    rows: int
    mean: float
    worst: float


def held_out(rows: int, seed: int = SEED) -> Bools:
    """A mask of a random tenth of `rows` rows. seed: of the drawing."""
    found: Bools = np.random.default_rng(seed).permutation(rows) < rows // 10
    return found


def errors(table: MeasuredTable, rows: Columns, ns: Floats) -> Iterator[TableError]:
    """The errors on rows with their measured ns: one, or of collectives one for large and one for small messages."""
    apart = np.abs(table.ns(rows) / ns - 1)
    parts = {"": np.ones(len(ns), bool)}
    if table.shape.name == "collective":
        parts = {"from 64 KB": rows["bytes"] >= LARGE, "below 64 KB": rows["bytes"] < LARGE}
    for part, chosen in parts.items():
        if chosen.any():
            yield TableError(part, int(chosen.sum()), float(apart[chosen].mean()), float(apart[chosen].max()))
