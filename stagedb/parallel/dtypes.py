"""Which number format each class of tensors has, and how many bytes an element of it takes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from stagedb.errors import UsageError

WIDTHS: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "int64": 8, "bool": 1}
"""Bytes of one element, by name."""

FORMATS = ("bf16", "fp16", "fp32")
"""The names that a plan may choose from."""

FIXED: Mapping[str, str] = {"fp32": "fp32", "int64": "int64", "bool": "bool"}
"""Classes whose format no plan changes: logits in the loss, token ids, masks."""


@dataclass(frozen=True)
class Dtypes:
    """The format of each dtype class of a graph.

    act: activations and the compute itself. param: parameters as they are stored. grad: gradients as the backward
    leaves them. reduce: gradients on the wire. opt: optimizer moments (and master weights, where a recipe keeps them).
    """

    act: str = "bf16"
    param: str = "bf16"
    grad: str = "bf16"
    reduce: str = "bf16"
    opt: str = "bf16"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name = getattr(self, field.name)
            if name not in FORMATS:
                option = "--dtype" if field.name == "act" else f"--{field.name}-dtype"
                raise UsageError(f"unknown number format {name!r}: {option} is one of {', '.join(FORMATS)}")

    @classmethod
    def of(
        cls,
        recipe: str,
        dtype: str = "bf16",
        *,
        param: str | None = None,
        grad: str | None = None,
        reduce: str | None = None,
        opt: str | None = None,
    ) -> "Dtypes":
        """The recipe's habit around one compute format; what is given by name wins.

        torch: parameters as the compute, gradients and moments as the parameters, reduced as they are.
        megatron: gradients, their reduction and the optimizer's state in fp32.
        """
        param = param or dtype
        if recipe == "megatron":
            grad = grad or "fp32"
            opt = opt or "fp32"
        else:
            grad = grad or param
            opt = opt or param
        return cls(act=dtype, param=param, grad=grad, reduce=reduce or grad, opt=opt)

    def names(self) -> dict[str, str]:
        """Format of every dtype class, the fixed ones included."""
        return {**FIXED, **dataclasses.asdict(self)}

    def widths(self) -> dict[str, int]:
        """The symbols `e_<class>` of expressions: bytes of an element."""
        return {f"e_{name}": WIDTHS[format_] for name, format_ in dataclasses.asdict(self).items()}
