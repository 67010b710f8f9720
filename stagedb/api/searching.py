"""A search over all plans of a model, and what it found as rows: without a store, or kept in one."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagedb.api import model_names
from stagedb.api.python_words import for_python
from stagedb.api.results import ComparedPlan, Rows, Searched
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.texts import nth
from stagedb.frameworks import find_framework
from stagedb.frameworks.profiles import find_profile
from stagedb.graphs.graph_identity import graph_key, model_sizes
from stagedb.graphs.model_graph import build_graph, weight_axes
from stagedb.lowering.preparing import instance_id
from stagedb.mentions import OPTIONS, Word
from stagedb.models import Card
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.plans.written_words import typed_words
from stagedb.schedules import SCHEDULES
from stagedb.search import Candidate, Fate, Objective, SearchRequest, SearchResult, comparisons, searching
from stagedb.search.branches import SearchPlace
from stagedb.search.candidates import ties_of
from stagedb.search.commands import needed_words, profile_command, words_with
from stagedb.search.comparisons import RegionChange, region_changes
from stagedb.search.conditions import Condition
from stagedb.search.ray_workers import check_address
from stagedb.search.space import USUAL, groups_of, short_words
from stagedb.search.trials import Trials
from stagedb.systems.system import System
from stagedb.systems.system_files import DEFAULT, load_system
from stagedb.timing.expected_errors import ExpectedError, expected_error
from stagedb.timing.framework_timing import as_used_by

if TYPE_CHECKING:
    from stagedb.store import Store

COLUMNS = (
    *("fate", "plan", "system", "ranks", "step", "peak", "sent", "plans", "code", "why", "terms"),
    *("settings", "without_setting", "command"),
)

REGION_COLUMNS = tuple(each.name for each in fields(RegionChange))

SHORT = {"micro_batch_size": "micro-batch", "virtual_stages": "chunks"}
"""Words as a table has them, where they are long."""

FOR_SEARCH = 0.9
"""The share of a limited time that is for the search, if a plan is compared; the rest is for what is drawn for it."""

_RECOMPUTED = re.compile(r"(\w+) in (?:every (\d+)\w\w layer|the first (?:(\d+) layers|layer) of each (?:chunk|stage))")
"""What recomputes, and in which layers, as `described` writes it."""

_LISTS = ("recompute_operators", "recompute_modules")
"""Words that follow from the kind of recomputation."""

Systems = str | Path | System | Sequence[str | Path | System] | None
"""Presets, files or systems."""

Report = Callable[[int, int, str], None]
"""Called with how many plans are tried or ruled out, of how many, and the best so far in words."""


@for_python
def search(
    model: str | Card,
    ranks: Sequence[int],
    system: Systems = None,
    *,
    allow: Sequence[str] | None = None,
    room: int | None = None,
    by: str = "step",
    where: str = "",
    top: int = 5,
    seconds: float | None = None,
    prices: Mapping[str, float] | None = None,
    watts: Mapping[str, float] | None = None,
    framework: str | None = None,
    progress: Report | None = None,
    words: Mapping[str, Any] | None = None,
    on: str | None = None,
    compare: Mapping[str, Any] | None = None,
) -> Searched:
    """The best plans of a model on `ranks` accelerators, and why the others lose. No store is read or written.

    model: a name of the library, a card's file or a card. ranks: numbers of accelerators. system: presets or files.
    allow: groups of words that may vary in addition to tp, pp, dp, ep, the micro-batch and chunks of stages
    (`stagedb.search.space.GROUPS`, `all` or `none`). room: bytes of an accelerator; None takes the system's. by:
    `step`, `tokens_per_dollar` (with prices), `tokens_per_joule` (with watts), `memory` or `bytes` (that a rank sends
    at most in a step). where: a condition, such as `tp <= 8 and peak < 76e9`. top: best plans that are found on each
    number of ranks, no two of which differ only in what recomputes. seconds: when to end with what is found, with the
    plans that are drawn for `compare`; None: when every plan is tried or ruled out. prices: by system, what an
    accelerator costs an hour. watts: by system, what it takes. framework: what runs the plans, which are those that it
    can run: its words, what it hides and what it waits for. progress: called as plans are tried. words: those that all
    plans have; `global_batch_size` is needed. on: the address of a Ray cluster, as `ray://HOST:10001`, whose machines
    try plans instead of this one; it takes `stagedb[ray]` here, and the same stagedb on all of them. compare: words of
    a plan that is timed too, and compared with the best one and with drawn ones (`Searched.compared`).

    Raises UsageError for an unknown model, system, group or word, and for a condition that cannot be read.
    """
    if on is not None:
        check_address(on)
    asked = SearchAsked.of(model, ranks, system, allow, room, by, where, top, prices, watts, framework, words)
    asked.check_compared(compare)
    clock = _SearchClock(seconds, compare is not None)
    found = searching.search(
        asked.request,
        asked.card,
        asked.systems,
        seconds=clock.for_search,
        on=on,
        progress=_reporting(asked.request, progress),
    )
    result = searched(found, asked.name, asked.regions(found), asked.errors)
    return asked.compare(result, compare, progress, clock.left)


class _SearchClock:
    """The time that a search has, from now on, with that of the plans that are drawn to be compared.

    seconds: None without a limit. compares: whether a plan is compared.
    """

    def __init__(self, seconds: float | None, compares: bool) -> None:
        self.began, self.seconds, self.compares = time.monotonic(), seconds, compares

    @property
    def for_search(self) -> float | None:
        """Seconds of the search alone."""
        return None if self.seconds is None else self.seconds * (FOR_SEARCH if self.compares else 1)

    @property
    def left(self) -> float | None:
        """Seconds that are left now; None without a limit."""
        return None if self.seconds is None else max(0.0, self.began + self.seconds - time.monotonic())


@dataclass(frozen=True)
class SearchAsked:
    """A search with what it runs on. name: of the model, as it was given."""

    request: SearchRequest
    card: Card
    systems: Sequence[System]
    name: str

    @classmethod
    def of(
        cls,
        model: str | Card,
        ranks: Sequence[int],
        system: Systems,
        allow: Sequence[str] | None,
        room: int | None,
        by: str,
        where: str,
        top: int,
        prices: Mapping[str, float] | None,
        watts: Mapping[str, float] | None,
        framework: str | None,
        words: Mapping[str, Any] | None,
    ) -> "SearchAsked":
        """The search that the arguments of `search` ask for, checked.

        Raises UsageError for arguments that are no search. All parameters are those of `search`.
        """
        card, systems = model if isinstance(model, Card) else _card_of(model), _systems(system)
        given: Mapping[str, Any] = typed_words(words or {})
        digests = tuple(map(system_digest, systems))
        if framework is not None:
            profile = find_profile(framework)
            given, systems = profile.plan_words(given), [as_used_by(each, profile) for each in systems]
        request = SearchRequest(
            model=card.name,
            card=card.digest,
            systems=tuple(each.name for each in systems),
            digests=digests,
            ranks=_checked(ranks),
            words={"seq_len": card.usual_length.tokens, **given},
            allow=USUAL if allow is None else groups_of(list(allow)),
            room=room,
            by=_objective(by),
            where=where,
            top=top,
            prices=dict(prices or {}),
            watts=dict(watts or {}),
            framework=framework or "",
        )
        _check(request)
        card.check_sequence(request.words["seq_len"])
        return cls(request, card, systems, model if isinstance(model, str) else card.name)

    @property
    def errors(self) -> dict[str, ExpectedError]:
        """The error to expect of a step on each system, by its name."""
        return {each.name: expected_error(each, bool(self.card.routes)) for each in self.systems}

    def regions(self, found: SearchResult) -> tuple[RegionChange, ...]:
        """The best plan with the rules of one region exchanged, if strategies vary: computed, not read from a store."""
        best = found.best
        if best is None or "strategies" not in self.request.allow:
            return ()
        system = next(each for each in self.systems if each.name == best.system)
        sizes = model_sizes(self.card, find_framework(best.words.get("recipe", GraphOptions().recipe)))
        graph_of, regions = partial(build_graph, self.card), weight_axes(self.card, GraphOptions())
        trials = Trials(graph_of, sizes, system)
        room = system.accelerator.room if self.request.room is None else self.request.room
        return region_changes(trials, room, regions, best.words)

    def check_compared(self, words: Mapping[str, Any] | None) -> None:
        """Raise UsageError if a plan with these words cannot be compared."""
        if words is not None:
            plan = Plan.from_mapping(self._compared_words(words))
            plan.check(self._place.space.sizes)

    def compare(
        self, found: Searched, words: Mapping[str, Any] | None, progress: Report | None, seconds: float | None
    ) -> Searched:
        """A search's result with one more plan, compared with the best one.

        words: of that plan; None: the result stays as it is. seconds: the time for drawing plans to compare it with.
        """
        if words is None:
            return found
        began = time.monotonic()
        best, request = found.result.best, self.request
        report = progress or (lambda done, of, text: None)
        each = comparisons.compared(
            self._place, found.result, self._compared_words(words), lambda done, of: report(done, of, ""), seconds
        )
        mine = each.plan
        compared = ComparedPlan(
            plan=described(mine, request),
            step=mine.step,
            peak=mine.peak,
            sent=mine.sent or 0,
            fits=each.fits,
            worse=None if best is None else request.worth_of(mine)[0] / request.worth_of(best)[0] - 1,
            code=mine.code,
            why=mine.why,
            terms=dict(mine.terms),
            drawn=each.drawn,
            better=each.better,
            command=_command(mine, request, self.name),
            best_terms={} if best is None else dict(best.terms),
            late=each.late,
            complete=each.complete,
        )
        return replace(found, compared=compared, seconds=found.seconds + time.monotonic() - began)

    @property
    def _place(self) -> SearchPlace:
        """Where a plan is compared. Raises UsageError for several systems or numbers of ranks."""
        if len(self.systems) > 1 or len(self.request.ranks) > 1:
            raise UsageError(
                f"{Word('compare')} takes one system and one number of ranks: search each of them on its own, or leave "
                f"{Word('compare')} out"
            )
        return searching.places_of(self.request, self.card, self.systems)[0]

    def _compared_words(self, words: Mapping[str, Any]) -> dict[str, Any]:
        given = comparisons.whole_words(self.request, self.request.ranks[0], typed_words(words))
        return find_profile(self.request.framework).plan_words(given) if self.request.framework else given

    def instance_of(self, each: Candidate) -> str | None:
        """The id of the instance of a plan; None if it is no plan of the model."""
        try:
            plan = Plan.from_mapping(each.words)
            sizes = model_sizes(self.card, find_framework(plan.options.recipe))
            return instance_id(graph_key(self.card, plan.options), sizes, plan)
        except UsageError:
            return None


def search_in(
    store: "Store",
    asked: SearchAsked,
    seconds: float | None,
    progress: Report | None,
    shard: str | None = None,
    on: str | None = None,
    compare: Mapping[str, Any] | None = None,
) -> Searched:
    """The result of a search that the store keeps: one that is there is read, one that was stopped goes on.

    shard: which part of it this call searches, such as `3/8`; the result is that of all shards that are finished. on:
    the address of a Ray cluster whose machines try plans. compare: as `search` has it. seconds: how long it may take;
    None: until it is finished.
    """
    asked.check_compared(compare)
    if on is not None:
        check_address(on)
    from stagedb.store.contents.searches import record_search, record_shard, remove_shards

    clock = _SearchClock(seconds, compare is not None)
    run = partial(
        searching.search,
        asked.request,
        asked.card,
        asked.systems,
        seconds=clock.for_search,
        on=on,
        progress=_reporting(asked.request, progress),
    )
    if shard is None:
        found, new = record_search(store, asked.request, partial(_go_on, store, asked, run), asked.instance_of)
        if found.covered:
            remove_shards(store, asked.request)
    else:
        one = searching.shard_of(shard)
        found, new = record_shard(
            store,
            asked.request,
            one,
            lambda known, settled, elsewhere: run(shards=one, known=known, settled=settled, elsewhere=elsewhere),
            partial(searching.merged, asked.request, asked.card, asked.systems),
            asked.instance_of,
        )
    result = searched(found, asked.name, asked.regions(found), asked.errors, kept=True, new=new)
    return asked.compare(result, compare, progress, clock.left)


def _go_on(
    store: "Store",
    asked: SearchAsked,
    run: Callable[..., SearchResult],
    known: Sequence[Candidate],
    settled: searching.Settle,
) -> SearchResult:
    """A search without shards, which goes on with what shards of it have found in the store."""
    from stagedb.store.contents.searches import finished_parts, known_of

    parts, of = finished_parts(store, asked.request)
    known = [*known, *known_of(store, asked.request)]
    if len(parts) < of:
        return searching.rest(
            asked.request,
            asked.card,
            parts,
            of,
            lambda others, found: run(shards=others, found=found, known=known, settled=settled),
        )
    whole = searching.merged(asked.request, asked.card, asked.systems, parts, of)
    if whole.covered:
        return whole
    # A shard left out plans because of a better plan that no shard has any more: the shard with that plan was removed,
    # and searched again by another version. The plans that were left out are tried here.
    return run(known=[*known, *whole.timed], settled=settled)


def searched_in(store: "Store", word: str | None) -> Searched:
    """A search of the store with its candidates. word: its id, or the start of it; None: the newest."""
    from stagedb.api import lookup
    from stagedb.store.contents.searches import read_search

    found = read_search(store, lookup.the_search(store, word).id)
    return searched(found, found.request.model, kept=True, new=False)


def _reporting(request: SearchRequest, progress: Report | None) -> Callable[[searching.Progress], None]:
    """What a running search calls: `progress`, with the best plan in words whenever there is a better one."""
    best: list[str] = [""]

    def report(done: int, of: int, found: Candidate | None) -> None:
        text = "" if found is None else f"{found.step / 1e6:,.1f} ms: {described(found, request)}"
        if progress is not None:
            progress(done, of, text if text != best[0] else "")
            best[0] = text

    return lambda each: report(each.done, each.of, each.best)


def described(each: Candidate, request: SearchRequest) -> str:
    """The words of a plan that a search chose, such as `tp 4, pp 2, 1f1b`."""
    words = _given(each, request)
    chosen = {word: value for word, value in words.items() if word not in (*request.words, *_LISTS)}
    every = chosen.pop("recompute_every", 1)
    first = chosen.pop("recompute_first", None)
    if first is not None:
        layers = "layer" if first == 1 else f"{first} layers"
        of = "chunk" if words.get("virtual_stages", 1) > 1 else "stage"
        chosen["recompute"] = f"{words['recompute']} in the first {layers} of each {of}"
    if every > 1:
        chosen["recompute"] = f"{words['recompute']} in every {nth(every)} layer"
    usual = {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "ep": 1, "recompute": "none", "schedule": "1f1b"}
    return ", ".join(_named(word, value) for word, value in chosen.items() if value != usual.get(word)) or "one rank"


def _named(word: str, value: Any) -> str:
    if word == "schedule":
        return str(value)
    if word == "strategy":
        return short_words(value) or "another strategy"
    if isinstance(value, bool):
        return word if value else f"no-{word}".replace("_", "-")
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"{SHORT.get(word, word.replace('_', '-'))} {text}"


def words_of_line(line: str) -> dict[str, Any]:
    """The words of a plan as `described` writes it, such as `tp 4, pp 2, micro-batch 1, interleaved, chunks 2`.

    line: with a comma between the parts. Raises UsageError for a part that is no word of a plan.
    """
    long = {short: word for word, short in SHORT.items()}
    words: dict[str, Any] = {}
    for part in filter(None, map(str.strip, line.split(", "))):
        name, _, value = part.partition(" ")
        word = long.get(name, name.replace("-", "_"))
        if part in SCHEDULES:
            words["schedule"] = part
        elif word == "recompute" and (found := _RECOMPUTED.fullmatch(value)):
            words["recompute"] = found[1]
            words |= {"recompute_every": int(found[2])} if found[2] else {"recompute_first": int(found[3] or 1)}
        elif part == "one rank":
            continue
        elif value:
            words[word] = int(value) if value.isdigit() else value
        else:
            switch = word.removeprefix("no_")
            if PLAN_WORDS.get(switch) is None or not isinstance(PLAN_WORDS[switch].default, bool):
                raise UsageError(f"{shown(part)} is no word of a plan: {Word('compare')} takes such as tp=8,pp=2")
            words[switch] = switch == word
    return words


def _systems(given: Systems) -> list[System]:
    several = [given] if given is None or isinstance(given, str | Path | System) else list(given)
    return [each if isinstance(each, System) else load_system(each or DEFAULT) for each in several]


def system_digest(system: System) -> str:
    """sha256 of all numbers of a system."""
    return hashlib.sha256(json.dumps(system.to_dict(), sort_keys=True, default=str).encode()).hexdigest()


def _card_of(model: str) -> Card:
    card = model_names.find_card(model)
    if card is None:
        raise model_names.unknown_model(model)
    return card


def _checked(ranks: Sequence[int]) -> tuple[int, ...]:
    if not ranks or min(ranks) < 1:
        raise UsageError(f"a search needs the number of accelerators: {Word('ranks', 'N')}, or several, as N1-N2")
    return tuple(sorted(set(ranks)))


def _objective(by: str) -> Objective:
    if by not in list(Objective):
        raise UsageError(f"unknown objective {shown(by)}: {Word('by')} is one of {', '.join(Objective)}")
    return Objective(by)


def _check(request: SearchRequest) -> None:
    if request.top < 1:
        raise UsageError(f"top is {request.top}: {Word('top')} takes 1 or more")
    if request.where:
        Condition.parse(request.where)
    if "weight_dtype" in request.words:
        # No plan of training has weights of 4 bits, so that one refusal is that of all plans.
        own = {word: request.words[word] for word in ("workflow", "weight_dtype") if word in request.words}
        GraphOptions(**own)
    needed = {
        Objective.TOKENS_PER_DOLLAR: (request.prices, "price", "what an accelerator costs an hour"),
        Objective.TOKENS_PER_JOULE: (request.watts, "watts", "the power that an accelerator takes"),
    }
    if request.by in needed:
        known, word, what = needed[request.by]
        for name in request.systems:
            if not known.get(name, 0) > 0:
                raise UsageError(f"{Word('by', request.by)} needs {what}: {Word(word, f'{name}=NUMBER')}")


def searched(
    found: SearchResult,
    model: str,
    changes: Sequence[RegionChange] = (),
    errors: Mapping[str, ExpectedError] | None = None,
    *,
    kept: bool = False,
    new: bool = True,
) -> Searched:
    """A result as rows. model: as it was given. changes: of the best plan. errors: to expect on each system, if known.
    kept: the store has it. new: this call searched.
    """
    request = found.request
    rows = tuple(
        (
            each.fate.value,
            described(each, request),
            each.system,
            each.ranks,
            each.step,
            each.peak,
            each.sent,
            each.plans,
            each.code,
            each.why,
            dict(each.terms),
            *_settings(each, request),
            _command(each, request, model) if each.fate is Fate.TIMED else None,
        )
        for each in found.candidates
    )
    units = {"step": "ns", "peak": "B", "sent": "B"}
    return Searched(
        id=request.id,
        model=request.model,
        size=found.size,
        covered=found.covered,
        left=found.left,
        seconds=found.seconds,
        by=request.by.value,
        allow=request.allow,
        candidates=Rows(COLUMNS, rows, units=units),
        regions=Rows(REGION_COLUMNS, tuple(astuple(each) for each in changes), units=units),
        result=found,
        expected_errors={name: str(each) for name, each in (errors or {}).items()},
        ties=ties_of(found, {name: each.mean for name, each in errors.items()}) if errors else (),
        kept=kept,
        new=new,
    )


def _command(each: Candidate, request: SearchRequest, model: str) -> str | None:
    options = () if each.system == DEFAULT else (OPTIONS.word(Word("system")), each.system)
    words = needed_words(each.words)
    if request.framework:
        options = (OPTIONS.word(Word("framework")), request.framework, *options)
        words = words_with(find_profile(request.framework), each.words)
    return profile_command([OPTIONS.word(Word("model")), model], words, options)


def _settings(each: Candidate, request: SearchRequest) -> tuple[str | None, tuple[str, ...] | None]:
    """A plan that was timed in the settings of its framework, and what has none there; None where unknown."""
    profile = find_profile(request.framework) if request.framework else None
    if profile is None or profile.settings is None or each.fate is not Fate.TIMED:
        return None, None
    given = profile.given_words(request.words)
    chosen = {
        word: value
        for word, value in needed_words(each.words).items()
        if word not in request.words or (word in given and not profile.can_run(word, value))
    }
    found = profile.settings.settings(each.words, chosen)
    return found.text, tuple(f"{word.replace('_', '-')} {chosen[word]}" for word in found.without)


def _given(each: Candidate, request: SearchRequest) -> dict[str, Any]:
    """The words of a plan without those that its framework implies."""
    if not request.framework:
        return dict(each.words)
    return find_profile(request.framework).given_words(each.words)
