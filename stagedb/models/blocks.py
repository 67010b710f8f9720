"""The blocks of a decoder-only transformer, forward only: embedding, layer, head and its loss.

Regions name where a strategy's rules differ: `embedding`, `between` (norms, residuals), `head`, `loss`; the parts of
layers have regions of their own (`stagedb.models.kinds`). Nothing here knows a degree, a layout or a collective.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from stagedb.ir.autodiff import differentiate
from stagedb.ir.facts import LOSS_TOKENS
from stagedb.ir.operators import (
    AddTo,
    Cast,
    ChunkMean,
    CrossEntropy,
    DraftedTokens,
    Embedding,
    LastTokens,
    LogSoftmax,
    LossSum,
    MaxOverVocabulary,
    NextTokens,
    Operator,
    PickLabel,
    PositionEmbedding,
    PutFurther,
    PutTokens,
    Shift,
    Softcap,
    SumExp,
    TokenMean,
    TokensOf,
)
from stagedb.ir.tensors import Tensor, Tracer
from stagedb.models.kinds import HIDDEN, RESIDUALS, Architecture, LayerKind, hyper_connections
from stagedb.models.kinds.experts import token_ids
from stagedb.models.kinds.head_sizes import names_in_stack, own_rotary
from stagedb.models.kinds.layer_inputs import layer_inputs
from stagedb.models.multi_token_prediction import labels, mtp_layer, mtp_streams, part_of
from stagedb.models.shared_operations import Style, add, dropout, linear, norm, projected, scaled

__all__ = ["HIDDEN", "STACK", "Style", "buffers", "embedding", "head", "layer", "stack", "stream"]

# The head's logits and their loss: for all tokens at once, or for parts of the tokens in turn.
#
# In parts (`Style.loss_chunks`) the head is a function of autograd that makes its own gradients: for each part of the
# tokens the logits, the loss, and at once the gradients of the part and of the head's weight, which are added up. The
# backward takes both from there. Sources: Hsu et al. 2024 (Liger's fused linear cross entropy, arXiv 2410.10989,
# section 3.2), torchtitan's `ChunkedLossWrapper` (`components/loss.py`, commit 00a388d9733c). The kernels of a part are
# those of all tokens: of Liger's own, which writes gradients over logits, nothing is assumed.

LOGITS = ("batch", "seq", "vocab")
MEAN = TokenMean()


def logits_of(
    t: Tracer,
    card: Architecture,
    weights: tuple[Tensor, ...],
    normal: Tensor,
    axes: tuple[str, ...] = LOGITS,
) -> Tensor:
    """The logits, with these axes. weights: the head's, and perhaps its bias. normal: what the last norm makes."""
    t.enter("head")
    logits = projected(t, "out", normal, weights, axes)
    logits = scaled(t, "scale", logits, card.logit_scale)
    if card.logit_softcap:
        capped = t.activation("softcap", logits.axes)
        t.emit("softcap", Softcap(card.logit_softcap), (logits,), capped)
        logits = capped
    return logits


def loss_of(t: Tracer, style: Style, logits: Tensor, wanted: Tensor, name: str, mean: Operator = MEAN) -> Tensor:
    """The mean cross-entropy of logits, under a name. mean: the operator that makes it of the tokens' losses."""
    t.enter("loss")
    vocabulary, token = logits.axes, wanted.axes
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
        t.emit("loss.label", PickLabel(), (logp, wanted), nll)
    else:
        t.emit("loss.label", CrossEntropy(), (wide, wanted), nll, logp)
    loss = t.activation(name, (), "fp32")
    t.emit(name, mean, (nll,), loss)
    return loss


