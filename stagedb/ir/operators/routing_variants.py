"""Routers that differ from a weighted sum: experts whose inputs are scaled (Llama 4), SparseMixer (Phi-3.5 MoE), and
choices in groups of experts (DeepSeek V2 and V3) or by a table of tokens (DeepSeek V4).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.facts import Tag
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, arriving
from stagedb.ir.operators.experts import ChoiceSoftmaxGradient, Combine, Deals, TopKGradient, dealt
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


@dataclass(frozen=True)
class ChoiceScale(Operator):
    """A token's hidden state times the weight of each of its choices: (batch, seq, hidden) and (batch, seq, choices) to
    (batch, seq, choices, hidden)."""

    kind: ClassVar[str] = "elementwise"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        tracer.emit(name, ChoiceScaleGradient(), (arriving(grads), *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weights = inputs
        return [x[..., None, :] * weights[..., None]]


@dataclass(frozen=True)
class ChoiceScaleGradient(Operator):
    """The backward of `ChoiceScale`: the gradients of the hidden state, summed over choices, and of the weights."""

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weights = inputs
        return [(dy * weights[..., None]).sum(axis=-2), (dy * x[..., None, :]).sum(axis=-1)]


@dataclass(frozen=True)
class ExpertScale(Operator):
    """Weights of choices (batch, seq, choices) times a factor of their experts, (experts). The third input names these.

    Gemma 4.
    """

    kind: ClassVar[str] = "elementwise"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name, learnt = f"{op.name}.input_gradient", op.inputs[:2]
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(learnt)]
        tracer.emit(name, ExpertScaleGradient(), (arriving(grads), *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        weights, scale, chosen = inputs
        return [weights * scale[chosen]]


@dataclass(frozen=True)
class ExpertScaleGradient(Operator):
    """The backward of `ExpertScale`: the gradients of the weights, and of the factors: the sum over all choices of an
    expert.
    """

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, weights, scale, chosen = inputs
        found = np.zeros_like(scale)
        np.add.at(found, chosen, dy * weights)
        return [dy * scale[chosen], found]


@dataclass(frozen=True)
class GroupedTopK(Operator):
    """As `TopK`, but experts are chosen only from the best groups of experts: (batch, seq, experts) to two of (batch,
    seq, choices).

    groups: how many; each has equally many experts, neighbours by number. chosen: how many groups a token may choose
    from. best: a group's score is the sum of its `best` largest scores.
    """

    groups: int
    chosen: int
    best: int

    kind: ClassVar[str] = "topk"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, TopKGradient(), (arriving(grads), op.outputs[1]), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (scores,) = inputs
        grouped = scores.reshape(*scores.shape[:-1], self.groups, -1)
        of_groups = np.sort(grouped, axis=-1)[..., -self.best :].sum(axis=-1)
        kept = np.argsort(-of_groups, axis=-1, kind="stable")[..., : self.chosen]
        allowed = np.zeros(of_groups.shape, bool)
        np.put_along_axis(allowed, kept, True, axis=-1)
        left = np.where(allowed[..., None], grouped, -np.inf).reshape(scores.shape)
        best = np.argsort(-left, axis=-1, kind="stable")[..., : place.sizes["choices"]]
        return [np.take_along_axis(scores, best, axis=-1), best]


@dataclass(frozen=True)
class TableChoice(Operator):
    """The experts that a table has for each token: (batch, seq) and (table_tokens, choices) to (batch, seq, choices).

    The kernel reads a row for each token, not the table.
    """

    kind: ClassVar[str] = "embedding"

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return inputs[0], outputs[0]

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens, table = inputs
        return [table[tokens]]


@dataclass(frozen=True)
class ChosenScores(Operator):
    """The scores of chosen experts: (batch, seq, experts) and (batch, seq, choices) to (batch, seq, choices)."""

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return outputs[0], inputs[1]

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, TopKGradient(), (arriving(grads), op.inputs[1]), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        scores, chosen = inputs
        return [np.take_along_axis(scores, chosen, axis=-1)]


@dataclass(frozen=True)
class DispatchChoices(Deals):
    """A value of each choice moved to a slot of its expert: (batch, seq, choices, hidden) to (experts, slots, hidden).

    The second input gives the slots. Gradients of its result are added on the ranks of the experts, as for `Dispatch`.
    """

    sum_region: ClassVar[str | None] = "experts"
    sum_tags: ClassVar[frozenset[Tag]] = frozenset({Tag.EXPERT})

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, Combine(), (arriving(grads), op.inputs[1]), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [dealt(place, inputs[0], inputs[1])]


@dataclass(frozen=True)
class ChoiceSum(Operator):
    """The results of a token's choices added: (batch, seq, choices, hidden) to (batch, seq, hidden)."""

    kind: ClassVar[str] = "elementwise"
    keeps_shares: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, ChoiceSumGradient(), (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0].sum(axis=-2)]


@dataclass(frozen=True)
class ChoiceSumGradient(Operator):
    """The backward of `ChoiceSum`: the gradient of the sum, once for each choice."""

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.repeat(inputs[0][..., None, :], place.sizes["choices"], axis=-2)]


