"""Checks of the words of a plan that only training has: adapters, the loss, the optimizer, recomputation."""

from collections.abc import Mapping, Sequence
from math import prod

from stagedb.errors import UsageError
from stagedb.files.texts import nth
from stagedb.mentions import Word, one_of
from stagedb.plans.aspects import LAYOUT_WORDS
from stagedb.plans.graph_options import MOST_PARTS, MUONS, PYTORCH_OPTIMIZERS
from stagedb.plans.nearest_plans import Misfit, Way, nearest
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.strategies import rules

# Checks of the words of a plan for adapters.


def check_adapters(plan: PlanFields) -> None:
    """Raise UsageError for a rank of adapters that no layer has."""
    if plan.lora_rank != LAYOUT_WORDS["lora_rank"].default and not plan.options.lora:
        raise UsageError(
            f"no layer has an adapter of rank {plan.lora_rank}: name some with {Word('lora')}, or leave "
            f"{Word('lora_rank')} out"
        )


def check_rank(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for adapters that are wider than what they read. sizes: those of the model."""
    if plan.options.lora and plan.lora_rank > sizes["H"]:
        raise UsageError(
            f"adapters of rank {plan.lora_rank} are wider than the hidden size {sizes['H']}: {Word('lora_rank')} takes "
            f"at most {sizes['H']}"
        )


# Checks of a loss that is made in parts of the tokens.


def check_loss(plan: PlanFields) -> None:
    """Raise UsageError for parts that do not divide the tokens of a rank, and for tokens that the head and the loss
    cut in two ways."""
    count = plan.options.loss_chunks
    if count == 1:
        return
    table = rules(plan.options)
    ways = {(table[region].get("batch", ()), table[region].get("seq", ())) for region in ("head", "loss")}
    if len(ways) > 1:
        raise UsageError(
            "the strategy cuts the tokens of the head and those of the loss in two ways, so that their parts are not "
            f"the same tokens: give both regions the same axes of batch and seq, or leave {Word('loss_chunks')} out"
        )
    degrees = {"dp": plan.dp, "cp": plan.cp, "tp": plan.tp}
    degrees |= {"cpr": plan.cp // plan.ulysses, "cpa": plan.ulysses}
    ((batch, sequence),) = ways
    tokens = plan.micro_batch_size * plan.dp * plan.seq_len // prod(degrees[axis] for axis in (*batch, *sequence))
    if tokens % count:
        raise Misfit(
            f"the {tokens} tokens of a micro-batch on a rank are not divisible by {Word('loss_chunks', count)}",
            nearest("loss_chunks", count, min(tokens, MOST_PARTS), lambda parts: tokens % parts == 0),
        )


# Checks of the words of a plan for the optimizer.


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


# Checks of the words of a plan that choose the layers which recompute.


def check_recomputed_layers(plan: PlanFields) -> None:
    """Raise UsageError if layers are chosen that have nothing to recompute, or if two words choose them."""
    chosen = [word for word, given in _layers(plan).items() if given]
    if chosen and plan.options.recompute == "none":
        word = chosen[0]
        raise UsageError(
            f"{Word(word, getattr(plan, word))} has nothing to recompute: choose it with {Word('recompute')}, or leave "
            f"{Word(word)} out"
        )
    if len(chosen) > 1:
        every, first = (Word(word, getattr(plan, word)) for word in chosen)
        raise Misfit(
            f"{every} and {first} choose the layers that recompute twice",
            ways=[
                Way({"recompute_every": 1}, f"leave {Word('recompute_every')} out"),
                Way({"recompute_first": None}, f"leave {Word('recompute_first')} out"),
            ],
        )


def check_recomputed_of(plan: PlanFields, chunks: Sequence[int], stages: Sequence[int]) -> None:
    """Raise UsageError if no layer of the model is among those that are chosen, or a number exceeds all chunks.

    chunks, stages: the number of layers of each.
    """
    most = max(stages)
    if plan.recompute_every > most:
        raise UsageError(
            f"no stage has more than {most} layers, so that no layer is the {nth(plan.recompute_every)}: "
            f"{Word('recompute_every')} takes at most {most}"
        )
    deepest = max(chunks)
    if plan.recompute_first is not None and plan.recompute_first > deepest:
        where = "stage" if plan.virtual_stages == 1 else "chunk of a stage"
        raise UsageError(
            f"no {where} has more than {deepest} layers, so that none has a first {plan.recompute_first}: "
            f"{Word('recompute_first')} takes at most {deepest}"
        )


def _layers(plan: PlanFields) -> dict[str, bool]:
    """Whether each word that chooses layers is given."""
    return {"recompute_every": plan.recompute_every > 1, "recompute_first": plan.recompute_first is not None}
