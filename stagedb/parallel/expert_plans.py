"""What a plan says about experts: checks with the nearest plan that would do, and what their symbols stand for."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from stagedb.errors import UsageError

if TYPE_CHECKING:
    from stagedb.parallel.plan import Plan


def check_expert_parallelism(plan: "Plan") -> None:
    """Raise UsageError where ep, or what goes with it, fits no model."""
    if plan.capacity_factor is not None and not 0 < plan.capacity_factor < float("inf"):
        raise UsageError(f"capacity_factor is {plan.capacity_factor}: --capacity-factor takes a number above 0")
    if plan.ep == 1:
        if not plan.options.ep_sync:
            raise UsageError("nothing is reduced over ep 1: take --ep 2 or more, or leave --no-ep-sync out")
        return
    ranks = plan.dp * plan.cp
    if ranks % plan.ep:
        raise UsageError(
            f"ep {plan.ep} does not divide dp x cp = {ranks}, whose ranks it divides: the nearest is "
            f"{_nearest(plan.ep, ranks, lambda ep: ranks % ep == 0)}"
        )
    if plan.hsdp > 1:
        raise UsageError(
            f"hsdp {plan.hsdp} with ep {plan.ep} is not supported: experts would be copied in another way than the "
            "rest; leave --hsdp out, or take --ep 1"
        )


def check_experts(plan: "Plan", sizes: Mapping[str, int]) -> None:
    """Raise UsageError where a model of these sizes cannot run its experts under a plan."""
    if "E" not in sizes:
        said = [f"--ep {plan.ep}"] if plan.ep > 1 else []
        said += ["--capacity-factor"] if plan.capacity_factor is not None else []
        if said:
            raise UsageError(f"{said[0]} is for a model with experts, and this one has none: leave it out")
        return
    experts, ranks = sizes["E"], plan.dp * plan.cp
    if experts % plan.ep:
        valid = _nearest(plan.ep, experts, lambda ep: experts % ep == 0 and ranks % ep == 0)
        raise UsageError(f"ep {plan.ep} does not divide the {experts} experts: the nearest is {valid}")
    split = plan.cp * (plan.tp if plan.options.sp else 1)
    routed = plan.micro_batch_size * plan.seq_len * sizes["K"]
    if plan.capacity_factor is None and routed % (experts * split):
        unit = experts * split

        def fits(length: int) -> bool:
            return plan.micro_batch_size * length * sizes["K"] % unit == 0

        below = next((length for length in range(plan.seq_len - 1, 0, -1) if fits(length)), None)
        above = next(length for length in range(plan.seq_len + 1, plan.seq_len + unit + 1) if fits(length))
        valid = " or ".join(f"--seq-len {length}" for length in (below, above) if length is not None)
        raise UsageError(
            f"a rank's {routed // split} routed tokens are not divisible among {experts} experts, which a balanced "
            f"load without dropping needs: take {valid}, or --capacity-factor 1"
        )


def widths(plan: "Plan", sizes: Mapping[str, int]) -> list[int]:
    """The widths of feed-forwards that tp partitions."""
    if "E" not in sizes:
        return [sizes["F"]]
    found = [sizes["FE"]] if plan.options.expert_tp else []
    found += [sizes["FS"]] if "FS" in sizes else []
    return found + ([sizes["F"]] if "LD" in sizes else [])


def capacity(plan: "Plan") -> dict[str, int]:
    """The capacity factor as a fraction, `capacity` / `per`; 1 where nothing is dropped."""
    factor = Fraction(1 if plan.capacity_factor is None else str(plan.capacity_factor))
    return {"capacity": factor.numerator, "per": factor.denominator}


def _nearest(value: int, limit: int, valid: Callable[[int], bool]) -> str:
    below = next((n for n in range(min(value - 1, limit), 0, -1) if valid(n)), None)
    above = next((n for n in range(value + 1, limit + 1) if valid(n)), None)
    return " or ".join(f"--ep {n}" for n in (below, above) if n is not None)
