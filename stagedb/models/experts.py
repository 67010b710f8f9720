"""A mixture of experts in place of a feed-forward: router, dispatch, experts as batched matmuls, combine (Shazeer et
al. 2017; Fedus et al. 2022), and experts that every token passes (Dai et al. 2024).

Two regions beside those of a dense layer: `router`, where tokens are at home, and `experts`, where experts are; between
them the collective matcher sends tokens to the ranks of their experts and back.
"""

from typing import Protocol

from stagedb.ir.operators import (
    E4M3,
    Activation,
    Add,
    Cast,
    ChoiceSoftmax,
    Combine,
    Dispatch,
    Einsum,
    Gate,
    Multiply,
    Quantize,
    Route,
    TopK,
    WeightedSum,
)
from stagedb.ir.tensors import Tensor, Tracer

HIDDEN = ("batch", "seq", "hidden")
CHOICES = ("batch", "seq", "choices")
SLOTS = ("experts", "slots", "hidden")


class Mixture(Protocol):
    """What a mixture asks of a model card."""

    @property
    def activation(self) -> str: ...
    @property
    def shared_ffn(self) -> int: ...


class Kernels(Protocol):
    """What it asks of a style (`stagedb.models.blocks.Style`)."""

    @property
    def pack_gate(self) -> bool: ...
    @property
    def fp8(self) -> bool: ...
    @property
    def eager(self) -> bool: ...


def routing_tables() -> tuple[Tensor, ...]:
    """The order of a rank's choices by expert and its inverse, where a framework keeps them beside the layers."""
    return tuple(Tensor(f"stage.{word}", ("own_tokens", "choices"), "int64", "buffer") for word in ("order", "inverse"))


def mixture(t: Tracer, card: Mixture, style: Kernels, x: Tensor) -> Tensor:
    """The layer's feed-forward result (batch, seq, hidden) of its normalised input."""
    t.region = "router"
    logits = _matmul(t, "ffn.router", x, ("experts", "hidden"), ("batch", "seq", "experts"), False)
    best, chosen = t.activation("ffn.topk", CHOICES), t.activation("ffn.chosen", CHOICES, "int64")
    t.emit("ffn.topk", TopK(), (logits,), best, chosen)
    wide, shares = t.activation("ffn.wide", CHOICES, "fp32"), t.activation("ffn.shares", CHOICES, "fp32")
    weights, order = t.activation("ffn.weights", CHOICES), t.activation("ffn.order", CHOICES, "int64")
    t.emit("ffn.wide", Cast(), (best,), wide)
    t.emit("ffn.shares", ChoiceSoftmax(), (wide,), shares)
    t.emit("ffn.weights", Cast(), (shares,), weights)
    t.emit("ffn.order", Route(), (chosen,), order)
    slots = t.activation("ffn.dispatch", SLOTS)
    t.emit("ffn.dispatch", Dispatch(), (x, order), slots)

    t.region = "experts"
    inner = _gated(t, card, style, "ffn.experts", slots, ("experts",), ("experts", "slots", "expert_ffn"))
    out = _matmul(t, "ffn.experts.w2", inner, ("experts", "expert_ffn", "hidden"), SLOTS, style.fp8)

    t.region = "router"
    back, y = t.activation("ffn.combine", (*CHOICES, "hidden")), t.activation("ffn.sum", HIDDEN)
    t.emit("ffn.combine", Combine(), (out, order), back)
    t.emit("ffn.sum", WeightedSum(), (back, weights), y)
    return y if card.shared_ffn == 0 else _with_shared(t, card, style, x, y)


def _with_shared(t: Tracer, card: Mixture, style: Kernels, x: Tensor, routed: Tensor) -> Tensor:
    """The result of the experts that every token passes, added to that of the routed ones."""
    t.region = "ffn"
    inner = _gated(t, card, style, "ffn.shared", x, (), ("batch", "seq", "shared_ffn"))
    shared = _matmul(t, "ffn.shared.w2", inner, ("hidden", "shared_ffn"), HIDDEN, style.fp8)
    t.region = "between"
    y = t.activation("ffn.both", HIDDEN)
    t.emit("ffn.both", Add(), (routed, shared), y)
    return y


def _gated(
    t: Tracer,
    card: Mixture,
    style: Kernels,
    name: str,
    x: Tensor,
    leading: tuple[str, ...],
    inner: tuple[str, ...],
) -> Tensor:
    """Gate and up, and their product; weights have the `leading` axes first, then as registered (hidden last)."""
    features = inner[-1:]
    ends = (*features, "hidden") if not leading else ("hidden", *features)
    y = t.activation(f"{name}.gate", inner)
    if style.pack_gate:
        weight = (*leading, *features, "two", "hidden")
        both = _matmul(t, f"{name}.w13", x, weight, (*inner, "two"), style.fp8)
        t.emit(f"{name}.gate", Gate(card.activation), (both,), y)
        return y
    gate = _matmul(t, f"{name}.w1", x, (*leading, *ends), inner, style.fp8)
    up = _matmul(t, f"{name}.w3", x, (*leading, *ends), inner, style.fp8)
    if not style.eager:
        t.emit(f"{name}.gate", Gate(card.activation), (gate, up), y)
        return y
    active = t.activation(f"{name}.activation", inner)
    t.emit(f"{name}.activation", Activation(card.activation), (gate,), active)
    t.emit(f"{name}.gate", Multiply(), (active, up), y)
    return y


def _matmul(t: Tracer, name: str, x: Tensor, weight_axes: tuple[str, ...], out: tuple[str, ...], fp8: bool) -> Tensor:
    """A linear layer without bias; one of experts has a matrix each, and the experts are its parameter's rows."""
    packed = "two" in weight_axes and "experts" not in weight_axes
    weight = t.weight(f"{name}.weight", weight_axes, rows=2 if packed else 1)
    y = t.activation(name, out)
    operands: tuple[Tensor, ...] = (x, weight)
    if fp8:
        words = (("cast_input", x), ("cast_weight", weight))
        operands = tuple(t.narrow(f"{name}.{word}", each, Quantize(), E4M3) for word, each in words)
    t.emit(name, Einsum(x.axes, weight_axes, out), operands, y)
    return y
