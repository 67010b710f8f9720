"""The blocks of a decoder-only transformer, forward only: embedding, layer, head.

Regions name where a strategy's rules differ: `embedding`, `between` (norms, residuals), `attention` (its projections),
`attention_core`, `ffn`, `head`, `loss`. Nothing here knows a degree, a layout or a collective.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from stagedb.ir.operators import (
    E4M3,
    Activation,
    Add,
    AdditiveMask,
    Attention,
    Cast,
    Contiguous,
    CrossEntropy,
    Dropout,
    Einsum,
    Embedding,
    Gate,
    LayerNorm,
    LogSoftmax,
    MaxOverVocabulary,
    MeanSquare,
    Multiply,
    Operator,
    PickLabel,
    PositionEmbedding,
    Quantize,
    RepeatHeads,
    RingAttention,
    RMSNorm,
    Rotary,
    Rsqrt,
    Shift,
    Softmax,
    SplitHeads,
    SumExp,
    TokenMean,
)
from stagedb.ir.tensors import Tensor, Tracer
from stagedb.models.experts import mixture, routing_tables

HIDDEN = ("batch", "seq", "hidden")
QUERY = ("batch", "seq", "heads", "head_dim")
KEY = ("batch", "seq", "kv_heads", "head_dim")
PACKED = ("batch", "seq", "kv_heads", "packed", "head_dim")


class Architecture(Protocol):
    """What the blocks ask of a model card."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def norm(self) -> str: ...
    @property
    def mlp(self) -> str: ...
    @property
    def activation(self) -> str: ...
    @property
    def positions(self) -> str: ...
    @property
    def linear_bias(self) -> bool: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def experts(self) -> int: ...
    @property
    def shared_ffn(self) -> int: ...


@dataclass(frozen=True)
class Style:
    """How a framework writes the same model down as kernels.

    pack_qkv, pack_gate: one matmul makes q, k and v (gate and up). row_bias: a bias behind a row-parallel matmul is
    added inside it, or after its result has been reduced. fp8: the matmuls of layers read operands cast to it.
    embedding_dropout: the region whose layout its mask has. core: the fused attention of ranks that share a sequence,
    where it is not that of one rank. routing_tables: the order of tokens by expert is made once.
    """

    pack_qkv: bool
    pack_gate: bool
    row_bias: Literal["inside", "after"]
    fp8: bool
    embedding_dropout: Literal["embedding", "between"]
    attention: Literal["fused", "math"]
    eager: bool
    dropout: float
    loss_parallel: bool
    apart: bool
    explicit_mask: bool
    core: Operator | None
    routing_tables: bool = False


def _linear(
    t: Tracer,
    name: str,
    x: Tensor,
    weight_axes: tuple[str, ...],
    out: tuple[str, ...],
    bias: bool,
    fp8: bool = False,
) -> Tensor:
    """A linear layer over named axes; the weight has the output's features first, as torch registers it."""
    features = tuple(axis for axis in weight_axes if axis in out)
    weight = t.weight(f"{name}.weight", weight_axes, rows=len(features))
    y = t.activation(name, out)
    inputs: tuple[Tensor, ...] = (x, weight)
    if fp8:
        inputs = tuple(
            t.narrow(f"{name}.{word}", operand, Quantize(), E4M3)
            for word, operand in (("cast_input", x), ("cast_weight", weight))
        )
    if bias:
        inputs = (*inputs, t.weight(f"{name}.bias", features, rows=len(features)))
    t.emit(name, Einsum(x.axes, weight_axes, out, bias), inputs, y)
    return y


def _norm(t: Tracer, card: Architecture, style: Style, name: str, x: Tensor) -> Tensor:
    """Normalised over the last axis."""
    token, last = x.axes[:-1], x.axes[-1:]
    weight = t.weight(f"{name}.weight", last)
    y = t.activation(name, x.axes)
    if card.norm == "layernorm":
        bias = t.weight(f"{name}.bias", last)
        mean, rstd = t.activation(f"{name}.mean", token, "fp32"), t.activation(f"{name}.rstd", token, "fp32")
        t.emit(name, LayerNorm(), (x, weight, bias), y, mean, rstd)
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


