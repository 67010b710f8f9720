"""A search of engines that serve requests, and what it found as rows."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from stagedb.api import model_names
from stagedb.api.python_words import for_python
from stagedb.api.results import Rows
from stagedb.errors import UsageError
from stagedb.graphs.graph_identity import graph_sizes
from stagedb.mentions import OPTIONS, Word
from stagedb.models import Card
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.serving_checks import check_acceptance
from stagedb.plans.written_words import typed_words
from stagedb.search.commands import needed_words, profile_command
from stagedb.search.serving import Engines, Lack, Report, Role, ServingPlan, ServingResult, best_engines
from stagedb.search.serving_engines import EngineLayout, ServingLoad, StepWords
from stagedb.systems.system import System
from stagedb.systems.system_files import DEFAULT, load_system
from stagedb.timing.expected_errors import served_error

COLUMNS = (
    *("place", "ranks", "kind", "role", "engines", "layout", "requests", "chunk", "at_once", "ttft", "tpot"),
    *("tokens_per_second", "tokens_per_second_per_accelerator", "sent", "peak", "commands"),
)

DEGREES = ("tp", "pp", "dp", "ep")
"""Words that a layout is called by. The others are those of all plans."""


@dataclass(frozen=True)
class SearchedServing:
    """What a search of engines found.

    plans: a row for each kind of engines of each plan, the best plan first: `role` is `aggregated` for engines that do
    all of it, otherwise `prefill` or `decode`; `requests` are those of an engine: prompts of a step of prefill,
    otherwise those at once; `chunk` are tokens of a prompt that a step computes at most; `at_once` are the requests of
    all engines; `ttft`, `tpot` and `sent` [ns], `peak` [bytes of the fullest rank], `commands` profile its steps.
    result: the plans as objects. layouts: how many there were. lacks: by reason, how many layouts give no tokens.
    nearest: what is shortest if no plan was found, in words. expected_error: that of a time a token, in words. seconds:
    of the work.
    """

    model: str
    system: str
    traffic: ServingLoad
    plans: Rows
    result: ServingResult
    layouts: int
    lacks: Mapping[str, int]
    nearest: str
    expected_error: str
    seconds: float

    def to_pandas(self) -> pd.DataFrame:
        """The plans as a data frame."""
        return self.plans.to_pandas()


@for_python
def search_serving(
    model: str | Card,
    ranks: Sequence[int],
    system: str | Path | System | None = None,
    *,
    input_len: int,
    output_len: int,
    ttft: int | None = None,
    tpot: int | None = None,
    concurrency: int | None = None,
    draft_len: int = 0,
    acceptance: float | None = None,
    prefix_len: int = 0,
    room: int | None = None,
    top: int = 5,
    progress: Report | None = None,
    words: Mapping[str, Any] | None = None,
) -> SearchedServing:
    """The engines that serve most tokens a second on `ranks` accelerators, within limits. No store is read or written.

    Engines that do all of it are compared with engines of prefill and of decode apart. model: a name of the library, a
    card's file or a card. ranks: numbers of accelerators. system: a preset or a file. input_len: tokens of a request.
    output_len: tokens that it is given. ttft: ns to the first one, at most. tpot: ns for each further one, at most, in
    the mean. concurrency: requests that are served at the same time; None: as many as give most tokens. draft_len:
    tokens of a draft that each step of decode checks for each request; 0 for none. acceptance: the probability that one
    of them is accepted if those before it are. prefix_len: tokens with which all prompts begin, which are in the cache
    once and not computed. room: bytes of an accelerator; None takes the system's. top: plans on each number of ranks.
    progress: called as layouts are tried.
    words: those that all plans have, such as `tp`, `weight_dtype` or `cache_dtype`, and `draft` for those that check
    drafts.

    Raises UsageError for an unknown model, system or word, and for numbers out of range.
    """
    began = time.monotonic()
    card = model if isinstance(model, Card) else model_names.card(model)
    loaded = system if isinstance(system, System) else load_system(system or DEFAULT)
    given = typed_words(words or {})
    draft = given.pop("draft", "usual") if draft_len else "usual"
    load = ServingLoad(input_len, output_len, ttft, tpot, concurrency, draft_len, acceptance or 0.0, draft, prefix_len)
    traffic = _checked(card, load, acceptance)
    if not ranks or min(ranks) < 1 or top < 1:
        raise UsageError(f"{Word('ranks')} and {Word('top')} are 1 or more")
    recipe = given.get("recipe", GraphOptions().recipe)
    sizes = graph_sizes(card, GraphOptions(recipe=recipe, **traffic.drafts))
    numbers = sorted(set(ranks))
    found = best_engines(card, loaded, sizes, traffic, numbers, given, room=room, top=top, progress=progress)
    name = model if isinstance(model, str) else card.name
    rows = [row for place, plan in _placed(found) for row in _rows(place, plan, traffic, name, loaded.name)]
    return SearchedServing(
        card.name,
        loaded.name,
        traffic,
        Rows(COLUMNS, tuple(tuple(row[column] for column in COLUMNS) for row in rows)),
        found,
        len(found.layouts),
        _lacks(found),
        "" if found.plans else _nearest(found),
        served_error(bool(card.routes)),
        time.monotonic() - began,
    )


def _lacks(found: ServingResult) -> Mapping[str, int]:
    """By reason, how many layouts give no tokens."""
    lacking = [each.lack for _, each in found.layouts if {Role.BOTH, Role.DECODE} <= each.lack.keys()]
    return Counter(each[Role.BOTH] for each in lacking)


def _checked(card: Card, traffic: ServingLoad, acceptance: float | None) -> ServingLoad:
    """The requests, checked. acceptance: as it was given. Raises UsageError for numbers out of range."""
    prompt, output = traffic.prompt, traffic.output
    if prompt < 1 or output < 2:
        raise UsageError(
            f"requests have {Word('input_len')} of 1 or more and {Word('output_len')} of 2 or more: a request with one "
            f"token of output is a prefill ({Word('workflow', 'prefill')})"
        )
    if not 0 <= traffic.prefix <= max(prompt - 2, 0):
        raise UsageError(
            f"{Word('prefix_len')} is {traffic.prefix:,}: prompts of {prompt:,} tokens have a prefix of 0 to "
            f"{max(prompt - 2, 0):,}, as the last tokens of each are computed"
        )
    for word in ("ttft", "tpot", "concurrency"):
        value = getattr(traffic, word)
        if value is not None and value < 1:
            raise UsageError(f"{Word(word)} is {value}: it takes more than 0")
    if prompt + output - 1 > card.max_positions:
        raise UsageError(
            f"{card.name} has {card.max_positions:,} positions, and these requests {prompt + output - 1:,}: "
            f"{Word('output_len')} takes at most {max(card.max_positions - prompt + 1, 0):,} next to "
            f"{Word('input_len', prompt)}; a card of your own with other max_positions has more"
        )
    card.check_sequence(prompt + output - 1)
    if traffic.drafted < 0 or (traffic.drafted > 0) is (acceptance is None):
        raise UsageError(
            f"drafts need a number of tokens and the share that is accepted: {Word('draft_len', 3)} with "
            f"{Word('acceptance', 0.7)}, or neither"
        )
    check_acceptance(traffic.acceptance)
    return traffic


def _placed(found: ServingResult) -> list[tuple[int, ServingPlan]]:
    """The plans with their places among those on as many ranks."""
    placed: list[tuple[int, ServingPlan]] = []
    for ranks in found.ranks:
        placed += enumerate((each for each in found.plans if each.ranks == ranks), 1)
    return placed


def _rows(place: int, plan: ServingPlan, traffic: ServingLoad, model: str, system: str) -> list[dict[str, Any]]:
    return [
        {
            "place": place,
            "ranks": plan.ranks,
            "kind": plan.kind,
            "role": each.role.value,
            "engines": each.count,
            "layout": layout_text(each.layout),
            "requests": each.point.requests * each.layout.dp,
            "chunk": each.point.chunk or None,
            "at_once": plan.at_once,
            "ttft": plan.ttft,
            "tpot": plan.tpot,
            "tokens_per_second": plan.tokens * plan.ranks,
            "tokens_per_second_per_accelerator": plan.tokens,
            "sent": plan.sent,
            "peak": each.peak,
            "commands": list(_commands(each, traffic, model, system)),
        }
        for each in plan.engines
    ]


def layout_text(layout: EngineLayout) -> str:
    """The degrees of a layout, such as `tp 4` or `dp 8, ep 8`."""
    parts = [f"{word} {layout.words[word]}" for word in DEGREES if layout.words.get(word, 1) != 1]
    return ", ".join(parts) or "1 rank"


def _commands(each: Engines, traffic: ServingLoad, model: str, system: str) -> list[str]:
    """The commands that profile the steps of an engine."""
    words = StepWords(each.layout, traffic)
    point = each.point
    if each.role is Role.PREFILL:
        steps = [words.prefill(point.requests)]
    elif each.role is Role.DECODE:
        steps = [words.decode(point.requests)]
    elif point.apart:
        steps = [words.part(point.chunk), words.decode(point.requests - 1), words.decode(point.requests)]
    else:
        steps = [words.mixed(point.requests, point.chunk), words.decode(point.requests)]
    found = []
    for step in steps:
        plan = Plan.from_mapping(step).to_dict()
        needed = {word: value for word, value in needed_words(plan).items() if word in step}
        command = profile_command([OPTIONS.word(Word("model")), model], needed, [OPTIONS.word(Word("system")), system])
        found += [] if command is None else [command]
    return found


def _nearest(found: ServingResult) -> str:
    """What comes nearest to the limits, if no plan holds them."""
    known = [(layout, outcome) for layout, outcome in found.layouts if outcome.shortest is not None]
    if not known:
        return (
            "the model fits into none of them: more ranks, or weights in fewer bytes (matmul-dtype fp8, weight-dtype "
            "int4), may help"
        )
    token, first = (min(known, key=lambda each: getattr(each[1], name) or 0) for name in ("shortest", "first"))
    return (
        f"a request alone takes {_ms(token[1].shortest)} ms a token at the least ({layout_text(token[0])}), and "
        f"{_ms(first[1].first)} ms to the first one ({layout_text(first[0])})"
    )


def _ms(ns: int | None) -> str:
    return f"{(ns or 0) / 1e6:,.1f}"


LACKS: Mapping[str, str] = {
    Lack.REFUSED: "no plan of the model",
    Lack.MEMORY: "memory",
    Lack.TTFT: "time to the first token",
    Lack.TPOT: "time a token",
    Lack.AT_ONCE: "too few requests at once",
}
"""Why layouts give no tokens, in words."""
