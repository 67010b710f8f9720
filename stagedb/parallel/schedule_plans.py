"""What a plan says about its schedule: what that settles, and checks with the nearest plan that would do."""

from typing import Any

from stagedb.errors import UsageError
from stagedb.parallel.nearest import Change, Misfit, Way, multiples
from stagedb.parallel.orders import ENDINGS, EXPLICIT, check_orders, order_text
from stagedb.parallel.plan_fields import PlanFields
from stagedb.parallel.schedule import INTERLEAVED, SCHEDULES


def check_schedule(plan: PlanFields) -> None:
    """Raise UsageError where a schedule does not suit the stages, chunks and micro-batches of a plan."""
    if plan.schedule not in (*SCHEDULES, EXPLICIT):
        raise UsageError(
            f"unknown schedule {plan.schedule!r}: --schedule is one of {', '.join(SCHEDULES)}, "
            f"or a file of one ({', '.join(ENDINGS)})"
        )
    if plan.task_order and plan.schedule != EXPLICIT:
        raise UsageError(f"task_order goes with --schedule {EXPLICIT}, not with {plan.schedule}: leave one out")
    if plan.schedule == EXPLICIT:
        return
    if plan.schedule != INTERLEAVED and plan.virtual_stages > 1:
        raise Misfit(
            f"schedule {plan.schedule} has one chunk a stage, the plan says virtual_stages {plan.virtual_stages}",
            [_in_groups(plan, {"schedule": INTERLEAVED})],
            [UNCHUNKED],
            lead="take",
        )
    if plan.schedule == "zb-h1" and plan.pp == 1:
        raise Misfit(
            "schedule zb-h1 with pp 1 has no bubble to fill",
            [[Way({"pp": pp}) for pp in range(2, 9)]],
            [Way({"schedule": "1f1b"})],
            lead="take",
        )
    if plan.schedule == INTERLEAVED:
        _check_interleaved(plan)


def check_messages(plan: PlanFields) -> None:
    """Raise UsageError where messages between stages are to go in parts, and there are no such messages or parts."""
    if not plan.options.scatter_gather:
        return
    reasons = {"pp": "nothing goes between stages", "tp": "one rank sends a message, and nobody has the rest of it"}
    for word, reason in reasons.items():
        if getattr(plan, word) == 1:
            without = Way({"scatter_gather": False}, said="leave --scatter-gather out")
            raise Misfit(f"with {word} 1 {reason}", ways=[[Way({word: number}) for number in range(2, 9)], without])


def explicit(plan: PlanFields) -> dict[str, Any]:
    """What a plan's own orders of tasks settle: chunks a stage, and one text for one order.

    Raises UsageError where the plan cannot run them.
    """
    if not plan.task_order:
        raise UsageError(f"schedule {EXPLICIT} needs its order of tasks: name a file of it with --schedule FILE")
    orders = plan.orders()
    chunks = check_orders(orders, plan.pp, plan.microbatches)
    if plan.virtual_stages not in (1, chunks):
        raise Misfit(
            f"the schedule has {chunks} chunks a stage, the plan says virtual_stages {plan.virtual_stages}",
            ways=[Way({"virtual_stages": chunks}), UNCHUNKED],
        )
    # One text for one order, so that a plan's digest is of its meaning.
    return {"virtual_stages": chunks, "task_order": tuple(map(order_text, orders))}


def _check_interleaved(plan: PlanFields) -> None:
    if plan.virtual_stages == 1:
        chunks = [way for n in range(2, 9) for way in _in_groups(plan, {"virtual_stages": n})]
        raise Misfit(
            f"schedule {INTERLEAVED} needs several chunks a stage", [chunks], [Way({"schedule": "1f1b"})], lead="take"
        )
    if plan.pp == 1:
        stages = [way for n in range(2, 9) for way in _in_groups(plan, {"pp": n})]
        raise Misfit(
            f"virtual_stages {plan.virtual_stages} with pp 1 interleaves nothing",
            [stages],
            [[UNCHUNKED, Way({**UNCHUNKED.change, "schedule": "1f1b"}, "leave --virtual-stages and --schedule out")]],
            lead="take",
        )
    if plan.microbatches % plan.pp:
        raise Misfit(
            f"interleaved 1F1B runs micro-batches in groups of pp {plan.pp}, which do not divide the plan's "
            f"{plan.microbatches}",
            multiples("global_batch_size", plan.batch, plan.micro_batch_size * plan.dp * plan.pp),
        )


UNCHUNKED = Way({"virtual_stages": 1}, "leave --virtual-stages out")


def _in_groups(plan: PlanFields, change: Change) -> list[Way]:
    """A change to interleaved chunks, by itself or with as many micro-batches as these take at least."""
    pp = change.get("pp", plan.pp)
    least = plan.micro_batch_size * plan.dp * (pp if isinstance(pp, int) else 1)
    return [Way(change), Way({**change, "global_batch_size": least})]


def chunk_ways(chunks: int, most: int) -> tuple[list[Way], list[Way]]:
    """The numbers of chunks next to one that divide `most` layers; one chunk is another schedule."""
    numbers = [n for n in range(1, most + 1) if most % n == 0]
    below = [Way({"virtual_stages": n}) for n in reversed(numbers) if n < chunks]
    if chunks > 1:
        below.append(Way({"virtual_stages": 1, "schedule": "1f1b"}))
    return below, [Way({"virtual_stages": n}) for n in numbers if n > chunks]


def check_layers_per_stage(plan: PlanFields, layers: tuple[int, ...]) -> None:
    """Raise UsageError where explicit numbers of layers are not one for each stage."""
    text = ",".join(map(str, layers))
    if len(layers) != plan.pp:
        raise UsageError(f"--layers-per-stage {text} names {len(layers)} stages, --pp {plan.pp}: they must agree")
    if min(layers) < 1:
        raise UsageError(f"--layers-per-stage {text} leaves a stage without a layer: each takes at least 1")
