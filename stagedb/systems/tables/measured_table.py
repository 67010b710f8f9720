"""Tables of measured times of operators: the columns of their rows, and a time as a function of sizes.

A time is `base · exp(grid)`. The base is a model with three numbers that come from the table itself: the shortest time,
the highest rate of FLOPs, and the highest bandwidth. The grid has what the measurements differ from it. Beyond the last
measured size the difference stays as it is there, and the base grows with the work.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stagedb.collectives import KINDS
from stagedb.errors import UsageError
from stagedb.systems.tables.grids import Floats, Grid, filled, gridded

# The operators that have tables: the columns of their rows, and what a row computes and moves.

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

WIDTHS: Mapping[str, float] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "int4_symmetric": 33 / 64, "mxfp4": 17 / 32}
"""Bytes an element of the formats that tables are for."""

_FASTEST = 98.0
"""Percentile of rates that is taken for the highest. A few measurements are too short to be true."""

_NEAREST = 3
"""Families that are nearest in size, and make the time of another one."""

_BEYOND = 60.0
"""The logarithm of a size above all others: that of 10^26, whose cube a float still holds."""

_SAME = 1e-9
"""What is added to a distance, so that the family itself has all the weight."""


@dataclass(frozen=True)
class MeasuredTable:
    """Times of an operator. floor: ns; rate: FLOPs a ns; bandwidth: bytes a ns. wide: bytes an element.

    families: a row for each combination of the shape's `families`; the grid's first axis is their number. Experts
    have the sizes of a model's experts and their split over ranks, attention a head's size and the window.
    """

    shape: Shape
    wide: float
    floor: float
    rate: float
    bandwidth: float
    grid: Grid
    families: Floats

    def base(self, rows: Columns) -> Floats:
        """ns of the simple model, one a row."""
        flops, moved = self.shape.work(rows, self.wide)
        return self.floor + np.maximum(flops / self.rate, moved / self.bandwidth)

    def ns(self, rows: Columns) -> Floats:
        """ns of rows with the columns of the operator, one a row. Any size above 0 has a time."""
        rows = complete(self.shape, rows)
        points = self.shape.points(rows)
        if not self.shape.families:
            return self.base(rows) * np.exp(self.grid.at(points))
        wanted = np.stack([rows[name] for name in self.shape.families], axis=1)
        found = np.zeros(len(points))
        for family, weight in self._near(wanted, self.families):
            found += weight * self.grid.at(np.concatenate([family[:, None].astype(np.float64), points], axis=1))
        return self.base(rows) * np.exp(found)

    @property
    def _least(self) -> float:
        """The shortest time of any size as a share of the simple model's."""
        return float(np.exp(self.grid.values.min()))

    @property
    def fastest_bytes(self) -> float:
        """A bound of the rate for any size: bytes a ns."""
        return self.bandwidth / self._least

    @property
    def fastest(self) -> float:
        """A bound of the rate for any size: FLOPs a ns."""
        if self.shape.families:
            return self.rate / self._least
        # A bound for each cell of the grid: a value inside is no less than the least of its corners, and the model's
        # time for a FLOP is shortest at the corner with the largest sizes. The cells at the ends of an axis have no
        # outer corner.
        low = self.grid.values
        for axis in range(low.ndim):
            low = np.minimum(
                np.insert(low, 0, low.take(0, axis), axis), np.insert(low, low.shape[axis], low.take(-1, axis), axis)
            )
        ends = np.meshgrid(*(np.append(axis, _BEYOND) for axis in self.grid.axes), indexing="ij")
        rows = {name: np.exp(end.ravel()) for name, end in zip(self.shape.columns, ends, strict=True)}
        flops, _ = self.shape.work(rows, self.wide)
        return float((flops / (self.base(rows) * np.exp(low.ravel()))).max())

    def local_experts(self, tokens: Floats, hidden: Floats, ffn: Floats, experts: Floats) -> Floats:
        """ns of all three matmuls of one rank's experts, whichever model and split they come from.

        tokens: choices that they compute together. hidden, ffn, experts: their sizes on this rank. Only for experts.
        """
        ones = np.ones(len(tokens))
        rows = {
            "tokens": tokens,
            "hidden": hidden,
            "ffn": ffn,
            "experts": experts,
            "top_k": ones,
            "tp": ones,
            "ep": ones,
        }
        _, _, _, top_k, _, ep = self.families.T
        found = np.zeros(len(tokens))
        for family, weight in self._near(np.stack([hidden, ffn, experts], axis=1), self.local_sizes):
            # The tokens of all ranks of ep together, of whose choices one rank's experts have `tokens`.
            point = np.log(tokens * ep[family] / top_k[family])
            found += weight * self.grid.at(np.stack([family.astype(np.float64), point], axis=1))
        return self.base(rows) * np.exp(found)

    def nearest_experts(self, hidden: Floats, ffn: Floats, experts: Floats) -> Floats:
        """How far the nearest measured experts are from these sizes: the sum of differences of logarithms.

        hidden, ffn, experts: each operator's sizes on one rank.
        """
        wanted = np.log(np.stack([hidden, ffn, experts], axis=1))
        found: Floats = np.abs(wanted[:, None, :] - np.log(self.local_sizes)[None]).sum(axis=2).min(axis=1)
        return found

    @property
    def local_sizes(self) -> Floats:
        """The sizes of each family of experts on one rank: hidden, inner, experts."""
        columns = dict(zip(EXPERTS.families, self.families.T, strict=True))
        ones = np.ones(len(self.families))
        return np.stack(expert_sizes({**columns, "tokens": ones})[1:], axis=1)

    def _near(self, wanted: Floats, known: Floats) -> list[tuple[npt.NDArray[np.int64], Floats]]:
        """For each row the families that are nearest, and their weights: one after the other, the nearest first."""
        kinds, of_row = _kinds(wanted)
        # A collective has the number 0.
        apart = np.abs(np.log1p(kinds)[:, None, :] - np.log1p(known)[None, :, :]).sum(axis=2)
        near = np.argsort(apart, axis=1, kind="stable")[:, : min(_NEAREST, len(known))]
        closest = np.take_along_axis(apart, near, 1)
        if not closest[:, 0].any():
            return [(near[of_row, 0], np.ones(len(wanted)))]
        weight = (closest + _SAME) ** -4.0
        weight = weight / weight.sum(axis=1, keepdims=True)
        return [(near[of_row, each], weight[of_row, each]) for each in range(near.shape[1])]


