"""What a search asks, and what it finds: plans with their step and memory, and why each of them loses."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from stagedb.files import GB
from stagedb.search.space import CHOOSE_LAYERS

FORMAT = 3
"""Version of what a search covers and how it counts; part of its id."""

OF_FRAMEWORK = 6
"""The version of searches with a framework: they have the plans that it can run, and no others."""

BEST_OF_ALL = 2
"""The version before, in which a search over several numbers of ranks had the best plans of all of them alone. On one
number of ranks both are the same, so that such a search keeps its id."""


class Fate(StrEnum):
    """What a search found out about a plan."""

    TIMED = "timed"
    """It fits; its step and peak are exact."""
    MEMORY = "memory"
    """It does not fit: its peak, or a lower bound of it, is above the memory of an accelerator."""
    SLOWER = "slower"
    """A lower bound of its step is above the steps that are kept."""
    FILTERED = "filtered"
    """It fits, and the caller's condition leaves it out."""
    UNTRIED = "untried"
    """The search ended before, or the plan is too large to be tried."""
    REFUSED = "refused"
    """It is no plan of the model: `why` is the reason, as `instantiate` has it."""


class Objective(StrEnum):
    """What a search makes best."""

    STEP = "step"
    TOKENS_PER_DOLLAR = "tokens_per_dollar"
    TOKENS_PER_JOULE = "tokens_per_joule"
    MEMORY = "memory"
    BYTES = "bytes"


Worth = tuple[float, float]
"""What a search makes small, then what decides between plans that are equal in that."""


