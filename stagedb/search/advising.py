"""The plans near a plan: found by one change of a choice, tried in several processes, and ranked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice, permutations, product
from typing import Any

from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS
from stagedb.memory import memory_of, peak_of
from stagedb.plans import Dtypes, Plan
from stagedb.plans.aspects import FORMAT_WORDS, PLAN_WORDS
from stagedb.plans.schedule_checks import follows_from_chunks
from stagedb.schedules import SCHEDULES, bubble
from stagedb.search.trials import Bound, Outcome, Trials, bound_of
from stagedb.search.what_ifs import WhatIf, what_ifs
from stagedb.shared_work import shared
from stagedb.timing import JobProfile, profile_job

# The plans near a plan: one choice changed, on the same ranks and with the same global batch.

Words = Mapping[str, Any]
"""Words of a plan that change. None: the word is left out, and has its default."""

NODE = 8
"""Accelerators of a node, in which ranks of tp are next to each other."""

PARTS = 8
"""Parts of a loss that is in one: the default of torchtitan and of torchtune."""


def neighbours(plan: Plan, sizes: Mapping[str, int]) -> tuple[Words, ...]:
    """The changes that lead to the plans near a plan. The checks of plans may refuse some of them.

    sizes: the model's symbols, such as H for the heads.
    """
    found: list[Words] = []
    for change in (*_structure(plan), *_batches(plan), *_stages(plan), *_degrees(plan, sizes)):
        if change not in found:
            found.append(change)
    return tuple(found)


def changed_words(plan: Plan, change: Words) -> dict[str, Any]:
    """All words of the plan with a change, with the global batch of the plan.

    Formats that are those of the plan's framework are left out, so that another framework has its own.
    """
    words = {**plan.to_dict(), "global_batch_size": plan.batch}
    if plan.dtypes == Dtypes.of(plan.options.recipe, plan.dtypes.act):
        words = {word: value for word, value in words.items() if word not in FORMAT_WORDS or word == "dtype"}
    return {word: value for word, value in {**words, **change}.items() if value is not None}


def _structure(plan: Plan) -> Iterator[Words]:
    """Changes of the graph: sequence parallelism, the framework, what dp shards, a loss in parts, what is computed
    again."""
    options = plan.options
    if plan.tp > 1:
        yield {"sp": not options.sp}
    for recipe in FRAMEWORKS:
        if recipe != options.recipe:
            yield {"recipe": recipe}
    for stage in PLAN_WORDS["zero"].choices:
        if stage != options.zero:
            freed = {word: None for word in ("reshard", "reshard_to") if getattr(options, word) is not None}
            units = (("expert_unit", options.expert_unit), ("fsdp_version", options.fsdp_version == 1))
            whole = {word: None for word, is_set in units if is_set and stage in (0, 1)}
            yield {"zero": stage, **freed, **whole}
    if options.framework.chunks_loss and plan.workflow.differentiates:
        yield {"loss_chunks": None if options.loss_chunks > 1 else PARTS}
    for kind in PLAN_WORDS["recompute"].choices:
        # The operators and modules to compute again are a choice of the user's.
        if kind not in (options.recompute, "operators", "modules"):
            which: dict[str, Any] = {}
            if kind == "none" and not plan.recomputes_all:
                which = {"recompute_every" if plan.recompute_first is None else "recompute_first": None}
            early = {"early_stop": None} if kind == "none" and options.early_stop is not None else {}
            yield {**recomputing(plan, kind), **which, **early}


def recomputing(plan: Plan, kind: str | int) -> dict[str, Any]:
    """The words that change a plan to another kind of recomputation. kind: a value of `recompute`."""
    named = ("recompute_operators", "recompute_modules")
    return {"recompute": kind, **{word: None for word in named if getattr(plan.options, word)}}


def _batches(plan: Plan) -> Iterator[Words]:
    yield {"micro_batch_size": 2 * plan.micro_batch_size}
    if plan.micro_batch_size % 2 == 0:
        yield {"micro_batch_size": plan.micro_batch_size // 2}


def _stages(plan: Plan) -> Iterator[Words]:
    """Changes of what the stages run: chunks of layers, and a schedule with less of a bubble."""
    if plan.pp == 1:
        return
    chunks = [2 * plan.virtual_stages]
    chunks += [plan.virtual_stages // 2] if plan.virtual_stages % 2 == 0 else []
    for number in chunks:
        follows = follows_from_chunks(plan.schedule) or (number > 1 and plan.virtual_stages == 1)
        yield {"virtual_stages": number, **({"schedule": None} if follows else {})}
    idle = bubble(plan.orders(), plan.placement)
    for each in SCHEDULES.values():
        suits = each.several_chunks == (plan.virtual_stages > 1) and each.chunks in (None, plan.virtual_stages)
        if not suits or each.misfit(plan.pp, plan.microbatches):
            continue
        if idle > bubble(each.orders(plan.pp, plan.microbatches, plan.virtual_stages), each.placement):
            without = {word: None for word in ("task_order", "chunk_placement") if getattr(plan, word)}
            yield {"schedule": each.name, **without}


def _degrees(plan: Plan, sizes: Mapping[str, int]) -> Iterator[Words]:
    """Two degrees, one doubled and the other halved; the degree of experts, and what hides their exchanges."""
    for more, less in permutations(("tp", "pp", "dp"), 2):
        if getattr(plan, less) % 2 == 0:
            change: dict[str, Any] = {more: 2 * getattr(plan, more), less: getattr(plan, less) // 2}
            if change.get("tp") == 1 and plan.options.sp:
                change["sp"] = False
            yield change
    if "E" in sizes:
        yield {"ep": 2 * plan.ep}
        if plan.ep % 2 == 0:
            yield {"ep": plan.ep // 2}
        yield from _dispatches(plan)
        if plan.overlap_experts:
            yield {"overlap_experts": None}
        elif plan.ep > 1 and plan.schedule in SCHEDULES and SCHEDULES[plan.schedule].has_pairs(plan.pp):
            yield {"overlap_experts": True}


def _dispatches(plan: Plan) -> Iterator[Words]:
    """Other ways to send tokens to experts: once for each choice, rank, or node of eight accelerators."""
    if plan.ep == 1 or plan.capacity_factor is not None:
        return
    near = NODE // (1 if plan.options.experts_over_tp else plan.tp)
    ways: dict[str, dict[str, Any]] = {"copies": {"dispatch_dtype": None}, "ranks": {}}
    if 1 < near < plan.ep and plan.ep % near == 0:
        ways["nodes"] = {}
    for dispatch, more in ways.items():
        if dispatch != plan.options.dispatch:
            nodes: dict[str, Any] = {"node_ranks": near} if dispatch == "nodes" else {}
            nodes |= {"node_ranks": None} if plan.node_ranks > 1 and dispatch != "nodes" else {}
            narrow = more if plan.options.dispatch_dtype != "same" else {}
            yield {"dispatch": None if dispatch == "copies" else dispatch, **nodes, **narrow}


# Plans tried in several processes at once (`shared_work`). What comes back is two numbers or a message.


@dataclass(frozen=True)
class Trial:
    """A plan to try. name: its change in words. words: all words of the plan. fitting: only if its memory fits."""

    name: str
    words: Mapping[str, Any]
    fitting: bool = False


@dataclass(frozen=True)
class NoOutcome:
    """Why there is no outcome. message: that of the UsageError; empty for a plan that does not fit."""

    message: str = ""


Result = Outcome | NoOutcome


def results(trials: Trials, asked: Sequence[Trial]) -> Iterator[tuple[int, Result]]:
    """The place of each trial and its result, as they end.

    asked: the trials. Raises StagedbError if a process ends before its trial does.
    """
    names = [each.name for each in asked]
    for at, answer in shared(lambda at: asdict(result(trials, asked[at])), names, trials.processes):
        yield at, NoOutcome(**answer) if "message" in answer else Outcome(**answer)


def result(trials: Trials, trial: Trial) -> Result:
    """The result of a trial, in this process."""
    try:
        plan = Plan.from_mapping(trial.words)
        outcome = trials.outcome_that_fits(plan) if trial.fitting else trials.outcome(plan)
    except UsageError as error:
        return NoOutcome(error.message)
    return NoOutcome() if outcome is None else outcome


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
