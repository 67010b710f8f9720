"""What a plan says about sharding over data-parallel ranks: checks with the nearest plan that would do."""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.parallel.nearest import either, nearest

if TYPE_CHECKING:
    from stagedb.parallel.plan import Plan


def check_sharding(plan: "Plan") -> None:
    """Raise UsageError where ZeRO, or copies of what is sharded, do not suit the ranks of dp and cp."""
    zero, recipe = plan.options.zero, plan.options.recipe
    if zero and plan.dp * plan.cp == 1:
        raise UsageError(f"zero {zero} with dp 1 has nothing to share: take --dp 2 or more, or leave --zero out")
    if plan.hsdp == 1:
        return
    least = 1 if recipe == "megatron" else 2
    if zero < least:
        raise UsageError(
            f"hsdp {plan.hsdp} keeps copies of what is sharded, and zero {zero} "
            f"{'shards nothing' if zero == 0 else 'has no such copies in the torch recipe'}: "
            f"take --zero {max(least, 3 if recipe == 'torch' else 1)}, or leave --hsdp out"
        )
    if plan.hsdp == plan.dp:
        raise UsageError(
            f"hsdp {plan.hsdp} keeps as many copies as there are ranks, so that they share nothing: "
            f"take --zero 0, or --hsdp below {plan.dp}"
        )
    if plan.dp % plan.hsdp:
        valid = nearest(plan.hsdp, plan.dp, lambda copies: plan.dp % copies == 0 and copies < plan.dp)
        raise UsageError(
            f"hsdp {plan.hsdp} does not divide dp {plan.dp} into equal copies: the nearest is {either('hsdp', valid)}"
        )