@dataclass(frozen=True)
class Candidate:
    """A plan that a search tried, or a set of plans that it ruled out together.

    words: the words of the plan that the search chooses; of a set, those that its plans share. system: its name. ranks:
    the world. plans: how many it represents; 1 for a plan. step: ns, exact if timed, otherwise a lower bound (0 if
    nothing is known). peak: bytes of the fullest rank, exact if timed, otherwise a lower bound. terms: ns of the step
    by what takes it: `compute`, `bubble`, `idle`, and `exposed AXIS` for communication that nothing hides. Those of a
    plan that is timed are the mean of all ranks, and add up to its step; those of a set are of its bound. code: why it
    loses, in one stable word: `best`, `equal`, a term, `bytes`, `memory`, `filtered`, or `refused`. why: the same as a
    sentence. sent: bytes that the rank that sends most sends in a step, exact if timed, otherwise a lower bound; None
    if they were not counted.
    """

    words: Mapping[str, Any]
    system: str
    ranks: int
    fate: Fate
    step: int = 0
    peak: int = 0
    plans: int = 1
    terms: Mapping[str, int] = field(default_factory=dict)
    code: str = ""
    why: str = ""
    sent: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it is known to fit."""
        return self.fate is Fate.TIMED

    @property
    def layout(self) -> str:
        """What plans share that differ only in what recomputes."""
        return layout_of(self.system, self.ranks, self.words)


def layout_of(system: str, ranks: int, words: Mapping[str, Any]) -> str:
    """What the plans of a system and a world share that differ only in what recomputes.

    system: its name. ranks: of the world. words: of a plan. Returns a key: equal for plans that differ only in what
    recomputes.
    """
    others = {word: value for word, value in words.items() if word not in ("recompute", *CHOOSE_LAYERS)}
    return json.dumps([system, ranks, others], sort_keys=True)


@dataclass(frozen=True)
class SearchRequest:
    """What a search is asked.

    model: the card's name. card: digest of the card. systems: names of accelerators and networks; digests: of their
    files. ranks: worlds. words: those of all plans (sequence length, global batch, fixed words). allow: groups of words
    that may vary (`zero`, `recompute`, …). room: bytes of an accelerator; None takes the system's. by: what is best.
    where: a condition on words and figures; empty for none. top: the number of best plans on each number of ranks, of
    which no two differ only in what recomputes. prices: by system, what an accelerator costs an hour. watts: by system,
    what one takes. framework: the profile of the framework that runs the plans; empty for none.
    """

    model: str
    card: str
    systems: tuple[str, ...]
    digests: tuple[str, ...]
    ranks: tuple[int, ...]
    words: Mapping[str, Any]
    allow: tuple[str, ...] = ()
    room: int | None = None
    by: Objective = Objective.STEP
    where: str = ""
    top: int = 10
    prices: Mapping[str, float] = field(default_factory=dict)
    watts: Mapping[str, float] = field(default_factory=dict)
    framework: str = ""

    def worth(self, system: str, ranks: int, step: int, peak: int, sent: int | None) -> Worth:
        """What the search makes small: the step, the peak, the cost of a step, or the bytes that a rank sends in it.

        Many plans send equally many bytes: the shortest step is the best of these. system: its name. ranks: of the
        world. step: ns. peak: bytes of the fullest rank. sent: bytes that a rank sends; None: unknown.
        """
        match self.by:
            case Objective.STEP:
                return step, 0
            case Objective.MEMORY:
                return peak, 0
            case Objective.TOKENS_PER_DOLLAR:
                return step * ranks * self.prices[system], 0
            case Objective.TOKENS_PER_JOULE:
                return step * ranks * self.watts[system], 0
            case Objective.BYTES:
                return sent or 0, step

    def worth_of(self, each: Candidate) -> Worth:
        """What the search makes small (`worth`), for a candidate: a timed plan, or a set of plans with its bounds."""
        return self.worth(each.system, each.ranks, each.step, each.peak, each.sent)

    @property
    def id(self) -> str:
        """The digest of what is asked: the same search on two machines has one id."""
        if self.framework:
            return self._id_in(OF_FRAMEWORK)
        return self._id_in(FORMAT if len(self.ranks) > 1 else BEST_OF_ALL)

    @property
    def ids(self) -> tuple[str, ...]:
        """Its id, and those that it has in a store where a version before searched it."""
        return self.id, self._id_in(FORMAT), self._id_in(BEST_OF_ALL)

    def _id_in(self, version: int) -> str:
        content = json.dumps({"format": version, **asdict(self)}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Shards:
    """Some of the parts that a search is cut into, for many machines: `numbers`, ascending from 1, of `of`."""

    numbers: tuple[int, ...]
    of: int

    def has(self, group: int) -> bool:
        """Whether a group is in one of them. Groups are dealt out in turn, by their place among all of a search."""
        return group % self.of + 1 in self.numbers

    @property
    def others(self) -> "Shards":
        """All parts but these."""
        return Shards(tuple(each for each in range(1, self.of + 1) if each not in self.numbers), self.of)


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    size: plans of the grammar whose degrees divide. candidates: the best first, then the others that were timed, then
    sets that were ruled out; the sum of their `plans` is `size` if the search is over. covered: whether every plan was
    tried or ruled out by a bound, so that the first candidate is the optimum. left: a lower bound of the step of plans
    that were not tried [ns]; None if the search is over. seconds: of the work. shards: those that are finished, if the
    result was merged from shards; else None.
    """

    request: SearchRequest
    size: int
    candidates: tuple[Candidate, ...]
    covered: bool
    left: int | None
    seconds: float
    shards: Shards | None = None

    @property
    def best(self) -> Candidate | None:
        """The best plan that fits; None if none does."""
        first = next(iter(self.candidates), None)
        return first if first is not None and first.fits else None

    def best_on(self, ranks: int) -> Candidate | None:
        """The best plan on a number of ranks; None if none that fits was found."""
        return next((each for each in self.timed if each.ranks == ranks), None)

    @property
    def winners(self) -> tuple[Candidate, ...]:
        """The best plans that were asked for, one of each layout: by number of ranks, on each the best first."""
        first: dict[str, Candidate] = {}
        for each in self.timed:
            first.setdefault(each.layout, each)
        return tuple(
            each
            for ranks in self.request.ranks
            for each in [each for each in first.values() if each.ranks == ranks][: self.request.top]
        )

    @property
    def timed(self) -> tuple[Candidate, ...]:
        """The plans that were timed."""
        return tuple(each for each in self.candidates if each.fate is Fate.TIMED)


# Why each plan of a search loses: the term in which it differs most from the best one on as many ranks.

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


# Plans that are ties with the best one: the times of a search are no more certain than the error to expect of them.


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
