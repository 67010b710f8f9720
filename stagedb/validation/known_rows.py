"""The published steps that stagedb has read (`KNOWN_FILES` in this folder), in two parts by a seed.

Half of each source at most is *calibrated on*: only these rows may fix a number. The others are *held out*. The seed
was chosen before anything was fitted. Each file is drawn on its own, so that a later one leaves the parts of earlier
rows as they were.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from stagedb.timing.framework_timing import Calibration, calibrations
from stagedb.validation.step_rows import COLUMNS, StepRow, job_of, read_steps

SEED = 20261123

KNOWN_FILES = ("known_steps.csv", "known_steps_2.csv")

CALIBRATED, HELD_OUT, NOT_READ = "calibrated on", "held out", "not read"

Key = tuple[str, ...]


def parts(rows: Sequence[StepRow]) -> Mapping[StepRow, str]:
    """For each row the part that it belongs to. A row that stagedb does not have is not read."""
    known = _known()
    return {row: known.get(_key(row), NOT_READ) for row in rows}


def split(rows: Sequence[StepRow], seed: int = SEED) -> Mapping[Key, str]:
    """Each row's part. From each source half of the rows, rounded down, are drawn, in the order of the sources' names.

    Rows count by what they are, so that their order in a file does not matter. seed: of Python's generator; equal seeds
    draw equal rows.
    """
    found: dict[Key, str] = {}
    draws = random.Random(seed)
    for source in sorted({row.source for row in rows}):
        keys = sorted({_key(row) for row in rows if row.source == source})
        chosen = set(draws.sample(keys, len(keys) // 2))
        found |= {key: CALIBRATED if key in chosen else HELD_OUT for key in keys}
    return found


def fixes(row: StepRow, number: Calibration) -> bool:
    """Whether a published step that may fix numbers fixes this one: the number holds for its framework and system."""
    job = job_of(row)
    return number.holds(job.profile.name, job.system.name)


def fitted_together() -> tuple[tuple[Calibration, ...], ...]:
    """The fitted numbers, those that share rows in one tuple."""
    fixing = fixing_rows()
    found: list[tuple[Calibration, ...]] = []
    for each in calibrations():
        near = [one for one in found if any(not set(fixing[each]).isdisjoint(fixing[other]) for other in one)]
        found = [one for one in found if one not in near]
        found.append((*itertools.chain.from_iterable(near), each))
    return tuple(found)


@lru_cache(maxsize=1)
def fixing_rows() -> Mapping[Calibration, tuple[StepRow, ...]]:
    """For each fitted number the known rows that fixed it."""
    rows = known_rows()
    part = parts(rows)
    calibrated = [row for row in rows if part[row] == CALIBRATED]
    return {each: tuple(row for row in calibrated if fixes(row, each)) for each in calibrations()}


def _key(row: StepRow) -> Key:
    """A key of a row: its plan and its published time."""
    return tuple(row.cells[name] for name in COLUMNS) + tuple(row.cells.get(name, "") for name in ("kernels",))


def known_rows(names: Sequence[str] = KNOWN_FILES) -> tuple[StepRow, ...]:
    """The published steps of files. names: of some files in `KNOWN_FILES`."""
    read = zip(KNOWN_FILES, _read(), strict=True)
    return tuple(itertools.chain.from_iterable(rows for name, rows in read if name in names))


@lru_cache(maxsize=1)
def _read() -> tuple[tuple[StepRow, ...], ...]:
    folder = files(__package__ or "")
    return tuple(read_steps(Path(str(folder.joinpath(name)))) for name in KNOWN_FILES)


@lru_cache(maxsize=1)
def _known() -> Mapping[Key, str]:
    return {key: part for rows in _read() for key, part in split(rows).items()}
