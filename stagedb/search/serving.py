"""Which engines serve requests best on so many accelerators: some that do all of it, or some of prefill and of decode.

An engine that does all of it (aggregated) computes the prompt of one request in parts, next to a token of each other
request (chunked prefill). Engines of prefill (disaggregated) compute whole prompts and send their caches to engines of
decode. All are taken to be busy all the time, with requests that are alike and none that waits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any

from stagedb.cores import usable_cores
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.mentions import Word
from stagedb.models import Card
from stagedb.search.serving_engines import (
    CHUNKS,
    MOST_PROMPTS,
    EngineLayout,
    EngineSteps,
    ServingLoad,
    StepWords,
    layouts,
    most_within,
)
from stagedb.search.trials import Trials
from stagedb.shared_work import Answer, shared
from stagedb.systems import System
from stagedb.systems.cost_model import Costs, Transfer

SECOND = 10**9
"""Nanoseconds."""

MOST_AT_ONCE = 4096
"""Requests that a rank of dp has at once, at most."""


class Role(StrEnum):
    """What an engine does."""

    BOTH = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"


class Lack(StrEnum):
    """Why a layout serves nothing."""

    REFUSED = "refused"
    MEMORY = "memory"
    TTFT = "ttft"
    TPOT = "tpot"
    AT_ONCE = "at once"


@dataclass(frozen=True)
class EnginePoint:
    """An engine with a number of requests.

    layout: its place among the layouts. requests: on each rank of dp, at once or as prompts of a step. chunk: tokens of
    a prompt that a step computes at most; 0 for whole prompts. step: ns, with a part of a prompt if there is one.
    decode: ns of a step without one. apart: whether the part and the tokens of the others run one after the other.
    """

    role: Role
    layout: int
    requests: int
    chunk: int
    step: int
    decode: int
    apart: bool = False


@dataclass(frozen=True)
class LayoutOutcome:
    """What a layout can do. points: as an engine of prefill or of decode. lack: why it is none of a role, by role.

    reason: the same in words, if no plan has it. cache: bytes of a prompt's cache on a rank. shortest: ns of a step of
    decode with one request; None if it is not known. first: ns of the prefill of one. parts: by tokens of a part of a
    prompt, the ns of a step that computes a part alone.
    """

    points: tuple[EnginePoint, ...] = ()
    lack: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    cache: int = 0
    shortest: int | None = None
    first: int | None = None
    parts: Mapping[int, int] = field(default_factory=dict)

    def of(self, role: Role) -> list[EnginePoint]:
        """The points of a role."""
        return [each for each in self.points if each.role is role]


@dataclass(frozen=True)
class Engines:
    """Engines that are alike. peak: bytes of their fullest rank."""

    role: Role
    count: int
    layout: EngineLayout
    point: EnginePoint
    peak: int = 0


@dataclass(frozen=True)
class ServingPlan:
    """Engines on some accelerators, and what requests see of them.

    ranks: accelerators, those without an engine included. ttft: ns to the first token. tpot: ns for each further one in
    the mean. rate: requests a second. output: tokens of each. sent: ns in which the cache of a prompt is sent.
    """

    ranks: int
    engines: tuple[Engines, ...]
    ttft: int
    tpot: int
    rate: Fraction
    output: int
    sent: int = 0

    @property
    def kind(self) -> str:
        """`aggregated` or `disaggregated`."""
        return "aggregated" if self.engines[0].role is Role.BOTH else "disaggregated"

    @property
    def tokens(self) -> float:
        """Tokens that requests are given, a second and accelerator."""
        return float(self.rate * self.output / self.ranks)

    @property
    def at_once(self) -> int:
        """Number of requests served at the same time: all that engines have places for, if prefills keep up."""
        last = self.engines[-1]
        places = last.count * last.layout.dp * last.point.requests
        if last.role is Role.BOTH:
            return places
        first = self.engines[0]
        prompts = first.count * first.layout.dp * first.point.requests
        return min(places, ceil(self.rate * (self.output - 1) * self.tpot / SECOND) + prompts)

    @property
    def used(self) -> int:
        """Number of accelerators that have an engine."""
        return sum(each.count * each.layout.ranks for each in self.engines)


@dataclass(frozen=True)
class ServingResult:
    """What a search of serving found. plans: the best ones on each number of ranks, best first. layouts: all that were
    tried, each with its outcome. ranks: the numbers."""

    plans: tuple[ServingPlan, ...]
    layouts: tuple[tuple[EngineLayout, LayoutOutcome], ...]
    ranks: tuple[int, ...]

    def best_on(self, ranks: int) -> ServingPlan | None:
        """The best plan on so many ranks, or None."""
        return next((each for each in self.plans if each.ranks == ranks), None)


Report = Callable[[int, int], None]
"""Called with how many layouts, and sizes of parts of prompts, are tried or ruled out, of how many."""


def best_engines(
    card: Card,
    system: System,
    sizes: Mapping[str, int],
    traffic: ServingLoad,
    ranks: Sequence[int],
    words: Mapping[str, Any],
    *,
    room: int | None = None,
    top: int = 5,
    processes: int | None = None,
    progress: Report | None = None,
) -> ServingResult:
    """The engines that give most tokens a second on each number of accelerators, within the limits of the traffic.

    card: the model. sizes: its sizes. ranks: numbers of accelerators. words: those that all plans have. room: bytes of
    an accelerator; None: the system's. top: plans on each number of ranks, no two with the same layouts. processes:
    that time steps; None: one on each core. progress: called as layouts are tried.

    Raises UsageError for words that no plan may have, and where the model refuses every layout.
    """
    limit = system.accelerator.room if room is None else room
    trials = Trials(partial(build_graph, card), sizes, system, processes=processes)
    every = list(layouts(sizes, max(ranks), words))
    return _ServingSearch(trials, card.check_tp, traffic, tuple(ranks), every, limit, top, progress).run(card.name)


@dataclass
class _ServingSearch:
    """A search under way. First each layout is timed as an engine of prefill and of decode; then parts of prompts next
    to tokens are, those with the best bounds first, until no bound is better than what is found."""

    trials: Trials
    check_tp: Callable[[int], None]
    traffic: ServingLoad
    ranks: tuple[int, ...]
    layouts: Sequence[EngineLayout]
    room: int | None
    top: int
    progress: Report | None
    outcomes: dict[int, LayoutOutcome] = field(default_factory=dict)
    mixes: dict[tuple[int, int], list[EnginePoint]] = field(default_factory=dict)

    def run(self, name: str) -> ServingResult:
        """The result. name: of the model."""
        if not self.layouts:
            raise UsageError(
                f"no engine of {name} has at most {max(self.ranks):,} ranks with the degrees that {Word('fix')} gives"
            )
        names = [_name(each) for each in self.layouts]
        for at, answer in shared(self._first, names, self.trials.processes):
            self.outcomes[at] = _of_answer(answer)
            self._report()
        lacks = [each.reason for each in self.outcomes.values() if Lack.REFUSED in each.lack.values()]
        if len(lacks) == len(self.layouts):
            raise UsageError(f"no engine of {name} on {max(self.ranks):,} ranks: {lacks[0]}")
        apart = {number: list(self._disaggregated(number)) for number in self.ranks}
        for number in self.ranks:
            self._mix(number, apart[number])
        found = [
            self._with_peaks(plan)
            for number in self.ranks
            for plan in _best([*self._aggregated(number), *apart[number]], self.top)
        ]
        tried = tuple((layout, self._outcome(at)) for at, layout in enumerate(self.layouts))
        return ServingResult(tuple(found), tried, self.ranks)

    def _report(self) -> None:
        if self.progress is not None:
            parts = sum(len(each.parts) for each in self.outcomes.values())
            self.progress(len(self.outcomes) + len(self.mixes), len(self.layouts) + parts)

    def _steps(self, at: int) -> EngineSteps:
        return EngineSteps(self.trials, StepWords(self.layouts[at], self.traffic), self.check_tp)

    def _domain(self, ranks: int) -> int:
        """Number of ranks that the innermost dimension of the network connects. ranks: those of the job."""
        return self.trials.system.network(ranks)[0].size or ranks

    def _count(self, ranks: int, size: int, others: tuple[int, int] = (0, 1)) -> int:
        return engines_on(ranks, self._domain(ranks), size, others)

    def _first(self, at: int) -> Answer:
        """A layout as an engine of prefill and of decode, as an answer of `shared`: see `LayoutOutcome`."""
        steps, traffic = self._steps(at), self.traffic
        try:
            least = steps.peak(steps.words.last_decode(1))
            if self.room is not None and least > self.room:
                return _answer(LayoutOutcome(lack=dict.fromkeys(Role, Lack.MEMORY)))
            shortest = steps.time(steps.words.decode(1))
            first = steps.time(steps.words.prefill(1))
            decodes = self._decodes(at, steps)
            prefills = self._prefills(at, steps)
            parts = {each: steps.time(steps.words.part(each)) for each in chunks_of(traffic)} if decodes else {}
        except UsageError as error:
            return _answer(LayoutOutcome(lack=dict.fromkeys(Role, Lack.REFUSED), reason=error.message))
        lack: dict[str, str] = {}
        if not decodes:
            late = traffic.tpot is not None and traffic.a_token(shortest) > traffic.tpot
            lack[Role.DECODE] = lack[Role.BOTH] = Lack.TPOT if late else Lack.AT_ONCE
        if not prefills:
            late = traffic.ttft is not None and first > traffic.ttft
            lack[Role.PREFILL] = Lack.TTFT if late else Lack.MEMORY
        return _answer(LayoutOutcome((*prefills, *decodes), lack, "", steps.cache, shortest, first, parts))

    def _prefills(self, at: int, steps: EngineSteps) -> list[EnginePoint]:
        """Whole prompts in a step: 1, 2, 4 and so on, while the first token is not late and they fit."""
        found: list[EnginePoint] = []
        prompts = 1
        while prompts <= MOST_PROMPTS:
            step = steps.time(steps.words.prefill(prompts))
            if self.traffic.ttft is not None and step > self.traffic.ttft:
                break
            found.append(EnginePoint(Role.PREFILL, at, prompts, 0, step, 0))
            prompts *= 2
        while found and self.room is not None and steps.peak(steps.words.prefill(found[-1].requests)) > self.room:
            found.pop()
        return found

    def _decodes(self, at: int, steps: EngineSteps) -> list[EnginePoint]:
        """The points at which an engine may decode, in time and in memory: numbers of requests on each rank of dp.

        With a concurrency, the numbers with which 1, 2, … engines have all requests; else the largest number that fits,
        its half, and so on.
        """
        traffic, layout = self.traffic, self.layouts[at]
        most = MOST_AT_ONCE
        wanted: set[int] = set()
        if traffic.concurrency is not None:
            places = max(self._count(number, layout.ranks) for number in self.ranks)
            wanted = {-(-traffic.concurrency // (count * layout.dp)) for count in range(1, places + 1)}
            most = max(wanted, default=0)
        most = most_within(lambda count: steps.peak(steps.words.last_decode(count)), self.room, most)
        most = most_within(lambda count: traffic.a_token(steps.time(steps.words.decode(count))), traffic.tpot, most)
        if traffic.concurrency is None:
            wanted = {most >> half for half in range(4)}
        counts = sorted(each for each in wanted if 0 < each <= most)
        return [EnginePoint(Role.DECODE, at, each, 0, steps.time(steps.words.decode(each)), 0) for each in counts]

    def _mix(self, ranks: int, others: Sequence[ServingPlan]) -> None:
        """Time engines that run both prefill and decode on `ranks` ranks.

        The one with the best bound comes first; it ends when no bound is better than the best plans. others: the plans
        known before.
        """
        waiting = sorted(
            ((self._bound(ranks, at, chunk), at, chunk) for at, each in self.outcomes.items() for chunk in each.parts),
            reverse=True,
        )
        waiting = [each for each in waiting if each[1:] not in self.mixes]
        together = usable_cores() if self.trials.processes is None else max(1, self.trials.processes)
        while waiting:
            best = _best([*self._aggregated(ranks), *others], self.top)
            least = best[-1].rate if len(best) == self.top else 0
            now, waiting = waiting[:together], waiting[together:]
            now = [each for each in now if each[0] > least]
            if not now:
                break
            for number, answer in shared(partial(self._mixed, now), [str(each[1:]) for each in now], together):
                self.mixes[now[number][1:]] = [_point(each) for each in answer["points"]]
                self._report()

    def _bound(self, ranks: int, at: int, chunk: int) -> Fraction:
        """Requests a second of engines that do all of it, at most: a step with a part of a prompt takes as long as the
        part alone, or as a step without one."""
        traffic, layout, outcome = self.traffic, self.layouts[at], self.outcomes[at]
        each = self._count(ranks, layout.ranks) * layout.dp
        found = [Fraction(0)]
        for point in outcome.of(Role.DECODE):
            if each and _suits(traffic, each, point.requests):
                mixed = max(point.step, outcome.parts[chunk])
                fastest = EnginePoint(Role.BOTH, at, point.requests, chunk, mixed, point.step)
                found.append(each * _rate(traffic, fastest))
        return max(found)

    def _mixed(self, now: Sequence[tuple[Fraction, int, int]], number: int) -> Answer:
        """Parts of prompts next to tokens: with the most requests that are in time, or those that are wanted."""
        _, at, chunk = now[number]
        traffic, steps = self.traffic, self._steps(at)

        def point(count: int) -> EnginePoint:
            mixed, apart = steps.mixed_time(count, chunk)
            return EnginePoint(Role.BOTH, at, count, chunk, mixed, steps.time(steps.words.decode(count)), apart)

        counts = [each.requests for each in self.outcomes[at].of(Role.DECODE)]
        most = min(max(counts), most_at_once(traffic, chunk))
        most = most_within(lambda count: latencies(traffic, point(count))[1], traffic.tpot, most)
        most = most_within(lambda count: latencies(traffic, point(count))[0], traffic.ttft, most)
        most = most_within(lambda count: steps.last_peak(count, chunk), self.room, most)
        wanted = [most] if traffic.concurrency is None else counts
        return {"points": [vars(point(count)) for count in wanted if 0 < count <= most]}

    def _outcome(self, at: int) -> LayoutOutcome:
        """What a layout can do, with what was found of it as an engine that does all of it."""
        known = self.outcomes[at]
        own = {chunk: points for (each, chunk), points in self.mixes.items() if each == at}
        lack = dict(known.lack)
        if len(own) == len(known.parts) and not any(own.values()) and Role.BOTH not in lack:
            ttft = self.traffic.ttft
            late = ttft is not None and all(
                self.traffic.parts(chunk) * step > ttft for chunk, step in known.parts.items()
            )
            lack[Role.BOTH] = Lack.TTFT if late else Lack.TPOT
        return replace(known, points=(*known.points, *(each for points in own.values() for each in points)), lack=lack)

    def _aggregated(self, ranks: int) -> Iterator[ServingPlan]:
        traffic = self.traffic
        for point in (each for points in self.mixes.values() for each in points):
            layout = self.layouts[point.layout]
            count = self._count(ranks, layout.ranks)
            if count and _suits(traffic, count * layout.dp, point.requests):
                rate = count * layout.dp * _rate(traffic, point)
                engines = (Engines(Role.BOTH, count, layout, point),)
                yield ServingPlan(ranks, engines, *latencies(traffic, point), rate, traffic.output)

    def _disaggregated(self, ranks: int) -> Iterator[ServingPlan]:
        """All pairs of an engine of prefill and one of decode, each in the numbers that are best for both."""
        prefills = [point for outcome in self.outcomes.values() for point in outcome.of(Role.PREFILL)]
        decodes = [point for outcome in self.outcomes.values() for point in outcome.of(Role.DECODE)]
        costs = Costs(self.trials.system, ranks)
        for decode in decodes:
            for prefill in prefills:
                plan = self._pair(ranks, prefill, decode, costs)
                if plan is not None:
                    yield plan

    def _pair(self, ranks: int, prefill: EnginePoint, decode: EnginePoint, costs: Costs) -> ServingPlan | None:
        traffic, before, after = self.traffic, self.layouts[prefill.layout], self.layouts[decode.layout]
        if not self._count(ranks, after.ranks, (1, before.ranks)):
            return None
        sent = self._sent(ranks, prefill.layout, decode.layout, costs)
        decoding = decode.step * traffic.further + sent
        tpot = ceil(decoding / (traffic.output - 1))
        if traffic.tpot is not None and tpot > traffic.tpot:
            return None
        makes = Fraction(prefill.requests * before.dp * SECOND, prefill.step)
        takes = decode.requests * after.dp * SECOND / decoding
        best: ServingPlan | None = None
        for number in range(1, self._count(ranks, before.ranks) + 1):
            count = self._count(ranks, after.ranks, (number, before.ranks))
            if not count:
                break
            if traffic.concurrency is not None:
                count = min(count, -(-traffic.concurrency // (after.dp * decode.requests)))
                if not _suits(traffic, count * after.dp, decode.requests):
                    continue
            rate = min(number * makes, count * takes)
            if traffic.concurrency is not None:
                # All requests are in an engine: none waits for the prompts of others.
                served = number * before.dp * prefill.requests + rate * decoding / SECOND
                if served < traffic.concurrency:
                    continue
            if best is None or rate > best.rate:
                pair = Engines(Role.PREFILL, number, before, prefill), Engines(Role.DECODE, count, after, decode)
                best = ServingPlan(ranks, pair, prefill.step, tpot, rate, traffic.output, sent)
            if number * makes >= count * takes:
                break
        return best

    def _sent(self, ranks: int, prefill: int, decode: int, costs: Costs) -> int:
        """The ns in which the cache of a prompt is sent from an engine of prefill to one of decode.

        Ranks send and receive at the same time. Those of prefill send in equal shares what those of decode have of it,
        copies included.
        """
        before, after = self.layouts[prefill], self.layouts[decode]
        takes = self.outcomes[decode].cache
        each = max(takes, -(-takes * after.sharing // before.sharing))
        away = ranks - 1 if ranks > self._domain(ranks) else before.ranks
        return costs.transfer(Transfer(each, 0, away)).ns

    def _with_peaks(self, plan: ServingPlan) -> ServingPlan:
        return replace(plan, engines=tuple(replace(each, peak=self._peak(each.point)) for each in plan.engines))

    def _peak(self, point: EnginePoint) -> int:
        steps = self._steps(point.layout)
        if point.role is Role.BOTH:
            return max(
                steps.last_peak(point.requests, point.chunk),
                steps.peak(steps.words.last_decode(point.requests)),
            )
        if point.role is Role.DECODE:
            return steps.peak(steps.words.last_decode(point.requests))
        return steps.peak(steps.words.prefill(point.requests))


def _name(layout: EngineLayout) -> str:
    return ", ".join(f"{word} {value}" for word, value in layout.words.items())


def engines_on(ranks: int, domain: int, size: int, others: tuple[int, int] = (0, 1)) -> int:
    """How many engines of `size` ranks have room on `ranks` ranks.

    domain: ranks of one fast network. An engine that is smaller stays inside one domain; a larger one has whole
    domains. others: a number of engines and their size, which are placed first.
    """
    count, first = others
    whole, part = divmod(ranks, domain)
    extra = 0
    if first > domain:
        whole -= count * -(-first // domain)
    elif count:
        full, rest = divmod(count, domain // first)
        if rest and part >= rest * first:
            part, rest = part - rest * first, 0
        whole -= full + bool(rest)
        extra = domain - rest * first if rest else 0
    if whole < 0:
        return 0
    if size > domain:
        return whole // -(-size // domain)
    return whole * (domain // size) + part // size + extra // size


def chunks_of(traffic: ServingLoad) -> list[int]:
    """The sizes of parts of a prompt, without those that make as many parts as a smaller one."""
    found: dict[int, int] = {}
    for chunk in CHUNKS:
        found.setdefault(traffic.parts(chunk), min(chunk, traffic.computed))
    return list(found.values())


def most_at_once(traffic: ServingLoad, chunk: int) -> int:
    """The largest number of requests at once with which at most one prompt is computed at a time. More would wait for
    each other.

    chunk: tokens of a prompt that a step computes at most.
    """
    parts = traffic.parts(chunk)
    return int((parts + traffic.further) // parts)


def busy_share(traffic: ServingLoad, requests: int, chunk: int) -> Fraction:
    """The share of steps that compute a part of a prompt.

    requests: at once. chunk: tokens of a prompt that a step computes at most.
    """
    parts = traffic.parts(chunk)
    return requests * parts / (parts + traffic.further)


def latencies(traffic: ServingLoad, point: EnginePoint) -> tuple[int, int]:
    """ns to the first token, and for each further one in the mean, rounded up, of an engine that does all of it."""
    return traffic.parts(point.chunk) * point.step, traffic.a_token(_mean_step(traffic, point))


def _mean_step(traffic: ServingLoad, point: EnginePoint) -> Fraction:
    share = busy_share(traffic, point.requests, point.chunk)
    return share * point.step + (1 - share) * point.decode


def _rate(traffic: ServingLoad, point: EnginePoint) -> Fraction:
    """Requests a second of a rank of dp of an engine that does all of it."""
    steps = traffic.parts(point.chunk) + traffic.further
    return point.requests * SECOND / (steps * _mean_step(traffic, point))


def _suits(traffic: ServingLoad, ranks: int, requests: int) -> bool:
    """Whether the requests on each rank of dp are as many as `ranks` of them need for the concurrency; True without
    one.
    """
    return traffic.concurrency is None or requests == -(-traffic.concurrency // ranks)


def _best(plans: Sequence[ServingPlan], top: int) -> list[ServingPlan]:
    """The best plans: no two with the same layouts, or of a kind with the same rate, which one engine decides."""
    found: dict[tuple[object, ...], ServingPlan] = {}
    rates: set[tuple[str, Fraction]] = set()
    for each in sorted(plans, key=lambda plan: (-plan.rate, plan.used, plan.tpot, plan.ttft)):
        place = tuple(one.point.layout for one in each.engines)
        if place not in found and (each.kind, each.rate) not in rates:
            found[place] = each
            rates.add((each.kind, each.rate))
        if len(found) == top:
            break
    return list(found.values())


def _answer(outcome: LayoutOutcome) -> Answer:
    return {**vars(outcome), "points": [vars(each) for each in outcome.points]}


def _of_answer(answer: Answer) -> LayoutOutcome:
    points = tuple(map(_point, answer["points"]))
    parts = {int(chunk): step for chunk, step in answer["parts"].items()}
    return LayoutOutcome(**{**answer, "points": points, "parts": parts})


def _point(values: Mapping[str, Any]) -> EnginePoint:
    return EnginePoint(**{**values, "role": Role(values["role"])})
