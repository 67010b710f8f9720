"""The operators that have tables: the columns of their rows, and what a row computes and moves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stagedb.collectives import KINDS
from stagedb.systems.tables.grids import Floats

Columns = Mapping[str, Floats]
"""Columns of a table by name: one value a row."""

COLLECTIVES = tuple(sorted(each.name for each in KINDS.values() if each.tables))
"""Collectives of a table, in the order of their numbers in its column `collective`."""

UNBOUNDED = float(1 << 22)
"""The window of an attention without one."""


@dataclass(frozen=True)
class Shape:
    """An operator with tables.

    columns: what a row must have, and `optional` with the values of those that may be left out. families: columns whose
    combinations have a grid each. points: the sizes that a grid has axes for, from columns (rows, axes). work: FLOPs
    and bytes of a row, by columns and bytes an element.
    """

    name: str
    columns: tuple[str, ...]
    points: Callable[[Columns], Floats]
    work: Callable[[Columns, float], tuple[Floats, Floats]]
    optional: Mapping[str, float] = field(default_factory=dict)
    families: tuple[str, ...] = ()


def matmul_work(rows: Columns, wide: float) -> tuple[Floats, Floats]:
    """FLOPs and bytes of matmuls: two operands with `wide` bytes an element, and a result with two. rows: by column."""
    m, n, k = (rows[name] for name in ("m", "n", "k"))
    return 2 * m * n * k, wide * (m * k + n * k) + 2 * m * n


def seen_pairs(queries: Floats, keys: Floats) -> Floats:
    """Pairs of a query and a key that a causal mask leaves, a head: the last query sees the last key.

    Fewer keys than queries are a window: each query sees `keys` keys, the first ones fewer.
    """
    few = np.minimum(queries, keys)
    pairs: Floats = queries * keys - few * (few - 1) / 2
    return pairs


def attention_work(rows: Columns, wide: float) -> tuple[Floats, Floats]:
    """FLOPs and bytes of attentions: two matmuls over the pairs that causality and the window leave.

    rows: by column. wide: bytes of an element.
    """
    batch, seq, heads, kv, head = (rows[name] for name in ("batch", "seq", "heads", "kv_heads", "head"))
    pairs = seen_pairs(seq, np.minimum(rows["window"], seq))
    return 4 * batch * heads * pairs * head, wide * 2 * batch * seq * head * (heads + kv)


def experts_work(rows: Columns, wide: float) -> tuple[Floats, Floats]:
    """FLOPs and bytes of the gate, up and down matmul of this rank's experts. Weights without a token are not read.

    rows: by column. wide: bytes of an element of a weight.
    """
    tokens, hidden, ffn, experts = expert_sizes(rows)
    weights = 3 * np.minimum(experts, tokens) * hidden * ffn
    return 6 * tokens * hidden * ffn, wide * weights + 2 * tokens * (2 * hidden + 3 * ffn)


def expert_sizes(rows: Columns) -> tuple[Floats, Floats, Floats, Floats]:
    """What one rank has: choices of tokens that it computes, hidden size, inner size, number of experts."""
    return (
        rows["tokens"] * rows["top_k"] / rows["ep"],
        rows["hidden"],
        rows["ffn"] / rows["tp"],
        rows["experts"] / rows["ep"],
    )


def collective_work(rows: Columns, wide: float) -> tuple[Floats, Floats]:
    """No FLOPs, and the bytes that a rank sends in a ring.

    rows: by column; `bytes` is the whole buffer. wide: not used.
    """
    del wide
    passes = np.array([float(KINDS[name].passes) for name in COLLECTIVES])[rows["collective"].astype(np.int64)]
    return 0 * rows["bytes"], passes * rows["bytes"] * (rows["ranks"] - 1) / rows["ranks"]


def _logarithms(*sizes: Floats) -> Floats:
    return np.log(np.stack(sizes, axis=1))


def _matmul_points(rows: Columns) -> Floats:
    return _logarithms(rows["m"], rows["n"], rows["k"])


def _attention_points(rows: Columns) -> Floats:
    return _logarithms(rows["batch"] * rows["heads"], rows["seq"], rows["heads"] / rows["kv_heads"])


def _expert_points(rows: Columns) -> Floats:
    return _logarithms(rows["tokens"])


def _collective_points(rows: Columns) -> Floats:
    return _logarithms(rows["ranks"], rows["bytes"])


MATMUL = Shape("matmul", ("m", "n", "k"), _matmul_points, matmul_work)
ATTENTION = Shape(
    "attention",
    ("batch", "seq", "heads", "kv_heads", "head"),
    _attention_points,
    attention_work,
    {"window": UNBOUNDED},
    ("head", "window"),
)
EXPERTS = Shape(
    "experts",
    ("tokens", "hidden", "ffn", "experts", "top_k"),
    _expert_points,
    experts_work,
    {"tp": 1.0, "ep": 1.0},
    ("hidden", "ffn", "experts", "top_k", "tp", "ep"),
)
COLLECTIVE = Shape(
    "collective", ("collective", "ranks", "bytes"), _collective_points, collective_work, families=("collective",)
)

SHAPES: Mapping[str, Shape] = {each.name: each for each in (MATMUL, ATTENTION, EXPERTS, COLLECTIVE)}
"""All operators that have tables, by name."""
