"""A given plan next to the best one of a search, and what each region's sharding rules are worth."""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from stagedb.copied_processes import copies
from stagedb.cores import usable_cores
from stagedb.errors import UsageError
from stagedb.memory import memory_of, peak_of
from stagedb.mentions import Word
from stagedb.plans import Plan
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.search.branches import SearchPlace
from stagedb.search.candidates import Candidate, Fate, SearchRequest, SearchResult, Worth, explain
from stagedb.search.space import (
    CHOOSE_LAYERS,
    RegionChoice,
    Regions,
    Space,
    Words,
    choices_of,
    chosen_in,
    strategy_text,
)
from stagedb.search.trials import Trials
from stagedb.timing.op_durations import most_sent

DRAWN = 100
"""Plans that fit, and are drawn to be compared with the given one."""

MOST = 5_000
"""Plans that are drawn at most: of some models few fit."""

PATIENCE = 60.0
"""Seconds in which plans are drawn."""

MAY_FIT = (Fate.TIMED, Fate.SLOWER, Fate.UNTRIED)
"""What a search found out about sets that may have plans that fit."""

LOST = "so that the plan was not compared; the search itself is over"

Report = Callable[[int, int], None]
"""Called with how many drawn plans are timed, of how many."""


@dataclass(frozen=True)
class Comparison:
    """A given plan next to the best one of a search.

    plan: with its exact figures, and why it loses. fits: whether the accelerator's memory holds it. drawn: plans of the
    search that fit, drawn with equal chances. better: those of them that are better than the given one. late: whether
    there was no time for all that were to be drawn. complete: whether they are all plans that fit, each once.
    """

    plan: Candidate
    fits: bool
    drawn: int
    better: int
    late: bool = False
    complete: bool = False


def compared(
    place: SearchPlace, found: SearchResult, words: Words, progress: Report, seconds: float | None = None
) -> Comparison:
    """A plan next to the best one of a search. words: all of the plan. seconds: after which no more plans are drawn, of
    at most `PATIENCE`; those that are being timed then still count.

    Raises UsageError for words that are no plan of the model on the ranks of the place.
    """
    began, plan = time.monotonic(), Plan.from_mapping(words)
    plan.check(place.space.sizes)
    if plan.world != place.space.ranks:
        raise UsageError(
            f"the plan to compare is one of {plan.world} ranks, and the search of {place.space.ranks}: leave dp out, "
            f"or give {Word('ranks', str(plan.world))}"
        )
    program = place.trials.copied(plan)
    step, peak, sent = place.trials.step(program), peak_of(memory_of(program)), most_sent(program.workload)
    terms = place.trials.terms(program)
    mine = Candidate(words, place.system, plan.world, Fate.TIMED, step, peak, terms=terms, sent=sent)
    until = began + (PATIENCE if seconds is None else min(seconds, PATIENCE))
    request, may_fit = found.request, [each for each in found.candidates if each.fate in MAY_FIT]
    worths = list(_worths(place, request, may_fit, progress, until))
    better = sum(each < request.worth_of(mine) for each in worths)
    late = len(worths) < DRAWN and time.monotonic() >= until
    return Comparison(
        plan=explain(mine, found.best, request),
        fits=place.room is None or peak <= place.room,
        drawn=len(worths),
        better=better,
        late=late,
        complete=len(worths) < DRAWN and not late and sum(each.plans for each in may_fit) <= MOST,
    )


def _worths(
    place: SearchPlace, request: SearchRequest, may_fit: Sequence[Candidate], progress: Report, until: float
) -> Iterator[Worth]:
    """What the search makes small, for plans of sets that are drawn at random and fit.

    until: the time at which the last one is drawn.
    """
    timed, chosen = 0, islice(drawn(place.space, may_fit, request.id), MOST)
    progress(0, DRAWN)
    with copies(lambda words: _worth(place, request, words), usable_cores(), lambda question: "plans", LOST) as others:
        while timed < DRAWN:
            for words in islice(chosen, others.idle if time.monotonic() < until else 0):
                others.ask(words)
            if not others.busy:
                break
            for _, worth in others.answers():
                if worth is not None and timed < DRAWN:
                    timed += 1
                    progress(timed, DRAWN)
                    yield tuple(worth)
    progress(timed, timed)


def _worth(place: SearchPlace, request: SearchRequest, words: Words) -> Worth | None:
    """What the search makes small, of a plan that fits and for which its condition holds; None for another one."""
    bounds, room = place.bounds, place.room
    try:
        plan = Plan.from_mapping(words)
        plan.check(place.space.sizes)
        if room is not None and bounds.peak(plan, bounds.chunks(plan)) > room:
            return None
        program = place.trials.copied(plan)
        peak = peak_of(memory_of(program))
        if room is not None and peak > room:
            return None
        step, sent = place.trials.step(program), most_sent(program.workload)
    except UsageError:
        return None
    if not place.holds(plan, step, peak, sent):
        return None
    return request.worth(place.system, place.space.ranks, step, peak, sent)


