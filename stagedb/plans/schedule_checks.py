"""Checks of a plan's schedule that suggest the nearest valid plan, and the words that follow from the schedule."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Change, Misfit, Way, multiples, nearest
from stagedb.plans.order_files import ENDINGS
from stagedb.plans.plan_fields import PlanFields
from stagedb.schedules import (
    DEFAULT,
    EXPLICIT,
    LOOP,
    PLACEMENTS,
    SCHEDULES,
    ChunkPlacement,
    Order,
    Schedule,
    Task,
    check_orders,
    map_text,
    mapped,
    order_text,
    pairs,
    placement_of,
    replay,
    splits,
    stages_of,
)
from stagedb.workflows import WORKFLOWS

# Checks of the places of a plan's chunks in its pipeline.

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


def check_schedule(plan: PlanFields) -> None:
    """Raise UsageError if a schedule does not suit the stages, chunks and micro-batches of a plan."""
    if plan.schedule not in (*SCHEDULES, EXPLICIT):
        raise UsageError(
            f"unknown schedule {shown(plan.schedule)}: {Word('schedule')} is one of {', '.join(SCHEDULES)}, or a file "
            f"with orders of tasks ({', '.join(ENDINGS)})"
        )
    if plan.task_order and plan.schedule != EXPLICIT:
        raise UsageError(f"task_order goes with {Word('schedule', EXPLICIT)}, not with {plan.schedule}: leave one out")
    if plan.schedule in SCHEDULES:
        schedule = SCHEDULES[plan.schedule]
        _check_chunks(plan, schedule)
        _check_stages(plan, schedule)
        _check_number(plan, schedule)
        _check_groups(plan, schedule)
        _check_halves(plan, schedule)


def settled(schedule: str, chunks: int) -> dict[str, Any]:
    """The words of a plan that follow from its schedule and its number of chunks."""
    named = SCHEDULES.get(schedule)
    return {"schedule": named.chunked} if named is not None and named.chunked and chunks > 1 else {}


def implied(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words that a schedule implies and these do not give: its chunks, if it has the same number in any plan."""
    named = SCHEDULES.get(words.get("schedule", DEFAULT.name))
    if named is None or named.chunks is None or "virtual_stages" in words:
        return {}
    return {"virtual_stages": named.chunks}


def follows_from_chunks(schedule: object) -> bool:
    """Whether a plan may have the schedule with this name only because it asks for chunks."""
    return schedule is not None and any(each.chunked == schedule for each in SCHEDULES.values())


def check_messages(plan: PlanFields) -> None:
    """Raise UsageError if scatter_gather has nothing to do: with pp 1 no stage sends, with tp 1 one rank sends all."""
    if not plan.options.scatter_gather:
        return
    reasons = {"pp": "no message goes between stages", "tp": "one rank sends the whole message"}
    for word, reason in reasons.items():
        if getattr(plan, word) == 1:
            without = Way({"scatter_gather": False}, text=f"leave {Word('scatter_gather', True)} out")
            raise Misfit(f"with {word} 1 {reason}", ways=[[Way({word: number}) for number in range(2, 9)], without])


def explicit(plan: PlanFields) -> dict[str, Any]:
    """The words that follow from a plan's own orders of tasks: its chunks, and one text for each order.

    Raises UsageError if the plan cannot run them.
    """
    if not plan.task_order:
        raise UsageError(
            f"schedule {EXPLICIT} needs an order of tasks: name a file with it as {Word('schedule', 'FILE')}"
        )
    orders = plan.orders()
    words: dict[str, Any] = {}

    def placement(chunks: int) -> ChunkPlacement:
        word = placement_word(plan, chunks)
        if plan.chunk_placement is None and chunks > 1:
            word = fitting_placement(orders)
        words["chunk_placement"] = word
        return placement_of(EXPLICIT, word)

    chunks = check_orders(orders, plan.pp, plan.microbatches, plan.workflow, placement)
    if plan.virtual_stages not in (1, chunks):
        raise Misfit(
            f"the schedule has {chunks} chunks a stage, the plan has virtual_stages {plan.virtual_stages}",
            ways=[Way({"virtual_stages": chunks}), UNCHUNKED],
        )
    # One text for each order, so that equal plans have equal digests.
    return {"virtual_stages": chunks, "task_order": tuple(map(order_text, orders)), **words}


def _check_chunks(plan: PlanFields, schedule: Schedule) -> None:
    if plan.virtual_stages > 1 and not schedule.several_chunks:
        raise Misfit(
            f"schedule {schedule.name} has one chunk a stage, the plan has virtual_stages {plan.virtual_stages}",
            [_whole_groups(plan, _chunked_default(), {"schedule": _chunked_default().name})],
            [UNCHUNKED],
            lead="take",
        )
    if plan.virtual_stages == 1 and schedule.several_chunks:
        numbers = range(2, 9) if schedule.chunks is None else (schedule.chunks,)
        chunks = [way for n in numbers for way in _whole_groups(plan, schedule, {"virtual_stages": n})]
        raise Misfit(f"schedule {schedule.name} needs several chunks a stage", [chunks], [Way(PLAIN)], lead="take")


