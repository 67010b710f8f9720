"""Fitted numbers, and steps predicted by numbers that were fitted without some of the rows."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from scripts._timed_rows import TimedRow
from stagedb.timing.framework_timing import Calibration
from stagedb.validation.step_rows import StepRow, fitted_together, fixing_rows

FACTORS = np.arange(10, 501) / 100
"""The factors that are tried."""

_MOST_ROUNDS = 6
_AROUND = 9
"""Factors of each number that are tried around the solution of the linear model."""

_PROBE = Fraction(1, 100)
"""By how much a factor is changed to see what the step does."""

Floats = npt.NDArray[np.float64]
Factors = tuple[Fraction, ...]


def fit(numbers: Sequence[Calibration], timed: Sequence[TimedRow]) -> tuple[Calibration, ...]:
    """Numbers that are fitted together, with the factors that suit these rows best.

    That is the least sum of squared relative errors. The step is close to linear in a factor. So each round takes the
    best factors of a linear model around the last ones, until they stay.
    """
    at: Factors = tuple(each.factor for each in numbers)
    for _ in range(_MOST_ROUNDS):
        base = _shares(numbers, at, timed)
        slopes = np.stack([(_shares(numbers, probe, timed) - base) / float(_PROBE) for probe in _probes(at)])
        best = _best(base, slopes, at)
        if best == at:
            break
        at = best
    return tuple(replace(number, factor=factor) for number, factor in zip(numbers, at, strict=True))


def _shares(numbers: Sequence[Calibration], at: Factors, timed: Sequence[TimedRow]) -> Floats:
    """Our time of each row, over the published one, with these factors."""
    known = [replace(number, factor=factor) for number, factor in zip(numbers, at, strict=True)]
    return np.array([row.step(known) / row.row.seconds for row in timed])


def _probes(at: Factors) -> Iterator[Factors]:
    for which in range(len(at)):
        yield tuple(factor + _PROBE * (number == which) for number, factor in enumerate(at))


def _best(base: Floats, slopes: Floats, at: Factors) -> Factors:
    """The factors with the least sum of squared errors, if steps change with these slopes.

    They are those of two decimals around the solution of the linear model.
    """
    now = np.array([float(each) for each in at])
    solved = now + np.linalg.lstsq(slopes.T, 1 - base, rcond=None)[0]
    around = [FACTORS[np.argsort(np.abs(FACTORS - each), kind="stable")[:_AROUND]] for each in solved]
    tried = np.array(list(itertools.product(*(np.sort(each).tolist() for each in around))))
    moved = tried - now
    cost = ((base + moved @ slopes - 1) ** 2).sum(axis=1)
    return tuple(Fraction(str(round(each, 2))) for each in tried[int(cost.argmin())].tolist())


@dataclass
class Fits:
    """Fits to those of the rows that may fix numbers. Each row is built once, and each fit is made once."""

    progress: Callable[[str], None] = lambda line: None
    _timed: dict[StepRow, TimedRow] = field(default_factory=dict)
    _known: dict[
        tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...], Mapping[frozenset[StepRow], tuple[Calibration, ...]]
    ] = field(default_factory=dict)

    def timed(self, row: StepRow) -> TimedRow:
        """The row, built and timed."""
        if row not in self._timed:
            self.progress(f"row {len(self._timed) + 1}: {row.source}, {row.title}")
            self._timed[row] = TimedRow.of(row)
        return self._timed[row]

    def numbers(self, without: Callable[[TimedRow], bool] = lambda row: False) -> tuple[Calibration, ...]:
        """All numbers, fitted without the rows that `without` names. A number that no other row fixes is missing."""
        found: list[Calibration] = []
        for numbers in fitted_together():
            found += self._together(numbers, without)
        return tuple(found)

    def _together(self, numbers: Sequence[Calibration], without: Callable[[TimedRow], bool]) -> tuple[Calibration, ...]:
        fixing = fixing_rows()
        left = {each: [row for row in fixing[each] if not without(self.timed(row))] for each in numbers}
        chosen = [replace(each, rows=len(left[each])) for each in numbers if left[each]]
        rows = tuple(dict.fromkeys(row for own in left.values() for row in own))
        key = tuple((each.operator, each.frameworks, each.systems) for each in chosen)
        made = dict(self._known.get(key, {}))
        if frozenset(rows) not in made:
            made[frozenset(rows)] = fit(chosen, [self.timed(row) for row in rows]) if chosen else ()
            self._known[key] = made
        return made[frozenset(rows)]
