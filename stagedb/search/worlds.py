"""What a search knows of the plans on one number of ranks: the sets that are not opened yet, and which is next."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from stagedb.search.branches import PlanSet, SetKind
from stagedb.search.candidates import Worth

NO_LIMIT: Worth = (float("inf"), float("inf"))
"""What no plan exceeds."""

DIVE_EVERY = 16
"""One of this many opened sets is the one nearest to plans, even if others have better bounds."""

PATIENCE = 4
"""After so many sets without a plan that fits, degrees must have half the bound of others to be tried first."""

Entry = tuple[Worth, int, PlanSet]
"""A set in a heap, with the value of its bound and its number."""


@dataclass
class SearchWorld:
    """What a search knows of the plans on one number of ranks, of which the `top` best are wanted.

    heaps: sets that are not opened yet, by what their words have chosen, the best bound first. limits: the values of
    the best layouts, ascending. rivals: those of other shards. opened: how many sets were. failed: how many sets that
    were opened had no plan that fits, by their degrees and by their group. least: the best bound by degrees.
    names: the degrees and the group of each set, by its number.
    """

    top: int
    heaps: Sequence[list[Entry]] = field(default_factory=lambda: [[] for _ in SetKind])
    limits: list[Worth] = field(default_factory=list)
    rivals: Sequence[float] = ()
    opened: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    least: dict[str, float] = field(default_factory=dict)
    names: dict[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def unopened(self) -> Iterator[tuple[Worth, PlanSet]]:
        """The sets that are not opened yet, with the values of their bounds."""
        return ((worth, branch) for heap in self.heaps for worth, _, branch in heap)

    def next(self, dives: bool) -> tuple[list[Entry], Entry] | None:
        """The set to open next, and its heap; None if no set may have one of the best layouts.

        It is the one with the best bound of all: no set is opened that the result does not need. But bounds of groups
        are loose, and thousands of them may be below the best plan. dives: until there is a limit, it is the one that
        is hoped to lead to a plan; now and then later the one nearest to plans, whose times rule out groups.
        """
        limit = self.limit
        open_ = [heap for heap in self.heaps if heap and heap[0][0] <= limit]
        if not open_:
            return None
        if dives and limit == NO_LIMIT:
            return min(((heap, entry) for heap in open_ for entry in heap), key=self._hope)
        heap = open_[-1] if dives and self.opened % DIVE_EVERY == 0 else min(open_)
        return heap, heap[0]

    def _hope(self, found: tuple[list[Entry], Entry]) -> tuple[float, ...]:
        """What is small for a set that is to lead to a plan that fits: of good degrees, in a group that has not failed,
        near to plans, and lean."""
        worth, number, each = found[1]
        degrees, group = self.names[number]
        least = self.least[degrees] * (1 + self.failed[degrees] / PATIENCE)
        pp, sequences = int(each.words["pp"]), int(each.words["micro_batch_size"])
        return (least, self.failed[group], -each.level, each.peak, -pp, sequences, *worth, number)

    def push(self, worth: Worth, number: int, branch: PlanSet) -> None:
        """Put a set into its heap."""
        degrees = degrees_of(branch)
        self.names[number] = degrees, _group_of(branch)
        self.least[degrees] = min(worth[0], self.least.get(degrees, worth[0]))
        heappush(self.heaps[branch.level], (worth, number, branch))

    def fail(self, branch: PlanSet) -> None:
        """A set was opened, and has no plan that fits."""
        self.failed.update((degrees_of(branch), _group_of(branch)))

    def take(self, heap: list[Entry], entry: Entry) -> PlanSet:
        """Take a set from its heap."""
        self.opened += 1
        if entry is heap[0]:
            heappop(heap)
        else:
            heap.remove(entry)
            heapify(heap)
        return entry[2]

    @property
    def limit(self) -> Worth:
        """What a branch must not exceed to have one of the best layouts."""
        # Plans of other shards are known by the first number: they rule out what is above that.
        others = ((each, float("inf")) for each in self.rivals)
        best = sorted((*self.limits, *others)) if self.rivals else self.limits
        return best[self.top - 1] if len(best) >= self.top else NO_LIMIT


_LAYER = (
    *("recipe", "tp", "cp", "cp_kind", "ulysses", "ep", "expert_tp", "dispatch", "sp", "strategy"),
    "micro_batch_size",
)
"""Words of a group that its layers depend on."""


def layers_of(group: PlanSet) -> list[Any]:
    """What groups share whose layers take the same time."""
    return [group.place, *(group.words.get(word) for word in _LAYER)]


def degrees_of(group: PlanSet) -> str:
    """What groups share whose layers are divided alike."""
    return repr(layers_of(group)[:-1])


def _group_of(branch: PlanSet) -> str:
    """The group that a set belongs to."""
    return repr([*layers_of(branch), branch.words["pp"], branch.words["dp"]])
