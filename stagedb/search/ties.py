"""Plans that are ties with the best one: the times of a search are no more certain than the error to expect of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from stagedb.search.candidates import Candidate, Fate, Objective, SearchResult


@dataclass(frozen=True)
class Ties:
    """Which plans on a number of ranks are as good as the best one there, as far as times can be trusted.

    found: which winners of the search, by their places from 0, are no further from the best than the error to expect;
    the best is one of them. others: plans that were not timed, or are no winners, and are as near by what is known.
    """

    ranks: int
    found: tuple[int, ...]
    others: int


def ties_of(result: SearchResult, errors: Mapping[str, float]) -> tuple[Ties, ...]:
    """The ties of a search on each number of ranks on which a plan fits.

    None if it makes small what is counted exactly. errors: by system, the error to expect in the mean, as a share.
    """
    if result.request.by in (Objective.MEMORY, Objective.BYTES):
        return ()
    best = {ranks: result.best_on(ranks) for ranks in result.request.ranks}
    return tuple(_ties_with(each, result, errors) for each in best.values() if each is not None)


def _ties_with(best: Candidate, result: SearchResult, errors: Mapping[str, float]) -> Ties:
    worth_of, winners = result.request.worth_of, result.winners
    least = worth_of(best)[0]

    def near(each: Candidate) -> bool:
        error = max(errors[best.system], errors[each.system])
        return each.ranks == best.ranks and worth_of(each)[0] <= least * (1 + error)

    places = tuple(place for place, each in enumerate(winners) if near(each))
    may_fit = (each for each in result.candidates if each.fate in (Fate.TIMED, Fate.SLOWER, Fate.UNTRIED))
    return Ties(best.ranks, places, sum(each.plans for each in may_fit if near(each) and each not in winners))
