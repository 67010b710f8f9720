"""Checks of a plan's schedule that suggest the nearest valid plan, and the words that follow from the schedule."""

from collections.abc import Mapping
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Change, Misfit, Way, multiples
from stagedb.plans.order_files import ENDINGS
from stagedb.plans.placement_checks import UNCHUNKED, fitting_placement, placement_word
from stagedb.plans.plan_fields import PlanFields
from stagedb.schedules import (
    DEFAULT,
    EXPLICIT,
    SCHEDULES,
    ChunkPlacement,
    Schedule,
    check_orders,
    order_text,
    placement_of,
    splits,
)
from stagedb.workflows import WORKFLOWS


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
