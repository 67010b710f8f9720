"""The recurrent mixer of Griffin (De et al. 2024) and RecurrentGemma: two matmuls in, a short convolution, RG-LRU.

One matmul in makes values, which pass the convolution and the recurrence; the other one gates that multiply the result.
The two gates of the recurrence are made by matmuls of blocks of values. Ranks of tp have whole blocks.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Architecture, Branch, KindWord, LayerPart, SizeSymbol, Values
from stagedb.models.kinds.state_space import CONVOLUTION, LEFT, UNDIVIDED, cached, scan_rows

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

OF_TOKEN = ("recurrence_blocks", "recurrence_values")
VALUES = ("batch", "seq", *OF_TOKEN)


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("scan")
    gate, made = (
        shared.linear(t, f"attn.{word}", x, (*OF_TOKEN, "hidden"), VALUES, True, style.linear)
        for word in ("gate", "in_proj")
    )
    t.enter("scan_core")
    read = _convolved(t, style, values, made)
    block = ("recurrence_blocks", "recurrence_values", "recurrence_gates")
    opened, passes = (
        shared.linear(t, f"attn.{word}", read, block, ("batch", "seq", "recurrence_blocks", "recurrence_gates"), True)
        for word in ("input_gate", "decay_gate")
    )
    rate, y = t.weight("attn.rate", OF_TOKEN, rows=2), t.activation("attn.scan", VALUES)
    kept = (cached(t, "attn.scan", ("batch", *OF_TOKEN), "fp32"),) if style.serves else ()
    operator = ops.gated_recurrence.GatedRecurrence(style.serves)
    t.emit("attn.scan", operator, (read, opened, passes, rate), y, *kept)
    t.enter("scan")
    gated = t.activation("attn.gated", VALUES)
    t.emit("attn.gated", ops.Gate(card.activation), (gate, y), gated)
    return shared.row_linear(t, style, "attn.wo", gated, ("hidden", *OF_TOKEN), True)


def _convolved(t: "Tracer", style: "Style", values: Values, x: "Tensor") -> "Tensor":
    """Each value convolved over the sequence, without a function behind."""
    held = [t.weight("attn.conv.weight", (*OF_TOKEN, "conv_width"), rows=2)]
    if values["conv_bias"]:
        held.append(t.weight("attn.conv.bias", OF_TOKEN, rows=2))
    y = t.activation("attn.conv", VALUES)
    kept = (cached(t, "attn.conv", ("batch", "conv_before", *OF_TOKEN), "act"),) if style.serves else ()
    operator = ops.gated_recurrence.BeforeConvolution("", *OF_TOKEN, "conv_width", keeps=style.serves)
    t.emit("attn.conv", operator, (x, *held), y, *kept)
    return y


def _parameters(card: Architecture, values: Values) -> int:
    blocks, size = int(values["recurrence_blocks"]), int(values["recurrence_values"])
    width = blocks * size
    matmuls = 3 * card.hidden * width + 2 * width + card.hidden
    gates = 2 * width * size + 2 * width
    return matmuls + gates + width * (int(values["conv_width"]) + (1 if values["conv_bias"] else 0)) + width


def _check(card: Architecture, values: Values) -> None:
    if int(values["conv_width"]) < 2:
        raise UsageError(f"{card.name}: conv_width must be 2 or more with gated_recurrence, not {values['conv_width']}")


GATED_RECURRENCE = LayerPart(
    name="gated_recurrence",
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={
        "recurrence_blocks": KindWord("the blocks of values, each with matmuls of its own for its gates"),
        "recurrence_values": KindWord("the values of a block"),
        **CONVOLUTION,
    },
    symbols={
        "UB": SizeSymbol(
            "recurrence_blocks", "blocks of a gated recurrence", lambda card: card.word("recurrence_blocks")
        ),
        "UV": SizeSymbol(
            "recurrence_values", "values of a block of a gated recurrence", lambda card: card.word("recurrence_values")
        ),
    },
    axes={
        "recurrence_blocks": "UB",
        "recurrence_values": "UV",
        "recurrence_gates": "UV",
        "conv_before": "CW - 1",
    },
    rows=scan_rows,
    left=LEFT,
    alone=UNDIVIDED,
    exchanged="blocks",
)
