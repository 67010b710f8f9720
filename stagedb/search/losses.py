"""Why each plan of a search loses: the term in which it differs most from the best one on as many ranks."""

from collections.abc import Sequence
from dataclasses import replace

from stagedb.files import GB
from stagedb.search.candidates import Candidate, Fate, Objective, SearchRequest, Worth

BYTES = "bytes"
"""Why plans lose that send more, if that is what a search makes small."""


def explained(request: SearchRequest, settled: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """All candidates, each with why it loses: the timed ones by worth, then sets, those with the best bounds first."""

    def order(each: Candidate) -> tuple[bool, Worth, int, str]:
        return each.fate is not Fate.TIMED, request.worth_of(each), each.peak, repr(each.words)

    found = sorted(settled, key=order)
    best: dict[int, Candidate] = {}
    for each in found:
        if each.fate is Fate.TIMED:
            best.setdefault(each.ranks, each)
    return tuple(explain(each, best.get(each.ranks), request) for each in found)


def explain(each: Candidate, best: Candidate | None, request: SearchRequest) -> Candidate:
    """A candidate with why it loses against the best plan of a search on as many ranks; None if no such plan fits."""
    if each.fate is Fate.REFUSED:
        return replace(each, code="refused")
    if each is best:
        others = "plan of the search" if len(request.ranks) == 1 else f"plan on {each.ranks:,} ranks"
        return replace(each, code="best", why=f"no other {others} is better")
    if each.fate is Fate.MEMORY:
        return replace(each, code="memory", why=f"a rank holds {each.peak / GB:,.1f} GB or more")
    if each.fate is Fate.FILTERED:
        return replace(each, code="filtered", why=f"{request.where} does not hold")
    if each.fate is Fate.UNTRIED:
        return replace(each, code="untried", why=each.why or "the search ended before it was tried")
    if best is None:
        return each
    if request.by is Objective.MEMORY:
        return replace(each, code="memory", why=f"a rank holds {(each.peak - best.peak) / GB:,.1f} GB more")
    at_least = "" if each.fate is Fate.TIMED else " or more"
    if request.by is Objective.BYTES and (sent := (each.sent or 0) - (best.sent or 0)) > 0:
        why = f"a rank sends {sent / GB:,.3f} GB{at_least} more in a step than in the best plan"
        return replace(each, code=BYTES, why=why)
    own, least = request.worth_of(each), request.worth_of(best)
    if own == least:
        return replace(each, code="equal", why="it is as good as the best plan")
    if each.fate is Fate.TIMED and own < least:
        return replace(each, code="better", why="it is better than the best plan of the search")
    if request.by in (Objective.STEP, Objective.BYTES):
        term, more = lost_by(each, best)
        return replace(each, code=term, why=f"{term} takes {more / 1e6:,.1f} ms{at_least} longer than in the best plan")
    term, more = lost_by(each, best, own[0] / max(each.step, 1), least[0] / max(best.step, 1))
    why = f"{term} costs {more / least[0]:.1%}{at_least} of the best plan's step in addition"
    return replace(each, code=term, why=why)


def lost_by(each: Candidate, best: Candidate, price: float = 1, least: float = 1) -> tuple[str, float]:
    """The term that costs most in addition to what it costs in the best plan, and how much.

    price, least: what a ns of each of them costs; 1 counts in ns.
    """
    if not each.terms:
        return "compute", max(0, each.step * price - best.step * least)
    names = {**each.terms, **best.terms}
    more = {term: each.terms.get(term, 0) * price - best.terms.get(term, 0) * least for term in names}
    term = max(sorted(more), key=lambda name: more[name])
    return term, more[term]
