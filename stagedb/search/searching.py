"""The search: branches with the best bound are opened first, and what cannot win is left out with the reason."""

import json
import random
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from stagedb.copied_processes import Answer, Copies, copies
from stagedb.cores import usable_cores
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.frameworks.profiles import find_profile
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph, weight_axes
from stagedb.mentions import Word
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.search.bounds import Bounds
from stagedb.search.branches import NO_LIMIT, Opened, PlanSet, SearchPlace, SearchWorld, SetKind, degrees_of, is_long
from stagedb.search.candidates import (
    Candidate,
    Fate,
    Objective,
    SearchRequest,
    SearchResult,
    Shards,
    Worth,
    explained,
    layout_of,
)
from stagedb.search.conditions import Condition
from stagedb.search.ray_workers import RayWorkers, ray_workers
from stagedb.search.space import CHOOSE_LAYERS, Regions, Space, framework_of
from stagedb.systems import System

LOST = "so that the search ended; the plans that were timed before are kept, if a store keeps them"

TOGETHER = 64
"""Groups that a process bounds at a time."""

MANY = 1_000
"""Groups, above which those that cannot win by a bound of their degrees get none of their own: it takes longer than a
bound of each where there are few."""


GRACE = 1.5
"""Times the limit of a search, after which what is still tried is given up: a plan of many tasks takes minutes."""

REMEMBERED = 2
"""Models on a system, whose bounds are remembered for the next search: a plan that is compared, a shard, or what goes
on."""


@dataclass(frozen=True)
class Progress:
    """How far a search is: plans that are tried or ruled out, of how many, those that were timed, and the best."""

    done: int
    of: int
    timed: int
    best: Candidate | None


Report = Callable[[Progress], None]

Settle = Callable[[Candidate], None]
"""Called with each candidate: a plan that was timed, or what was ruled out."""


Elsewhere = Callable[[], Mapping[int, Sequence[float]]]
"""By number of ranks, values of plans that other shards of the search have timed by now, at most one of each layout."""


def _unwatched(progress: Progress) -> None:
    """Progress that nobody watches."""


def _alone() -> Mapping[int, Sequence[float]]:
    """No other shard."""
    return {}


def spaces_of(request: SearchRequest, card: Card) -> list[Space]:
    """The plans of each world that a search asks about. UsageError if the request names no batch."""
    sizes = model_sizes(card, framework_of(request.words))
    profile = find_profile(request.framework) if request.framework else None
    regions: Regions = weight_axes(card, GraphOptions()) if "strategies" in request.allow else {}
    return [Space(sizes, request.words, ranks, request.allow, profile, regions) for ranks in request.ranks]


def sizes_of(request: SearchRequest, card: Card, of: int) -> list[int]:
    """The number of plans in each shard of a search, as far as degrees divide. of: how many shards there are."""
    sizes = [0] * of
    every = ((space, words) for _ in request.systems for space in spaces_of(request, card) for words in space.groups())
    for at, (space, words) in enumerate(every):
        sizes[at % of] += space.count_group(words)
    return sizes


def search(
    request: SearchRequest,
    card: Card,
    systems: Sequence[System],
    *,
    seconds: float | None = None,
    processes: int | None = None,
    on: str | None = None,
    shards: Shards | None = None,
    found: Sequence[Candidate] = (),
    elsewhere: Elsewhere = _alone,
    known: Sequence[Candidate] = (),
    progress: Report = _unwatched,
    settled: Settle | None = None,
) -> SearchResult:
    """The best plans of a model, exactly timed, and why others lose.

    systems: those of the request, in its order. seconds: when to end with what is found; 0: as soon as all sets have
    bounds; None: when all plans are tried or ruled out. processes: that try plans; None: one on each core. on: the
    address of a Ray cluster (`ray://HOST:PORT`), whose workers try plans instead. shards: those that are searched;
    None: all plans. found: what the other shards found, which becomes a part of the result. elsewhere: called now and
    then for what other shards have timed, which rules out plans of this one. known: plans that were timed before by the
    same request. progress: called as plans are tried and ruled out. settled: called with each candidate as soon as it
    is known, also with those of `known` and `found`.

    Raises UsageError for a condition that cannot be read, and for words that no plan may have.
    """
    places = places_of(request, card, systems)
    answer = partial(_answer, places)
    pool: AbstractContextManager[Copies | RayWorkers] = (
        copies(answer, usable_cores() if processes is None else processes, _name, LOST)
        if on is None
        else ray_workers(on, answer, _answering, (request, card, systems), _name, LOST)
    )
    with pool as others:
        return _Search(request, places, others, shards, found, elsewhere, known, progress, seconds, settled).run()


