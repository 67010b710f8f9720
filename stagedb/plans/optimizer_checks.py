"""Checks of the words of a plan for the optimizer."""

from collections.abc import Mapping

from stagedb.errors import UsageError
from stagedb.mentions import Word, one_of
from stagedb.plans.graph_options import MUONS, PYTORCH_OPTIMIZERS
from stagedb.plans.plan_fields import PlanFields


def check_optimizer(plan: PlanFields) -> None:
    """Raise UsageError for Muon over matrices that tp partitions, in a framework without a usual way for these, and for
    weights that are each updated by one rank, where that does not follow from coordinates on cp and dp."""
    options = plan.options
    unnamed = options.optimizer in MUONS and options.muon_tp == "usual" and options.framework.muon_tp is None
    if unnamed and plan.tp > 1:
        raise UsageError(
            f"{options.framework.title} has no usual way for Muon over matrices that {Word('tp', plan.tp)} partitions: "
            f"name {one_of('muon_tp', ('blockwise', 'duplicated'))}, or take {Word('tp', 1)}"
        )
    if options.owns_layers:
        _check_owners(plan)


def _check_owners(plan: PlanFields) -> None:
    """Raise UsageError where ranks of one place on cp and dp own different experts, and for losses that are scaled."""
    if plan.dtypes.param == "fp16":
        raise UsageError(
            f"Muon in {plan.options.framework.title} scales no loss: {Word('optimizer', plan.options.optimizer)} needs "
            f"{Word('dtype', 'bf16')}, or take {Word('optimizer', 'adamw')}"
        )
    within = min(("tp", "cp", "dp"), key=plan.rank_order.index) == "tp" and plan.ep % plan.tp == 0
    if "tp" in plan.expert_axes and plan.tp > 1 and plan.ep > 1 and not within:
        raise UsageError(
            f"ranks of tp {plan.tp} hold other experts, and only where ep is a multiple of tp, and tp is the innermost "
            f"axis, do they own the same weights: {Word('optimizer', 'dist-muon')} needs such a plan, or take "
            f"{Word('optimizer', 'muon')}"
        )


WHOLE = ("adamw-8bit", "adafactor")
"""Optimizers that would take a DTensor by its whole shape."""


def check_states(plan: PlanFields) -> None:
    """Raise UsageError for states that an optimizer with its own formats, or of whole weights, does not have."""
    name, dtypes = plan.options.optimizer, plan.dtypes
    if name not in PYTORCH_OPTIMIZERS:
        return
    for word, degree in (("tp", plan.tp), ("ep", plan.ep)):
        if degree > 1 and name in WHOLE:
            raise UsageError(
                f"{name} knows no DTensor, and ranks of {word} {degree} have parts of weights: "
                f"{Word('optimizer', name)} needs {Word(word, 1)}, or take {Word('optimizer', 'adamw')}"
            )
    if dtypes.master != "none":
        raise UsageError(
            f"{name} updates the weights themselves: {Word('optimizer', name)} needs {Word('master_dtype', 'none')}, "
            f"not {dtypes.master}"
        )
    if dtypes.opt != dtypes.param or dtypes.grad != dtypes.param:
        raise UsageError(
            f"{name} decides the formats of its states by the weights: {Word('optimizer', name)} needs "
            f"{Word('opt_dtype', dtypes.param)} and {Word('grad_dtype', dtypes.param)}, or leave both out"
        )


def check_offload(plan: PlanFields) -> None:
    """Raise UsageError for formats other than fp32, in which Megatron-Core's host keeps and updates everything."""
    if plan.options.offload != "optimizer":
        return
    wanted = {"grad": "fp32", "reduce": "fp32", "opt": "fp32", "master": "fp32"}
    words = {"grad": "grad_dtype", "reduce": "reduce_dtype", "opt": "opt_dtype", "master": "master_dtype"}
    for field, format in wanted.items():
        given = getattr(plan.dtypes, field)
        if given == format:
            continue
        if field == "master" and plan.dtypes.param == "fp32":
            raise UsageError(
                f"the host keeps fp32 copies of narrower weights, and these are fp32: {Word('offload', 'optimizer')} "
                f"needs {Word('dtype', 'bf16')}, or leave it out"
            )
        raise UsageError(
            f"the host updates fp32 weights by fp32 gradients and moments: {Word('offload', 'optimizer')} needs "
            f"{Word(words[field], format)}, not {given}"
        )


def check_gathered(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for matrices of keys and values that several ranks of tp have copies of. sizes: the model's
    symbols.
    """
    if plan.options.gathers_for_muon and plan.tp > sizes.get("KV", plan.tp):
        raise UsageError(
            f"ranks of tp {plan.tp} have copies of {sizes['KV']} heads of keys and values, and no parts to gather: "
            f"{Word('muon_tp', 'duplicated')} needs {Word('tp', sizes['KV'])} at most, or take "
            f"{Word('muon_tp', 'blockwise')}"
        )
