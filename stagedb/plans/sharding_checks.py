"""Sharding in a plan, over data-parallel ranks and by a user's strategy: checks that suggest the nearest valid plan."""

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

from stagedb.errors import UsageError
from stagedb.frameworks import Framework
from stagedb.mentions import Word
from stagedb.models.kinds.head_sizes import sizes_like
from stagedb.plans.dtypes import FORMAT_BYTES
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.nearest_plans import Misfit, Numbers, Way, nearest
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.strategies import crossed, rules
from stagedb.plans.strategy_files import MESH, parse_strategy
from stagedb.schedules import ACTIVE, task_positions


def check_sharding(plan: PlanFields) -> None:
    """Raise UsageError if `zero` or `hsdp` does not suit the ranks of dp and cp."""
    zero, ranks = plan.options.zero, plan.dp * plan.cp
    without = Way({"hsdp": 1}, f"leave {Word('hsdp')} out")
    if zero and ranks == 1:
        raise Misfit(
            f"zero {zero} with dp 1 has nothing to shard",
            [Numbers("dp", range(2, 65))],
            [Way({"zero": 0}, f"leave {Word('zero')} out")],
            lead="take",
        )
    if plan.hsdp == 1:
        return
    framework = plan.options.framework
    if zero not in framework.hybrid_stages:
        raise Misfit(
            f"hsdp {plan.hsdp} makes copies of what is sharded, and zero {zero} "
            + ("shards nothing" if zero == 0 else f"has no such copies in the {framework.name} recipe"),
            ways=[*(Way({"zero": stage}) for stage in framework.hybrid_stages[:1]), without],
        )

    def fits(copies: int) -> bool:
        # Parameters are sharded over dp and cp together, but copies of the shards are along dp alone.
        return plan.dp % copies == 0 and copies < ranks

    if plan.hsdp == ranks:
        raise Misfit(
            f"hsdp {plan.hsdp} makes a copy for each rank, so that ranks share nothing",
            [Numbers("hsdp", range(ranks - 1, 1, -1), fits)],
            [Way({"zero": 0, "hsdp": 1}, f"{Word('zero', 0)} without {Word('hsdp')}")],
            lead="take",
        )
    if not fits(plan.hsdp):
        raise Misfit(
            f"hsdp {plan.hsdp} does not divide dp {plan.dp} into equal copies",
            nearest("hsdp", plan.hsdp, plan.dp, fits, least=2),
            [without],
        )


def check_parts(plan: PlanFields) -> None:
    """Raise UsageError if `reshard_to` does not suit the ranks: the limits of `fully_shard`, and experts."""
    ranks, shards = plan.options.reshard_to, plan.shards
    if ranks is None:
        return
    without = Way({"reshard_to": None}, f"leave {Word('reshard_to')} out")
    if plan.tp > 1:
        raise Misfit(
            f"with tp {plan.tp} weights are distributed tensors, which {plan.options.framework.title} cannot reshard "
            "to fewer ranks",
            ways=[Way({"tp": 1}), without],
        )
    if plan.pp > 1:
        raise Misfit(
            f"the pipeline runtime of {plan.options.framework.title} leaves units gathered in the backward, and "
            f"stagedb knows parts for the backward without a pipeline only: reshard_to {ranks} does not suit "
            f"pp {plan.pp}",
            ways=[Way({"pp": 1}), without],
        )
    if plan.ep > 1:
        raise Misfit(
            f"experts that ep {plan.ep} divides are sharded by other ranks than other weights, and reshard_to {ranks} "
            "has one group for all",
            ways=[Way({"ep": 1}), without],
        )
    if shards % ranks or ranks >= shards:
        raise Misfit(
            f"reshard_to {ranks} does not divide the {shards} ranks that shard parameters into several equal groups",
            nearest("reshard_to", ranks, shards, lambda each: shards % each == 0 and each < shards, least=2),
            [without],
        )


def check_version(plan: PlanFields) -> None:
    """Raise UsageError if `fsdp_version` 1 does not suit the pipeline."""
    if plan.options.fsdp_version == 1 and plan.pp > 1:
        raise Misfit(
            "a pipeline's runtime drives units of fully_shard, and stagedb knows FullyShardedDataParallel without a "
            f"pipeline only: {Word('fsdp_version', 1)} does not suit pp {plan.pp}",
            ways=[Way({"pp": 1}), Way({"fsdp_version": 2}, f"leave {Word('fsdp_version', 1)} out")],
        )


