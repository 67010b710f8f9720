"""Whether a model can follow a user's strategy: all names exist, and tensors that belong together are treated alike."""

from collections.abc import Iterable

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.graphs.block import LaidOut, summed
from stagedb.graphs.optimizer_step import Tie
from stagedb.graphs.sharing import BucketRule
from stagedb.ir.symbolic_graph import SymOp
from stagedb.mentions import Word
from stagedb.models.kinds.head_sizes import usual_name
from stagedb.models.kinds.layer_inputs import VOCABULARY
from stagedb.plans.strategy_files import REGIONS, Strategy

SAME = {"shared_ffn": "ffn", VOCABULARY: "vocab"}
"""Tensor axes that a strategy calls by another name."""

EXPERTS = f" (experts follow {Word('ep')} and {Word('expert_tp')})"


def axes_by_region(blocks: tuple[LaidOut, ...]) -> dict[str, frozenset[str]]:
    """The regions of a model, each with the axes of its weights as a strategy calls them.

    blocks: of the model, with the layouts of their tensors.
    """
    found: dict[str, set[str]] = {}
    for op in (op for block in blocks for op in block.operations):
        axes = {
            SAME.get(usual_name(axis), usual_name(axis)) for t in op.inputs if t.role == "weight" for axis in t.axes
        }
        found.setdefault(op.region, set()).update(axes)
    return {region: frozenset(axes) for region, axes in found.items()}


def check_named(strategy: Strategy, blocks: tuple[LaidOut, ...], model: str) -> None:
    """Raise UsageError if a strategy names something that a model does not have, so that it would have no effect.

    blocks: of the model. model: its name, for the error.
    """
    found = axes_by_region(blocks)
    here = [region for region in REGIONS if region in found]
    for table, rules in (("regions", strategy.regions), ("weights", strategy.weights)):
        for region in rules:
            if region not in found:
                raise UsageError(
                    f"the strategy's {table} name {shown(region)}, of which {model} has no operator: it has "
                    f"{', '.join(here)}{EXPERTS if 'experts' in found else ''}"
                )
    for region, rule in strategy.weights.items():
        missing = [axis for axis in rule if axis not in found[region]]
        if missing:
            raise UsageError(
                f"the strategy keeps weights of {region} in parts of {' and '.join(missing)}, and in {model} none of "
                f"them has that axis: "
                + (f"they have {', '.join(sorted(found[region]))}" if found[region] else "there are none")
            )


def check_synced(ops: Iterable[SymOp], alone: Iterable[BucketRule]) -> None:
    """Raise UsageError if gradients are reduced only over dp, or only over cp: both have ranks of ep among others.

    A reduction without the ranks of ep would need groups that are in one of the two and hold the same experts. ops: of
    the graph. alone: the rules for buckets over one of the two axes.
    """
    used = {op.name for op in ops}
    found = next((bucket for bucket in alone if bucket.name in used), None)
    if found is not None:
        whole, other = ("cp", "dp") if found.axis == "data" else ("dp", "cp")
        raise UsageError(
            f"with this strategy the gradients of some weights are reduced only over {other}, and "
            f"{Word('ep_sync', False)} takes the ranks of ep out of dp and cp together: let the strategy cut batch "
            f"over dp and seq over cp wherever it has weights, keep no weight in parts over {whole}, or leave "
            f"{Word('ep_sync', False)} or {Word('strategy')} out"
        )


def tied_alike(tie: Tie, blocks: tuple[LaidOut, ...]) -> tuple[LaidOut, ...]:
    """The blocks with both ends of a tied weight partial on the same mesh axes, so that their gradients can be added.

    Raises UsageError if a strategy keeps the two ends in different ways.
    """
    kept = {weight.name: block for block in blocks for weight in block.weights}
    ends = {name: kept[name] for name in (tie.first, tie.second)}
    first, second = (block.layouts[name] for name, block in ends.items())
    if first != second:
        raise UsageError(
            "the embedding and the head of this model are one weight, and the strategy keeps it in two ways: give the "
            "same of vocab and hidden for both, under weights: embedding and weights: head"
        )
    made = {name: block for name, block in ends.items() if name in block.gradients}
    partial = {name: block.layouts[block.gradients[name].name].partials() for name, block in made.items()}
    common = set.intersection(*map(set, partial.values())) if partial else set()
    alike = {
        block.plan.name: summed(block, name, [axis for axis in partial[name] if axis not in common])
        for name, block in made.items()
    }
    return tuple(alike.get(block.plan.name, block) for block in blocks)
