"""The number format of each class of tensors, and of the operands of matmuls."""

from typing import Annotated, Literal

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect

FORMATS = ("bf16", "fp16", "fp32")
"""The names that a plan may choose from."""


@aspect
class Formats:
    """The format of each class of tensors. The words of a plan for them end in `_dtype`."""

    act: Annotated[
        str,
        WordSpec(
            "Activations, and every format without an option of its own.",
            property="number format of activations",
            name="dtype",
            choices=FORMATS,
        ),
    ] = "bf16"
    """Activations and the compute itself."""
    param: Annotated[
        str,
        WordSpec(
            "Parameters.",
            property="number format of parameters",
            name="param_dtype",
            choices=FORMATS,
            unset=f"{Word('dtype')}; torch: fp32 with fp16",
            metavar="DTYPE",
        ),
    ] = "bf16"
    """Parameters in memory."""
    grad: Annotated[
        str,
        WordSpec(
            "Gradients.",
            property="number format of gradients",
            needs="gradients",
            name="grad_dtype",
            choices=FORMATS,
            unset="torch: as parameters; megatron: fp32",
            metavar="DTYPE",
        ),
    ] = "bf16"
    """Gradients that the backward writes."""
    reduce: Annotated[
        str,
        WordSpec(
            "Gradients while they are reduced.",
            property="number format of gradients on the wire",
            needs="gradients",
            name="reduce_dtype",
            choices=FORMATS,
            unset="as gradients",
            metavar="DTYPE",
        ),
    ] = "bf16"
    opt: Annotated[
        str,
        WordSpec(
            "Optimizer moments.",
            property="number format of the optimizer's state",
            needs="optimizer",
            name="opt_dtype",
            choices=("bf16", "fp32"),
            unset="torch: as parameters; megatron: fp32",
            metavar="DTYPE",
        ),
    ] = "bf16"
    master: Annotated[
        str,
        WordSpec(
            "The optimizer's own copy of parameters.",
            property="number format of master copies of parameters; none: there are none",
            needs="optimizer",
            name="master_dtype",
            choices=("none", "fp32"),
            unset="torch: none; megatron: fp32 unless parameters are fp32",
        ),
    ] = "none"
    """The copy of the parameters that the optimizer updates, or `none`."""
    logits: Annotated[
        str,
        WordSpec(
            "Logits in the loss and their gradient.",
            property="number format of the logits that the loss reads",
            name="logits_dtype",
            choices=FORMATS,
            metavar="DTYPE",
        ),
    ] = "fp32"
    """Tensors in the loss with the size of the vocabulary."""
    cache: Annotated[
        str,
        WordSpec(
            "Keys, values and latents in the caches of requests.",
            property="number format of the caches of requests",
            needs="cache",
            name="cache_dtype",
            choices=("same", "fp8_e4m3"),
            listed=f"same (as {Word('dtype')}) or fp8_e4m3",
        ),
    ] = "same"
    """What kernels read from a cache; they compute in the format of activations."""


@aspect
class PrecisionOptions:
    """The word for the number format of the operands of matmuls."""

    matmul_dtype: Annotated[
        Literal["same", "fp8"],
        WordSpec(
            f"Operands of linear layers: in {Word('dtype')}, or cast to fp8.",
            property="operands of matmuls of linear layers: same or fp8",
            noun="format of matmuls",
            listed=f"same (as {Word('dtype')}) or fp8",
        ),
    ] = "same"
    """Only linear layers inside layers. fp8 is e4m3 in the forward, e5m2 for gradients (Micikevicius et al. 2022). In
    serving, where nothing updates weights, they are stored in fp8."""
    weight_dtype: Annotated[
        Literal["same", "int4", "int4_symmetric", "mxfp4", "nvfp4"],
        WordSpec(
            "Stored weights of linear layers in serving, which multiply in "
            f"{Word('dtype')}: int4 (AWQ), int4_symmetric (GPTQ), mxfp4 (experts alone), nvfp4.",
            property="number format of stored weights of linear layers: same, int4, int4_symmetric, mxfp4 or nvfp4",
            noun="format of stored weights",
            listed=f"same (as {Word('param_dtype')}, or {Word('matmul_dtype')}), int4, int4_symmetric, mxfp4 or nvfp4",
        ),
    ] = "same"
    """Only weights of linear layers inside layers, with mxfp4 only those of routed experts. Numbers have 4 bits, and
    groups of them share a scale (`stagedb.ir.packed_weights.PACKED`)."""