def places_of(request: SearchRequest, card: Card, systems: Sequence[System]) -> list[SearchPlace]:
    """The plans of a search on each system and number of ranks. The errors are those of `search`."""
    condition = Condition.parse(request.where) if request.where else None
    common = json.dumps(request.words, sort_keys=True)
    return [
        SearchPlace.of(
            number, space, _bounds(card, tuple(space.sizes.items()), system, common), request, condition, card.check_tp
        )
        for number, (system, space) in enumerate(
            (system, space) for system in systems for space in spaces_of(request, card)
        )
    ]


@lru_cache(maxsize=REMEMBERED)
def _bounds(card: Card, sizes: tuple[tuple[str, int], ...], system: System, common: str) -> Bounds:
    """The bounds of a model's plans on a system, with what searches before in this process have found for them.

    common: the words that all plans have, as JSON: a length of sequences, for one, on which every bound depends.
    """
    return Bounds(partial(build_graph, card), dict(sizes), system)


def _answering(request: SearchRequest, card: Card, systems: Sequence[System]) -> Answer:
    """What answers the questions of a search on another machine."""
    return partial(_answer, places_of(request, card, systems))


def _name(question: Any) -> str:
    return "plans"


def _answer(places: Sequence[SearchPlace], question: Mapping[str, Any]) -> Any:
    """What a process does: bounds of groups, the parts of a branch, the trial of a plan, or where its time goes."""
    if "groups" in question:
        asked = [(places[each["place"]], _branch(each)) for each in question["groups"]]
        if question["any_micro_batch"]:
            return [_plain(place.bounded_by_degrees(group)) for place, group in asked]
        return [_plain(place.bounded(group)) for place, group in asked]
    if "terms" in question:
        return places[question["place"]].terms_of(question["terms"])
    branch = _branch(question["branch"])
    place = places[branch.place]
    if branch.level is SetKind.PLAN:
        return _plain(place.tried(branch, question["longest"]))
    return _plain(place.opened(branch, question["fewest"]))


def _plain(found: PlanSet | Opened) -> dict[str, Any]:
    if isinstance(found, PlanSet):
        return dict(vars(found))
    return {"branches": [vars(each) for each in found.branches], "settled": [vars(each) for each in found.settled]}


def _branch(row: Mapping[str, Any]) -> PlanSet:
    return PlanSet(**{**row, "level": SetKind(row["level"]), "alike": tuple(row["alike"])})


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(**{**row, "fate": Fate(row["fate"])})