def _dropout(t: Tracer, style: Style, name: str, x: Tensor) -> Tensor:
    if style.dropout == 0:
        return x
    y = t.activation(name, x.axes)
    t.emit(name, Dropout(style.dropout), (x,), y, t.activation(f"{name}.mask", x.axes, "bool"))
    return y


def _add(t: Tracer, name: str, *terms: Tensor) -> Tensor:
    y = t.activation(name, terms[0].axes)
    t.emit(name, Add(), terms, y)
    return y


def _residual(t: Tracer, style: Style, name: str, x: Tensor, branch: Tensor, bias: Tensor | None) -> Tensor:
    """`x + dropout(branch + bias)`, one kernel where there is no dropout."""
    t.region = "between"
    if style.dropout == 0:
        return _add(t, name, *((branch, x) if bias is None else (branch, x, bias)))
    if bias is not None:
        branch = _add(t, f"{name}.bias", branch, bias)
    return _add(t, name, _dropout(t, style, f"{name}.dropout", branch), x)


def _row(
    t: Tracer, card: Architecture, style: Style, name: str, x: Tensor, weight_axes: tuple[str, ...]
) -> tuple[Tensor, Tensor | None]:
    """The matmul back to the hidden axis, and the bias where it is added later."""
    inside = card.linear_bias and style.row_bias == "inside"
    y = _linear(t, name, x, weight_axes, HIDDEN, inside, style.fp8)
    late = card.linear_bias and not inside
    return y, t.weight(f"{name}.bias", ("hidden",)) if late else None


def buffers(card: Architecture, style: Style) -> tuple[tuple[Tensor, str], ...]:
    """What every part of the model holds beside its weights, each with the region that it is read in.

    They are positions, rotary tables and the causal mask.
    """
    held = [(Tensor("stage.positions", ("seq",), "int64", "buffer"), "attention")]
    if card.positions == "rotary":
        # Cosine and sine of half the head's size each.
        held.append((Tensor("stage.rotary", ("seq", "head_dim"), "act", "buffer"), "attention"))
    if style.attention == "math" or style.explicit_mask:
        held.append((Tensor("stage.mask", ("seq", "kseq"), "bool", "buffer"), "attention_core"))
    if card.experts and style.routing_tables:
        held += [(table, "router") for table in routing_tables()]
    return tuple(held)


def embedding(t: Tracer, card: Architecture, style: Style) -> Tensor:
    """Tokens to hidden states: the vocabulary's table, learned positions, dropout."""
    t.region = "embedding"
    tokens = t.tensor("tokens", ("batch", "seq"), "int64", "input")
    table = t.weight("word.weight", ("vocab", "hidden"))
    x = t.activation("word", HIDDEN)
    t.emit("word", Embedding(), (tokens, table), x)
    if card.positions == "learned":
        positions = t.weight("position.weight", ("positions", "hidden"))
        rows = t.activation("position", ("seq", "hidden"))
        t.emit("position", PositionEmbedding(), (positions,), rows)
        x = _add(t, "sum", x, rows)
    t.region = style.embedding_dropout
    return _dropout(t, style, "dropout", x)


