"""A user's strategy in a plan: whether the plan's degrees cut each partitioned axis into whole parts."""

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

from stagedb.errors import UsageError
from stagedb.models.kinds.head_sizes import sizes_like
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.nearest_plans import Misfit, nearest
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.strategies import crossed, rules
from stagedb.plans.strategy_files import MESH, parse_strategy

MOST = 64
"""The largest degree or micro-batch that is tried as a way out."""


def check_strategy(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError if a strategy cuts an axis into parts that are not whole, or moves heads that ranks copy.

    sizes: the model's symbols, such as H for the heads.
    """
    if not plan.options.strategy:
        return
    _check_heads_moved(plan, sizes)
    if "E" in sizes:
        check_routed(plan.options)
    lengths = _lengths(plan, sizes)
    for where, axis, over in _cuts(plan):
        parts = prod(getattr(plan, mesh_axis) for mesh_axis in over)
        odd = next((length for length in lengths.get(axis, ()) if length % parts), None)
        if odd is not None:
            ranks = " x ".join(f"{mesh_axis} {getattr(plan, mesh_axis)}" for mesh_axis in over)
            words = [mesh_axis for mesh_axis in over if getattr(plan, mesh_axis) > 1]
            words += ["micro_batch_size"] if axis == "batch" else []
            raise Misfit(
                f"the strategy's {where} cut {axis} into {ranks} parts, and {odd} is not divisible by {parts}",
                [
                    side
                    for word in words
                    for side in nearest(
                        word, getattr(plan, word), MOST, partial(_divides, plan, sizes, axis, over, word)
                    )
                ],
                lead="take",
                last="; or leave the axis out there",
            )


def _divides(
    plan: PlanFields, sizes: Mapping[str, int], axis: str, over: tuple[str, ...], word: str, number: int
) -> bool:
    """Whether mesh axes cut an axis into whole parts if a word of the plan has this number."""
    changed = {each: getattr(plan, each) for each in (*MESH, "micro_batch_size")} | {word: number}
    lengths = _lengths(plan, sizes) | {"batch": (changed["micro_batch_size"] * changed["dp"],)}
    parts = prod(changed[each] for each in over)
    return all(length % parts == 0 for length in lengths.get(axis, ()))


def check_routed(options: GraphOptions) -> None:
    """Raise UsageError if a strategy moves tokens between operators to other ranks: experts take them from their usual
    ranks.
    """
    strategy, usual = parse_strategy(options.strategy), rules(options, own=False)["between"]
    rule = strategy.regions.get("between")
    if rule is None or all(rule.get(axis, ()) == usual.get(axis, ()) for axis in ("batch", "seq")):
        return
    raise UsageError(
        f"the strategy moves tokens between operators, and experts expect them in their usual place: leave "
        f"regions: between out, or set it to {{batch: [{', '.join(usual['batch'])}], seq: [{', '.join(usual['seq'])}]}}"
    )


def _cuts(plan: PlanFields) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The tables, axes and mesh axes of a strategy, but for heads in their usual place; then cuts on the way."""
    strategy = parse_strategy(plan.options.strategy)
    for table, by_region in (("regions", strategy.regions), ("weights", strategy.weights)):
        for region, rule in by_region.items():
            for axis, over in rule.items():
                if not (axis == "kv_heads" and over == ("tp",)):
                    yield f"{table} of {region}", axis, over
    for region in crossed(plan.options):
        yield f"weights of {region}, on their way to operators,", "hidden", ("tp",)


def _lengths(plan: PlanFields, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The lengths of axes without padding, all ranks together. The ffn axis is also that of shared experts."""
    names = {"heads": ("A",), "kv_heads": ("KV",), "head_dim": ("D",), "hidden": ("H",), "ffn": ("F", "FS")}
    like = {axis: tuple(name for word in each for name in sizes_like(sizes, word)) for axis, each in names.items()}
    model = {axis: tuple(sizes[name] for name in each if sizes.get(name)) for axis, each in like.items()}
    return {"batch": (plan.micro_batch_size * plan.dp,), "seq": (plan.seq_len,), **model}


def _check_heads_moved(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError if a strategy moves key/value heads, and ranks hold copies of these."""
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
                f"the strategy moves key/value heads, and {ranks} is above their number, {sizes['KV']}, so that "
                "ranks hold copies: take fewer ranks there, or leave attention out of the strategy"
            )