@dataclass
class _Search:
    """A search under way.

    worlds: by number of ranks. turns: the numbers of ranks in the order in which they are next. layouts: the best plan
    that was timed of those that differ only in what recomputes. tried: plans that an earlier search has timed.
    unbounded: groups for whose bounds there was no time.
    """

    request: SearchRequest
    places: Sequence[SearchPlace]
    copies: Copies | RayWorkers
    shards: Shards | None
    found: Sequence[Candidate]
    elsewhere: Elsewhere
    known: Sequence[Candidate]
    report: Report
    seconds: float | None
    watcher: Settle | None = None
    worlds: dict[int, SearchWorld] = field(init=False)
    turns: deque[int] = field(init=False)
    settled: list[Candidate] = field(default_factory=list)
    layouts: dict[str, Candidate] = field(default_factory=dict)
    tried: dict[str, Candidate] = field(default_factory=dict)
    best: Candidate | None = None
    timed: int = 0
    done: int = 0
    size: int = 0
    number: int = 0
    unbounded: list[PlanSet] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        rooms = {number: place.room for number, place in enumerate(self.places) if place.room is not None}
        self.worlds = {ranks: SearchWorld(self.request.top, rooms) for ranks in self.request.ranks}
        self.turns = deque(self.worlds)

    def run(self) -> SearchResult:
        self.tried = {_key(each.system, each.words): each for each in self.known if each.fate is Fate.TIMED}
        self._groups()
        while any(world.sets for world in self.worlds.values()) or self.copies.busy:
            rivals, late = self.elsewhere(), self._is_late()
            for ranks, world in self.worlds.items():
                world.rivals = rivals.get(ranks, ())
            while self.copies.idle > 0 and (branch := self._popped(late)) is not None:
                self._open(branch)
            if not self.copies.busy:
                break
            for question, answer in self.copies.answers(self._patience()):
                if "groups" in question:
                    for row in answer:
                        self._push(_branch(row))
                else:
                    self._take(_branch(question["branch"]), answer)
            if self._gives_up():
                self._put_back(self.copies.given_up())
                break
        self._keep_known()
        self.settled += [self.places[branch.place].set_of(branch, Fate.UNTRIED) for branch in self.unbounded]
        self.settled = [self._judged(each) for each in self.settled]
        for world in self.worlds.values():
            for value, branch in world.unopened:
                fate = Fate.SLOWER if value > world.limit else Fate.UNTRIED
                self.settled.append(self.places[branch.place].set_of(branch, fate))
        ended = sum(each.plans for each in self.settled if each.fate is not Fate.UNTRIED)
        self.report(Progress(ended, self.size, self.timed, self.best))
        self._explain_best()
        left = [each.step for each in self.settled if each.fate is Fate.UNTRIED]
        found = explained(self.request, self.settled)
        seconds = time.monotonic() - self.began
        return SearchResult(self.request, self.size, found, not left, min(left, default=None), seconds)

    def _explain_best(self) -> None:
        """Find out where the time of the best long steps goes; of the best one alone if the search is late.

        What takes too long keeps the terms of its bound.
        """
        some = 1 if self._is_late() else self.request.top
        asked: dict[str, Candidate] = {}
        for ranks in self.worlds:
            mine = [each for each in self.layouts.values() if each.ranks == ranks]
            best = sorted(mine, key=self.request.worth_of)[:some]
            asked |= {_key(each.system, each.words): each for each in best if is_long(each.words)}
        open_, terms = list(asked.values()), dict[str, dict[str, int]]()
        place_of = {(each.system, each.space.ranks): number for number, each in enumerate(self.places)}
        while (open_ or self.copies.busy) and not self._gives_up():
            while open_ and self.copies.idle > 0:
                one = open_.pop(0)
                self.copies.ask({"terms": one.words, "place": place_of[one.system, one.ranks]})
            for question, answer in self.copies.answers(self._patience()):
                terms[_key(self.places[question["place"]].system, question["terms"])] = answer
        for at, each in enumerate(self.settled):
            if each.fate is Fate.TIMED and (key := _key(each.system, each.words)) in terms:
                self.settled[at] = replace(each, terms=terms[key])

    def _keep_known(self) -> None:
        """Settle plans that an earlier search timed and that this one did not come to: they leave the sets they are in.

        Else a search that goes on and ends early could lose the best plan that is known.
        """
        reached = {_key(each.system, each.words) for each in self.settled if each.fate is Fate.TIMED}
        for key, each in self.tried.items():
            if key not in reached and self._takes_out(each):
                self._settle(each)

    def _takes_out(self, plan: Candidate) -> bool:
        """Take a plan out of the set that has it and is not opened yet; False if there is none."""
        world = self.worlds[plan.ranks]
        for at, branch in enumerate(self.unbounded):
            if self._has(branch, plan):
                self.unbounded[at : at + 1] = _others(branch)
                return True
        for number, (worth, _, branch) in world.sets.items():
            if self._has(branch, plan):
                del world.sets[number]
                world.sets.update((number, (worth, number, each)) for each in _others(branch))
                return True
        return False

    def _has(self, branch: PlanSet, plan: Candidate) -> bool:
        """Whether a plan is in a set: it has the words of the set, and others."""
        place = self.places[branch.place]
        if (place.system, place.space.ranks) != (plan.system, plan.ranks):
            return False
        return all(plan.words.get(word, value) == value for word, value in branch.words.items())

    def _is_late(self, share: float = 1) -> bool:
        """Whether this share of the time is over, if the search has a limit."""
        return self.seconds is not None and time.monotonic() - self.began > share * self.seconds

    def _patience(self) -> float | None:
        """When what is still being tried is given up; None if it is waited for, as long as no plan is timed."""
        return self.began + GRACE * self.seconds if self.seconds and self.best is not None else None

    def _gives_up(self) -> bool:
        until = self._patience()
        return until is not None and time.monotonic() >= until

    def _put_back(self, questions: Sequence[Mapping[str, Any]]) -> None:
        """Keep the sets of questions that were given up, as those that are not opened yet."""
        for question in questions:
            for row in question["groups"] if "groups" in question else [question["branch"]]:
                self._push(_branch(row))

    def _popped(self, late: bool) -> PlanSet | None:
        """The set to open next, taken from its heap: the numbers of ranks take turns. None if no set is due."""
        for _ in range(len(self.turns)):
            world = self.worlds[self.turns[0]]
            self.turns.rotate(-1)
            found = world.next(dives=not late)
            if found is not None and self._is_due(found[2], late):
                return world.take(found[1])
        return None

    def _is_due(self, first: PlanSet, late: bool) -> bool:
        """Whether a set is opened: also late if only bounds are wanted, and it has none of its step yet."""
        return not late or (self.seconds == 0 and first.step == 0 and first.level is not SetKind.PLAN)

    def _world_of(self, branch: PlanSet) -> SearchWorld:
        return self.worlds[self.places[branch.place].space.ranks]

    def _groups(self) -> None:
        """The groups of the search's part, with their bounds."""
        every = [branch for place in self.places for branch in place.groups()]
        mine = [branch for at, branch in enumerate(every) if self.shards is None or self.shards.has(at)]
        self.size = sum(branch.plans for branch in mine) + sum(each.plans for each in self.found)
        self.report(Progress(0, self.size, 0, None))
        for each in self.found:
            self._settle(each)
        kept = []
        for branch in mine:
            place = self.places[branch.place]
            if place.may_hold(branch.words):
                kept.append(branch)
            else:
                self._settle(place.set_of(branch, Fate.FILTERED))
        # Groups with equal layers are next to each other, so that one process bounds them from the same figures. Small
        # micro-batches come first: they fit.
        kept.sort(key=lambda branch: (repr(degrees_of(branch)), branch.words["micro_batch_size"], branch.words["pp"]))
        asked = [kept[at : at + TOGETHER] for at in range(0, len(kept), TOGETHER)]
        if self.seconds:
            # In half of the time only some may get bounds: some of each size.
            random.Random(self.request.id).shuffle(asked)
        # Where steps decide, most groups cannot win by a bound of all their micro-batches.
        by_steps = self.request.by not in (Objective.MEMORY, Objective.BYTES)
        guesses = by_steps and self.seconds != 0
        by_degrees = guesses and len(kept) > MANY
        for world in self.worlds.values():
            world.guesses = guesses
        while asked or self.copies.busy:
            while asked and self.copies.idle > 0 and not (self.seconds and self._is_late(1 / 2)):
                self.copies.ask({"groups": [_plain(branch) for branch in asked.pop(0)], "any_micro_batch": by_degrees})
            if not self.copies.busy:
                break
            for _, answer in self.copies.answers():
                for row in answer:
                    self._push(_branch(row))
        self.unbounded = [branch for some in asked for branch in some]

    def _push(self, branch: PlanSet) -> None:
        place = self.places[branch.place]
        if place.room is not None and branch.peak > place.room:
            self._settle(place.set_of(branch, Fate.MEMORY))
            return
        self._world_of(branch).push(self._worth_of(branch), self._next(), branch)

    def _worth_of(self, branch: PlanSet) -> Worth:
        place = self.places[branch.place]
        return self.request.worth(place.system, place.space.ranks, branch.step, branch.peak, branch.sent)

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _bound(self, first: PlanSet) -> None:
        """Ask for the bounds of a group, and of others that have the same layers."""
        groups = [first, *self._world_of(first).take_alike(first, TOGETHER - 1)]
        self.copies.ask({"groups": [_plain(each) for each in groups], "any_micro_batch": False})

    def _open(self, branch: PlanSet) -> None:
        place = self.places[branch.place]
        if branch.level is SetKind.ANY_MICRO_BATCH:
            self._bound(branch)
            return
        if branch.level >= SetKind.LAYERS:
            there = self.tried.get(_key(place.system, branch.words))
            if there is not None:
                self._settle(there)
                if branch.alike:
                    self._push(_rest(branch, there))
                return
            known = self.layouts.get(layout_of(place.system, place.space.ranks, branch.words))
            if known is not None and self._is_beaten(branch, known):
                self._settle(replace(place.set_of(branch, Fate.SLOWER), step=max(branch.step, known.step)))
                return
        by_step = self.request.by is Objective.STEP
        limit = self._world_of(branch).limit
        longest = int(limit[0]) if by_step and limit < NO_LIMIT else None
        fewest = self.request.by in (Objective.STEP, Objective.BYTES)
        self.copies.ask({"branch": _plain(branch), "longest": longest, "fewest": fewest})

    def _is_beaten(self, branch: PlanSet, known: Candidate) -> bool:
        """Whether a plan is no better than a known one that differs only in what recomputes.

        Computing more again makes no step shorter, and sends no fewer bytes.
        """
        leanest = self.request.by is Objective.MEMORY
        recomputes = known.words.get("recompute", "none") != "none"
        return self._worth_of(branch) >= self.request.worth_of(known) or not (leanest or recomputes)

    def _judged(self, each: Candidate) -> Candidate:
        """A set that a shard ruled out, or did not try, by the best plans of all shards."""
        if each.fate not in (Fate.SLOWER, Fate.UNTRIED):
            return each
        beaten = self.request.worth_of(each) > self.worlds[each.ranks].limit
        if not beaten and (known := self.layouts.get(each.layout)) is not None:
            beaten = self.request.worth_of(each) >= self.request.worth_of(known)
        fate = Fate.SLOWER if beaten else Fate.UNTRIED
        return each if fate is each.fate else replace(each, fate=fate)

    def _take(self, branch: PlanSet, answer: Mapping[str, Any]) -> None:
        for row in answer["branches"]:
            self._push(_branch(row))
        for row in answer["settled"]:
            self._settle(_candidate(row))
        timed = any(row["fate"] == Fate.TIMED for row in answer["settled"])
        if not timed and (branch.level is SetKind.PLAN or not answer["branches"]):
            self._world_of(branch).fail(branch)

    def _settle(self, candidate: Candidate) -> None:
        self.settled.append(candidate)
        self.done += candidate.plans
        if candidate.fate is Fate.TIMED:
            self.timed += 1
            known, worth = self.layouts.get(candidate.layout), self.request.worth_of
            if known is None or worth(candidate) < worth(known):
                self.layouts[candidate.layout] = candidate
                own = [worth(each) for each in self.layouts.values() if each.ranks == candidate.ranks]
                self.worlds[candidate.ranks].limits = sorted(own)[: self.request.top]
            if self.best is None or worth(candidate) < worth(self.best):
                self.best = candidate
        self.report(Progress(self.done, self.size, self.timed, self.best))
        if self.watcher is not None:
            self.watcher(candidate)


