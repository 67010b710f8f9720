"""Checks of the places of a plan's chunks in its pipeline."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Misfit, Way
from stagedb.plans.plan_fields import PlanFields
from stagedb.schedules import LOOP, PLACEMENTS, Order, map_text, mapped, placement_of, replay, stages_of

UNCHUNKED = Way({"virtual_stages": 1}, f"leave {Word('virtual_stages')} out")
UNPLACED = Way({"chunk_placement": None}, f"leave {Word('chunk_placement')} out")


def placed(plan: PlanFields) -> dict[str, Any]:
    """The chunk placement in its shortest form. UsageError if the schedule cannot run with it."""
    word = placement_word(plan, plan.virtual_stages)
    if word is not None:
        replay(plan.orders(), placement=placement_of(plan.schedule, word))
    return {"chunk_placement": word}


def placement_word(plan: PlanFields, chunks: int) -> str | None:
    """The chunk placement as a name if it has one, as a map otherwise; None if the schedule has it anyway.

    chunks: their number on each stage. Raises UsageError if stages have no such chunks, or cannot send to each other.
    """
    if plan.chunk_placement is None:
        return None
    text = plan.chunk_placement
    named = PLACEMENTS.get(text)
    if named is None:
        _check_map(plan, text, chunks)
        named = mapped(stages_of(text))
    text = map_text(named, plan.pp, chunks)
    own = placement_of(plan.schedule)
    if text == map_text(own, plan.pp, chunks):
        return None
    if own is not PLACEMENTS["loop"]:
        raise Misfit(
            f"schedule {plan.schedule} has a placement of its own, the plan has chunk_placement "
            f"{shown(plan.chunk_placement)}",
            ways=[UNPLACED],
        )
    names = (name for name, each in PLACEMENTS.items() if map_text(each, plan.pp, chunks) == text)
    return next(names, text)


def fitting_placement(orders: Sequence[Order]) -> str | None:
    """The placement by name with which orders over several chunks end: None for loops, which go before others.

    Orders rarely end with two: one that a runtime has run over chunks up and down the stages waits forever in loops.
    Raises UsageError if they end with none.
    """
    refused = []
    for name, each in PLACEMENTS.items():
        try:
            replay(orders, placement=each)
        except UsageError as error:
            refused.append(error)
        else:
            return None if each is LOOP else name
    raise UsageError(
        f"{refused[0]}; so it is with chunks in loops over the stages, and those up and down them do not end either: "
        f"{Word('chunk_placement')} sets the stage of each chunk"
    )


def _check_map(plan: PlanFields, text: str, chunks: int) -> None:
    """Raise UsageError if a map does not give each stage as many chunks, next to those before and after."""
    of, pp = stages_of(text), plan.pp
    counts = Counter(of)
    wrong = next((stage for stage in range(pp) if counts[stage] != chunks), None)
    if wrong is not None or len(of) != pp * chunks:
        raise UsageError(
            f"chunk_placement {shown(text)} has "
            + (f"{len(of)} chunks" if wrong is None else f"{counts[wrong]} chunks of stage {wrong}")
            + f": {Word('chunk_placement')} has each of the stages 0 to {pp - 1} ({Word('pp')}) {chunks} times "
            f"({Word('virtual_stages')})"
        )
    for number, (one, other) in enumerate(pairwise(of)):
        if (other - one) % pp not in (0, 1, pp - 1):
            raise UsageError(
                f"chunk_placement {shown(text)} has chunk {number} on stage {one} and the next one on stage {other}: "
                f"a stage sends to its neighbours only (the first and the last of {pp} are neighbours), so put them on "
                "one stage or on neighbouring ones"
            )
