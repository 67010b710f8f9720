"""Imported runs matched with an instance, and a system that is fitted to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import yaml

from stagedb.api import lookup, system_choice, wanted_instances
from stagedb.api.results import InstanceInfo, Rows, RunInfo
from stagedb.errors import UsageError
from stagedb.frameworks.profiles import find_profile
from stagedb.mentions import call
from stagedb.plans import typed_words
from stagedb.runs.calibration import FittedSystem, Observations, calibrate, observed
from stagedb.runs.plan_finding import OF_MODEL, FoundPlan, find_plan, without_plan
from stagedb.runs.run_match import RunMatch, match_run
from stagedb.store import Store
from stagedb.store.contents.matches import counts, record_match
from stagedb.store.contents.run_reading import read_any_run, read_run
from stagedb.store.contents.stored_programs import read_program
from stagedb.systems.system import System
from stagedb.systems.system_files import parse_system, write_system

Progress = Callable[[int, int], None]
"""Called with the relationships that were written, and with all of them."""


@dataclass(frozen=True)
class MatchedRun:
    """What differs between a run and an instance.

    planned: ops that the plan has on the recorded ranks: matmuls, attentions and what is communicated. matched: those
    in the run. changed: those with another size, format, group or kind. missing: those that are not there. extra: ops
    of the run that the plan does not have. findings: what differs, a row each, with the ranks that have it. found: the
    plan of the instance, if it was found from the run alone.
    """

    run: RunInfo
    instance: InstanceInfo
    planned: int
    matched: int
    changed: int
    missing: int
    extra: int
    findings: Rows
    found: "FoundPlan | None" = None

    def __str__(self) -> str:
        found = len(self.findings)
        text = (
            f"{self.matched:,} of {self.planned:,} planned ops are in the run, {self.changed:,} changed, "
            f"{self.missing:,} missing, {self.extra:,} extra: {found or 'no'} finding{'' if found == 1 else 's'}"
        )
        if self.odd_rank is None:
            return text
        rank, count = self.odd_rank
        return f"{text}, {'' if count == found else f'{count} of them '}on rank {rank} alone"

    @property
    def odd_rank(self) -> tuple[int, int] | None:
        """The only rank that differs from the others, and how many findings it alone has; None without one."""
        at = self.findings.columns.index("ranks")
        alone = [ranks[0] for row in self.findings.rows if len(ranks := row[at]) == 1]
        return (alone[0], len(alone)) if self.run.world > 1 and len({*alone}) == 1 else None


COLUMNS = ("finding", "module", "phase", "ranks", "count", "planned", "seen", "reason", "time", "critical")


KEEP = ("finding", "seen", "module", "ranks", "planned", "critical")
UNITS = {"time": "ns", "critical": "ns"}


def match(store: Store, run: str, instance: str | None, progress: Progress | None = None) -> MatchedRun:
    """See `Stagedb.match`."""
    info = lookup.the_run(store, run)
    stored = read_any_run(store, info.id)
    plan = None
    if instance is None and not stored.has_times:
        raise UsageError(
            f"the plan of run {info.id[:12]} does not follow from its files, which have no times: name an instance of "
            f"the plan that was run, {call('match', info.id[:12], 'INSTANCE')}, or import the profiler's traces"
        )
    if instance is None:
        plan = find_plan(stored)
        against = _made(store, info, plan)
    else:
        against = lookup.the_instance(store, instance)
    found = match_run(stored, read_program(store, against.id))
    record_match(store, against.id, found, progress or (lambda done, of: None))
    return _matched(info, against, found, plan)


def match_of(store: Store, run: RunInfo, instance: InstanceInfo) -> tuple[MatchedRun, RunMatch]:
    """The match of a run and an instance, which the store need not have. Writes nothing."""
    found = match_run(read_run(store, run.id), read_program(store, instance.id))
    return _matched(run, instance, found, None), found


def instance_of_run(store: Store, run: str) -> str | None:
    """The id of the instance that a run was matched with last; None if it was matched with none."""
    rows = store.read("match/newest", run=run)
    return rows[0]["instance"] if rows else None


def _matched(info: RunInfo, against: InstanceInfo, found: RunMatch, plan: FoundPlan | None) -> MatchedRun:
    rows = tuple(
        (each.kind, each.module, each.phase, list(each.ranks), each.count, each.planned, each.seen, each.reason,
         each.ns or None, each.critical)
        for each in found.findings
    )  # fmt: skip
    return MatchedRun(info, against, **counts(found), findings=Rows(COLUMNS, rows, keep=KEEP, units=UNITS), found=plan)


def _made(store: Store, run: RunInfo, plan: FoundPlan) -> InstanceInfo:
    """The instance of a plan that was found. Raises UsageError where the model was not found."""
    if plan.card is None:
        raise UsageError(
            f"run {run.id[:12]} has {plan.degrees}; the rest of its plan does not follow ({'; '.join(plan.ties)}): "
            f"make an instance of its model under these degrees, and name it: {call('match', run.id[:12], 'INSTANCE')}"
            f". {without_plan(run.id)}"
        )
    card = replace(plan.card, name=f"of-run-{run.id[:8]}", tied=bool(plan.words.get("tied")))
    words = {word: value for word, value in plan.words.items() if word not in OF_MODEL}
    made = wanted_instances.of_model(store, card, typed_words(words), None)
    return made.make(store, wanted_instances.StageClock())


# A system that is fitted to runs of the store.


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