def _check_stages(plan: PlanFields, schedule: Schedule) -> None:
    if plan.pp > 1 or not schedule.one_stage:
        return
    stages = [way for n in range(2, 9) for way in _whole_groups(plan, schedule, {"pp": n})]
    without: Way | list[Way] = Way(PLAIN)
    if schedule.several_chunks:
        both = Way({**UNCHUNKED.change, **PLAIN}, f"leave {Word('virtual_stages')} and {Word('schedule')} out")
        # Leaving the schedule out leaves out the chunks that it implies.
        without = [UNCHUNKED, *([Way(PLAIN)] if schedule.chunks is not None else []), both]
    raise Misfit(
        schedule.one_stage.format(name=schedule.name, chunks=plan.virtual_stages), [stages], [without], lead="take"
    )


def _check_number(plan: PlanFields, schedule: Schedule) -> None:
    if schedule.chunks not in (None, plan.virtual_stages):
        others = [
            Way({"schedule": each.name})
            for each in SCHEDULES.values()
            if each.several_chunks and each.chunks is None and not each.misfit(plan.pp, plan.microbatches)
        ]
        raise Misfit(
            f"schedule {schedule.name} has {schedule.chunks} chunks a stage, the plan has virtual_stages "
            f"{plan.virtual_stages}",
            [[Way({"virtual_stages": schedule.chunks})]],
            [others],
            lead="take",
        )


def _check_groups(plan: PlanFields, schedule: Schedule) -> None:
    if why := schedule.misfit(plan.pp, plan.microbatches):
        raise Misfit(
            why,
            multiples("global_batch_size", plan.batch, plan.micro_batch_size * plan.dp * plan.pp),
        )


def _check_halves(plan: PlanFields, schedule: Schedule) -> None:
    """Raise UsageError where a schedule splits a backward that the workflow does not have."""
    if plan.workflow.differentiates:
        return
    if schedule.halves and any(map(splits, schedule.orders(plan.pp, plan.microbatches, plan.virtual_stages))):
        others = [Way({"workflow": name}) for name, each in WORKFLOWS.items() if each.differentiates]
        raise Misfit(
            f"schedule {schedule.name} splits the backward, and the workflow {plan.workflow.name} has none",
            ways=[Way(PLAIN), *others],
        )


def check_recomputed_halves(plan: PlanFields) -> None:
    """Raise UsageError where the framework cannot split a backward that recomputes, or runs the layer again for each
    part of it.

    Orders that split only backwards which the framework runs whole are no such case.
    """
    what, framework = plan.options.recompute, plan.options.framework
    if what == "none" or framework.splits_recomputed or not plan.runs_halves:
        return
    nothing: Change = {"recompute": "none", "recompute_every": 1, "recompute_first": None, "early_stop": None}
    without = Way({**nothing, "recompute_operators": (), "recompute_modules": ()}, str(Word("recompute", "none")))
    raise Misfit(
        f"schedule {plan.schedule} splits the backward, and under {framework.title} the second half of a backward "
        f"cannot read what the first has recomputed (recompute {what}): it runs a layer again for each group of "
        "weights, or raises an error",
        ways=[
            without,
            Way({**PLAIN, **UNCHUNKED.change, "task_order": ()}, f"{Word('schedule', DEFAULT.name)} without chunks"),
        ],
    )


PLAIN: Change = {"schedule": DEFAULT.name}
"""The change of a plan to the schedule that suits most plans."""


def _chunked_default() -> Schedule:
    """The default schedule over several chunks."""
    return SCHEDULES[DEFAULT.chunked or DEFAULT.name]


def _whole_groups(plan: PlanFields, schedule: Schedule, change: Change) -> list[Way]:
    """A change alone, or with the fewest micro-batches for a schedule that takes them in groups."""
    if not schedule.groups:
        return [Way(change)]
    pp = change.get("pp", plan.pp)
    least = plan.micro_batch_size * plan.dp * (pp if isinstance(pp, int) else 1)
    return [Way(change), Way({**change, "global_batch_size": least})]


def chunk_ways(chunks: int, most: int) -> tuple[list[Way], list[Way]]:
    """The numbers of chunks next to `chunks` that divide `most` layers. One chunk needs another schedule."""
    numbers = [n for n in range(1, most + 1) if most % n == 0]
    below = [Way({"virtual_stages": n}) for n in reversed(numbers) if n < chunks]
    if chunks > 1:
        below.append(Way({"virtual_stages": 1, **PLAIN}))
    return below, [Way({"virtual_stages": n}) for n in numbers if n > chunks]


# Checks of tasks that run together during the exchanges of experts: forwards and backwards, or two forwards.

