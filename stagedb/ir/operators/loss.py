"""The cross-entropy of the next token: in one operator, or in several over a partitioned vocabulary.

Over a partitioned vocabulary the maximum, the sum of exponentials and the label's log-probability are each partial and
cost one small all-reduce (fp32, one element a token): Megatron-LM's `vocab_parallel_cross_entropy`, torch's
`loss_parallel`. The gradient with respect to the logits is taken at once, `softmax - onehot`, by `PickLabel` and passes
through the operators before it unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stagedb.ir.facts import LOSS_TOKENS
from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.ir.operators.elementwise import Add, Multiple
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


def _logits_gradient(tracer: "Tracer", op: "Operation", dnll: "Tensor", saved: "Tensor", index: int) -> Gradients:
    grad = tracer.gradient(op.inputs[index], f"{op.name}.input_gradient")
    labels = op.inputs[1]
    tracer.emit(grad.name, CrossEntropyGradient(), (dnll, saved, labels), grad, template=INPUT_GRADIENT)
    yield index, grad


@dataclass(frozen=True)
class CrossEntropy(Operator):
    """(logits, labels) → (negative log-likelihood a token, log-softmax), the whole vocabulary on every rank."""

    kind: ClassVar[str] = "loss"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from _logits_gradient(tracer, op, arriving(grads), op.outputs[1], 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        logits, labels = inputs
        shifted = logits - logits.max(axis=-1, keepdims=True)
        logp = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return [-np.take_along_axis(logp, labels[..., None], axis=-1)[..., 0], logp]


@dataclass(frozen=True)
class MaxOverVocabulary(Operator):
    """The maximum of this rank's logits of each token."""

    kind: ClassVar[str] = "loss"
    reduction: ClassVar[Literal["sum", "max"]] = "max"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0].max(axis=-1)]


@dataclass(frozen=True)
class Shift(Operator):
    """Logits minus the token's maximum."""

    kind: ClassVar[str] = "loss"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, arriving(grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0] - inputs[1][..., None]]


@dataclass(frozen=True)
class SumExp(Operator):
    """The sum of exponentials over this rank's vocabulary."""

    kind: ClassVar[str] = "loss"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.exp(inputs[0]).sum(axis=-1)]


@dataclass(frozen=True)
class LogSoftmax(Operator):
    """Shifted logits minus the logarithm of the sum of exponentials."""

    kind: ClassVar[str] = "loss"
    in_place: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, arriving(grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0] - np.log(inputs[1])[..., None]]


@dataclass(frozen=True)
class PickLabel(Operator):
    """The negative log-probability of the label, zero where another rank holds the label's column."""

    kind: ClassVar[str] = "loss"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from _logits_gradient(tracer, op, arriving(grads), op.inputs[0], 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        logp, labels = inputs
        local = labels - place.starts.get("vocab", 0)
        here = (local >= 0) & (local < logp.shape[-1])
        picked = np.take_along_axis(logp, np.where(here, local, 0)[..., None], axis=-1)[..., 0]
        return [-np.where(here, picked, 0)]


@dataclass(frozen=True)
class CrossEntropyGradient(Operator):
    """The backward of `CrossEntropy`: `(softmax - onehot) · dnll` on this rank's part of the vocabulary."""

    kind: ClassVar[str] = "loss"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dnll, logp, labels = inputs
        onehot = labels[..., None] == place.indices("vocab")
        return [(np.exp(logp) - onehot) * dnll[..., None]]


@dataclass(frozen=True)
class TokenMean(Operator):
    """The mean over all tokens of the global batch."""

    kind: ClassVar[str] = "loss"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, TokenMeanGradient(), (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.asarray(inputs[0].sum() / (place.sizes["batch"] * place.sizes["seq"]))]


@dataclass(frozen=True)
class TokenMeanGradient(Operator):
    """The backward of `TokenMean`: the loss's gradient, spread over the tokens."""

    kind: ClassVar[str] = "loss"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens = place.sizes["batch"] * place.sizes["seq"]
        return [np.full((place.lengths["batch"], place.lengths["seq"]), inputs[0] / tokens)]


@dataclass(frozen=True)
class ChunkMean(TokenMean):
    """A part of the tokens' share in the mean, whose backward begins where it is made."""

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, ChunkMeanGradient(), op.inputs, grad, template=INPUT_GRADIENT)
        yield 0, grad


@dataclass(frozen=True)
class ChunkMeanGradient(Operator):
    """The backward of `ChunkMean`: the gradient of the step's loss at each token of a part, whose losses it does not
    read.
    """

    kind: ClassVar[str] = "loss"

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return ()

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens = place.sizes["batch"] * place.sizes["seq"]
        return [np.full(place.lengths[LOSS_TOKENS], place.loss_share / tokens)]


@dataclass(frozen=True)
class TokensOf(Operator):
    """One of `count` equal parts of a rank's tokens, with batch and sequence as one axis: a view. place: from 0."""

    place: int
    count: int

    kind: ClassVar[str] = "copy"
    views: ClassVar[tuple[int, ...]] = (0,)
    inside: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        rows = inputs[0].reshape(-1, *inputs[0].shape[2:])
        return [np.split(rows, self.count)[self.place]]


@dataclass(frozen=True)
class PutTokens(Operator):
    """A gradient of one of `count` parts, copied to its place in a new tensor of all tokens. place: from 0."""

    place: int
    count: int

    kind: ClassVar[str] = "copy"
    linear: ClassVar[bool] = True
    keeps_shares: ClassVar[bool] = True
    passes_shares: ClassVar[bool] = True

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return inputs[-1:]

    def writes(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return inputs[-1:]

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        part = inputs[-1]
        shape = (self.count * len(part), *part.shape[1:])
        rows = np.zeros(shape) if len(inputs) == 1 else inputs[0].reshape(shape).copy()
        rows[self.place * len(part) : (self.place + 1) * len(part)] = part
        return [rows.reshape(place.lengths["batch"], place.lengths["seq"], *part.shape[1:])]


@dataclass(frozen=True)
class PutFurther(PutTokens):
    """As `PutTokens`, into the tensor that already has the parts before this one."""

    in_place: ClassVar[bool] = True


@dataclass(frozen=True)
class AddTo(Add):
    """The sum of tensors, in the place of the first."""

    in_place: ClassVar[bool] = True


@dataclass(frozen=True)
class HandOver(Operator):
    """A gradient of a weight that the forward has made and kept, as that of the backward. No kernel runs."""

    kind: ClassVar[str] = "hand_over"
    linear: ClassVar[bool] = True
    inside: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return inputs


@dataclass(frozen=True)
class HandOn(HandOver):
    """As `HandOver`, for the gradient of the head's input: the backward goes on with that tensor itself."""

    in_place: ClassVar[bool] = True
    passes_shares: ClassVar[bool] = True


@dataclass(frozen=True)
class LossSum(Operator):
    """The first loss, and `factor` times the sum of the others."""

    factor: float

    kind: ClassVar[str] = "loss"
    linear: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        dloss = arriving(grads)
        share = tracer.gradient(op.inputs[1], f"{op.name}.input_gradient")
        tracer.emit(share.name, Multiple(self.factor), (dloss,), share, template=INPUT_GRADIENT)
        yield 0, dloss
        for index in range(1, len(op.inputs)):
            yield index, share

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0] + self.factor * sum(inputs[1:])]