def _rest(branch: PlanSet, first: Candidate) -> PlanSet:
    """The plans that are alike, which are no faster than the first one of them."""
    words = {word: value for word, value in branch.words.items() if word not in CHOOSE_LAYERS}
    next_, *alike = branch.alike
    sent = None if branch.sent is None else max(branch.sent, first.sent or 0)
    return replace(
        branch,
        words={**words, **next_},
        plans=1 + len(alike),
        alike=tuple(alike),
        step=max(branch.step, first.step),
        sent=sent,
    )


def _others(branch: PlanSet) -> list[PlanSet]:
    """What is left of a set without one of its plans: no set, if that is the only one."""
    return [replace(branch, plans=branch.plans - 1)] if branch.plans > 1 else []


def _key(system: str, words: Mapping[str, Any]) -> str:
    return json.dumps([system, words], sort_keys=True)


# A search on many machines: each searches a shard, and the results are merged.
#
# A shard has every n-th group of plans. Plans that differ only in what recomputes are in one group, so that no two
# shards have plans of one layout. A shard rules out a plan only if as many plans as are wanted are better, in this
# shard or in another one. All of these are plans of the same search, so that the best plans of all shards together are
# those of the search without shards: the same plans, steps, peaks, terms and reasons, in the same order. Which of the
# others were timed depends on what was known at that time, as it does with several processes.