def check_units(plan: PlanFields) -> None:
    """Raise UsageError if `expert_unit` does not suit the ranks of experts, or what runs at the same time."""
    if not plan.options.expert_unit:
        return
    without = Way({"expert_unit": False}, f"leave {Word('expert_unit', True)} out")
    shards, within = plan.edp // plan.hsdp, f" of each of {plan.hsdp} copies" if plan.hsdp > 1 else ""
    if shards == 1:
        raise Misfit(
            f"with ep {plan.ep} each of the experts is on one rank{within} alone, so that a unit of experts gathers "
            "and reduces nothing",
            nearest("ep", plan.ep, plan.expert_ranks, lambda ep: plan.expert_ranks % ep == 0 and ep < plan.ep),
            [without],
        )
    if plan.pp > 1 and plan.options.recompute in ("pointwise", "operators"):
        raise Misfit(
            f"with pp {plan.pp} the hooks of a unit of experts do not run in the backward as in its forward, which "
            f"selective checkpoints of {plan.options.framework.title} refuse: "
            f"{Word('recompute', plan.options.recompute)} does not suit it",
            ways=[Way({"recompute": "full", "recompute_operators": ()}, str(Word("recompute", "full"))), without],
        )
    if plan.overlap_experts:
        raise Misfit(
            "a unit of experts is gathered where its layer's forward or backward begins, and "
            f"{Word('overlap_experts', True)} runs two of them in turns",
            ways=[Way({"overlap_experts": False}, f"leave {Word('overlap_experts', True)} out"), without],
        )


def other_gathers(zero: int, virtual_stages: int, framework: Framework) -> str | None:
    """A sentence on what a framework's runtime gathers in another way than the graph has it; None if nothing.

    zero, virtual_stages: words of the plan.
    """
    if zero < 2 or virtual_stages <= ACTIVE or not framework.posts_ahead:
        return None
    return (
        f"with zero {zero} the pipeline runtime of {framework.title} keeps {ACTIVE} chunks of a stage "
        f"gathered, and gathers others in turns; here all {virtual_stages} remain gathered, as if it kept all, "
        f"so that memory is higher and gathers are fewer than there: virtual_stages {ACTIVE} or less are exact"
    )


def other_reductions(plan: PlanFields) -> str | None:
    """What a framework's runtime does not compute or reduce, although training needs it; None if nothing."""
    framework, zero = plan.options.framework, plan.options.zero
    ranks = plan.dp * (plan.cp if zero or plan.options.cp_grad_sync else 1) // (1 if plan.options.ep_sync else plan.ep)
    if framework.reduces_halves or ranks == 1 or not plan.runs_halves:
        return None
    same = "with zero 2, or a schedule with whole backwards, both do the same"
    if zero < 2:
        return (
            f"the second half of a split backward in {framework.title} sets gradients without the hooks of "
            "DistributedDataParallel, which then does not reduce them; here all gradients are reduced, as training "
            f"needs: {same}"
        )
    if not plan.options.resharded:
        return _narrow_sums(plan)
    return (
        f"the first half of a split backward in {framework.title} looks for the weights before their units are "
        "gathered, so that the second half leaves out the gradients of units that were freed after the forward; here "
        f"all gradients are computed, as training needs: {same}"
    )


def _narrow_sums(plan: PlanFields) -> str | None:
    """The messages over tp of gradients that no first half of a backward adds to sums of a wider format."""
    widths = [FORMAT_BYTES[plan.dtypes.names()[name]] for name in ("reduce", "grad")]
    found = (
        task.kind.half and not task.kind.sends and mark.last and not mark.passed
        for order in plan.tasks()
        for task, mark in zip(order, task_positions(order), strict=True)
    )
    if plan.tp == 1 or not plan.options.sp or widths[0] <= widths[1] or not any(found):
        return None
    return (
        f"{plan.options.framework.title} adds up the gradients of a split backward in their own format until the first "
        "half of a later micro-batch adds them to sums of the reduction's format; in this order a chunk has no such "
        "half, so that its gradients cross tp in their own format; here they cross in the reduction's: put a first "
        "half behind a second one, or take whole backwards"
    )


def check_clipping(plan: PlanFields) -> None:
    """Raise UsageError if the framework has no norm of all gradients.

    Gradients of experts, or under tp, are DTensors only where FSDP shards all of them. A stage reduces the norms of its
    chunks together, and here each chunk has its own messages.
    """
    if not plan.options.clip_norm:
        return
    without = Way({"clip_norm": False}, f"leave {Word('clip_norm', True)} out")
    if plan.virtual_stages > 1:
        raise Misfit(
            f"with virtual_stages {plan.virtual_stages} a stage's chunks have one norm, and messages are by chunk",
            ways=[Way({"virtual_stages": 1}), without],
        )
    for word in ("ep", "tp"):
        degree = getattr(plan, word)
        if degree > 1 and plan.options.zero < 2:
            raise Misfit(
                f"with {word} {degree} some gradients are DTensors and others are not, and one norm cannot have both",
                ways=[Way({"zero": 3}), Way({word: 1}), without],
            )


# A user's strategy in a plan: whether the plan's degrees cut each partitioned axis into whole parts.

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