def _kinds(rows: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The distinct rows, and which of them each row is."""
    # A sum of logarithms with factors that have no common measure is as good as comparing all columns, and much faster.
    key = np.log1p(rows) @ np.sqrt(np.arange(2.0, 2.0 + rows.shape[1]))
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return rows[first], inverse.reshape(-1)


def complete(shape: Shape, rows: Columns) -> Columns:
    """The columns of an operator, with those that may be left out. UsageError if one is missing."""
    missing = [name for name in shape.columns if name not in rows]
    if missing:
        raise UsageError(f"a table of {shape.name} has the columns {', '.join(shape.columns)}: {missing[0]} is missing")
    count = len(rows[shape.columns[0]])
    optional = {name: np.full(count, value) for name, value in shape.optional.items() if name not in rows}
    return {**{name: np.asarray(values, np.float64) for name, values in rows.items()}, **optional}


def table_of(operator: str, dtype: str, rows: Columns, ns: Floats) -> MeasuredTable:
    """The table of measured rows. ns: one a row, above 0.

    dtype: the format of the operands. Raises UsageError for an unknown operator or format, for a missing column and for
    no rows.
    """
    if operator not in SHAPES or dtype not in WIDTHS:
        raise UsageError(
            f"no table of {operator} in {dtype}: operators are {', '.join(SHAPES)}, formats {', '.join(WIDTHS)}"
        )
    shape, wide = SHAPES[operator], WIDTHS[dtype]
    if wide < 1 and shape is not EXPERTS:
        raise UsageError(f"no table of {operator} in {dtype}: those of weights in 4 bits are of experts")
    rows = complete(shape, rows)
    if len(ns) == 0:
        raise UsageError(f"a table of {operator} has no rows")
    flops, moved = shape.work(rows, wide)
    rate, bandwidth = (float(np.percentile(each / ns, _FASTEST)) or 1.0 for each in (flops, moved))
    floor = float(ns.min())
    left = np.log(ns / (floor + np.maximum(flops / rate, moved / bandwidth)))
    grid, families = _families(shape, rows, left) if shape.families else (_plain(shape, rows, left), np.zeros((0, 0)))
    return MeasuredTable(shape, wide, floor, rate, bandwidth, grid, families)


def _plain(shape: Shape, rows: Columns, left: Floats) -> Grid:
    return filled(gridded(shape.points(rows), left))


def _families(shape: Shape, rows: Columns, left: Floats) -> tuple[Grid, Floats]:
    """A grid for each family, one after the other along its first axis, and the families.

    They are filled as one grid that also has axes for what families differ in, so that they learn from each other. The
    sizes of a model's experts are one axis.
    """
    columns = [rows[name] for name in shape.families]
    models = 4 if shape is EXPERTS else 0
    apart = []
    if models:
        _, card = _kinds(np.stack(columns[:models], axis=1))
        apart.append(card.astype(np.float64))
    points = np.stack([*apart, *(np.log1p(each) for each in columns[models:])], axis=1)
    grid = gridded(np.concatenate([points, shape.points(rows)], axis=1), left)
    width, whole = points.shape[1], filled(grid)
    found, of_row = _kinds(np.stack(columns, axis=1))
    first = np.array([int(np.flatnonzero(of_row == each)[0]) for each in range(len(found))])
    places = tuple(np.searchsorted(grid.axes[each], points[first, each]) for each in range(width))
    return Grid((np.arange(float(len(found))), *whole.axes[width:]), whole.values[places]), found