MOST = 100_000
"""Shards of a search at most."""


def shard_of(text: str) -> Shards:
    """The shard of a text such as `3/8`, the third of eight. Raises UsageError for another text."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of <= MOST:
        raise UsageError(f"{shown(text)} is no shard: {Word('shard')} takes I/N, from 1/N to N/N, such as 3/8")
    return Shards((number,), of)


def merged(
    request: SearchRequest,
    card: Card,
    systems: Sequence[System],
    parts: Mapping[int, SearchResult],
    of: int,
    processes: int | None = None,
) -> SearchResult:
    """The results of shards merged into one: that of the search without shards, once all shards are finished.

    parts: by number, each with the plans of its shard. A shard is finished if its part is covered. of: how many there
    are. Plans of missing shards are untried, or ruled out by their bounds; `left` bounds the steps of all of them.

    processes: for work that is left; None: one for each core. Raises UsageError for a part that does not have the plans
    of its shard.
    """
    _check_sizes(request, card, parts, of)
    candidates = [each for part in parts.values() for each in part.candidates]
    missing = Shards(tuple(parts), of).others
    found = search(request, card, systems, seconds=0.0, processes=processes, shards=missing, found=candidates)
    finished = Shards(tuple(sorted(number for number, part in parts.items() if part.covered)), of)
    whole = not finished.others.numbers
    return replace(
        found,
        covered=found.covered and whole,
        left=found.left if whole or found.left is not None else _left(found.candidates),
        seconds=sum(part.seconds for part in parts.values()),
        shards=finished,
    )


def rest(
    request: SearchRequest,
    card: Card,
    parts: Mapping[int, SearchResult],
    of: int,
    searched: Callable[[Shards, Sequence[Candidate]], SearchResult],
) -> SearchResult:
    """What is left of a search when the finished shards have searched their parts. Raises UsageError as `merged`.

    parts, of: as of `merged`, each finished. searched: searches shards, and takes what the others found.
    """
    _check_sizes(request, card, parts, of)
    found = searched(Shards(tuple(parts), of).others, [each for part in parts.values() for each in part.candidates])
    return replace(found, seconds=found.seconds + sum(part.seconds for part in parts.values()))


def _check_sizes(request: SearchRequest, card: Card, parts: Mapping[int, SearchResult], of: int) -> None:
    sizes = sizes_of(request, card, of) if parts else []
    for number, part in parts.items():
        if part.size != (size := sizes[number - 1]):
            raise UsageError(
                f"shard {number}/{of} of search {request.id} has {part.size:,} plans, and {size:,} in this stagedb: "
                "another version searched it; remove it from the store, and search it again"
            )


def _left(candidates: Sequence[Candidate]) -> int | None:
    """A lower bound of the steps of all plans that were not tried, also of those that cannot be among the best."""
    return min((each.step for each in candidates if each.fate is Fate.SLOWER), default=None)