def drawn(space: Space, sets: Sequence[Candidate], seed: str) -> Iterator[Words]:
    """Plans of these sets, each drawn with the same chance, in an order that follows from the seed.

    Where there are at most `MOST` plans, each comes once. More are drawn without an end, and some may come again.
    """
    chance, sizes = random.Random(seed), [each.plans for each in sets]
    if sum(sizes) <= MOST:
        # Sets of one order of tasks, which have some of its choices of layers each, name it alike.
        plans = {json.dumps(plan, sort_keys=True): plan for of in sets for plan in _plans_of(space, of)}
        yield from chance.sample(list(plans.values()), len(plans))
        return
    while True:
        yield _one_of(space, chance.choices(sets, sizes)[0], chance)


def _plans_of(space: Space, of: Candidate) -> Iterator[Words]:
    """The plans of a set, which is a group, a cell, an order or a plan (`space`)."""
    if of.plans == 1:
        yield of.words
        return
    for cell in _cells_of(space, of):
        yield from _plans_of_cell(space, cell)


def _one_of(space: Space, of: Candidate, chance: random.Random) -> Words:
    """One plan of a set."""
    if of.plans == 1:
        return of.words
    cells = _cells_of(space, of)
    cell = cells[0] if len(cells) == 1 else chance.choices(cells, list(map(space.count, cells)))[0]
    return chance.choice(list(_plans_of_cell(space, cell)))


def _cells_of(space: Space, of: Candidate) -> list[Words]:
    words = {word: value for word, value in of.words.items() if word not in CHOOSE_LAYERS or word in space.words}
    chosen = "recompute" if space.is_open("recompute", "recompute") else "zero"
    return [words] if chosen in words or not space.is_open(chosen, chosen) else list(space.cells(words))


def _plans_of_cell(space: Space, cell: Words) -> Iterator[Words]:
    if "schedule" not in cell or "schedule" in space.words:
        yield from space.plans(cell)
    else:
        yield from ({**cell, **choice} for choice in space.choices(cell))


def whole_words(request: SearchRequest, ranks: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """All words of a plan to compare: those of the search, and the given ones. dp follows from the ranks.

    What a search chooses for each of its plans is there with its default, so that nobody has to guess it.

    Raises UsageError for a plan of another batch or length, whose step cannot be compared.
    """
    for word in ("global_batch_size", "seq_len"):
        if given.get(word, request.words[word]) != request.words[word]:
            raise UsageError(
                f"the plan to compare has {word} {given[word]}, and those of the search {request.words[word]}: a step "
                f"of another size is no better or worse, so leave {word} out"
            )
    words = {**request.words, **given}
    if words.get("cp", 1) == 1 and "cp_kind" not in given:
        words.pop("cp_kind", None)
    inner = [words.get(word, 1) for word in ("tp", "pp", "cp")]
    rest = ranks
    for degree in inner if all(isinstance(each, int) and each > 0 for each in inner) else ():
        rest //= degree
    degrees: Words = {word: words[word] for word in ("tp", "pp", "cp") if word in words and word not in request.words}
    usual = {word: PLAN_WORDS[word].default for word in ("micro_batch_size", "zero")}
    return {**degrees, "dp": max(rest, 1), **usual, **words}


# What each region's rules are worth: a plan with the rules of one region exchanged, all others as they are.

BUILT_IN = "built-in"
"""The rules of a region without a choice."""


@dataclass(frozen=True)
class RegionChange:
    """A plan with other rules in one part of the model.

    part: such as `ffn`. rules: those of the plan there. instead: those that are tried. step [ns], peak [bytes of the
    fullest rank], sent [bytes of the rank that sends most in a step]: of the changed plan; None if it is refused. why:
    the reason then, or that it does not fit; empty for a plan that fits.
    """

    part: str
    rules: str
    instead: str
    step: int | None = None
    peak: int | None = None
    sent: int | None = None
    why: str = ""


def region_changes(
    trials: Trials, room: int | None, regions: Regions, words: Mapping[str, Any]
) -> tuple[RegionChange, ...]:
    """The plan with each other choice of each part of the model, one part at a time.

    room: bytes of an accelerator; None for no limit. words: of the plan, whose strategy is one of the grammar. Without
    tp there are no choices.
    """
    if words["tp"] == 1:
        return ()
    chosen = chosen_in(words.get("strategy", ""))
    found = []
    for choices in choices_of(regions, words.get("cp", 1)):
        part = choices[0].part
        there = next((each for each in chosen if each.part == part), None)
        for instead in (each for each in (None, *choices) if each != there):
            others = [each for each in chosen if each.part != part]
            strategy = strategy_text([*others, *([] if instead is None else [instead])])
            change = RegionChange(part, _kind(there), _kind(instead))
            found.append(_tried(trials, room, {**words, "strategy": strategy}, change))
    return tuple(found)


def _tried(trials: Trials, room: int | None, words: Mapping[str, Any], change: RegionChange) -> RegionChange:
    try:
        plan = Plan.from_mapping(words)
        plan.check(trials.sizes)
        program = trials.copied(plan)
        step, peak = trials.step(program), peak_of(memory_of(program))
    except UsageError as error:
        return replace(change, why=str(error))
    why = "does not fit" if room is not None and peak > room else ""
    return replace(change, step=step, peak=peak, sent=most_sent(program.workload), why=why)


def _kind(choice: RegionChoice | None) -> str:
    return BUILT_IN if choice is None else choice.kind
