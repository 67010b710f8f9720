"""The plans near a plan, tried and ranked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import Any

from stagedb.advice.bounds import Bound, bound_of
from stagedb.advice.neighbours import Words, changed_words, neighbours, recomputing
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

LEAN = 4
"""Changes that hold least, which are tried together with others."""

SHORT = 6
"""Changes with the shortest steps, which are tried together with each other."""

TOGETHER = 8
"""Pairs of changes that are timed before those that are left are compared with the best of them."""

SPARED = ("full", "pointwise")
"""Kinds of recomputation that may be of some layers."""

TRIES = 3
"""Numbers of layers that are tried for each kind, if those with fewer do not fit after all."""


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
        """Whether the fullest rank fits into an accelerator's memory; True if there is no limit."""
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


BoundOf = Callable[[Plan], tuple[int, int]]
"""Lower bounds of a plan: ns of its step and bytes of its fullest rank. UsageError for what is no plan of the model."""


def _unbounded(plan: Plan) -> tuple[int, int]:
    """Bounds that rule nothing out."""
    return 0, 0


def advise(trials: Trials, plan: Plan, tried: Tried = _unwatched, bound_of_plan: BoundOf = _unbounded) -> Advice:
    """Time a plan, the plans near it, and pairs of changes that may be better than each alone.

    tried: called with each plan near it. bound_of_plan: rules out pairs that cannot be better.

    Raises UsageError if the plan or the system does not suit the model.
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
    following = _FollowingChanges(trials, plan, job.step, room, bound_of_plan)
    changes += following.fewer_layers(peak)
    changes += following.pairs(peak, changes)
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


@dataclass(frozen=True)
class _FollowingChanges:
    """Changes that follow from what those of one choice gave. step: of the plan [ns]. room: bytes of an accelerator."""

    trials: Trials
    plan: Plan
    step: int
    room: int | None
    bound_of_plan: BoundOf

    def fewer_layers(self, peak: int) -> Iterator[Change]:
        """Recomputation in so few layers that the memory is just enough, if the plan recomputes or does not fit."""
        options = self.plan.options
        if self.room is None or (options.recompute == "none" and peak <= self.room):
            return
        deepest, first = max(self.plan.chunk_layers(self.trials.sizes["L"])), self.plan.recompute_first
        if first is None:
            numbers = ("recompute_every", self.plan.recompute_every, range(deepest * self.plan.virtual_stages, 1, -1))
        else:
            numbers = ("recompute_first", first, range(1, deepest + 1))
        word, own, fewest_first = numbers
        for kind in (*(each for each in SPARED if each != options.recompute), options.recompute):
            if kind == "none":
                continue
            change = recomputing(self.plan, kind) if kind != options.recompute else {}
            asked = [{**change, word: number} for number in fewest_first if number != own or change]
            may = (one for one in asked if self._bound(one) is not None)
            for one in islice(may, TRIES):
                found = self._tried([one])
                if found:
                    yield from found
                    break

    def pairs(self, peak: int, changes: Sequence[Change]) -> list[Change]:
        """Two changes at once that are better than each of them alone: of the shortest, and of those that hold least.

        If no change fits alone, all pairs that fit and have one of those that hold least.
        """
        fitting = [each.outcome.step for each in changes if each.fits]
        fitting += [self.step] if self.room is None or peak <= self.room else []
        by_step = sorted((each for each in changes if each.saving > 0), key=lambda each: each.outcome.step)
        leanest = sorted(changes, key=lambda each: each.outcome.peak)
        few = [*by_step[:SHORT], *leanest[:LEAN]]
        asked: list[Words] = []
        for first, other in [*product(leanest[:LEAN], () if fitting else leanest), *combinations(few, 2)]:
            change: Words = {**first.change, **other.change}
            if not first.change.keys() & other.change.keys() and change not in asked:
                asked.append(change)
        limit, found = min(fitting, default=None), list[Change]()
        bounded = [(step, at) for at, change in enumerate(asked) if (step := self._bound(change)) is not None]
        waiting = sorted(bounded) if fitting else bounded
        while waiting := [(step, at) for step, at in waiting if limit is None or step < limit]:
            some, waiting = waiting[:TOGETHER], waiting[TOGETHER:]
            tried = self._tried([asked[at] for _, at in some])
            found += tried if not fitting else [each for each in tried if each.outcome.step < min(fitting)]
            if fitting:
                limit = min([*fitting, *(each.outcome.step for each in found)])
        return found

    def _bound(self, change: Words) -> int | None:
        """A lower bound of the step with a change [ns]; None if it is no plan, or its bound does not fit."""
        try:
            step, peak = self.bound_of_plan(Plan.from_mapping(changed_words(self.plan, change)))
        except UsageError:
            return None
        return step if self.room is None or peak <= self.room else None

    def _tried(self, asked: Sequence[Words]) -> list[Change]:
        """The changes among `asked` whose plans fit into memory, each with its outcome."""
        trials = [Trial(_name(change), changed_words(self.plan, change), fitting=True) for change in asked]
        found = dict(results(self.trials, trials))
        return [
            Change(asked[at], trials[at].words, outcome, True, self.step - outcome.step)
            for at in range(len(asked))
            if isinstance(outcome := found[at], Outcome)
        ]


def _rank(each: Change) -> tuple[bool, int, int]:
    """A sort key: changes that fit come first, the shortest step before others; then those that do not fit, the
    smallest peak first.
    """
    step, peak = each.outcome.step, each.outcome.peak
    return (not each.fits, step, peak) if each.fits else (True, peak, step)


def _name(change: Words) -> str:
    return ", ".join(_named(word, value) for word, value in change.items() if value is not None)


def _named(word: str, value: Any) -> str:
    if isinstance(value, bool):
        return PLAN_WORDS[word].flag(value).removeprefix("--")
    return f"{word.replace('_', '-')} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