def loss_in_parts(
    t: Tracer, card: Architecture, style: Style, weights: tuple[Tensor, ...], normal: Tensor, wanted: Tensor
) -> Tensor:
    """The loss of all tokens, made part by part together with the gradients, which `Tracer.kept` has.

    weights: the head's, and perhaps its bias. normal: what the last norm makes. wanted: the labels.
    """
    trained = [weight for weight in weights if t.trains(weight.name)]
    leads = t.below or any(t.trains(weight.name) for weight in t.weights if weight not in weights)
    total: Tensor | None = None
    kept: dict[str, Tensor] = {}
    for place in range(style.loss_chunks):
        with t.within(f"chunk_{place + 1}"):
            rows = _part(t, "hidden", "head", normal, place, style.loss_chunks)
            labels = _part(t, "labels", "loss", wanted, place, style.loss_chunks)
            inner = Tracer(t.block, weight_gradient_first=t.weight_gradient_first, part=t.part)
            logits = logits_of(inner, card, weights, rows, (LOSS_TOKENS, "vocab"))
            loss = loss_of(inner, style, logits, labels, "loss", ChunkMean())
            goal = {weight.name for weight in trained} | ({rows.name} if leads else set())
            found = differentiate(inner, {loss.name: loss}, goal)
            t.operations += [replace(op, template=t.template) for op in inner.operations]
            for weight in trained:
                kept[weight.name] = _summed(t, kept.get(weight.name), found[weight.name])
            if leads:
                kept[normal.name] = _put(t, kept.get(normal.name), found[rows.name], normal, place, style.loss_chunks)
        name = "loss" if place == style.loss_chunks - 1 else f"chunk_{place + 1}.loss_sum"
        total = loss if total is None else _added(t, name, total, loss)
    t.kept += [(of, kept[of.name]) for of in (*trained, normal) if of.name in kept]
    if total is None:
        raise ValueError("a loss in no parts")
    return total


def _part(t: Tracer, name: str, region: str, of: Tensor, place: int, count: int) -> Tensor:
    """A part of a tensor of all tokens, as a view of it."""
    t.enter(region)
    part = t.tensor(name, (LOSS_TOKENS, *of.axes[2:]), of.dtype, "activation")
    t.emit(name, TokensOf(place, count), (of,), part)
    return part


def _added(t: Tracer, name: str, total: Tensor, loss: Tensor) -> Tensor:
    """The loss of the parts so far."""
    t.enter("loss")
    made = t.activation(name, (), "fp32")
    t.emit(name, LossSum(1.0), (total, loss), made)
    return made


def _summed(t: Tracer, known: Tensor | None, grad: Tensor) -> Tensor:
    """The gradient of a weight over the parts so far: that of the first one, to which the others are added."""
    if known is None:
        return grad
    t.enter("head")
    made = replace(grad, name=f"{grad.name}.sum")
    t.emit(made.name, AddTo(), (known, grad), made)
    return made


def _put(t: Tracer, known: Tensor | None, grad: Tensor, of: Tensor, place: int, count: int) -> Tensor:
    """The gradient of all tokens, which has the parts so far."""
    t.enter("head")
    made = t.gradient(of, f"{grad.name}.put")
    if known is None:
        t.emit(made.name, PutTokens(place, count), (grad,), made)
    else:
        t.emit(made.name, PutFurther(place, count), (known, grad), made)
    return made


def buffers(card: Architecture, style: Style, kinds: Iterable[LayerKind]) -> tuple[tuple[Tensor, str], ...]:
    """The tensors that all parts of the model hold in addition to weights, each with the region that reads it.

    kinds: of the model's layers.
    """
    found = [own_rotary(card, kind, part.buffers(card, style)) for kind in kinds for part in kind.parts]
    return tuple(dict.fromkeys(held for buffers in found for held in buffers))


def embedding(t: Tracer, card: Architecture, style: Style) -> Tensor:
    """From tokens to hidden states: the vocabulary's table, learned positions, dropout."""
    t.enter("embedding")
    tokens = token_ids(t)
    width = _width(card)
    table = t.weight("word.weight", ("vocab", width))
    x = t.activation("word", ("batch", "seq", width))
    t.emit("word", Embedding(), (tokens, table), x)
    if card.embedding_width:
        t.enter("between")
        x = linear(t, "project_in", x, ("hidden", width), HIDDEN)
        t.enter("embedding")
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
    x = dropout(t, style, "dropout", x)
    return hyper_connections.copied(t, x) if card.hyper_connections else x


def stream(card: Architecture) -> tuple[str, ...]:
    """The axes of the tensors between the layers of a model."""
    return hyper_connections.STREAMS if card.hyper_connections else HIDDEN


