"""A feed-forward: one matmul up (two where it is gated), an activation, one matmul back."""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import (
    Architecture,
    Branch,
    KindWord,
    LayerPart,
    ShardingChoices,
    SizeSymbol,
    Table,
    UserRegion,
    Values,
)

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

LEARNED = "xielu"
"""The activation with two learned numbers a layer."""

INNER = ("batch", "seq", "ffn")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("ffn")
    inner = _inner(t, card, style, values, x)
    if values["inner_norm"]:
        inner = shared.norm_over(t, "ffn.inner_norm", inner, 1)
    made = shared.row_linear(t, style, "ffn.w2", inner, ("hidden", "ffn"), _biased(card, values))
    if values["down_scale"] in (0.0, 1.0):
        return made
    t.enter("between")
    whole = made.result if made.bias is None else shared.add(t, "ffn.biased", made.result, made.bias)
    return Branch(shared.scaled(t, "ffn.down_scale", whole, float(values["down_scale"])))


def _biased(card: Architecture, values: Values) -> bool:
    return values["ffn_bias"] == "all" if values["ffn_bias"] else card.linear_bias


def _inner(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> "Tensor":
    """The inner activation, up to the matmul back."""
    bias = _biased(card, values)
    if card.mlp == "plain":
        up = shared.linear(t, "ffn.w1", x, ("ffn", "hidden"), INNER, bias, style.linear)
        y = t.activation("ffn.activation", INNER)
        if card.activation == LEARNED:
            learned = tuple(t.weight(f"ffn.{word}.weight", ("one",)) for word in ("above", "below"))
            t.emit("ffn.activation", ops.XIELU(), (up, *learned), y)
            return y
        t.emit("ffn.activation", ops.Activation(card.activation), (up,), y)
        return y
    packed = values["gate_up"] == "fused"
    axes, scale = (("ffn", "hidden"), ("ffn", "two", "hidden")), float(values["gate_scale"])
    return shared.gated(t, card, style, "ffn", x, INNER, *axes, bias, packed, scale)


def _parameters(card: Architecture, values: Values) -> int:
    up, width = 2 if card.mlp == "gated" else 1, int(values.get("ffn", 0)) or card.ffn
    biases = up * width + card.hidden if _biased(card, values) else 0
    learned = (2 if card.activation == LEARNED else 0) + (width if values["inner_norm"] else 0)
    return (up + 1) * card.hidden * width + biases + learned


def _check_values(card: Architecture, values: Values) -> None:
    check_width(card, values)
    if values["gate_scale"] and card.mlp != "gated":
        raise UsageError(f"{card.name}: gate_scale is for feed-forwards with gates, and mlp is {card.mlp}")


def _check(card: Architecture) -> None:
    if card.activation == LEARNED and card.mlp != "plain":
        raise UsageError(f"{card.name}: {LEARNED} is for plain feed-forwards: set mlp to plain")


def check_width(card: Architecture, values: Values) -> None:
    """Raise UsageError for a feed-forward without a width."""
    if not card.ffn and not values.get("ffn"):
        raise UsageError(f"{card.name}: ffn must be positive, because layers have a feed-forward, not {card.ffn}")


def _rows(choices: ShardingChoices) -> Table:
    return {"ffn": {"batch": ("dp",), "seq": ("cp",), "ffn": ("tp",)}}


FEED_FORWARD = LayerPart(
    name="feed_forward",
    forward=_forward,
    parameters=_parameters,
    check=_check,
    check_values=_check_values,
    words={
        "ffn": KindWord("the width of the feed-forward (0: the card's)", 0),
        "ffn_bias": KindWord(
            "the matmuls of a feed-forward with biases; without it linear_bias decides", "", ("none", "all")
        ),
        "inner_norm": KindWord("whether the values that the matmul back reads are normalised before", False),
        "gate_up": KindWord("whether one matmul makes gate and up", "", ("apart", "fused")),
        "gate_scale": KindWord("the factor of gates before the activation (0: none)", 0.0),
        "down_scale": KindWord("the factor of the result (0: none)", 0.0),
    },
    symbols={"F": SizeSymbol("ffn", "width of the feed-forward block", lambda card: card.ffn)},
    axes={"ffn": "F", "two": "2", "one": "1"},
    rows=_rows,
    user={"ffn": UserRegion(("batch", "seq", "ffn", "hidden"))},
)
