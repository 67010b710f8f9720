"""What a backward computes again instead of keeping it."""

from typing import Annotated, Literal

from stagedb.plans.aspects.word import About, aspect


@aspect
class Recompute:
    """Which layers recompute."""

    recompute_every: Annotated[
        int,
        About(
            "Recompute in every K-th layer of a stage alone.",
            property="recompute in every n-th layer of a stage",
            metavar="K",
            least=1,
        ),
    ] = 1
    """Layers are counted from 1 on their stage (torchtitan's `selective_ac_option`)."""


@aspect
class RecomputeOptions:
    """What a layer recomputes."""

    recompute: Annotated[
        Literal["none", "full", "core", "pointwise", "operators"],
        About(
            "What a layer's backward computes again: all, the attention core, all but matmuls, or what "
            "--recompute-operators names.",
            property="what a backward computes again: none, full, core, pointwise or operators",
            needs="gradients",
        ),
    ] = "none"
    """`full`: the layer. `core`: scores, softmax and context of attention (Korthikanti et al. 2022, section 5).
    `pointwise`: all but matmuls and fused attention, which are kept (torch's selective checkpointing). `operators`:
    those that `recompute_operators` names."""
    recompute_operators: Annotated[
        tuple[str, ...],
        About(
            "Operators of a layer, each with all under its name, such as attn_norm,ffn.gate.",
            property="the operators that it computes again",
            needs="gradients",
            metavar="NAME,…",
        ),
    ] = ()
    """Names inside the layer (`ffn.gate`; `attn` is all of attention), sorted, each once."""
    early_stop: Annotated[
        bool | None,
        About(
            "Recompute only what the backward reads, or all.",
            property="whether recomputing stops at what the backward reads; absent: as the recipe does",
            needs="gradients",
            unset="torch: early-stop; megatron: all",
        ),
    ] = None