WITHOUT = Way({"overlap_experts": False}, f"leave {Word('overlap_experts', True)} out")


def check_overlap(plan: PlanFields) -> None:
    """Raise UsageError, with a way out, if forwards and backwards cannot run together under a plan."""
    if not plan.overlap_experts:
        return
    if plan.exchanging == 1:
        near = nearest("ep", plan.ep, plan.expert_ranks, lambda ep: ep > plan.ep and plan.expert_ranks % ep == 0)
        raise Misfit(
            f"with ep {plan.ep} no tokens are exchanged, so that {Word('overlap_experts', True)} hides nothing",
            near,
            [WITHOUT],
        )
    if not plan.workflow.differentiates:
        _check_forwards(plan)
        return
    _check_schedule(plan)
    found = list(_pairs(plan))
    if not found:
        unit = plan.micro_batch_size * plan.dp * plan.pp
        more = [Way({"global_batch_size": unit * (plan.microbatches // plan.pp + n)}) for n in range(1, 9)]
        raise Misfit(
            f"with {plan.microbatches} micro-batches all forwards of schedule {plan.schedule} run before the first "
            "backward, so that none run together",
            ways=[more, WITHOUT],
        )
    _check_gathers(plan, found)


def _check_forwards(plan: PlanFields) -> None:
    """Raise UsageError unless the forwards of a step can run two by two."""
    if plan.schedule == EXPLICIT or plan.virtual_stages > 1:
        raise Misfit(
            f"two forwards run together in the order of their micro-batches, which {plan.schedule} with "
            f"{plan.virtual_stages} chunks a stage does not have",
            ways=[Way({"schedule": DEFAULT.name, "virtual_stages": 1}), WITHOUT],
        )
    if plan.microbatches % 2:
        unit = plan.micro_batch_size * plan.dp
        more = [Way({"global_batch_size": unit * (plan.microbatches + n)}) for n in (1, 3)]
        raise Misfit(
            f"two forwards run together, and a step has {plan.microbatches} micro-batch"
            f"{'' if plan.microbatches == 1 else 'es'}",
            ways=[more, WITHOUT],
        )
    if plan.options.zero == 3:
        raise Misfit(
            "with zero 3 each of two forwards gathers the parameters of its layers and frees them, which the other "
            "needs",
            ways=[Way({"zero": 0}), WITHOUT],
        )


def _check_schedule(plan: PlanFields) -> None:
    schedule = SCHEDULES.get(plan.schedule)
    if schedule is not None and schedule.has_pairs(plan.pp):
        return
    if schedule is not None and schedule.paired is not None:
        why = f"schedule {schedule.name} warms up too little with pp {plan.pp} for forwards and backwards in pairs"
    elif plan.schedule == EXPLICIT:
        why = "an order of tasks of one's own has no pairs of forwards and backwards that run together"
    else:
        why = f"schedule {plan.schedule} has no pairs of forwards and backwards that run together"
    raise Misfit(why, ways=[list(_with_pairs(plan)), WITHOUT])


def _with_pairs(plan: PlanFields) -> Iterator[Way]:
    """The schedules that have pairs, with as many micro-batches as they need."""
    unit = plan.micro_batch_size * plan.dp * plan.pp
    plain = {"task_order": (), "chunk_placement": None}
    for schedule in SCHEDULES.values():
        if not schedule.has_pairs(plan.pp) or (schedule.several_chunks and plan.pp == 1):
            continue
        numbers = (plan.virtual_stages, *range(2, 9)) if schedule.several_chunks else (1,)
        for number in dict.fromkeys(numbers):
            change = {**plain, "schedule": schedule.name, "virtual_stages": number}
            texts = str(Word("schedule", schedule.name)) + (f" {Word('virtual_stages', number)}" if number > 1 else "")
            yield Way(change, texts if schedule is not DEFAULT else f"{Word('schedule', schedule.name)} without chunks")
            yield Way({**change, "global_batch_size": 2 * unit}, f"{texts} {Word('global_batch_size', 2 * unit)}")


def _pairs(plan: PlanFields) -> Iterator[tuple[Task, Task]]:
    """The forward and the first part of the backward of every pair."""
    for order in plan.tasks():
        for places in pairs(order):
            yield order[places[0]], order[places[1]]


def _check_gathers(plan: PlanFields, found: list[tuple[Task, Task]]) -> None:
    """Raise UsageError if the two halves of a pair would gather and free the same parameters."""
    options = plan.options
    # Over several stages, units that are not freed after a forward are gathered once a step.
    gathers = options.zero >= 2 and (options.resharded or plan.pp == 1)
    if not gathers or all(forward.chunk != backward.chunk for forward, backward in found):
        return
    raise Misfit(
        f"with zero {options.zero} each half of a pair gathers the parameters of its layers and frees them, and this "
        "plan has pairs of one chunk, whose halves would free what the other needs",
        ways=[[Way({"zero": zero}) for zero in (2, 1, 0)], WITHOUT],
    )
