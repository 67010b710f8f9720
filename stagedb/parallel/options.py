"""The choices that change a graph's structure. Degrees, sizes, batches and dtypes do not: they stay symbols."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from stagedb.errors import UsageError

RecipeName = Literal["torch", "megatron"]


@dataclass(frozen=True)
class GraphOptions:
    """What, beside the model, makes a symbolic graph.

    recipe: whose habits the graph follows (`stagedb.parallel.recipes`).
    sp: sequence parallelism between the tensor-parallel regions (Korthikanti et al. 2022, section 4.2.2).
    attention: `fused` (one flash-like kernel, the backward recomputes the scores) or `math` (matmuls and a softmax).
    dropout: probability; above 0 the graph has dropout operators.
    kernels: `fused` element-wise kernels, or `eager` (one kernel a primitive, as plain autograd runs them).
    shared_input: one gather of a tensor-parallel region's input feeds q, k, v (and gate, up); False redistributes each
        on its own, which is what a tensor-parallel plan without a shared input module does.
    loss_parallel: the cross-entropy works on vocabulary-parallel logits; False gathers the logits first.
    recompute: what the backward of a layer computes again: nothing, the `full` layer, the attention `core` (scores,
        softmax, context; Korthikanti et al. 2022, section 5), or all `pointwise` operators (matmuls and fused attention
        are kept: torch's selective checkpointing).
    early_stop: recompute only what the backward reads; None is the recipe's habit (torch stops, Megatron does not).
    """

    recipe: RecipeName = "torch"
    sp: bool = False
    attention: Literal["fused", "math"] = "fused"
    dropout: float = 0.0
    kernels: Literal["fused", "eager"] = "fused"
    shared_input: bool = True
    loss_parallel: bool = True
    recompute: Literal["none", "full", "core", "pointwise"] = "none"
    early_stop: bool | None = None

    def __post_init__(self) -> None:
        if self.recipe not in ("torch", "megatron"):
            raise UsageError(f"unknown recipe {self.recipe!r}: --recipe is torch or megatron")
        if self.attention not in ("fused", "math"):
            raise UsageError(f"unknown attention {self.attention!r}: --attention is fused or math")
        if self.kernels not in ("fused", "eager"):
            raise UsageError(f"unknown kernels {self.kernels!r}: --kernels is fused or eager")
        if self.recompute not in ("none", "full", "core", "pointwise"):
            raise UsageError(f"unknown recompute {self.recompute!r}: --recompute is none, full, core or pointwise")
        if self.recompute == "core" and self.attention == "fused":
            raise UsageError(
                "the fused attention kernel recomputes its core already: --recompute core needs --attention math"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout {self.dropout} is not a probability: --dropout takes a number from 0 to below 1")
        if self.recipe == "megatron" and not self.shared_input:
            raise UsageError(
                "the megatron recipe has one fused matmul for q, k, v: --no-shared-input needs --recipe torch"
            )

    def to_dict(self) -> dict[str, object]:
        """The options as plain values, for digests and for the store."""
        return dataclasses.asdict(self)