def _width(card: Architecture) -> str:
    """The axis of the rows of the tables of embedding and head."""
    return "embedded" if card.embedding_width else "hidden"


def layer(t: Tracer, card: Architecture, style: Style, kind: LayerKind, x: Tensor) -> Tensor:
    """A layer of a kind: its mixer and its channel mixer around the residual stream."""
    (mixer, channel_mixer), values = kind.parts, kind.settings
    t.deals_keys = style.deals_keys
    return RESIDUALS[kind.residual].forward(
        t,
        card,
        style,
        lambda normal: mixer.forward(t, card, style, values, normal),
        lambda normal: channel_mixer.forward(t, card, style, values, normal),
        x,
        values,
    )


STACK, LAYER = "stack", "layer_"
"""The block of all layers, where some read more than the stream, and the beginning of the names of its layers."""


def stack(t: Tracer, card: Architecture, style: Style, kinds: Iterable[LayerKind], x: Tensor) -> Tensor:
    """All layers of a model, where some read more than the stream: weights or keys of others, or the tokens again.

    kinds: one a layer.
    """
    t.entry, layers = x, tuple(kinds)
    t.keys = {} if any(kind.reads_keys for kind in layers) else None
    inputs = layer_inputs(t, card, style, x) if card.layer_input else (None,) * len(layers)
    for number, (kind, given) in enumerate(zip(layers, inputs, strict=True)):
        t.layer_input, t.axes = given, names_in_stack(card, kind)
        with t.within(f"{LAYER}{number}"):
            x = layer(t, card, style, kind, x)
        t.turn += kind.shares
    t.axes = {}
    return x


def head(t: Tracer, card: Architecture, style: Style, last: LayerKind, x: Tensor) -> Tensor:
    """Streams merged, final norm, layers that predict further tokens, logits (cast to the loss's format) and the loss.

    The loss is the mean cross-entropy over the batch's tokens; with further tokens a sum (`multi_token_prediction`).
    last: the kind of layers for multi-token prediction.
    """
    streams = x
    x = hyper_connections.merged(t, x) if card.hyper_connections else x
    t.enter("between")
    made = [norm(t, card, style, "norm", x) if card.final_norm else x]
    if card.embedding_width:
        t.enter("between")
        made = [linear(t, "project_out", made[0], (_width(card), "hidden"), ("batch", "seq", _width(card)))]
    if style.drafts:
        return _checked_tokens(t, card, style, last, (streams, x), made[0])
    if style.serves:
        return _last_tokens(t, card, _head_weights(t, card), made[0])
    table = None
    if card.multi_token_prediction:
        table = t.weight("out.weight" if card.tied else "word.weight", ("vocab", "hidden"))
        before = _before(card, style, streams, x, made[0])
        for depth in range(1, card.multi_token_prediction + 1):
            before, normal = _next_depth(t, card, style, last, table, depth, before, labels(t, depth - 1))
            made.append(normal)
    out = table if table is not None and card.tied else t.weight("out.weight", ("vocab", _width(card)))
    weights = (out, t.weight("out.bias", ("vocab",))) if card.head_bias else (out,)
    if style.loss_chunks > 1:
        return loss_in_parts(t, card, style, weights, made[0], labels(t, 0))
    if not card.multi_token_prediction:
        return loss_of(t, style, logits_of(t, card, weights, made[0]), labels(t, 0), "loss")
    losses = _losses(t, card, style, weights, made)
    total = t.activation("loss", (), "fp32")
    t.emit("loss", LossSum(card.mtp_loss_factor / card.multi_token_prediction), losses, total)
    return total


def _before(card: Architecture, style: Style, streams: Tensor, x: Tensor, normal: Tensor) -> Tensor:
    """The input of the first layer for multi-token prediction. x: before the last norm. normal: behind it."""
    if card.hyper_connections:
        return streams
    return x if style.further_reads == "stream" else normal


