"""Plans that are ties with the best one: the times of a search are no more certain than the error to expect of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from stagedb.search.candidates import Candidate, Fate, Objective, SearchResult


@dataclass(frozen=True)
class Ties:
    """Which plans of a search are as good as the best one, as far as its times can be trusted.

    found: places among the winners, from 0, of those that are no further from the best than the error to expect; the
    best is one of them. others: plans that were not timed, or are no winners, and are as near by what is known.
    """

    found: tuple[int, ...]
    others: int


def ties_of(result: SearchResult, errors: Mapping[str, float]) -> Ties | None:
    """The ties of a search; None if no plan fits, or if it makes small what is counted exactly.

    errors: by system, the error to expect of a step in the mean, as a share.
    """
    best, request = result.best, result.request
    if best is None or request.by in (Objective.MEMORY, Objective.BYTES):
        return None
    least = request.worth_of(best)[0]

    def near(each: Candidate) -> bool:
        error = max(errors[best.system], errors[each.system])
        return request.worth_of(each)[0] <= least * (1 + error)

    winners = result.winners
    places = tuple(place for place, each in enumerate(winners) if near(each))
    may_fit = (each for each in result.candidates if each.fate in (Fate.TIMED, Fate.SLOWER, Fate.UNTRIED))
    return Ties(places, sum(each.plans for each in may_fit if each not in winners and near(each)))
