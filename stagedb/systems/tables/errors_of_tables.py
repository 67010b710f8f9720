"""How well a table gives the times of shapes that it was not made from."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stagedb.systems.tables.grids import Bools, Floats
from stagedb.systems.tables.measured_table import MeasuredTable
from stagedb.systems.tables.shapes import Columns

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
