"""Checks of tasks that run together during the exchanges of experts: forwards and backwards, or two forwards."""

from collections.abc import Iterator

from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Misfit, Way, nearest
from stagedb.plans.plan_fields import PlanFields
from stagedb.schedules import DEFAULT, EXPLICIT, SCHEDULES, Task, pairs

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
