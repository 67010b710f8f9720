"""What a plan says about a user's strategy: whether its degrees leave what that moves in one piece."""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.parallel.custom import parse_strategy

if TYPE_CHECKING:
    from stagedb.parallel.plan import Plan


def check_heads_moved(plan: "Plan", sizes: Mapping[str, int]) -> None:
    """Raise UsageError where a strategy would move key/value heads of which ranks hold copies."""
    if not plan.options.strategy:
        return
    strategy, usual = parse_strategy(plan.options.strategy), ("tp",)
    named = [
        table["attention"].get("kv_heads", ()) for table in (strategy.regions, strategy.weights) if "attention" in table
    ]
    if all(axes == usual for axes in named):
        return
    for axes in (usual, *named):
        if prod(getattr(plan, axis) for axis in axes) > sizes["KV"]:
            ranks = " x ".join(f"{axis} {getattr(plan, axis)}" for axis in axes)
            raise UsageError(
                f"the strategy moves key/value heads, and {ranks} is more than the {sizes['KV']} of them, so that "
                "ranks hold copies: take fewer ranks there, or leave attention out of the strategy"
            )
