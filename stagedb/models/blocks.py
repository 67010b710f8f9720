"""The blocks of a decoder-only transformer, forward only: embedding, layer, head.

Regions name where a strategy's rules differ: `embedding`, `between` (norms, residuals), `head`, `loss`; the parts of
layers have regions of their own (`stagedb.models.kinds`). Nothing here knows a degree, a layout or a collective.
"""

from collections.abc import Iterable

from stagedb.ir.operators import (
    Cast,
    CrossEntropy,
    Embedding,
    LogSoftmax,
    MaxOverVocabulary,
    PickLabel,
    PositionEmbedding,
    Shift,
    Softcap,
    SumExp,
    TokenMean,
)
from stagedb.ir.tensors import Tensor, Tracer
from stagedb.models.kinds import HIDDEN, RESIDUALS, Architecture, LayerKind
from stagedb.models.shared_operations import add, dropout, linear, norm, scaled
from stagedb.models.style import Style

__all__ = ["HIDDEN", "Style", "buffers", "embedding", "head", "layer"]


def buffers(card: Architecture, style: Style, kinds: Iterable[LayerKind]) -> tuple[tuple[Tensor, str], ...]:
    """The tensors that all parts of the model hold in addition to weights, each with the region that reads it."""
    parts = dict.fromkeys(part for kind in kinds for part in kind.parts)
    return tuple(dict.fromkeys(held for part in parts for held in part.buffers(card, style)))


def embedding(t: Tracer, card: Architecture, style: Style) -> Tensor:
    """From tokens to hidden states: the vocabulary's table, learned positions, dropout."""
    t.enter("embedding")
    tokens = t.tensor("tokens", ("batch", "seq"), "int64", "input")
    table = t.weight("word.weight", ("vocab", "hidden"))
    x = t.activation("word", HIDDEN)
    t.emit("word", Embedding(), (tokens, table), x)
    x = scaled(t, "scale", x, card.embedding_scale)
    if card.positions == "learned":
        positions = t.weight("position.weight", ("positions", "hidden"))
        rows = t.activation("position", ("seq", "hidden"))
        t.emit("position", PositionEmbedding(), (positions,), rows)
        x = add(t, "sum", x, rows)
    if card.embedding_norm:
        t.enter("between")
        x = norm(t, card, style, "norm", x)
    t.enter(style.embedding_dropout)
    return dropout(t, style, "dropout", x)


def layer(t: Tracer, card: Architecture, style: Style, kind: LayerKind, x: Tensor) -> Tensor:
    """A layer of a kind: its mixer and its channel mixer around the residual stream (batch, seq, hidden)."""
    (mixer, channel_mixer), values = kind.parts, kind.settings
    return RESIDUALS[kind.residual].forward(
        t,
        card,
        style,
        lambda normal: mixer.forward(t, card, style, values, normal),
        lambda normal: channel_mixer.forward(t, card, style, values, normal),
        x,
    )


def head(t: Tracer, card: Architecture, style: Style, x: Tensor) -> Tensor:
    """Final norm, logits (cast to the loss's format) and the mean cross-entropy over the batch's tokens."""
    t.enter("between")
    normal = norm(t, card, style, "norm", x)
    t.enter("head")
    logits = linear(t, "out", normal, ("vocab", "hidden"), ("batch", "seq", "vocab"), card.head_bias)
    logits = scaled(t, "scale", logits, card.logit_scale)
    if card.logit_softcap:
        capped = t.activation("softcap", logits.axes)
        t.emit("softcap", Softcap(card.logit_softcap), (logits,), capped)
        logits = capped
    t.enter("loss")
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
