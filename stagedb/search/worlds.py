"""What a search knows of the plans on one number of ranks: the sets that are not opened yet, and which is next."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from stagedb.search.branches import PlanSet, SetKind
from stagedb.search.candidates import Worth

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
