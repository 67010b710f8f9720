"""A system that is fitted to runs of the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import yaml

from stagedb.api import lookup, system_choice
from stagedb.api.matching import instance_of_run
from stagedb.api.results import Rows
from stagedb.errors import UsageError
from stagedb.frameworks.profiles import find_profile
from stagedb.mentions import call
from stagedb.runs.calibration import FittedSystem, Observations, calibrate, observed
from stagedb.runs.run_match import match_run
from stagedb.store import Store
from stagedb.store.contents.instances import read_program
from stagedb.store.contents.run_reading import read_run
from stagedb.systems.system import System
from stagedb.systems.system_files import parse_system, write_system


@dataclass(frozen=True)
class CalibratedSystem:
    """A system that was fitted to runs.

    numbers: a row each: number, value, unit, the lowest and the highest of single parts (`of_each`: run, step or rank),
    and the count of ops or calls behind it. steps: a row for each prediction: run, `fitted` (yes: the numbers are of
    this run too; no: it was left out), steps in ns, and the error as a share of the measured step.
    """

    system: System
    numbers: Rows
    steps: Rows

    def write(self, path: Path | str) -> Path:
        """Write its file, which `--system` takes. Returns the path. UsageError where it cannot be written."""
        write_system(Path(path), self.system.to_dict())
        return Path(path)


NUMBERS = ("number", "value", "unit", "lowest", "highest", "of_each", "count")
STEPS = ("run", "fitted", "measured", "predicted", "error")


def calibrated(
    store: Store,
    runs: Sequence[str],
    base: str | Path | System | None,
    predict: Sequence[str],
    framework: str | None,
    name: str,
) -> CalibratedSystem:
    """See `Stagedb.calibrate`."""
    if not runs:
        raise UsageError(f"name runs that were imported and matched ({call('ls', 'runs')} lists them)")
    found = {word: _observed(store, word) for word in dict.fromkeys((*runs, *predict))}
    if twice := [word for word in predict if found[word].id in {found[each].id for each in runs}]:
        raise UsageError(f"run {twice[0]} is fitted, so that it shows nothing as a prediction: name other runs")
    system = None if base is None else system_choice.resolve_system(base)
    profile = None if framework is None else find_profile(framework)
    unique = {each.id: each for each in (found[word] for word in runs)}.values()
    made = calibrate(tuple(unique), system, name, tuple(found[word] for word in predict), profile)
    # The result is read back from the text of its file, so that both are the same system.
    system = parse_system(yaml.safe_dump(made.system.to_dict()), name)
    return CalibratedSystem(system, *_rows(made))


def _observed(store: Store, word: str) -> Observations:
    run = lookup.the_run(store, word)
    instance = instance_of_run(store, run.id)
    if instance is None:
        raise UsageError(
            f"run {word} has no plan: {call('match', word)} finds it, or compares the run with an instance"
        )
    return observed(match_run(read_run(store, run.id), read_program(store, instance)))


def _rows(made: FittedSystem) -> tuple[Rows, Rows]:
    numbers = tuple(
        (each.name, float(each.value), each.unit, *map(_float, (each.low, each.high)), each.each or None, each.count)
        for each in made.numbers
    )
    steps = tuple(
        (each.run, "yes" if each.fitted else "no", each.measured, each.predicted, round(each.error, 4))
        for each in made.predictions
    )
    times = {"measured": "ns", "predicted": "ns", "error": "ratio"}
    return Rows(NUMBERS, numbers), Rows(STEPS, steps, units=times)


def _float(number: Fraction | None) -> float | None:
    return None if number is None else float(number)