def _queries_keys_values(t: Tracer, card: Architecture, style: Style, x: Tensor) -> tuple[Tensor, ...]:
    """One packed tensor or three, with rotary positions applied."""
    bias, rotary = card.linear_bias or card.qkv_bias, card.positions == "rotary"
    if style.pack_qkv:
        qkv = _linear(t, "attn.wqkv", x, ("kv_heads", "packed", "head_dim", "hidden"), PACKED, bias, style.fp8)
        if not rotary and not card.qk_norm:
            return (qkv,)
        if not card.qk_norm:
            turned = t.activation("attn.rotary", PACKED)
            t.emit("attn.rotary", Rotary(packed=True), (qkv,), turned)
            return (turned,)
        q, k, v = t.activation("attn.q", QUERY), t.activation("attn.k", KEY), t.activation("attn.v", KEY)
        t.emit("attn.split", SplitHeads(), (qkv,), q, k, v)
    else:
        q = _linear(t, "attn.wq", x, ("heads", "head_dim", "hidden"), QUERY, bias, style.fp8)
        k = _linear(t, "attn.wk", x, ("kv_heads", "head_dim", "hidden"), KEY, bias, style.fp8)
        v = _linear(t, "attn.wv", x, ("kv_heads", "head_dim", "hidden"), KEY, bias, style.fp8)
    if card.qk_norm:
        q, k = _norm(t, card, style, "attn.q_norm", q), _norm(t, card, style, "attn.k_norm", k)
    if not rotary:
        return q, k, v
    turned_q, turned_k = t.activation("attn.rotary_q", QUERY), t.activation("attn.rotary_k", KEY)
    t.emit("attn.rotary_q", Rotary(), (q,), turned_q)
    t.emit("attn.rotary_k", Rotary(), (k,), turned_k)
    return turned_q, turned_k, v