@dataclass(frozen=True)
class SparseMixer(Operator):
    """The weights of a token's choices, and which they are: (batch, seq, experts) to two of (batch, seq, choices).

    A choice is the largest logit that is left. Its weight is its softmax over those that are left and near it: those
    whose distance, as a part of their size or of the largest, is at most twice `jitter`. Source: Liu et al. 2024
    (arXiv 2409.12136), without the sampling of a training run.
    """

    jitter: float

    kind: ClassVar[str] = "topk"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.inputs[0])
        tracer.emit(grad.name, SparseMixerGradient(self.jitter), reads, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        found = list(_choices(inputs[0], self.jitter, place.sizes["choices"]))
        weights = [np.take_along_axis(share, best, axis=-1) for share, best in found]
        return [np.concatenate(weights, axis=-1), np.concatenate([best for _, best in found], axis=-1)]


@dataclass(frozen=True)
class SparseMixerGradient(Operator):
    """The backward of `SparseMixer`: the gradient of the logits: `Σ dw · w · (onehot - softmax)` over the choices."""

    jitter: float

    kind: ClassVar[str] = "topk"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, logits = inputs
        grad = np.zeros_like(logits)
        for choice, (share, best) in enumerate(_choices(logits, self.jitter, dy.shape[-1])):
            weight = np.take_along_axis(share, best, axis=-1)
            onehot = np.arange(logits.shape[-1]) == best
            grad += dy[..., choice, None] * weight * (onehot - share)
        return [grad]


def _choices(logits: Array, jitter: float, count: int) -> Iterator[tuple[Array, Array]]:
    """For each choice: the softmax of those that are left and near, and the index of the largest (…, 1)."""
    left = logits.copy()
    for _ in range(count):
        most, best = left.max(axis=-1, keepdims=True), left.argmax(axis=-1)[..., None]
        far = (most - logits) / np.maximum(np.abs(logits), most) > 2 * jitter
        weights = np.exp(np.where(far, -np.inf, left) - most)
        yield weights / weights.sum(axis=-1, keepdims=True), best
        np.put_along_axis(left, best, -np.inf, axis=-1)


# Zero experts, which return their token (LongCat-Flash): the choice among all experts, and what zero experts give.
#
# The choice of a token is among E experts with weights and Z zero experts. The plan decides the load here too: of a
# token's choices those with the largest scores go to experts with weights, and as many are of zero experts for every
# token as in the mean over all experts (arXiv 2509.01322, section 2.1).


@dataclass(frozen=True)
class TopKOfAll(Operator):
    """The largest scores of each token and where they are: (batch, seq, all_experts) to two of (batch, seq,
    all_choices)."""

    kind: ClassVar[str] = "topk"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.outputs[1])
        tracer.emit(grad.name, TopKOfAllGradient(), reads, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (scores,) = inputs
        best = np.argsort(-scores, axis=-1, kind="stable")[..., : place.sizes["all_choices"]]
        return [np.take_along_axis(scores, best, axis=-1), best]


@dataclass(frozen=True)
class TopKOfAllGradient(Operator):
    """The backward of `TopKOfAll`: the gradient of the chosen scores, zeros for the others."""

    kind: ClassVar[str] = "topk"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, best = inputs
        grad = np.zeros((*dy.shape[:-1], place.sizes["all_experts"]), dy.dtype)
        np.put_along_axis(grad, best, dy, axis=-1)
        return [grad]


@dataclass(frozen=True)
class ZeroExperts(Operator):
    """What zero experts give a token: the token times the sum of their weights, (batch, seq, hidden) and (batch, seq,
    zero_choices) to (batch, seq, hidden)."""

    kind: ClassVar[str] = "elementwise"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        tracer.emit(name, ZeroExpertsGradient(), (arriving(grads), *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weights = inputs
        return [x * weights.sum(axis=-1, keepdims=True)]


@dataclass(frozen=True)
class ZeroExpertsGradient(Operator):
    """The backward of `ZeroExperts`: the gradients of the token and of the weights."""

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weights = inputs
        each = (dy * x).sum(axis=-1, keepdims=True)
        return [dy * weights.sum(axis=-1, keepdims=True), np.broadcast_to(each, weights.shape).copy()]


OPERATORS: tuple[type[Operator], ...] = (TopKOfAll, TopKOfAllGradient, ZeroExperts, ZeroExpertsGradient)

# The softmax over the keys that a query may see, for scores with any axes.


@dataclass(frozen=True)
class CausalSoftmax(Operator):
    """The softmax of scores over their last axis, the keys, as far as the tokens of `query` see them.

    axes: those of the scores. A query sees its own token and those before it.
    """

    axes: Labels
    query: str

    kind: ClassVar[str] = "softmax"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.outputs[0])
        tracer.emit(grad.name, ChoiceSoftmaxGradient(), reads, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        queries, keys = place.positions(self.query), place.indices(self.axes[-1])
        apart = [-1 if axis == self.query else 1 for axis in self.axes]
        scores = np.where(keys <= queries.reshape(apart), inputs[0], -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return [weights / weights.sum(axis=-1, keepdims=True)]
