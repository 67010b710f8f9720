"""What is done with the context of all heads before the matmul back: a norm, and gates from a matmul of their own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Architecture, KindWord, Values

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.style import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

VALUES, HEADS = "values", "heads"
"""A gate for each value of the context, or one a head."""

CONTEXT_WORDS: Mapping[str, KindWord] = {
    "context_norm": KindWord(
        "whether the results of all heads of a token are normalised before the matmul back", False
    ),
    "gate": KindWord(
        "a matmul of its own whose function multiplies the results of heads: one for each value, or one a head",
        "",
        (VALUES, HEADS),
    ),
    "gate_function": KindWord("the function of that gate", "sigmoid", ("sigmoid", "softplus")),
}
"""What a layer kind may set for the context."""


def gates_of(t: "Tracer", style: "Style", values: Values, x: "Tensor", context: tuple[str, ...]) -> "Tensor | None":
    """The gates before their function. context: the axes of the context."""
    if not values["gate"]:
        return None
    made = context if values["gate"] == VALUES else context[:-1]
    return shared.linear(t, "attn.wg", x, (*made[2:], "hidden"), made, form=style.linear)


def finished(t: "Tracer", values: Values, context: "Tensor", gates: "Tensor | None") -> "Tensor":
    """The context as the matmul back reads it."""
    if values["context_norm"]:
        context = shared.norm_over(t, "attn.context_norm", context, 2)
    if gates is None:
        return context
    function = str(values["gate_function"])
    shares, y = t.activation("attn.gates.shares", gates.axes), t.activation("attn.gated", context.axes)
    t.emit("attn.gates.shares", ops.Activation(function, from_result=function == "sigmoid"), (gates,), shares)
    t.emit("attn.gated", ops.Multiply(), (context, shares), y)
    return y


def context_parameters(card: Architecture, values: Values, heads: int, size: int) -> int:
    """Parameters of the norm and of the gates' matmul. heads, size: those of the context."""
    gates = {"": 0, VALUES: heads * size, HEADS: heads}[str(values["gate"])]
    return card.hidden * gates + (heads * size if values["context_norm"] else 0)


def check_context(card: Architecture, values: Values) -> None:
    """Raise UsageError for words that do not suit each other."""
    if values["gate"] and values["gated"]:
        raise UsageError(f"{card.name}: gate and gated are two ways to gate heads: leave one out")
    if values["gate_function"] != "sigmoid" and not values["gate"]:
        raise UsageError(f"{card.name}: gate_function is for a gate of its own matmul: set gate")
