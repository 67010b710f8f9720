"""Operations for the forwards of all kinds: linear layers, norms, dropout, the residual stream."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stagedb.ir.operators import (
    E4M3,
    GATES,
    KEYS,
    Activation,
    Add,
    Cast,
    Dropout,
    Einsum,
    Gate,
    LayerNorm,
    MeanSquare,
    Multiple,
    Multiply,
    NormScale,
    Quantize,
    RMSNorm,
    Rsqrt,
    UnitLayerNorm,
    UnitRMS,
    over,
)
from stagedb.ir.operators.state_space import ScaledParts
from stagedb.ir.tensors import Tensor, Tracer
from stagedb.models.adapters import DOWN, SCALE, UP
from stagedb.models.kinds.part import HIDDEN, Architecture, Branch

if TYPE_CHECKING:
    from stagedb.ir.operators import PartAttention, RingAttention

# Styles: how a framework writes a model as kernels.

LinearFormat = Literal["", "fp8", "int4", "int4_symmetric", "mxfp4", "nvfp4"]
"""Formats of a linear layer. fp8 is that of both operands, the others are those of the stored weight alone."""


@dataclass(frozen=True)
class Style:
    """How a framework writes the same model as kernels.

    pack_qkv, pack_gate: one matmul makes q, k and v (gate and up). row_bias: a bias after a row-parallel matmul is
    added inside it, or after its result has been reduced. linear: the format of the linear layers of
    layers; empty: that of activations. fp8: both operands are cast to it. One of `PACKED`: the weight is stored so, and
    multiplied in the format of activations. experts: the same of routed experts.
    embedding_dropout: the region that gives the layout of its mask. core: the fused attention of ranks that share a
    sequence, if it differs from that of one rank. routing_tables: the order of tokens by expert is made once.
    gathers_projection: the projection before a layer that predicts a further token is gathered whole; else each rank
    has all of its weight. further_reads: what the first of these layers reads. logits_first: the logits of all
    predicted tokens come before their losses. latent_views: the latent of latent attention, and its values, are views
    of the matmul results that they are parts of. absorbs: queries of latent attention read the latents of a cache.
    latents: the region in which latents are made. sinks: the fused kernel knows sinks, or its result is rescaled for
    them. dispatch: what a token is sent to its experts for.
    copied_experts: whether some experts have copies, so that there are more of them than a token chooses from.
    loss_chunks: parts of the tokens whose logits are made, and differentiated, in turn.
    serves: sequences are requests, which want the token after their last one, not a loss.
    one_token: a step adds one token to each request. drafts: it checks a draft, so that all its tokens have logits.
    deals_keys: ranks of cp share the cache of each request, so that attention adds up their parts.
    narrow_tokens: tokens are sent to experts in fp8. dealers: the mesh axes whose ranks an expert's rank gets tokens
    from.
    """

    pack_qkv: bool
    pack_gate: bool
    row_bias: Literal["inside", "after"]
    linear: LinearFormat
    experts: LinearFormat
    embedding_dropout: Literal["embedding", "between"]
    attention: Literal["fused", "math"]
    eager: bool
    dropout: float
    loss_parallel: bool
    apart: bool
    explicit_mask: bool
    core: "RingAttention | PartAttention | None"
    serves: bool = False
    one_token: bool = False
    drafts: bool = False
    routing_tables: bool = False
    gathers_projection: bool = False
    further_reads: Literal["normalised", "stream"] = "normalised"
    logits_first: bool = False
    latent_views: bool = False
    absorbs: bool = False
    dispatch: Literal["copies", "ranks", "nodes"] = "copies"
    copied_experts: bool = False
    narrow_tokens: bool = False
    dealers: tuple[str, ...] = ()
    latents: Literal["attention", "between"] = "attention"
    sinks: Literal["kernel", "rescaled"] = "kernel"
    loss_chunks: int = 1
    deals_keys: bool = False


def linear(
    t: Tracer,
    name: str,
    x: Tensor,
    weight_axes: tuple[str, ...],
    out: tuple[str, ...],
    bias: bool = False,
    form: LinearFormat = "",
) -> Tensor:
    """A linear layer over named axes.

    The weight has the output's features first, as torch registers it. Where there is a matrix for each index of an axis
    (for each expert), that axis is first, and is the rows of the parameter. name: without the part's. weight_axes: of
    the weight. out: the axes of the result. bias: whether it has one. form: of the matmul, as in `Style.linear`.
    """
    batch = tuple(axis for axis in weight_axes if axis in out and axis in x.axes)
    features = tuple(axis for axis in weight_axes if axis in out and axis not in batch)
    stored = _stored(form) if t.caches else "param"  # nothing updates weights in serving
    weights: tuple[Tensor, ...] = (t.weight(f"{name}.weight", weight_axes, len(batch or features), stored),)
    if bias:
        weights = (*weights, t.weight(f"{name}.bias", (*batch, *features), rows=len(batch or features)))
    y = projected(t, name, x, weights, out, form)
    return _adapted(t, name, x, weight_axes, y) if t.adapts(f"{t.part}{name}") else y


def _stored(form: LinearFormat) -> str:
    """The dtype class of a weight that serving stores in the format of its matmul."""
    return (E4M3 if form == "fp8" else form) or "param"


def _adapted(t: Tracer, name: str, x: Tensor, weight_axes: tuple[str, ...], y: Tensor) -> Tensor:
    """The result `y` of a linear layer plus that of its adapter: `y + scale · B(A(x))`.

    name: the layer's. x: its input. weight_axes: the axes of its weight, of which A has those of the input, and B those
    of the result. Where the result is a part of the stream between layers, B and the sum are there too: ranks of tp
    then add the narrow result of A over their parts of the input, not the wide one of B.
    """
    inputs = tuple(axis for axis in weight_axes if axis in x.axes and axis not in y.axes)
    batch = tuple(axis for axis in weight_axes if axis in x.axes and axis in y.axes)
    outputs = tuple(axis for axis in weight_axes if axis not in x.axes)
    down = t.weight(f"{name}.{DOWN}.weight", (*batch, "lora", *inputs), len(batch) or 1)
    up = t.weight(f"{name}.{UP}.weight", (*batch, *outputs, "lora"), len(batch or outputs))
    read = over(KEYS, x.axes) if KEYS in y.axes else x.axes
    narrow = t.activation(f"{name}.{DOWN}", (*(axis for axis in read if axis not in inputs), "lora"))
    t.emit(f"{name}.{DOWN}", Einsum(read, down.axes, narrow.axes), (x, down), narrow)
    region, marks = t.region, t.marks
    if y.axes == HIDDEN:
        t.enter("between")
    wide = t.activation(f"{name}.{UP}", y.axes)
    t.emit(f"{name}.{UP}", Einsum(narrow.axes, up.axes, y.axes), (narrow, up), wide)
    scaled, total = t.activation(f"{name}.lora_scale", y.axes), t.activation(f"{name}.lora_sum", y.axes)
    t.emit(f"{name}.lora_scale", Multiple(SCALE), (wide,), scaled)
    t.emit(f"{name}.lora_sum", Add(), (y, scaled), total)
    t.enter(region, *marks)
    return total


def projected(
    t: Tracer, name: str, x: Tensor, weights: tuple[Tensor, ...], out: tuple[str, ...], form: LinearFormat = ""
) -> Tensor:
    """A linear layer with a weight, and perhaps a bias, that the block has.

    If its result has the keys of all positions (`kseq`), it reads as many. name: of the operation. weights: the weight,
    and the bias if there is one. out: the axes of the result. form: of the matmul, as in `Style.linear`.
    """
    weight, *bias = weights
    y = t.activation(name, out)
    inputs: tuple[Tensor, ...] = (x, weight)
    if form == "fp8" and t.caches:
        # Nothing differentiates: weights are stored so, and all readers of the input share a copy.
        inputs = (t.cast.get(x.name) or t.narrow(f"{name}.cast_input", x, Quantize(), E4M3), weight)
        t.cast[x.name] = inputs[0]
    elif form == "fp8":
        inputs = tuple(
            t.narrow(f"{name}.{word}", operand, Quantize(), E4M3)
            for word, operand in (("cast_input", x), ("cast_weight", weight))
        )
    read = over(KEYS, x.axes) if KEYS in out else x.axes
    t.emit(name, Einsum(read, weight.axes, out, bool(bias)), (*inputs, *bias), y)
    return y


def gated(
    t: Tracer,
    card: Architecture,
    style: Style,
    name: str,
    x: Tensor,
    inner: tuple[str, ...],
    weight_axes: tuple[str, ...],
    packed_axes: tuple[str, ...],
    bias: bool = False,
    packed: bool = False,
    scale: float = 0.0,
) -> Tensor:
    """Gate and up matmul, and the product of their results, with the axes `inner` (Shazeer 2020).

    The two weights have `weight_axes`; one weight for both, as a style or the checkpoint (`packed`) has it, has
    `packed_axes`. scale: what multiplies gates before the activation; 0: nothing. name: without the part's. bias:
    whether the matmuls have one.
    """
    packed, form = packed or style.pack_gate or style.serves, style.linear  # engines load both weights as one
    if packed:
        operands: tuple[Tensor, ...] = (linear(t, f"{name}.w13", x, packed_axes, (*inner, "two"), bias, form),)
    else:
        operands = tuple(linear(t, f"{name}.{word}", x, weight_axes, inner, bias, form) for word in ("w1", "w3"))
    operands = _scaled_gates(t, name, operands, scale)
    y = t.activation(f"{name}.gate", inner)
    if packed or not style.eager or card.activation in GATES:
        t.emit(f"{name}.gate", Gate(card.activation), operands, y)
        return y
    gate, up = operands
    active = t.activation(f"{name}.activation", inner)
    t.emit(f"{name}.activation", Activation(card.activation), (gate,), active)
    t.emit(f"{name}.gate", Multiply(), (active, up), y)
    return y


def _scaled_gates(t: Tracer, name: str, operands: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
    """Gate and up, or one tensor with both along its last axis, with the gates times a factor; 0 and 1: none."""
    if len(operands) == 2 or scale in (0.0, 1.0):
        return (scaled(t, f"{name}.gate_scale", operands[0], scale), *operands[1:])
    y = t.activation(f"{name}.gate_scale", operands[0].axes)
    t.emit(f"{name}.gate_scale", ScaledParts(("", ""), (scale, 1.0)), operands, y)
    return (y,)


def row_linear(t: Tracer, style: Style, name: str, x: Tensor, weight_axes: tuple[str, ...], bias: bool) -> Branch:
    """The matmul back to the hidden axis, and the bias if it is added later.

    name: without the part's. weight_axes: of the weight. bias: whether it has one.
    """
    inside = bias and style.row_bias == "inside"
    y = linear(t, name, x, weight_axes, HIDDEN, inside, style.linear)
    late = bias and not inside
    return Branch(y, t.weight(f"{name}.bias", ("hidden",)) if late else None)


def norm(
    t: Tracer,
    card: Architecture,
    style: Style,
    name: str,
    x: Tensor,
    weight_axes: tuple[str, ...] = (),
    biased: bool = True,
) -> Tensor:
    """The tensor normalised over the last axis.

    name: without the part's. weight_axes: the weight's axes; empty: the last axis. biased: a LayerNorm has a bias, if
    the model's norms have some.
    """
    token, last = x.axes[:-1], weight_axes or x.axes[-1:]
    if card.norm == "rmsnorm_no_weight":
        y = t.activation(name, x.axes)
        t.emit(name, UnitRMS(), (x,), y, t.activation(f"{name}.rstd", token, "fp32"))
        return y
    if card.norm == "layernorm_no_weight":
        y = t.activation(name, x.axes)
        mean, rstd = t.activation(f"{name}.mean", token, "fp32"), t.activation(f"{name}.rstd", token, "fp32")
        t.emit(name, UnitLayerNorm(), (x,), y, mean, rstd)
        return y
    weight = t.weight(f"{name}.weight", last, rows=len(last))
    y = t.activation(name, x.axes)
    if card.norm != "rmsnorm":
        biased = biased and card.norm == "layernorm"
        held = (weight, t.weight(f"{name}.bias", last, rows=len(last))) if biased else (weight,)
        mean, rstd = t.activation(f"{name}.mean", token, "fp32"), t.activation(f"{name}.rstd", token, "fp32")
        t.emit(name, LayerNorm(biased=biased), (x, *held), y, mean, rstd)
        return y
    if not style.eager:
        t.emit(name, RMSNorm(), (x, weight), y, t.activation(f"{name}.rstd", token, "fp32"))
        return y
    wide = t.activation(f"{name}.wide", x.axes, "fp32")
    square, rstd = t.activation(f"{name}.mean_square", token, "fp32"), t.activation(f"{name}.rstd", token, "fp32")
    normal, scaled = t.activation(f"{name}.normal", x.axes, "fp32"), t.activation(f"{name}.scaled", x.axes, "fp32")
    t.emit(f"{name}.wide", Cast(), (x,), wide)
    t.emit(f"{name}.mean_square", MeanSquare(), (wide,), square)
    t.emit(f"{name}.rstd", Rsqrt(), (square,), rstd)
    t.emit(f"{name}.normal", Multiply(), (wide, rstd), normal)
    t.emit(f"{name}.scaled", Multiply(), (normal, weight), scaled)
    t.emit(name, Cast(), (scaled,), y)
    return y


def norm_over(t: Tracer, name: str, x: Tensor, count: int) -> Tensor:
    """An RMSNorm over the last `count` axes, which ranks may hold parts of: all heads of a token (OLMo 2, MiniMax-M2).

    The squares of the parts on other ranks are added before the root. name: without the part's.
    """
    token, over = x.axes[:-count], x.axes[-count:]
    wide, weight = t.activation(f"{name}.wide", x.axes, "fp32"), t.weight(f"{name}.weight", over, rows=count)
    square, rstd = t.activation(f"{name}.mean_square", token, "fp32"), t.activation(f"{name}.rstd", token, "fp32")
    y = t.activation(name, x.axes)
    t.emit(f"{name}.wide", Cast(), (x,), wide)
    t.emit(f"{name}.mean_square", MeanSquare(over=over), (wide,), square)
    t.emit(f"{name}.rstd", Rsqrt(), (square,), rstd)
    t.emit(name, NormScale(over=over), (wide, rstd, weight), y)
    return y


def scaled(t: Tracer, name: str, x: Tensor, factor: float) -> Tensor:
    """`factor · x`; `x` itself for a factor of 0, which means none, and of 1.

    name: of the result, without the part's.
    """
    if factor in (0.0, 1.0):
        return x
    y = t.activation(name, x.axes)
    t.emit(name, Multiple(factor), (x,), y)
    return y


def dropout(t: Tracer, style: Style, name: str, x: Tensor) -> Tensor:
    """Dropout; `x` itself if nothing is dropped. name: of the result, without the part's."""
    if style.dropout == 0:
        return x
    y = t.activation(name, x.axes)
    t.emit(name, Dropout(style.dropout), (x,), y, t.activation(f"{name}.mask", x.axes, "bool"))
    return y


def add(t: Tracer, name: str, *terms: Tensor) -> Tensor:
    """The sum, of the first term's axes.

    name: of the result, without the part's. terms: tensors of equal axes; a bias may have fewer.
    """
    y = t.activation(name, terms[0].axes)
    t.emit(name, Add(), terms, y)
    return y


def residual(t: Tracer, card: Architecture, style: Style, name: str, x: Tensor, branch: Branch) -> Tensor:
    """`x + scale · dropout(branch + bias)`, one kernel where there is no dropout and no scale.

    name: of the result, without the part's. x: the stream. branch: what a part of the layer adds to it.
    """
    t.enter("between")
    made, bias = branch.result, branch.bias
    if style.dropout == 0 and card.residual_scale == 0:
        return add(t, name, *((made, x) if bias is None else (made, x, bias)))
    if bias is not None:
        made = add(t, f"{name}.bias", made, bias)
    made = dropout(t, style, f"{name}.dropout", made)
    return add(t, name, scaled(t, f"{name}.scale", made, card.residual_scale), x)
