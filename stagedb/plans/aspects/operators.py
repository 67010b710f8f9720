"""The workflow of a step, the framework that a graph follows, and the operators that its layers have."""

from typing import Annotated, Literal

from stagedb.frameworks import FRAMEWORKS, either
from stagedb.plans.aspects.word import WordSpec, aspect
from stagedb.workflows import DEFAULT, WORKFLOWS

_WORKFLOWS = "; ".join(f"{name}, {workflow.help}" for name, workflow in WORKFLOWS.items())


@aspect
class OperatorOptions:
    """Words that choose the workflow, the framework and the operators of layers."""

    workflow: Annotated[
        str,
        WordSpec(
            f"What a step runs: {_WORKFLOWS}.",
            property=f"what a step runs: {either(list(WORKFLOWS))}",
            choices=tuple(WORKFLOWS),
        ),
    ] = DEFAULT.name
    """A name of `stagedb.workflows.WORKFLOWS`."""
    recipe: Annotated[
        str,
        WordSpec(
            "The framework that the graph follows.",
            property=f"the framework that the graph follows: {either(list(FRAMEWORKS))}",
            metavar="|".join(FRAMEWORKS),
        ),
    ] = "torch"
    """A name of `stagedb.frameworks.FRAMEWORKS`."""
    attention: Annotated[
        Literal["fused", "math"],
        WordSpec("One flash-like kernel, or matmuls and a softmax.", property="fused or math"),
    ] = "fused"
    """The backward of the fused kernel recomputes the scores."""
    latents: Annotated[
        Literal["usual", "expanded", "absorbed"],
        WordSpec(
            "Latent attention in serving: keys and values made of all cached latents, or queries that read the latents "
            "themselves.",
            property="latent attention in serving: expanded, absorbed, or usual (absorbed in steps of decoding)",
            unset="absorbed in decode and speculative, expanded elsewhere",
        ),
    ] = "usual"
    """Absorbed: the matrices of keys and values are applied to queries and results instead (DeepSeek-AI 2024)."""
    draft: Annotated[
        Literal["usual", "own", "other"],
        WordSpec(
            "Where a draft comes from: the model's own layers for further tokens make the next one in the same step "
            "(own), or another model, or n-grams, which are no part of the step (other).",
            property="where a draft comes from: own layers of the model, other, or usual (own where it has some)",
            unset="own if the model has such layers",
            needs="draft",
        ),
    ] = "usual"
    """Each layer for a further token drafts one, as DeepSeek-V3's does (DeepSeek-AI 2024, section 5.4.3)."""
    clip_norm: Annotated[
        bool,
        WordSpec(
            "Scale gradients down to a largest norm before the optimizer's step.",
            property="gradients are scaled down to a largest norm",
            needs="optimizer",
        ),
    ] = False
    """torch's `clip_grad_norm_`. The norms of all gradients are reduced together, once on each axis that shards some,
    then as one number between stages; those of experts that ranks divide are apart (torchtitan's `clip_grad_norm_`).
    Its passes over the gradients are part of the optimizer's operators."""
    loss_chunks: Annotated[
        int,
        WordSpec(
            "Parts of a micro-batch's tokens, each with its logits, loss and gradients in the forward, one by one.",
            property="parts of the tokens of a micro-batch whose logits are made one after another",
            least=1,
            needs="gradients",
        ),
    ] = 1
    """The logits of one part are there at a time. The gradients of the head and of its input are kept from the forward
    to the backward, as Liger's fused linear cross entropy keeps them (Hsu et al. 2024, arXiv 2410.10989)."""
    dropout: Annotated[
        float,
        WordSpec("Dropout probability.", property="probability of dropout", needs="gradients", metavar="P"),
    ] = 0.0
    """Above 0 the graph has dropout operators."""
    kernels: Annotated[
        Literal["fused", "eager"],
        WordSpec(
            "Fused element-wise kernels, or one kernel a primitive, as autograd runs them.",
            property="fused or eager element-wise kernels",
        ),
    ] = "fused"
