"""A search over all plans of a model, and what it found as rows. It reads and writes no store."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagedb.advice.commands import needed_words, profile_command
from stagedb.api import model_names
from stagedb.api.python_words import for_python
from stagedb.api.results import Rows, Searched
from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.mentions import OPTIONS, Word
from stagedb.models import Card
from stagedb.plans.written_words import typed_words
from stagedb.search import Candidate, Fate, Objective, SearchRequest, SearchResult, searching
from stagedb.search.conditions import Condition
from stagedb.search.space import USUAL, groups_of
from stagedb.systems.system import System
from stagedb.systems.system_files import DEFAULT, load_system

COLUMNS = ("fate", "plan", "system", "ranks", "step", "peak", "plans", "code", "why", "terms", "command")

SHORT = {"micro_batch_size": "micro-batch", "virtual_stages": "chunks", "recompute": "recompute"}
"""Words as a table has them, where they are long."""

Report = Callable[[int, int, str], None]
"""Called with how many plans are tried or ruled out, of how many, and the best so far in words."""


@for_python
def search(
    model: str | Card,
    ranks: Sequence[int],
    system: "str | Path | System | Sequence[str | Path | System] | None" = None,
    *,
    allow: Sequence[str] | None = None,
    room: int | None = None,
    by: str = "step",
    where: str = "",
    top: int = 5,
    seconds: float | None = None,
    prices: Mapping[str, float] | None = None,
    watts: Mapping[str, float] | None = None,
    progress: Report | None = None,
    words: Mapping[str, Any] | None = None,
) -> Searched:
    """The best plans of a model on so many accelerators, and why the others lose. No store is read or written.

    model: a name of the library, a card's file or a card. ranks: numbers of accelerators. system: presets or files.
    allow: groups of words that may vary in addition to tp, pp, dp, ep, the micro-batch and chunks of stages
    (`stagedb.search.space.GROUPS`, `all` or `none`). room: bytes of an accelerator; None takes the system's. by:
    `step`, `tokens_per_dollar` (with prices), `tokens_per_joule` (with watts) or `memory`. where: a condition, such as
    `tp <= 8 and peak < 76e9`. top: best plans that are found, no two of which differ only in what recomputes. seconds:
    when to end with what is found; None: when every plan is tried or ruled out. prices: by system, what an accelerator
    costs an hour. watts: by system, what it takes. progress: called as plans are tried. words: those that all plans
    have; `global_batch_size` is needed.

    Raises UsageError for an unknown model, system, group or word, and for a condition that cannot be read.
    """
    card, systems = model if isinstance(model, Card) else _card_of(model), _systems(system)
    request = SearchRequest(
        model=card.name,
        card=card.digest,
        systems=tuple(each.name for each in systems),
        digests=tuple(_digest(each) for each in systems),
        ranks=_checked(ranks),
        words={"seq_len": card.usual_length.tokens, **typed_words(words or {})},
        allow=USUAL if allow is None else groups_of(list(allow)),
        room=room,
        by=_objective(by),
        where=where,
        top=top,
        prices=dict(prices or {}),
        watts=dict(watts or {}),
    )
    _check(request)
    card.check_sequence(request.words["seq_len"])
    best: list[str] = [""]

    def report(done: int, of: int, found: Candidate | None) -> None:
        text = "" if found is None else f"{found.step / 1e6:,.1f} ms: {described(found, request)}"
        if progress is not None:
            progress(done, of, text if text != best[0] else "")
            best[0] = text

    found = searching.search(
        request, card, systems, seconds=seconds, progress=lambda each: report(each.done, each.of, each.best)
    )
    return _searched(found, model if isinstance(model, str) else card.name)


def described(each: Candidate, request: SearchRequest) -> str:
    """The words of a plan that a search chose, such as `tp 4, pp 2, 1f1b`."""
    chosen = {word: value for word, value in each.words.items() if word not in request.words}
    every = chosen.pop("recompute_every", 1)
    if every > 1:
        chosen["recompute"] = f"{chosen['recompute']} in every {every}th layer"
    usual = {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "dp": 1,
        "ep": 1,
        "micro_batch_size": 0,
        "recompute": "none",
        "schedule": "1f1b",
    }
    return ", ".join(_named(word, value) for word, value in chosen.items() if value != usual.get(word)) or "one rank"


def _named(word: str, value: Any) -> str:
    if word == "schedule":
        return str(value)
    if isinstance(value, bool):
        return word if value else f"no-{word}".replace("_", "-")
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"{SHORT.get(word, word.replace('_', '-'))} {text}"


def _systems(given: "str | Path | System | Sequence[str | Path | System] | None") -> list[System]:
    several = [given] if given is None or isinstance(given, str | Path | System) else list(given)
    return [each if isinstance(each, System) else load_system(each or DEFAULT) for each in several]


def _digest(system: System) -> str:
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
    needed = {
        Objective.TOKENS_PER_DOLLAR: (request.prices, "price", "what an accelerator costs an hour"),
        Objective.TOKENS_PER_JOULE: (request.watts, "watts", "the power that an accelerator takes"),
    }
    if request.by in needed:
        known, word, what = needed[request.by]
        for name in request.systems:
            if not known.get(name, 0) > 0:
                raise UsageError(f"{Word('by', request.by)} needs {what}: {Word(word, f'{name}=NUMBER')}")


def _searched(found: SearchResult, model: str) -> Searched:
    request = found.request
    rows = tuple(
        (
            each.fate.value,
            described(each, request),
            each.system,
            each.ranks,
            each.step,
            each.peak,
            each.plans,
            each.code,
            each.why,
            dict(each.terms),
            _command(each, model) if each.fate is Fate.TIMED else None,
        )
        for each in found.candidates
    )
    units = {"step": "ns", "peak": "B"}
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
        result=found,
    )


def _command(each: Candidate, model: str) -> str | None:
    system = () if each.system == DEFAULT else (OPTIONS.word(Word("system")), each.system)
    return profile_command([OPTIONS.word(Word("model")), model], needed_words(each.words), system)
