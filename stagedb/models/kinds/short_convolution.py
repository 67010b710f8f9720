"""A gated short convolution (LFM2): one matmul in, a gate, a depthwise convolution over few tokens, a gate, one out.

The rows of the matmul in are those of each channel together: its gate before the convolution, the one behind it, and
its value. So ranks of tp have whole channels, as engines deal them (vllm, `ShortConv`, which merges three columns).
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import (
    Architecture,
    Branch,
    KindWord,
    LayerPart,
    ShardingChoices,
    SizeSymbol,
    Table,
    Values,
)
from stagedb.models.kinds.state_space import cached, left_regions, scanned_rows

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

NAME = "short_convolution"

CHANNELS = ("batch", "seq", "short_channels")
VALUES = (*CHANNELS, "short_value")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("convolution")
    bias = values["conv_bias"] is True
    rows = ("short_channels", "short_parts", "hidden")
    made = shared.linear(t, "attn.in_proj", x, rows, (*CHANNELS, "short_parts"), bias, style.linear)
    before, behind, value = (t.activation(f"attn.{word}", VALUES) for word in ("gate_in", "gate_out", "values"))
    t.emit("attn.split", ops.state_space.SplitParts(("short_value",) * 3), (made,), before, behind, value)
    given, y = t.activation("attn.gated_in", VALUES), t.activation("attn.gated_out", VALUES)
    t.emit("attn.gated_in", ops.Multiply(), (before, value), given)
    t.enter("convolution_core")
    made = _convolved(t, style, given, bias)
    t.enter("convolution")
    t.emit("attn.gated_out", ops.Multiply(), (behind, made), y)
    return shared.row_linear(t, style, "attn.wo", y, ("hidden", "short_channels", "short_value"), bias)


def _convolved(t: "Tracer", style: "Style", x: "Tensor", bias: bool) -> "Tensor":
    held = [t.weight("attn.conv.weight", ("short_channels", "short_value", "conv_width"), rows=2)]
    if bias:
        held.append(t.weight("attn.conv.bias", VALUES[2:], rows=2))
    y = t.activation("attn.conv", VALUES)
    kept = (cached(t, "attn.conv", ("batch", "conv_width", *VALUES[2:]), "act"),) if style.serves else ()
    operator = ops.state_space.ShortConvolution("", *VALUES[2:], "conv_width", keeps=style.serves)
    t.emit("attn.conv", operator, (x, *held), y, *kept)
    return y


def _parameters(card: Architecture, values: Values) -> int:
    biases = 5 * card.hidden if values["conv_bias"] else 0
    return 4 * card.hidden**2 + card.hidden * int(values["conv_width"]) + biases


def _rows(choices: ShardingChoices) -> Table:
    """Ranks of tp have whole channels, those of sp gather the sequence."""
    return scanned_rows(choices, "convolution", "short_channels")


SHORT_CONVOLUTION = LayerPart(
    name=NAME,
    forward=_forward,
    parameters=_parameters,
    words={
        "conv_width": KindWord("the positions that the short convolution reads", 3, most=64),
        "conv_bias": KindWord("whether the convolution and the matmuls in and out have biases", False),
    },
    symbols={
        "SC": SizeSymbol(
            "short_channels",
            "channels of a gated short convolution",
            lambda card: card.hidden if card.word("conv_width", NAME) else 0,
        ),
    },
    axes={"short_channels": "SC", "short_parts": "3", "short_value": "1"},
    rows=_rows,
    left=left_regions("convolution", "ranks of tp have whole channels"),
    alone="reads values of the tokens before its own, which ranks of cp do not send each other",
    exchanged="channels",
)