def _next_depth(
    t: Tracer,
    card: Architecture,
    style: Style,
    kind: LayerKind,
    table: Tensor,
    depth: int,
    before: Tensor,
    tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """The input of the next layer for multi-token prediction, and the normalised result of the one before."""

    def inner(x: Tensor) -> Tensor:
        return layer(t, card, style, kind, x)

    if card.hyper_connections:
        return mtp_streams(t, card, style, inner, table, depth, before, tokens)
    normal = mtp_layer(t, card, style, inner, table, depth, before, tokens)
    return normal, normal


def _head_weights(t: Tracer, card: Architecture) -> tuple[Tensor, ...]:
    """The matrix of the head, and its bias where it has one."""
    out = t.weight("out.weight", ("vocab", _width(card)))
    return (out, t.weight("out.bias", ("vocab",))) if card.head_bias else (out,)


def _last_tokens(t: Tracer, card: Architecture, weights: tuple[Tensor, ...], normal: Tensor) -> Tensor:
    """The token behind the last one of each request. Logits are made of last tokens alone."""
    last = t.activation("last", ("batch", "last", normal.axes[-1]))
    t.enter("head")
    t.emit("last", LastTokens(), (normal,), last)
    return _chosen(t, card, weights, last, "last")


def _chosen(t: Tracer, card: Architecture, weights: tuple[Tensor, ...], normal: Tensor, positions: str) -> Tensor:
    """The most probable token behind each of these. positions: their axis."""
    logits = logits_of(t, card, weights, normal, ("batch", positions, "vocab"))
    tokens = t.tensor("next", ("batch", positions), "int64", "activation")
    t.enter("between")  # in which each rank has all of the vocabulary
    t.emit("next", NextTokens(), (logits,), tokens)
    return tokens


def _checked_tokens(
    t: Tracer, card: Architecture, style: Style, kind: LayerKind, made: tuple[Tensor, Tensor], normal: Tensor
) -> Tensor:
    """The model's own token behind each token of a step, by which a draft is checked.

    Then the tokens of the next draft follow, one from each layer for multi-token prediction. made: streams, and what is
    before the last norm. normal: behind it. kind: that of these layers.

    A draft goes on behind the last accepted token of a request, so that such a layer has logits of one token. Those
    that were accepted before it get keys in its cache, and the others with them: how many are is not known before.
    """
    weights = _head_weights(t, card)
    tokens = checked = _chosen(t, card, weights, normal, "seq")
    if not card.multi_token_prediction:
        return checked
    table = weights[0] if card.tied else t.weight("word.weight", ("vocab", "hidden"))
    before = _before(card, style, *made, normal)
    for depth in range(1, card.multi_token_prediction + 1):
        before, predicted = _next_depth(t, card, style, kind, table, depth, before, tokens)
        with t.within(part_of(depth)):
            drafted = _last_tokens(t, card, weights, predicted)
            if depth < card.multi_token_prediction:
                t.enter("head")
                ahead = t.tensor("ahead", ("batch", "seq"), "int64", "activation")
                t.emit("ahead", DraftedTokens(), (tokens, drafted), ahead)
                tokens = ahead
    return checked


def _losses(
    t: Tracer, card: Architecture, style: Style, weights: tuple[Tensor, ...], made: list[Tensor]
) -> tuple[Tensor, ...]:
    """The loss of the next token, and those of further ones from the furthest on. made: what each is predicted from."""
    depths = (*range(len(made) - 1, 0, -1), 0)
    wanted = [labels(t, depth) for depth in range(len(made))]
    logits: dict[int, Tensor] = {}
    losses: dict[int, Tensor] = {}

    def predict(depth: int) -> None:
        with _at_depth(t, depth):
            logits[depth] = logits_of(t, card, weights, made[depth])

    def lose(depth: int) -> None:
        with _at_depth(t, depth):
            losses[depth] = loss_of(t, style, logits[depth], wanted[depth], "loss" if depth else "loss.next")

    if style.logits_first:
        for act in (predict, lose):
            for depth in reversed(depths):
                act(depth)
    else:
        for depth in depths:
            predict(depth)
            lose(depth)
    return losses[0], *(losses[depth] for depth in depths[:-1])


def _at_depth(t: Tracer, depth: int) -> AbstractContextManager[None]:
    """The part of the head's block that predicts the token `depth` places further on."""
    return t.within(part_of(depth)) if depth else nullcontext()