def _split(t: Tracer, qkv: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """q, k and v on their own."""
    if len(qkv) > 1:
        return qkv
    apart = t.activation("attn.q", QUERY), t.activation("attn.k", KEY), t.activation("attn.v", KEY)
    t.emit("attn.split", SplitHeads(), qkv, *apart)
    return apart


def _fused_attention(t: Tracer, style: Style, qkv: tuple[Tensor, ...]) -> Tensor:
    """One kernel. Where ranks share a sequence, keys and values are moved apart from the queries."""
    qkv = _split(t, qkv) if style.apart else qkv
    t.region = "attention_core"
    if style.core is not None:
        return _shared_attention(t, style.core, qkv)
    if style.explicit_mask:
        mask = t.activation("attn.mask", ("seq", "kseq"))
        t.emit("attn.mask", AdditiveMask(), (), mask)
        qkv = (*qkv, mask)
    context, lse = t.activation("attn.core", QUERY), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit("attn.core", Attention(style.explicit_mask), qkv, context, lse)
    return context


def _shared_attention(t: Tracer, core: Operator, qkv: tuple[Tensor, ...]) -> Tensor:
    """Keys and values of other ranks in turn, or gathered. PyTorch puts what its balanced ring has merged in order."""
    context, lse = t.activation("attn.core", QUERY), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit("attn.core", core, qkv, context, lse)
    if not isinstance(core, RingAttention) or core.passing == "sent" or not core.balanced:
        return context
    ordered = t.activation("attn.contiguous", QUERY)
    t.emit("attn.contiguous", Contiguous(), (context,), ordered)
    return ordered


def _plain_attention(t: Tracer, card: Architecture, style: Style, qkv: tuple[Tensor, ...]) -> Tensor:
    """Scores, softmax and context as matmuls; grouped keys and values repeated for their query heads."""
    q, k, v = _split(t, qkv)
    t.region = "attention_core"
    if card.heads != card.kv_heads:
        wide_k, wide_v = t.activation("attn.wide_k", QUERY), t.activation("attn.wide_v", QUERY)
        t.emit("attn.wide_k", RepeatHeads(), (k,), wide_k)
        t.emit("attn.wide_v", RepeatHeads(), (v,), wide_v)
        k, v = wide_k, wide_v
    keys, pairs = ("batch", "kseq", "heads", "head_dim"), ("batch", "heads", "seq", "kseq")
    scores, weights = t.activation("attn.scores", pairs), t.activation("attn.weights", pairs)
    t.emit("attn.scores", Einsum(QUERY, keys, pairs), (q, k), scores)
    t.emit("attn.weights", Softmax(), (scores,), weights)
    weights = _dropout(t, style, "attn.weights.dropout", weights)
    context = t.activation("attn.context", QUERY)
    t.emit("attn.context", Einsum(pairs, keys, QUERY), (weights, v), context)
    return context


def layer(t: Tracer, card: Architecture, style: Style, x: Tensor, dense: bool = False) -> Tensor:
    """A pre-norm layer: attention and feed-forward, each added to the residual stream.

    dense: a layer without experts, whatever the card has.
    """
    t.region = "between"
    normal = _norm(t, card, style, "attn_norm", x)
    t.region = "attention"
    qkv = _queries_keys_values(t, card, style, normal)
    context = _plain_attention(t, card, style, qkv) if style.attention == "math" else _fused_attention(t, style, qkv)
    t.region = "attention"
    out, bias = _row(t, card, style, "attn.wo", context, ("hidden", "heads", "head_dim"))
    x = _residual(t, style, "attn.add", x, out, bias)

    normal = _norm(t, card, style, "ffn_norm", x)
    if card.experts and not dense:
        return _residual(t, style, "ffn.add", x, mixture(t, card, style, normal), None)
    t.region = "ffn"
    out, bias = _row(t, card, style, "ffn.w2", _feed_forward(t, card, style, normal), ("hidden", "ffn"))
    return _residual(t, style, "ffn.add", x, out, bias)


def _feed_forward(t: Tracer, card: Architecture, style: Style, x: Tensor) -> Tensor:
    """The inner activation, up to the matmul back."""
    inner = ("batch", "seq", "ffn")
    if card.mlp == "plain":
        up = _linear(t, "ffn.w1", x, ("ffn", "hidden"), inner, card.linear_bias, style.fp8)
        y = t.activation("ffn.activation", inner)
        t.emit("ffn.activation", Activation(card.activation), (up,), y)
        return y
    if style.pack_gate:
        packed = (*inner, "two")
        both = _linear(t, "ffn.w13", x, ("ffn", "two", "hidden"), packed, card.linear_bias, style.fp8)
        y = t.activation("ffn.gate", inner)
        t.emit("ffn.gate", Gate(card.activation), (both,), y)
        return y
    gate = _linear(t, "ffn.w1", x, ("ffn", "hidden"), inner, card.linear_bias, style.fp8)
    up = _linear(t, "ffn.w3", x, ("ffn", "hidden"), inner, card.linear_bias, style.fp8)
    y = t.activation("ffn.gate", inner)
    if not style.eager:
        t.emit("ffn.gate", Gate(card.activation), (gate, up), y)
        return y
    active = t.activation("ffn.activation", inner)
    t.emit("ffn.activation", Activation(card.activation), (gate,), active)
    t.emit("ffn.gate", Multiply(), (active, up), y)
    return y


def head(t: Tracer, card: Architecture, style: Style, x: Tensor) -> Tensor:
    """Final norm, logits (cast to the loss's format) and the mean cross-entropy over the batch's tokens."""
    t.region = "between"
    normal = _norm(t, card, style, "norm", x)
    t.region = "head"
    logits = _linear(t, "out", normal, ("vocab", "hidden"), ("batch", "seq", "vocab"), False)
    t.region = "loss"
    labels = t.tensor("labels", ("batch", "seq"), "int64", "input")
    vocabulary, token = logits.axes, labels.axes
    wide = t.activation("logits", vocabulary, "logits")
    t.emit("logits", Cast(), (logits,), wide)
    nll, logp = t.activation("loss.label", token, "fp32"), t.activation("loss.log_softmax", vocabulary, "logits")
    if style.loss_parallel:
        top, total = t.activation("loss.max", token, "fp32"), t.activation("loss.sum_exp", token, "fp32")
        shifted = t.activation("loss.shift", vocabulary, "logits")
        t.emit("loss.max", MaxOverVocabulary(), (wide,), top)
        t.emit("loss.shift", Shift(), (wide, top), shifted)
        t.emit("loss.sum_exp", SumExp(), (shifted,), total)
        t.emit("loss.log_softmax", LogSoftmax(), (shifted, total), logp)
        t.emit("loss.label", PickLabel(), (logp, labels), nll)
    else:
        t.emit("loss.label", CrossEntropy(), (wide, labels), nll, logp)
    loss = t.activation("loss", (), "fp32")
    t.emit("loss", TokenMean(), (nll,), loss)
    return loss
