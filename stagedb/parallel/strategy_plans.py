"""Whether a user's strategy suits a model, and a plan of it: what it names is there, and what it moves can be moved."""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.parallel.custom import REGIONS, Strategy, parse_strategy

if TYPE_CHECKING:
    from stagedb.graph.block import LaidOut
    from stagedb.graph.step import Tie
    from stagedb.parallel.plan import Plan

SAME = {"shared_ffn": "ffn"}
"""Tensor axes that a strategy calls by another name."""


def check_named(strategy: Strategy, blocks: tuple["LaidOut", ...], model: str) -> None:
    """Raise UsageError where a strategy names what a model does not have, so that nothing would come of it."""
    found: dict[str, set[str]] = {}
    for op in (op for block in blocks for op in block.operations):
        axes = {SAME.get(axis, axis) for t in op.inputs if t.role == "weight" for axis in t.axes}
        found.setdefault(op.region, set()).update(axes)
    here = [region for region in REGIONS if region in found]
    for table, rules in (("regions", strategy.regions), ("weights", strategy.weights)):
        for region in rules:
            if region not in found:
                raise UsageError(
                    f"the strategy's {table} name {region!r}, of which {model} has no operator: it has "
                    f"{', '.join(here)}{' (experts follow --ep and --expert-tp)' if 'experts' in found else ''}"
                )
    for region, rule in strategy.weights.items():
        missing = [axis for axis in rule if axis not in found[region]]
        if missing:
            raise UsageError(
                f"the strategy keeps weights of {region} in parts of {' and '.join(missing)}, and in {model} none of "
                f"them has that axis: "
                + (f"they have {', '.join(sorted(found[region]))}" if found[region] else "there are none")
            )


def check_routed(strategy: Strategy, usual: Mapping[str, tuple[str, ...]]) -> None:
    """Raise UsageError where tokens are not between operators as experts take them. usual: the rules that they know."""
    rule = strategy.regions.get("between")
    if rule is None or all(rule.get(axis, ()) == usual.get(axis, ()) for axis in ("batch", "seq")):
        return
    raise UsageError(
        f"the strategy moves tokens between operators, and experts take them from where they usually are: leave "
        f"regions: between out, or say {{batch: [{', '.join(usual['batch'])}], seq: [{', '.join(usual['seq'])}]}} there"
    )


def check_tie(tie: "Tie", blocks: tuple["LaidOut", ...]) -> None:
    """Raise UsageError where the two ends of a tied weight are kept, or their gradients summed, in different ways."""
    lies = [
        (block.layouts[name].texts(), block.layouts[block.gradients[name].name].partials())
        for name in (tie.first, tie.second)
        for block in blocks
        if name in block.gradients
    ]
    if lies[0] != lies[1]:
        raise UsageError(
            "the embedding and the head of this model are one weight, and the strategy has them in different ways: "
            "give `embedding` and `head` the same rules for batch and seq, and their weights for vocab and hidden"
        )


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
