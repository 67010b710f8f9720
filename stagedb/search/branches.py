"""Sets of plans that a search opens one after the other: their bounds, and the smaller sets that they consist of."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any

from stagedb.errors import TooLargeError, UsageError
from stagedb.memory import memory_of, peak_of
from stagedb.plans import Plan
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.plans.sharding_checks import check_strategy
from stagedb.search.bounds import ALL, NONE, OF_STAGES, Bounds, PlanBound
from stagedb.search.candidates import Candidate, Fate, Objective, SearchRequest, Worth
from stagedb.search.conditions import Condition
from stagedb.search.peak_bounds import Chunks
from stagedb.search.space import CHOOSE_LAYERS, Space, Words
from stagedb.search.trials import Trials
from stagedb.timing.op_durations import most_sent

LONG = 2_000
"""Chunks of all stages times micro-batches, above which a step is long: its parts take four times as long as itself."""


class SetKind(IntEnum):
    """How much of a plan is chosen in a set of plans, from little to all."""

    ANY_MICRO_BATCH = 0
    """A group whose bound is that of its degrees, for any micro-batch."""
    GROUP = 1
    CELL = 2
    ORDER = 3
    LAYERS = 4
    """A plan, of which layers that recompute are chosen, with a bound from its stages."""
    PLAN = 5
    """The same with a bound from its tasks in their order."""


@dataclass(frozen=True)
class PlanSet:
    """Plans that share words, with lower bounds of their step [ns], peak and bytes that a rank sends.

    place: the index of the system and the world in a search. plans: how many. terms: ns of the step's bound. alike:
    other choices of layers that recompute, with which the plan of the branch is no faster. sent: None if the search
    does not ask for it, and the plan is not timed.
    """

    place: int
    level: SetKind
    words: Words
    plans: int
    step: int = 0
    peak: int = 0
    terms: Mapping[str, int] = field(default_factory=dict)
    alike: tuple[Words, ...] = ()
    sent: int | None = None


@dataclass(frozen=True)
class Opened:
    """What a branch consists of: smaller branches, and plans that need not be tried."""

    branches: tuple[PlanSet, ...] = ()
    settled: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class SearchPlace:
    """Plans of a model on one system and one world, with their bounds and trials.

    room: bytes of an accelerator; None for no limit. condition: of the plans that count; None for all. check_tp: raises
    UsageError for a degree that the model's card does not have. by_bytes: whether the search makes small what is sent.
    """

    number: int
    space: Space
    bounds: Bounds
    trials: Trials
    room: int | None
    condition: Condition | None
    check_tp: Callable[[int], None]
    by_bytes: bool = False

    @classmethod
    def of(
        cls,
        number: int,
        space: Space,
        bounds: Bounds,
        request: SearchRequest,
        condition: Condition | None,
        check_tp: Callable[[int], None],
    ) -> "SearchPlace":
        """The plans of a search on one system and one world.

        number: of this place in the search. space: its plans. bounds: of plans on its system. condition, check_tp: as
        the class has them.
        """
        waits = () if space.framework is None else space.framework.hiding.blocking
        trials = Trials(bounds.graph, space.sizes, bounds.system, waits)
        room = bounds.system.accelerator.room if request.room is None else request.room
        return cls(number, space, bounds, trials, room, condition, check_tp, request.by is Objective.BYTES)

    @property
    def system(self) -> str:
        """The name of the system."""
        return self.trials.system.name

    def groups(self) -> Iterator[PlanSet]:
        """All plans, as groups without bounds."""
        for words in self.space.groups():
            yield PlanSet(self.number, SetKind.GROUP, words, self.space.count_group(words))

    def bounded_by_degrees(self, group: PlanSet) -> PlanSet:
        """A group with a bound of its step from one program, which serves all micro-batches of its degrees."""
        group = replace(group, level=SetKind.ANY_MICRO_BATCH)
        try:
            plan = self._one_stage(group.words, micro_batch_size=self.space.batch)
            least = self.bounds.floor(plan, self.space.batch, self._waits)
        except UsageError:
            return group
        return replace(group, step=math.ceil(least * self.space.batch / (group.words["dp"] * group.words["pp"])))

    @property
    def _waits(self) -> bool:
        """Whether plans wait for communication as a plan of one stage does: another order of ranks may have a faster
        one, and two tasks at once hide it."""
        return not any(self.space.is_open(*each) for each in (("rank_order", "order"), ("overlap_experts", "overlap")))

    def _one_stage(self, words: Words, **change: Any) -> Plan:
        """The plan of a group with all layers on one stage. UsageError if there is none."""
        # What dp shards is left out while it is not chosen, and with it the norm of gradients: some frameworks have one
        # only of sharded gradients, so that no plan without them would give bounds.
        open_ = {"zero": 0, "clip_norm": False} if self.space.is_open("zero", "zero") else {}
        plan = _of_one_stage(words, self.space, **open_, **change)
        check_strategy(plan, self.space.sizes)  # before the graph is built
        return plan

    def bounded(self, group: PlanSet) -> PlanSet:
        """A group with its bounds; without any, where no plan of one stage has its layers."""
        space, words = self.space, group.words
        group = replace(group, level=SetKind.GROUP)
        try:
            plan, waits = self._one_stage(words), self._waits
            # A micro-batch takes so long on all stages together, and the slowest one is no faster than their mean.
            runs = space.batch // (words["dp"] * words["micro_batch_size"])
            step = -(-self.bounds.work(plan, waits) * runs // words["pp"])
            size = self.bounds.held(plan)
            if space.is_open("zero", "zero"):
                # Experts of which each rank of tp has its own are shared by more ranks than other weights.
                size //= max(words["dp"] * words["cp"], plan.edp)
            size += self.bounds.loss(plan)
            if words.get("recompute", "none") == "none" and not space.is_open("recompute", "recompute"):
                size += self.bounds.saved(plan)
            group = replace(group, step=step, peak=size // words["pp"])
            if self.by_bytes:
                # What is sharded is not chosen yet, and with it what is reduced and gathered once a step.
                whole = not any(self.space.is_open(*each) for each in (("zero", "zero"), ("hsdp", "hsdp")))
                group = replace(group, sent=self.bounds.sent_by_all(plan, runs, whole) // words["pp"])
            return group
        except UsageError:
            return group

    def opened(self, branch: PlanSet, fewest: bool) -> Opened:
        """The parts of a set. fewest: whether a plan is the better the fewer of its layers recompute."""
        match branch.level:
            case SetKind.GROUP:
                found = list(self._cells(branch))
            case SetKind.CELL:
                found = list(self._orders(branch))
            case SetKind.ORDER:
                found = list(self._plans(branch, self.space.choices(branch.words), fewest))
            case _:
                found = [self._rehearsed(branch)]
        return _opened(found)

    def _rehearsed(self, branch: PlanSet) -> PlanSet:
        branch = replace(branch, level=SetKind.PLAN)
        try:
            plan = Plan.from_mapping(branch.words)
            bound = self.bounds.rehearsed(plan, PlanBound(branch.step, branch.peak, branch.terms))
            sent = most_sent(self.trials.copied(plan).workload) if self.by_bytes else None
        except UsageError:  # a trial has the reason
            return branch
        return replace(branch, step=bound.step, terms=bound.terms, sent=sent)

    def tried(self, branch: PlanSet, longest: int | None) -> Opened:
        """A plan, timed if it fits, and those that are alike, as a set with the next one of them.

        longest: ns; a plan with a longer step cannot win, and its memory is left open.
        """
        one = self._tried(branch, longest)
        if not branch.alike:
            return Opened(settled=(one,))
        words = {word: value for word, value in branch.words.items() if word not in CHOOSE_LAYERS}
        sent = None if branch.sent is None else max(branch.sent, one.sent or 0)
        step = max(branch.step, one.step)
        others = replace(branch, level=SetKind.ORDER, words=words, plans=len(branch.alike), step=step, sent=sent)
        return _opened([one, *self._plans(others, branch.alike, True)])

    def _tried(self, branch: PlanSet, longest: int | None) -> Candidate:
        one = replace(branch, plans=1, alike=())
        try:
            plan = Plan.from_mapping(branch.words)
            plan.check(self.space.sizes)
            program = self.trials.copied(plan)
            one = replace(one, sent=most_sent(program.workload))
            if longest is not None:
                one = replace(one, step=self.trials.step(program))
                if one.step > longest:
                    return self.set_of(one, Fate.SLOWER)
            one = replace(one, peak=peak_of(memory_of(program)))
            if self.room is not None and one.peak > self.room:
                return self.set_of(one, Fate.MEMORY)
            if longest is None:
                # Where no step rules plans out, most of those that are tried do not fit, which is known sooner.
                one = replace(one, step=self.trials.step(program))
        except UsageError as error:
            return self._refused(one, error)
        if not self.holds(plan, one.step, one.peak, one.sent):
            return self.set_of(one, Fate.FILTERED)
        terms = _up_to(one.step, one.terms, plan) if is_long(one.words) else self.trials.terms(program)
        return self.set_of(replace(one, terms=terms), Fate.TIMED)

    def terms_of(self, words: Words) -> dict[str, int]:
        """Where the step of a plan goes, as `Trials.terms` has it."""
        return self.trials.terms(self.trials.copied(Plan.from_mapping(words)))

    def _cells(self, group: PlanSet) -> Iterator[PlanSet | Candidate]:
        refused = self._refused_strategy(group)
        if refused is not None:
            yield refused
            return
        for words in self.space.cells(group.words):
            cell = replace(group, level=SetKind.CELL, words=words, plans=self.space.count(words))
            try:
                plan = Plan.from_mapping(words)
                plan.check(self.space.sizes)
                self.check_tp(plan.tp)
            except UsageError as error:
                if "splits" in self.space.allow:
                    yield cell
                else:
                    yield self._refused(cell, error)
                continue
            cell = replace(cell, peak=max(group.peak, self._least(words, plan)))
            if self.by_bytes:
                cell = replace(cell, sent=self._least_sent(words, plan))
            yield from self._that_fits(cell)

    def _refused_strategy(self, group: PlanSet) -> Candidate | None:
        """A group whose degrees do not suit its strategy in any of its cells."""
        if not group.words.get("strategy"):
            return None
        try:
            plan = Plan.from_mapping(group.words)
            try:
                check_strategy(plan, self.space.sizes)
            except UsageError:
                plan.check(self.space.sizes)  # its first reason
                raise
        except UsageError as error:
            return self._refused(group, error)
        return None

    def _least_sent(self, words: Words, plan: Plan) -> int:
        """Bytes that some rank sends at least under any plan of a cell: the mean of all stages."""
        try:
            return self.bounds.sent_by_all(_of_one_stage(words, self.space), plan.microbatches, True) // plan.pp
        except UsageError:
            return 0

    def _least(self, words: Words, plan: Plan) -> int:
        """Bytes that a rank holds at least under any plan of a cell: the mean of all stages."""
        try:
            stages = replace(plan, virtual_stages=1)
            received = self.bounds.received(stages, range(plan.pp))
            return (self.bounds.at_turn(_of_one_stage(words, self.space)) + received) // plan.pp
        except UsageError:
            return 0

    def _orders(self, cell: PlanSet) -> Iterator[PlanSet | Candidate]:
        """The plans of a cell by the order of their tasks: those that differ only in which layers recompute are one."""
        large: list[PlanSet] = []
        for words in self.space.orders(cell.words):
            choices = self.space.choices(words)
            one = replace(cell, level=SetKind.ORDER, words=words, plans=len(choices))
            if not self.may_hold({**self._usual, **words}):
                yield self.set_of(one, Fate.FILTERED)
                continue
            try:
                plan = _of_some_layers(words, choices)
                plan.check(self.space.sizes)
                # No layer recomputes in the bound of the step, and every layer in that of the peak.
                least, most = (self.bounds.chunks(plan, each if choices[1:] else None) for each in (NONE, ALL))
                bound = self.bounds.bound(plan, least, most)
                step, peak = max(one.step, bound.step), max(one.peak, bound.peak)
                one = replace(one, step=step, peak=peak, terms=bound.terms)
                if self.by_bytes:
                    one = replace(one, sent=max(one.sent or 0, self.bounds.sent(plan, least)))
            except UsageError as error:
                yield self._refused(one, error)
                continue
            if self.room is None or one.peak <= self.room:
                yield one
            else:
                large.append(one)
        yield from self._too_large(cell, large)

    def _plans(self, order: PlanSet, choices: Sequence[Words], fewest: bool) -> Iterator[PlanSet | Candidate]:
        """The plans with an order of tasks. choices: of the layers that recompute.

        fewest: of plans that may fit, the one in which fewest layers recompute is the best. The others are in `alike`:
        they are tried if it does not fit.
        """
        every = self.space.choices(order.words)
        plan = _of_some_layers(order.words, choices if len(choices) == 1 else every)
        fit: list[tuple[Sequence[Words], Chunks, int]] = []
        large: list[PlanSet] = []
        for own, chunks in self.bounds.recomputing(plan, choices):
            peak = max(order.peak, self.bounds.peak(plan, chunks))
            if self.room is None or peak <= self.room:
                fit.append((own, chunks, peak))
            else:
                large.append(replace(order, plans=len(own), peak=peak))
        yield from self._too_large(order, large)
        if fewest and fit:
            merged = sorted((each for own, _, _ in fit for each in own), key=every.index, reverse=True)
            chunks = next(chunks for own, chunks, _ in fit if merged[0] in own)
            fit = [(merged, chunks, min(peak for *_, peak in fit))]
        for (first, *others), chunks, peak in fit:
            words = {**order.words, **first}
            one = replace(
                order, level=SetKind.LAYERS, words=words, plans=1 + len(others), alike=tuple(others), peak=peak
            )
            step, terms = self.bounds.step(plan, chunks)
            yield replace(one, step=step, terms=terms) if step > one.step else one

    def _too_large(self, of: PlanSet, large: Sequence[PlanSet]) -> Iterator[Candidate]:
        """Plans that do not fit, as one set. of: the set to which they belong."""
        if large:
            step, peak = min(each.step for each in large), min(each.peak for each in large)
            whole = replace(of, plans=sum(each.plans for each in large), step=step, peak=peak, terms=large[0].terms)
            yield self.set_of(whole, Fate.MEMORY)

    def holds(self, plan: Plan, step: int, peak: int, sent: int | None) -> bool:
        """Whether the condition holds for a plan with these figures.

        step: ns. peak: bytes of the fullest rank. sent: bytes that a rank sends; None: unknown.
        """
        figures = {"step": step, "peak": peak, "sent": sent, "ranks": self.space.ranks}
        return self.condition is None or self.condition.holds({**plan.to_dict(), **figures})

    def may_hold(self, words: Words) -> bool:
        """Whether the condition may hold for plans with these words, for any later choice and figures."""
        return self.condition is None or self.condition.may_hold({**words, "ranks": self.space.ranks})

    @property
    def _usual(self) -> Words:
        """The defaults of words that the condition reads, but for those that are chosen last."""
        names = () if self.condition is None else self.condition.names & PLAN_WORDS.keys() - {*CHOOSE_LAYERS}
        return {name: PLAN_WORDS[name].default for name in names}

    def _that_fits(self, branch: PlanSet) -> Iterator[PlanSet | Candidate]:
        if self.room is None or branch.peak <= self.room:
            yield branch
        else:
            yield self.set_of(branch, Fate.MEMORY)

    def _refused(self, branch: PlanSet, error: UsageError) -> Candidate:
        return self.set_of(branch, Fate.UNTRIED if isinstance(error, TooLargeError) else Fate.REFUSED, str(error))

    def set_of(self, branch: PlanSet, fate: Fate, why: str = "") -> Candidate:
        """A branch that is not opened any more. why: the reason of its fate, in words."""
        found = (branch.step, branch.peak, branch.plans, branch.terms)
        return Candidate(branch.words, self.system, self.space.ranks, fate, *found, why=why, sent=branch.sent)


def _opened(found: Sequence[PlanSet | Candidate]) -> Opened:
    return Opened(
        tuple(each for each in found if isinstance(each, PlanSet)),
        tuple(each for each in found if isinstance(each, Candidate)),
    )


def is_long(words: Words) -> bool:
    """Whether a step has more than `LONG` tasks: only the best of such plans get the terms of their time.

    words: of the plan.
    """
    stages, chunks = int(words.get("pp", 1)), int(words.get("virtual_stages", 1))
    sequences = int(words["dp"]) * int(words["micro_batch_size"])
    return stages * chunks * (int(words["global_batch_size"]) // sequences) > LONG


def _up_to(step: int, terms: Mapping[str, int], plan: Plan) -> dict[str, int]:
    """The terms of a bound of a step, with what is missing as what stages wait for, or dp where there is one stage."""
    waits = "bubble" if plan.pp > 1 else "exposed dp"
    return {**terms, waits: terms.get(waits, 0) + step - sum(terms.values())}


def _of_some_layers(words: Words, choices: Sequence[Words]) -> Plan:
    """A plan in which some layers recompute and others do not, so that its figures have both."""
    return Plan.from_mapping({**words, **choices[min(1, len(choices) - 1)]})


def _of_one_stage(words: Words, space: Space, **change: Any) -> Plan:
    """The plan of a group or a cell with all layers on one stage."""
    left_out = {*OF_STAGES, *CHOOSE_LAYERS, "scatter_gather", "ranks"}
    small = {word: value for word, value in words.items() if word not in left_out}
    if small.get("recompute", "none") != "none":
        # Its figures have layers of both kinds. Fewer may recompute where a search chooses them, or a word does.
        few = "recompute" in space.allow or words.keys() & {*CHOOSE_LAYERS}
        change |= {"recompute_every": space.sizes["L"] + 1 if few else 2}
    return Plan.from_mapping({**small, **change})


# What a search knows of the plans on one number of ranks: the sets that are not opened yet, and which is next.

NO_LIMIT: Worth = (float("inf"), float("inf"))
"""What no plan exceeds."""

DIVE_EVERY = 16
"""One of this many opened sets is the one nearest to plans, even if others have better bounds."""

PATIENCE = 4
"""After so many sets without a plan that fits, degrees must have half the bound of others to be tried first."""

TIGHT = 0.5
"""Share of the memory, above which the bound of a set is no hope: a plan holds more than the bound of its cell."""

Entry = tuple[Worth, int, PlanSet]
"""A set, with the value of its bound and its number."""


@dataclass
class SearchWorld:
    """The state of a search on one number of ranks, where the `top` best plans are wanted.

    rooms: by the number of a place, the bytes of an accelerator. guesses: whether sets that are likely to have a plan
    that fits are opened until there is a limit. sets: by number, those that are not opened yet. heaps: their bounds by
    what their words have chosen, the best first; sets that were taken remain there until they come up.
    hopes: by degrees, the same with what is likely to fit first, until there is a limit. alike: by layers, the numbers
    of groups that have no bounds of their own yet. limits: the values of the best layouts, ascending. rivals: those of
    other shards. opened: how many sets were. failed: how many sets that were opened had no plan that fits, by their
    degrees and by their group. least: the best bound by degrees.
    """

    top: int
    rooms: Mapping[int, int] = field(default_factory=dict)
    guesses: bool = False
    sets: dict[int, Entry] = field(default_factory=dict)
    heaps: Sequence[list[tuple[Worth, int]]] = field(default_factory=lambda: [[] for _ in SetKind])
    hopes: dict[Hashable, list[tuple[float, ...]]] = field(default_factory=lambda: defaultdict(list))
    alike: dict[Hashable, list[int]] = field(default_factory=lambda: defaultdict(list))
    limits: list[Worth] = field(default_factory=list)
    rivals: Sequence[float] = ()
    opened: int = 0
    failed: Counter[Hashable] = field(default_factory=Counter)
    least: dict[Hashable, float] = field(default_factory=dict)

    @property
    def unopened(self) -> Iterator[tuple[Worth, PlanSet]]:
        """The sets that are not opened yet, with the values of their bounds."""
        return ((worth, each) for worth, _, each in self.sets.values())

    @property
    def limit(self) -> Worth:
        """What a set must not exceed to have one of the best layouts."""
        # Plans of other shards are known by the first number: they rule out what is above that.
        others = ((each, float("inf")) for each in self.rivals)
        best = sorted((*self.limits, *others)) if self.rivals else self.limits
        return best[self.top - 1] if len(best) >= self.top else NO_LIMIT

    def push(self, worth: Worth, number: int, each: PlanSet) -> None:
        """Keep a set until it is opened. worth: its lower bound. number: the set's, by which `take` finds it."""
        self.sets[number] = worth, number, each
        heappush(self.heaps[each.level], (worth, number))
        if each.level is SetKind.ANY_MICRO_BATCH:
            self.alike[layers_of(each)].append(number)
        if self.guesses and self.limit == NO_LIMIT:
            degrees = degrees_of(each)
            if worth[0] > 0:
                self.least[degrees] = min(worth[0], self.least.get(degrees, worth[0]))
            heappush(self.hopes[degrees], self._hope(number))

    def next(self, dives: bool) -> Entry | None:
        """The set of plans to open next; None if no set that is left can have one of the best layouts.

        dives: False: the set with the best bound of all, so that no set is opened that the result does not need. True:
        bounds of large sets are loose, so that thousands of these may come before a first plan. Until as many plans are
        timed as are wanted, it is a set whose degrees are likely to fit; after that every `DIVE_EVERY`-th one is of the
        smallest sets, which are nearly plans: their times rule out large sets.
        """
        limit = self.limit
        if dives and self.guesses and limit == NO_LIMIT and (likely := self._likely()) is not None:
            return likely
        self.hopes.clear()
        for heap in self.heaps:
            while heap and heap[0][1] not in self.sets:
                heappop(heap)
        open_ = [heap for heap in self.heaps if heap and heap[0][0] <= limit]
        if not open_:
            return None
        heap = open_[-1] if dives and (limit == NO_LIMIT or self.opened % DIVE_EVERY == 0) else min(open_)
        return self.sets[heap[0][1]]

    def _likely(self) -> Entry | None:
        """A set whose degrees have a good bound, and of which few sets were opened without finding a plan that fits."""
        known = min(self.least.values(), default=1.0)
        for degrees in sorted(self.hopes, key=lambda each: self.least.get(each, known) * self._patience(each)):
            hopes = self.hopes[degrees]
            while hopes:
                number = int(hopes[0][-1])
                if number not in self.sets:
                    heappop(hopes)
                elif hopes[0] != (hope := self._hope(number)):  # its group has failed since
                    heappop(hopes)
                    heappush(hopes, hope)
                else:
                    return self.sets[number]
            del self.hopes[degrees]
        return None

    def _patience(self, degrees: Hashable) -> float:
        return 1 + self.failed[degrees] / PATIENCE

    def _hope(self, number: int) -> tuple[float, ...]:
        """What is small for a set that is likely to lead to a plan that fits: in a group that has not failed, near to
        plans, and lean where there is little room. Where there is room, what shards less comes first, and what has
        fewer stages: it waits less, and is timed sooner."""
        worth, _, each = self.sets[number]
        pp, sequences = int(each.words["pp"]), int(each.words["micro_batch_size"])
        tight = each.peak > TIGHT * self.rooms.get(each.place, each.peak)
        sharded = 0 if tight else int(each.words.get("zero", 0))
        stages = (each.peak, -pp) if tight else (0, pp)
        failed = self.failed[_group_of(each)]
        return (failed, -each.level, tight, sharded, *stages, sequences, *worth, number)

    def take(self, number: int) -> PlanSet:
        """Take a set that is opened. number: the set's."""
        self.opened += 1
        return self.sets.pop(number)[2]

    def take_alike(self, first: PlanSet, most: int) -> list[PlanSet]:
        """Take groups whose layers are those of a set that is opened, and which have no bounds of their own yet.

        first: the set. most: how many are taken at most.
        """
        numbers, limit = self.alike[layers_of(first)], self.limit
        found = [each for each in numbers if each in self.sets and self.sets[each][0] <= limit][:most]
        return [self.take(each) for each in found]

    def fail(self, each: PlanSet) -> None:
        """A set was opened, and has no plan that fits."""
        self.failed.update((degrees_of(each), _group_of(each)))


_DEGREES = ("recipe", "tp", "cp", "cp_kind", "ulysses", "ep", "expert_tp", "dispatch", "sp", "strategy")
"""Words of a group by which its layers are divided."""


def degrees_of(each: PlanSet) -> tuple[Any, ...]:
    """A key: sets with the same key divide layers alike."""
    return (each.place, *(_key(each.words.get(word)) for word in _DEGREES))


def layers_of(each: PlanSet) -> tuple[Any, ...]:
    """A key: sets with the same key have layers that take the same time."""
    return (*degrees_of(each), each.words["micro_batch_size"])


def _group_of(each: PlanSet) -> tuple[Any, ...]:
    """A key of the group that a set is a part of."""
    return (*layers_of(each), each.words["pp"], each.words["dp"])


def _key(value: object) -> str | int | None:
    return value if isinstance(value, str | int | None) else repr(value)
