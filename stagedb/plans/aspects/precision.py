"""The number format of each class of tensors, and of the operands of matmuls."""

from typing import Annotated, Literal

from stagedb.plans.aspects.word import About, aspect

FORMATS = ("bf16", "fp16", "fp32")
"""The names that a plan may choose from."""


@aspect
class Formats:
    """The format of each class of tensors. A plan's words for them end in `_dtype`."""

    act: Annotated[
        str,
        About(
            "Activations, and every format that no other option gives.",
            property="number format of activations",
            name="dtype",
            choices=FORMATS,
        ),
    ] = "bf16"
    """Activations and the compute itself."""
    param: Annotated[
        str,
        About(
            "Parameters.",
            property="of parameters",
            name="param_dtype",
            choices=FORMATS,
            unset="--dtype; torch: fp32 with fp16",
            metavar="DTYPE",
        ),
    ] = "bf16"
    """Parameters as they are stored."""
    grad: Annotated[
        str,
        About(
            "Gradients.",
            property="of gradients",
            needs="gradients",
            name="grad_dtype",
            choices=FORMATS,
            unset="torch: as parameters; megatron: fp32",
            metavar="DTYPE",
        ),
    ] = "bf16"
    """Gradients as the backward leaves them."""
    reduce: Annotated[
        str,
        About(
            "Gradients while they are reduced.",
            property="of gradients on the wire",
            needs="gradients",
            name="reduce_dtype",
            choices=FORMATS,
            unset="as gradients",
            metavar="DTYPE",
        ),
    ] = "bf16"
    opt: Annotated[
        str,
        About(
            "Optimizer moments.",
            property="of the optimizer's state",
            needs="optimizer",
            name="opt_dtype",
            choices=("bf16", "fp32"),
            unset="torch: as parameters; megatron: fp32",
            metavar="DTYPE",
        ),
    ] = "bf16"
    master: Annotated[
        str,
        About(
            "The optimizer's own copy of parameters.",
            property="of master copies of parameters; none: there are none",
            needs="optimizer",
            name="master_dtype",
            choices=("none", "fp32"),
            unset="torch: none; megatron: fp32 unless parameters are",
        ),
    ] = "none"
    """The copy of the parameters that the optimizer updates, or `none`."""
    logits: Annotated[
        str,
        About(
            "Logits in the loss and their gradient.",
            property="of the logits that the loss reads",
            name="logits_dtype",
            choices=FORMATS,
            metavar="DTYPE",
        ),
    ] = "fp32"
    """What the loss makes of the vocabulary's size."""


@aspect
class PrecisionOptions:
    """The format of what matmuls read."""

    matmul_dtype: Annotated[
        Literal["same", "fp8"],
        About(
            "Operands of linear layers: as --dtype, or cast to fp8.",
            property="what matmuls of linear layers read: same or fp8",
            noun="format of matmuls",
            listed="same (as --dtype) or fp8",
        ),
    ] = "same"
    """Linear layers inside layers alone. fp8 is e4m3 in the forward, gradients in e5m2 (Micikevicius et al. 2022)."""
