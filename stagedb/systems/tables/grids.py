"""Values over a grid of sizes: interpolated between measurements, and filled where nothing was measured.

All axes are logarithms of sizes. A value is the logarithm of a measured time over a simple model's time, which changes
little from one measurement to the next.
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SMALL = 1e-5
"""Square of an error below which an axis is taken to be exact."""

_OUTSIDE = 9.0
"""By how much less a value counts that is continued beyond the last measurement of an axis."""


@dataclass(frozen=True)
class Grid:
    """Values at all crossings of the axes. axes: ascending logarithms of sizes. values: an array with their lengths."""

    axes: tuple[Floats, ...]
    values: Floats

    def at(self, points: Floats) -> Floats:
        """The values at points (rows, axes), linear between the crossings and level outside. One a row."""
        below, share = [], []
        for number, axis in enumerate(self.axes):
            place = np.clip(np.searchsorted(axis, points[:, number], side="right") - 1, 0, max(len(axis) - 2, 0))
            wide = axis[np.minimum(place + 1, len(axis) - 1)] - axis[place]
            part = (points[:, number] - axis[place]) / np.where(wide > 0, wide, 1.0)
            below.append(place)
            share.append(np.where(wide > 0, np.clip(part, 0.0, 1.0), 0.0))
        flat, strides = self.values.reshape(-1), np.cumprod([1, *self.values.shape[:0:-1]])[::-1]
        found = np.zeros(len(points))
        for corner in product((0, 1), repeat=len(self.axes)):
            weight, index = np.ones(len(points)), np.zeros(len(points), np.int64)
            for number, high in enumerate(corner):
                weight = weight * (share[number] if high else 1.0 - share[number])
                index += np.minimum(below[number] + high, len(self.axes[number]) - 1) * int(strides[number])
            found += weight * flat[index]
        return found


def gridded(points: Floats, values: Floats) -> Grid:
    """The mean of the values at each crossing of the points' own coordinates; NaN where there is no point."""
    axes = tuple(np.unique(points[:, each]) for each in range(points.shape[1]))
    at = tuple(np.searchsorted(axis, points[:, each]) for each, axis in enumerate(axes))
    total, count = np.zeros((2, *(len(axis) for axis in axes)))
    np.add.at(total, at, values)
    np.add.at(count, at, 1.0)
    with np.errstate(invalid="ignore"):
        return Grid(axes, total / count)


def filled(grid: Grid) -> Grid:
    """A grid in which each crossing has a value: measured ones stay, others come from their neighbours along each axis.

    Raises ValueError for a grid without any value.
    """
    values = grid.values.copy()
    if np.isnan(values).all():
        raise ValueError("a grid needs a value")
    while np.isnan(values).any():
        guessed = _guessed(values, grid.axes)
        values = np.where(np.isnan(values), guessed, values)
    return Grid(grid.axes, values)


@dataclass(frozen=True)
class _Along:
    """How one axis describes each cell: the nearest measurements on both sides, what is between them, and its weight.

    share: the cell's distance from the lower one over that between both. Fields are NaN where a side has none.
    """

    low: Floats
    high: Floats
    share: Floats
    between: Floats
    weight: Floats


def _guessed(values: Floats, axes: tuple[Floats, ...]) -> Floats:
    """For each cell the value that its neighbours give with the least expected relative error; NaN without any.

    An axis counts by how well it gives the known values around the cell. Among the candidates (each axis's
    interpolation and its two ends, and the mean of all axes) the weighted median of relative errors is taken: kernels
    that were chosen badly make times with two peaks, and a mean would be between them.
    """
    found = [_along(values, axes, number) for number, axis in enumerate(axes) if len(axis) > 1]
    if not found:
        return values
    total = sum((each.weight for each in found), np.zeros(values.shape))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sum((np.nan_to_num(each.between) * each.weight for each in found), np.zeros(values.shape)) / total
    candidates, weights = [mean], [total / 2]
    for each in found:
        part = np.where(np.isnan(each.share), 0.5, each.share)
        candidates += [each.between, each.low, each.high]
        weights += [each.weight, each.weight * (1 - part), each.weight * part]
    return _median(np.stack(candidates), np.stack(weights), mean)


