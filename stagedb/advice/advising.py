"""The plans near a plan, tried and ranked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.advice.bounds import Bound, bound_of
from stagedb.advice.neighbours import Words, changed_words, neighbours
from stagedb.advice.shared_trials import NoOutcome, Trial, results
from stagedb.advice.trials import Outcome, Trials
from stagedb.advice.what_ifs import WhatIf, what_ifs
from stagedb.errors import UsageError
from stagedb.memory import memory_of, peak_of
from stagedb.plans import Plan
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.timing import JobProfile, profile_job

LEAST_SAVING = 0.0005
"""Share of the step that a change saves at least to be advised: less is printed as 0.0 %."""

LEAN = 2
"""Changes that are tried together with others, if no change alone fits."""


@dataclass(frozen=True)
class Change:
    """A plan near the one that was asked about. change: the words that differ. words: all words of the plan.

    fits: whether the system's memory holds it. saving: ns that the step gets shorter.
    """

    change: Words
    words: Mapping[str, Any]
    outcome: Outcome
    fits: bool
    saving: int

    @property
    def name(self) -> str:
        """The change in words, such as `tp 4, pp 2`."""
        return _name(self.change)


@dataclass(frozen=True)
class Advice:
    """Advice on a step.

    job: the step as it is. peak: bytes of its fullest rank. room: bytes of an accelerator; None without a limit.
    bound: what bounds the step. changes: the plans near it, the best first: those that fit, by their step. refused: by
    the name of a change, why it is no plan. what_ifs: the step without each of its losses.
    """

    plan: Plan
    job: JobProfile
    peak: int
    room: int | None
    bound: Bound
    changes: tuple[Change, ...]
    refused: Mapping[str, str]
    what_ifs: tuple[WhatIf, ...]

    @property
    def fits(self) -> bool:
        return self.room is None or self.peak <= self.room

    @property
    def best(self) -> Change | None:
        """The fastest change that fits. None if there is none, or if the plan itself fits and no change saves
        `LEAST_SAVING`.
        """
        first = next(iter(self.changes), None)
        if first is None or not first.fits:
            return None
        return first if first.saving >= LEAST_SAVING * self.job.step or not self.fits else None


Tried = Callable[[int, int, "Change | None"], None]
"""Called with how many plans are tried, of how many, and the last one; None for one that is refused."""


def _unwatched(done: int, of: int, change: "Change | None") -> None:
    """Progress that nobody watches."""


def advise(trials: Trials, plan: Plan, tried: Tried = _unwatched) -> Advice:
    """Time a plan and the plans near it. Raises UsageError if the plan or the system does not suit the model.

    tried: called with each plan near it.
    """
    copied = trials.copied(plan)
    job = profile_job(copied.workload, trials.system, blocking=trials.blocking)
    peak, room = peak_of(memory_of(copied)), trials.system.accelerator.room
    near = neighbours(plan, trials.sizes)
    asked = [Trial(_name(change), changed_words(plan, change)) for change in near]
    tried(0, len(near), None)
    found: dict[int, Change] = {}
    refused: dict[int, str] = {}
    for at, result in results(trials, asked):
        if isinstance(result, NoOutcome):
            refused[at] = str(UsageError(result.message))
        else:
            fits = room is None or result.peak <= room
            found[at] = Change(near[at], asked[at].words, result, fits, job.step - result.step)
        tried(len(found) + len(refused), len(near), found.get(at))
    changes = [found[at] for at in sorted(found)]
    if room is not None and peak > room and not any(each.fits for each in changes):
        changes += _pairs(trials, plan, job.step, changes)
    changes.sort(key=_rank)
    return Advice(
        plan=plan,
        job=job,
        peak=peak,
        room=room,
        bound=bound_of(job.times, peak, room),
        changes=tuple(changes),
        refused={asked[at].name: refused[at] for at in sorted(refused)},
        what_ifs=what_ifs(job.times, job.durations, job.system, trials.blocking),
    )


def _pairs(trials: Trials, plan: Plan, step: int, changes: Sequence[Change]) -> Iterator[Change]:
    """Two changes at once that fit, where none does alone: those with the least memory, with each of the others."""
    leanest = sorted(changes, key=lambda each: each.outcome.peak)
    pairs: list[Words] = []
    for first in leanest[:LEAN]:
        for other in leanest:
            change: Words = {**first.change, **other.change}
            if not first.change.keys() & other.change.keys() and change not in pairs:
                pairs.append(change)
    asked = [Trial(_name(change), changed_words(plan, change), fitting=True) for change in pairs]
    found = dict(results(trials, asked))
    for at, change in enumerate(pairs):
        outcome = found[at]
        if isinstance(outcome, Outcome):
            yield Change(change, asked[at].words, outcome, True, step - outcome.step)


def _rank(each: Change) -> tuple[bool, int, int]:
    """Those that fit first, by their step; the others by their memory."""
    step, peak = each.outcome.step, each.outcome.peak
    return (not each.fits, step, peak) if each.fits else (True, peak, step)


def _name(change: Words) -> str:
    return ", ".join(_named(word, value) for word, value in change.items() if value is not None)


def _named(word: str, value: Any) -> str:
    if isinstance(value, bool):
        return PLAN_WORDS[word].flag(value).removeprefix("--")
    return f"{word.replace('_', '-')} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
