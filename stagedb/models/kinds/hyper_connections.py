"""Several residual streams (manifold-constrained hyper-connections, DeepSeek V4): (batch, seq, streams, hidden).

Each part reads a weighted sum of the streams. Its result is added to all of them, each with a weight, after a matrix
has mixed them. A projection of all streams of a token makes these weights, in fp32. The embedding is copied into all
streams, and the head merges them. Ranks have whole tokens: nothing here is partitioned over tp but, with sp, the
sequence.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import HIDDEN, Architecture, Branch, Part, Residual, Values

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

STREAMS = ("batch", "seq", "streams", "hidden")
"""The axes of the tensors between layers of a model with several streams."""

EACH, MATRIX = ("batch", "seq", "streams"), ("batch", "seq", "streams", "mixed_streams")

AXES = {"streams": "NS", "mixed_streams": "NS", "stream_weights": "NS*(NS + 2)", "three": "3"}
"""The size of each axis, as a text of the symbols."""


def copied(t: "Tracer", x: "Tensor") -> "Tensor":
    """The embedded tokens in all streams."""
    t.enter("between")
    y = t.activation("streams", STREAMS)
    t.emit("streams", ops.hyper_connections.CopyStreams(), (x,), y)
    return y


def merged(t: "Tracer", x: "Tensor") -> "Tensor":
    """The streams as one hidden state, with weights of the head's own."""
    t.enter("between")
    axes = ("batch", "seq", "mixed_streams")
    logits = _projected(t, "streams", x, axes)
    base = t.weight("streams.base.weight", axes[-1:])
    scale = t.weight("streams.scale.weight", ("one",))
    weights = t.activation("streams.weights", EACH, "fp32")
    t.emit("streams.weights", ops.hyper_connections.StreamGate(), (logits, base, scale), weights)
    return _read(t, "streams.merged", x, weights)


def _projected(t: "Tracer", name: str, x: "Tensor", out: tuple[str, ...]) -> "Tensor":
    """A projection of all streams of a token, which are normalised together, in fp32."""
    normal, rstd = (
        t.activation(f"{name}.normal", STREAMS, "fp32"),
        t.activation(f"{name}.rstd", ("batch", "seq"), "fp32"),
    )
    t.emit(f"{name}.normal", ops.UnitRMS(over=STREAMS[2:]), (x,), normal, rstd)
    weight_axes = (out[-1], *STREAMS[2:])
    weight = t.weight(f"{name}.fn.weight", weight_axes)
    y = t.activation(f"{name}.fn", out, "fp32")
    t.emit(f"{name}.fn", ops.Einsum(STREAMS, weight_axes, out), (normal, weight), y)
    return y


def _read(t: "Tracer", name: str, x: "Tensor", weights: "Tensor") -> "Tensor":
    y = t.activation(name, HIDDEN)
    t.emit(name, ops.hyper_connections.MergeStreams(), (x, weights), y)
    return y


def _forward(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    for word, part in (("attn", mixer), ("ffn", channel_mixer)):
        t.enter("between")
        name = f"{word}_streams"
        logits = _projected(t, name, x, ("batch", "seq", "stream_weights"))
        base = t.weight(f"{name}.base.weight", ("stream_weights",))
        scale = t.weight(f"{name}.scale.weight", ("three",))
        before = t.activation(f"{name}.before", EACH, "fp32")
        after, matrix = t.activation(f"{name}.after", EACH), t.activation(f"{name}.matrix", MATRIX)
        weights = ops.hyper_connections.StreamWeights(card.hyper_connection_rounds)
        t.emit(f"{name}.weights", weights, (logits, base, scale), before, after, matrix)
        read = _read(t, f"{name}.read", x, before)
        made = _result(t, card, style, word, part(shared.norm(t, card, style, f"{word}_norm", read)))
        mixed, y = t.activation(f"{name}.mixed", STREAMS), t.activation(f"{name}.add", STREAMS)
        out = ("batch", "seq", "mixed_streams", "hidden")
        t.emit(f"{name}.mixed", ops.Einsum(MATRIX, STREAMS, out), (matrix, x), mixed)
        t.emit(f"{name}.add", ops.hyper_connections.SpreadResult(), (mixed, made, after), y)
        x = y
    return x


def _result(t: "Tracer", card: Architecture, style: "Style", word: str, branch: Branch) -> "Tensor":
    """A part's result with its bias, its dropout and its factor."""
    t.enter("between")
    made = branch.result
    if branch.bias is not None:
        made = shared.add(t, f"{word}.biased", made, branch.bias)
    made = shared.dropout(t, style, f"{word}.dropout", made)
    return shared.scaled(t, f"{word}.scale", made, card.residual_scale)


def _weights_of(card: Architecture, logits: int, scales: int) -> int:
    """Parameters of a projection of all streams of a token to logits, with their base and scales."""
    return logits * (card.hyper_connections * card.hidden + 1) + scales


def of_head(card: Architecture) -> int:
    """Parameters that merge the streams behind the last layer."""
    return _weights_of(card, card.hyper_connections, 1) if card.hyper_connections else 0


SEVERAL = Residual(
    "hyper_connections",
    2,
    _forward,
    parameters=lambda card: 2 * _weights_of(card, card.hyper_connections * (card.hyper_connections + 2), 3),
    several=True,
)
