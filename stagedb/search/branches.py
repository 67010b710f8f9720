"""Sets of plans that a search opens one after the other: their bounds, and the smaller sets that they consist of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from stagedb.advice.trials import GraphOf, Trials
from stagedb.errors import UsageError
from stagedb.memory import memory_of, peak_of
from stagedb.plans import Plan
from stagedb.search.bounds import Bounds
from stagedb.search.candidates import Candidate, Fate
from stagedb.search.space import Space, Words
from stagedb.systems import System


class Level(IntEnum):
    """What the words of a branch have chosen."""

    GROUP = 0
    CELL = 1
    PLAN = 2


@dataclass(frozen=True)
class Branch:
    """Plans that share words, with lower bounds of their step [ns] and peak [bytes].

    place: the index of the system and the world in a search. plans: how many. terms: ns of the step's bound. alike:
    values of `recompute_every` with which as many layers of each chunk recompute as in the plan of the branch.
    """

    place: int
    level: Level
    words: Words
    plans: int
    step: int = 0
    peak: int = 0
    terms: Mapping[str, int] = field(default_factory=dict)
    alike: tuple[int, ...] = ()


@dataclass(frozen=True)
class Opened:
    """What a branch consists of: smaller branches, and plans that need not be tried."""

    branches: tuple[Branch, ...] = ()
    settled: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Place:
    """Plans of a model on one system and one world, with their bounds and trials. room: bytes; None for no limit."""

    number: int
    space: Space
    bounds: Bounds
    trials: Trials
    room: int | None

    @classmethod
    def of(cls, number: int, space: Space, graph_of: GraphOf, system: System, room: int | None) -> "Place":
        bounds = Bounds(graph_of, space.sizes, system)
        trials = Trials(bounds.graph, space.sizes, system)
        limit = system.accelerator.room
        return cls(number, space, bounds, trials, limit if room is None else room)

    @property
    def system(self) -> str:
        return self.trials.system.name

    def groups(self) -> Iterator[Branch]:
        """All plans, as groups without bounds."""
        for words in self.space.groups():
            yield Branch(self.number, Level.GROUP, words, self.space.count_group(words))

    def bounded(self, group: Branch) -> Branch:
        """A group with its bounds; without any, where no plan of one stage has its layers."""
        space, words = self.space, group.words
        try:
            plan = _of_one_stage(words, space, zero=0)
            # A micro-batch takes so long on all stages together, and the slowest one is no faster than their mean.
            runs = space.batch // (words["dp"] * words["micro_batch_size"])
            step = -(-self.bounds.work(plan) * runs // words["pp"])
            size = self.bounds.held(plan)
            if space.is_open("zero", "zero"):
                size //= words["dp"] * words["cp"]
            if words.get("recompute", "none") == "none" and not space.is_open("recompute", "recompute"):
                size += self.bounds.saved(plan)
            return replace(group, step=step, peak=size // words["pp"])
        except UsageError:
            return group

    def opened(self, branch: Branch) -> Opened:
        """The parts of a group or a cell."""
        parts = self._cells(branch) if branch.level is Level.GROUP else self._plans(branch)
        found = list(parts)
        return Opened(
            tuple(each for each in found if isinstance(each, Branch)),
            tuple(each for each in found if isinstance(each, Candidate)),
        )

    def tried(self, branch: Branch) -> Candidate:
        """A plan, timed if it fits."""
        try:
            plan = Plan.from_mapping(branch.words)
            plan.check(self.space.sizes)
            program = self.trials.copied(plan)
            peak = peak_of(memory_of(program))
            if self.room is not None and peak > self.room:
                return self.set_of(replace(branch, plans=1, peak=peak), Fate.MEMORY, "memory")
            step = self.trials.step(program)
        except UsageError as error:
            return self._refused(replace(branch, plans=1), error)
        terms = {**branch.terms, "other": step - sum(branch.terms.values())}
        return self.set_of(replace(branch, plans=1, step=step, peak=peak, terms=terms), Fate.TIMED, "")

    def _cells(self, group: Branch) -> Iterator[Branch | Candidate]:
        for words in self.space.cells(group.words):
            cell = replace(group, level=Level.CELL, words=words, plans=self.space.count(words))
            try:
                plan = Plan.from_mapping(words)
                plan.check(self.space.sizes)
            except UsageError as error:
                if "splits" in self.space.allow:
                    yield cell
                else:
                    yield self._refused(cell, error)
                continue
            yield from self._that_fits(replace(cell, peak=max(group.peak, self._least(words, plan))))

    def _least(self, words: Words, plan: Plan) -> int:
        """Bytes that a rank holds at least under any plan of a cell: its states, and one micro-batch of a stage."""
        try:
            small = _of_one_stage(words, self.space)
            return (self.bounds.held(small) + self.bounds.saved(small)) // plan.pp
        except UsageError:
            return 0

    def _plans(self, cell: Branch) -> Iterator[Branch | Candidate]:
        """The plans of a cell. Those in which as many layers recompute are one branch."""
        alike: dict[object, Branch] = {}
        for words in self.space.plans(cell.words):
            one = replace(cell, level=Level.PLAN, words=words, plans=1)
            try:
                plan = Plan.from_mapping(words)
                plan.check(self.space.sizes)
                key = self._key(words, plan)
                if key in alike:
                    every = (*alike[key].alike, plan.recompute_every)
                    alike[key] = replace(alike[key], plans=alike[key].plans + 1, alike=every)
                    continue
                bound = self.bounds.bound(plan)
            except UsageError as error:
                yield self._refused(one, error)
                continue
            step, peak = max(cell.step, bound.step), max(cell.peak, bound.peak)
            alike[key] = replace(one, step=step, peak=peak, terms=bound.terms)
        for branch in alike.values():
            yield from self._that_fits(branch)

    def _key(self, words: Words, plan: Plan) -> object:
        """What plans share that differ only in which layers recompute, not in how many."""
        others = {word: value for word, value in words.items() if word != "recompute_every"}
        return repr(others), tuple(tuple(chunk.parts.items()) for chunk in self.bounds.chunks(plan))

    def _that_fits(self, branch: Branch) -> Iterator[Branch | Candidate]:
        if self.room is None or branch.peak <= self.room:
            yield branch
        else:
            yield self.set_of(branch, Fate.MEMORY, "memory")

    def _refused(self, branch: Branch, error: UsageError) -> Candidate:
        return self.set_of(branch, Fate.REFUSED, "refused", str(error))

    def set_of(self, branch: Branch, fate: Fate, code: str, why: str = "") -> Candidate:
        """A branch that is not opened any more."""
        return Candidate(
            branch.words,
            self.system,
            self.space.ranks,
            fate,
            branch.step,
            branch.peak,
            branch.plans,
            branch.terms,
            code,
            why,
        )


def _of_one_stage(words: Words, space: Space, **change: Any) -> Plan:
    """The plan of a group or a cell with all layers on one stage, and everything recomputed that may be."""
    left_out = (
        "pp",
        "schedule",
        "virtual_stages",
        "global_batch_size",
        "layers_per_stage",
        "layers_per_chunk",
        "counted_ends",
        "scatter_gather",
        "rank_order",
        "recompute_every",
        "ranks",
        "overlap_experts",
    )
    small = {word: value for word, value in words.items() if word not in left_out}
    return Plan.from_mapping({**small, **change})
