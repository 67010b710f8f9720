"""What a backward computes again, instead of reading it from memory."""

from typing import Annotated, Literal

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect

RECOMPUTE_MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""The parts of a layer that Megatron-Core can compute again, by its names."""


@aspect
class Recompute:
    """Words that choose the layers which recompute activations."""

    recompute_every: Annotated[
        int,
        WordSpec(
            "Recompute only in every K-th layer of a stage.",
            property="recompute in every n-th layer of a stage",
            metavar="K",
            least=1,
        ),
    ] = 1
    """Layers are counted from 1 on their stage (torchtitan's `selective_ac_option`)."""
    recompute_first: Annotated[
        int | None,
        WordSpec(
            "Recompute only in the first N layers of a stage, or of each of its chunks.",
            property="recompute only in the first layers of each chunk of a stage; absent: no limit",
            metavar="N",
            least=1,
            unset="all",
        ),
    ] = None
    """Megatron-LM's method block of full recomputation (`recompute_num_layers`): N layers of each chunk, or all of a
    chunk with fewer."""


@aspect
class RecomputeOptions:
    """Words that choose what a layer recomputes."""

    recompute: Annotated[
        Literal["none", "full", "core", "pointwise", "operators", "modules"],
        WordSpec(
            "What a layer's backward computes again: all, the attention core, all but matmuls, the operators that "
            f"{Word('recompute_operators')} names, or Megatron-Core's modules that {Word('recompute_modules')} names.",
            property="what the backward computes again: none, full, core, pointwise, operators or modules",
            needs="gradients",
        ),
    ] = "none"
    """`full`: the layer. `core`: scores, softmax and context of attention (Korthikanti et al. 2022, section 5).
    `pointwise`: all but matmuls and fused attention, whose results are kept (torch's selective
    checkpointing). `operators`: those that `recompute_operators` names. `modules`: those that `recompute_modules`
    names."""
    recompute_operators: Annotated[
        tuple[str, ...],
        WordSpec(
            "Operators of a layer, each with all operators under its name, such as attn_norm,ffn.gate.",
            property="the operators that the backward computes again",
            needs="gradients",
            metavar="NAME,…",
        ),
    ] = ()
    """Names inside the layer (`ffn.gate`; `attn` is all of attention), sorted, each once."""
    recompute_modules: Annotated[
        tuple[str, ...],
        WordSpec(
            "Megatron-Core's modules of a layer to recompute, such as layernorm,moe_act.",
            property="Megatron-Core's modules that the backward computes again",
            needs="gradients",
            metavar="NAME,…",
        ),
    ] = ()
    """Some of `RECOMPUTE_MODULES`, sorted, each once (as Megatron-Core's option)."""
    early_stop: Annotated[
        bool | None,
        WordSpec(
            "Recompute only what the backward reads, or everything.",
            property="whether recomputing stops at what the backward reads; absent: the recipe's default",
            needs="gradients",
            unset="torch: early-stop; megatron: all",
        ),
    ] = None
