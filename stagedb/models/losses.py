"""The head's logits and their loss: for all tokens at once, or for parts of the tokens in turn.

In parts (`Style.loss_chunks`) the head is a function of autograd that makes its own gradients: for each part of the
tokens the logits, the loss, and at once the gradients of the part and of the head's weight, which are added up. The
backward takes both from there. Sources: Hsu et al. 2024 (Liger's fused linear cross entropy, arXiv 2410.10989, section
3.2), torchtitan's `ChunkedLossWrapper` (`components/loss.py`, commit 00a388d9733c). The kernels of a part are those of
all tokens: of Liger's own, which writes gradients over logits, nothing is assumed.
"""

from dataclasses import replace

from stagedb.ir.autodiff import differentiate
from stagedb.ir.facts import LOSS_TOKENS
from stagedb.ir.operators import (
    AddTo,
    Cast,
    ChunkMean,
    CrossEntropy,
    LogSoftmax,
    LossSum,
    MaxOverVocabulary,
    Operator,
    PickLabel,
    PutFurther,
    PutTokens,
    Shift,
    Softcap,
    SumExp,
    TokenMean,
    TokensOf,
)
from stagedb.ir.tensors import Tensor, Tracer
from stagedb.models.kinds import Architecture
from stagedb.models.shared_operations import projected, scaled
from stagedb.models.style import Style

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