def _median(candidates: Floats, weights: Floats, mean: Floats) -> Floats:
    """The candidate of each cell with the least weighted sum of relative errors."""
    known = ~np.isnan(candidates)
    with np.errstate(invalid="ignore", over="ignore"):
        # The error is relative to the true time: the shorter one of two that may be true counts more.
        weights = np.where(known, weights * np.exp(np.nan_to_num(mean - candidates)), 0.0)
    order = np.argsort(np.where(known, candidates, np.inf), axis=0)
    ascending = np.take_along_axis(candidates, order, 0)
    sums = np.cumsum(np.take_along_axis(weights, order, 0), axis=0)
    place = (sums < sums[-1] / 2).sum(axis=0)
    chosen: Floats = np.take_along_axis(ascending, place[None], 0)[0]
    return np.where(np.isnan(mean), np.nan, chosen)


def _along(values: Floats, axes: tuple[Floats, ...], number: int) -> _Along:
    moved, axis = np.moveaxis(values, number, 0), axes[number].reshape(-1, *(1 for _ in range(values.ndim - 1)))
    low, low_at = _nearest(moved, axes[number])
    high, high_at = (each[::-1] for each in _nearest(moved[::-1], axes[number][::-1]))
    with np.errstate(invalid="ignore"):
        share = (axis - low_at) / (high_at - low_at)
        between = low * (1 - share) + high * share
    outside = np.isnan(between)
    between = np.where(outside, np.where(np.isnan(low), high, low), between)
    low, high, share, between, outside = (np.moveaxis(each, 0, number) for each in (low, high, share, between, outside))
    error = _around(np.abs(between - values))
    weight = 1 / (error**2 + _SMALL) / np.where(outside, _OUTSIDE, 1.0)
    return _Along(low, high, share, between, np.where(np.isnan(between), 0.0, weight))


def _nearest(values: Floats, axis: Floats) -> tuple[Floats, Floats]:
    """Along the first axis, the nearest value before each cell and its coordinate; NaN without one."""
    found, places = np.full((2, *values.shape), np.nan)
    value, place = np.full((2, *values.shape[1:]), np.nan)
    for index in range(len(values)):
        found[index], places[index] = value, place
        known = ~np.isnan(values[index])
        value, place = np.where(known, values[index], value), np.where(known, axis[index], place)
    return found, places


def _around(error: Floats) -> Floats:
    """The mean error around each cell, two cells wide along every axis; where few are known, near that of the grid."""
    known = ~np.isnan(error)
    usual = float(error[known].mean()) if known.any() else 1.0
    total, count = np.where(known, error, 0.0), known.astype(np.float64)
    for number in range(error.ndim):
        for _ in range(2):
            total, count = _with_neighbours(total, number), _with_neighbours(count, number)
    return (total + usual / 2) / (count + 0.5)


def _with_neighbours(values: Floats, number: int) -> Floats:
    moved = np.moveaxis(values, number, 0)
    found = moved.copy()
    found[1:] += moved[:-1]
    found[:-1] += moved[1:]
    return np.moveaxis(found, 0, number)


# Experts that some tokens of a step choose: with few tokens some have none, and their weights are not read.


def chosen_share(tokens: float) -> float:
    """The share of experts with a token, in the mean, if each token chooses any of them with the same probability.

    None of many choices are for an expert with the probability exp(-tokens) (Poisson). With equal loads each expert has
    one as soon as there are as many choices as experts.

    tokens: those of one expert in the mean.
    """
    return -math.expm1(-tokens)


def chosen_experts(experts: Floats, tokens: Floats) -> Floats:
    """How many experts of a rank have a token, in the mean, as `chosen_share` has it.

    experts: how many the rank has. tokens: those of one expert in the mean.
    """
    found: Floats = -experts * np.expm1(-tokens)
    return found
