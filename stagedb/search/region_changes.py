"""What each region's rules are worth: a plan with the rules of one region exchanged, all others as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stagedb.advice.trials import Trials
from stagedb.errors import UsageError
from stagedb.memory import memory_of, peak_of
from stagedb.plans import Plan
from stagedb.search.region_choices import RegionChoice, Regions, choices_of, chosen_in, strategy_text
from stagedb.timing.sent_bytes import most_sent

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
