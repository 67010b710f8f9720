"""A search with all data of its pages: its plans in words, fronts of step against memory and ranks, why plans lose."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stagedb.search import Candidate, Fate, Objective, SearchRequest, SearchResult

MAY_WIN = (Fate.SLOWER, Fate.UNTRIED)
"""Fates of sets whose plans may fit, and have no known step."""


@dataclass(frozen=True)
class MadePlan:
    """An instance of the store that has a plan of a search, and its profiles on the system of the plan.

    name: of the instance. profiles: their ids, the newest first.
    """

    instance: str
    name: str
    profiles: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrontPlan:
    """A timed plan of a front of step against memory, or of step against ranks.

    place: of the plan among the candidates. bound: a lower bound [ns] of the steps of plans that were not timed and may
    need no more memory, or that have as many ranks; None where there are none.
    """

    place: int
    candidate: Candidate
    bound: int | None

    @property
    def exact(self) -> bool:
        """Whether no plan that was not timed can be better."""
        return self.bound is None or self.bound >= self.candidate.step


@dataclass(frozen=True)
class RanksBest:
    """The best plan of a search on one system and number of ranks.

    best: None if no plan was timed. bound: a lower bound [ns] of the steps of plans on these ranks that were not timed;
    None where there are none.
    """

    system: str
    ranks: int
    best: FrontPlan | None
    bound: int | None


@dataclass(frozen=True)
class Loss:
    """A reason for which plans of a search lose.

    code: the reason, as candidates have it. plans, candidates: how many lose by it, and in how many candidates (a
    candidate is a plan, or a set of plans that a bound rules out). timed: how many of these candidates were timed.
    step: the shortest step or bound [ns]; None where none is known. why: a sentence on the candidate with that step.
    """

    code: str
    plans: int
    candidates: int
    timed: int
    step: int | None
    why: str


@dataclass(frozen=True)
class SearchView:
    """A search, for pages and reports.

    model: as people name it. plans: each candidate in words, in the order of the result. commands: by place, the
    command that profiles a plan. rooms: by system, bytes of an accelerator for tensors; None without a limit, absent
    where it is not known. made: by place, the instances that plans became.
    """

    result: SearchResult
    model: str
    plans: Sequence[str]
    commands: Mapping[int, str] = field(default_factory=dict)
    rooms: Mapping[str, int | None] = field(default_factory=dict)
    made: Mapping[int, Sequence[MadePlan]] = field(default_factory=dict)

    @property
    def request(self) -> SearchRequest:
        """The request that the search answers."""
        return self.result.request

    @property
    def title(self) -> str:
        """What was searched, in a few words."""
        ranks = [f"{each:,}" for each in self.request.ranks]
        worlds = ranks[0] if len(ranks) == 1 else f"{', '.join(ranks[:-1])} and {ranks[-1]}"
        return f"{self.model} on {worlds} × {', '.join(self.request.systems)}"

    @property
    def verdict(self) -> str:
        """Whether the first plan is the best, and what may be left, in a sentence."""
        best, size = self.result.best, self.result.size
        if self.result.covered:
            first = "the first" if len(self.request.ranks) == 1 else "the first of each number of ranks"
            end = f"so {first} is the best" if best is not None else "and none fits"
            return f"All {size:,} plans were tried or ruled out by a bound, {end}."
        untried = sum(each.plans for each in self.result.candidates if each.fate is Fate.UNTRIED)
        left = self.result.left
        if left is None:
            return f"Not all of {size:,} plans were tried."
        text = f"{untried:,} of {size:,} plans were not tried: they take {left / 1e6:,.1f} ms or more"
        if best is None:
            return f"{text}, and no plan that fits was found."
        if self.request.by is not Objective.STEP:
            return f"{text}."
        if left >= best.step:
            return f"{text}, so the first is the best, and others may be missing."
        return f"{text}, so the best may be up to {100 * (1 - left / best.step):.1f}% shorter than the first."

    def tokens_per(self, each: Candidate) -> float | None:
        """Tokens for a dollar, or for a joule, of a timed plan; None if the search makes something else best."""
        asked = self.request
        costs = {Objective.TOKENS_PER_DOLLAR: (asked.prices, 3600), Objective.TOKENS_PER_JOULE: (asked.watts, 1)}
        if asked.by not in costs:
            return None
        rates, seconds = costs[asked.by]
        tokens = asked.words["global_batch_size"] * asked.words["seq_len"]
        cost: float = each.step / 1e9 / seconds * each.ranks * rates[each.system]
        return tokens / cost if cost else None

    @cached_property
    def winners(self) -> tuple[tuple[int, Candidate], ...]:
        """The best plans that were asked for with their places: one of each layout."""
        best = {id(each) for each in self.result.winners}
        return tuple((place, each) for place, each in enumerate(self.result.candidates) if id(each) in best)

    @cached_property
    def places(self) -> dict[tuple[str, int], list[tuple[int, Candidate]]]:
        """The candidates of each system and number of ranks, with their places."""
        found: dict[tuple[str, int], list[tuple[int, Candidate]]] = {}
        for place, each in enumerate(self.result.candidates):
            found.setdefault((each.system, each.ranks), []).append((place, each))
        order = {
            system: at for at, system in enumerate(dict.fromkeys((*self.request.systems, *(row[0] for row in found))))
        }
        return dict(sorted(found.items(), key=lambda row: (order[row[0][0]], row[0][1])))

    @cached_property
    def several(self) -> bool:
        """Whether the search covers several systems or numbers of ranks."""
        return len(self.request.systems) * len(self.request.ranks) > 1

    def memory_front(self, system: str, ranks: int) -> list[FrontPlan]:
        """Timed plans on one system and number of ranks, the shortest first: no other plan is both as short and as
        small as one of these.
        """
        candidates = self.places.get((system, ranks), [])
        found: list[FrontPlan] = []
        for place, each in sorted(_timed(candidates), key=lambda row: (row[1].step, row[1].peak, row[0])):
            if not found or each.peak < found[-1].candidate.peak:
                found.append(FrontPlan(place, each, _bound(candidates, each.peak)))
        return found

    def ranks_front(self) -> list[RanksBest]:
        """The plan with the shortest step of each number of ranks on each system; fewer ranks first."""
        found = []
        for (system, ranks), candidates in self.places.items():
            timed = sorted(_timed(candidates), key=lambda row: (row[1].step, row[1].peak, row[0]))
            bound = _bound(candidates)
            best = FrontPlan(*timed[0], bound) if timed else None
            found.append(RanksBest(system, ranks, best, bound))
        return found

    def losses(self) -> list[Loss]:
        """Why plans lose, the reason of the most plans first. The best plan is not among them."""
        groups: dict[str, list[Candidate]] = {}
        for each in self.result.candidates:
            if each.code != "best":
                groups.setdefault(each.code or each.fate.value, []).append(each)
        rows = [_loss(code, candidates) for code, candidates in groups.items()]
        return sorted(rows, key=lambda row: (-row.plans, row.code))


def _timed(candidates: Sequence[tuple[int, Candidate]]) -> Iterator[tuple[int, Candidate]]:
    return (row for row in candidates if row[1].fate is Fate.TIMED)


def _bound(candidates: Sequence[tuple[int, Candidate]], room: int | None = None) -> int | None:
    """The shortest step that a plan without a known one may have; room: only plans that may need no more bytes."""
    steps = (each.step for _, each in candidates if each.fate in MAY_WIN and (room is None or each.peak <= room))
    return min(steps, default=None)


def _loss(code: str, candidates: Sequence[Candidate]) -> Loss:
    first = min(candidates, key=lambda each: (each.step == 0, each.step))
    return Loss(
        code,
        sum(each.plans for each in candidates),
        len(candidates),
        sum(each.fate is Fate.TIMED for each in candidates),
        first.step or None,
        first.why,
    )
