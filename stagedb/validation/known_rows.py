"""The published steps that stagedb has read (`known_steps.csv` in this folder), in two parts by a seed.

Half of each source at most is *calibrated on*: only these rows may fix a number. The others are *held out*. The seed
was chosen before anything was fitted.
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

CALIBRATED, HELD_OUT, NOT_READ = "calibrated on", "held out", "not read"

Key = tuple[str, ...]


def parts(rows: Sequence[StepRow]) -> Mapping[StepRow, str]:
    """For each row the part that it belongs to. A row that stagedb does not have is not read."""
    known = _known()
    return {row: known.get(_key(row), NOT_READ) for row in rows}


def split(rows: Sequence[StepRow], seed: int = SEED) -> Mapping[Key, str]:
    """Each row's part. From each source half of the rows, rounded down, are drawn, in the order of the sources' names.

    Rows count by what they are, so that their order in a file does not matter.
    """
    found: dict[Key, str] = {}
    draws = random.Random(seed)
    for source in sorted({row.source for row in rows}):
        keys = sorted({_key(row) for row in rows if row.source == source})
        chosen = set(draws.sample(keys, len(keys) // 2))
        found |= {key: CALIBRATED if key in chosen else HELD_OUT for key in keys}
    return found


def fixes(row: StepRow, number: Calibration, numbers: Sequence[Calibration]) -> bool:
    """Whether a row that is calibrated on fixes a number, one of those that are fitted together.

    Matmuls in fp8 have no number: where there is one of matmuls alone, rows in fp8 do not fix it.
    """
    job = job_of(row)
    return (
        job.profile.name in number.frameworks
        and job.system.name in number.systems
        and not ({each.operator for each in numbers} == {"matmul"} and job.words.get("matmul_dtype") == "fp8")
    )


def fitted_together() -> tuple[tuple[Calibration, ...], ...]:
    """The fitted numbers, those that share a framework on the same systems in one tuple."""
    found: list[tuple[Calibration, ...]] = []
    for each in calibrations():
        near = [one for one in found if any(_share_rows(each, other) for other in one)]
        found = [one for one in found if one not in near]
        found.append((*itertools.chain.from_iterable(near), each))
    return tuple(found)


def _share_rows(one: Calibration, other: Calibration) -> bool:
    return one.systems == other.systems and not set(one.frameworks).isdisjoint(other.frameworks)


def fixing_rows() -> Mapping[Calibration, tuple[StepRow, ...]]:
    """For each fitted number the known rows that fixed it."""
    rows = _known_rows()
    part = parts(rows)
    calibrated = [row for row in rows if part[row] == CALIBRATED]
    return {
        each: tuple(row for row in calibrated if fixes(row, each, numbers))
        for numbers in fitted_together()
        for each in numbers
    }


def _key(row: StepRow) -> Key:
    """What a row is: its plan and its published time."""
    return tuple(row.cells[name] for name in COLUMNS) + tuple(row.cells.get(name, "") for name in ("kernels",))


@lru_cache(maxsize=1)
def _known_rows() -> tuple[StepRow, ...]:
    return read_steps(Path(str(files(__package__ or "").joinpath("known_steps.csv"))))


@lru_cache(maxsize=1)
def _known() -> Mapping[Key, str]:
    return split(_known_rows())
