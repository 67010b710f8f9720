"""Routing to experts: top-k of the router's logits, tokens dealt to experts' slots and brought back, weighted sums.

The plan decides the load, for all values of the logits. Of E choices in a row (choice j of token t is the t·k + j-th)
one goes to each expert. With a histogram, a row has as many choices as its sum, and each expert gets its number. The
logits decide the weights with which a token's results are added. Every rank deals its own tokens, in their order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.facts import DEALT, Tag
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


def _one(tracer: "Tracer", op: "Operation", operator: Operator, inputs: tuple["Tensor", ...]) -> "Tensor":
    """Emit the operator that makes the gradient of the first input."""
    grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
    tracer.emit(grad.name, operator, inputs, grad, template=INPUT_GRADIENT)
    return grad


@dataclass(frozen=True)
class TopK(Operator):
    """The largest logits of each token and where they are: (batch, seq, experts) to two of (batch, seq, choices)."""

    kind: ClassVar[str] = "topk"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, TopKGradient(), (arriving(grads), op.outputs[1]))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (logits,) = inputs
        best = np.argsort(-logits, axis=-1, kind="stable")[..., : place.sizes["choices"]]
        return [np.take_along_axis(logits, best, axis=-1), best]


@dataclass(frozen=True)
class TopKGradient(Operator):
    """The backward of `TopK`: the gradient of the chosen logits, zeros for the others."""

    kind: ClassVar[str] = "topk"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, best = inputs
        grad = np.zeros((*dy.shape[:-1], place.sizes["experts"]), dy.dtype)
        np.put_along_axis(grad, best, dy, axis=-1)
        return [grad]


@dataclass(frozen=True)
class ChoiceSoftmax(Operator):
    """Softmax over the choices of a token."""

    kind: ClassVar[str] = "softmax"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, ChoiceSoftmaxGradient(), (arriving(grads), op.outputs[0]))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        weights = np.exp(inputs[0] - inputs[0].max(axis=-1, keepdims=True))
        return [weights / weights.sum(axis=-1, keepdims=True)]


@dataclass(frozen=True)
class ChoiceSoftmaxGradient(Operator):
    """The backward of `ChoiceSoftmax`: `dx = p · (dy - Σ dy·p)`."""

    kind: ClassVar[str] = "softmax"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, p = inputs
        return [p * (dy - (dy * p).sum(axis=-1, keepdims=True))]


@dataclass(frozen=True)
class TokenGate(Operator):
    """`y = x · sigmoid(gate)`, one gate a token: (batch, seq, hidden) and (batch, seq, one)."""

    kind: ClassVar[str] = "activation"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        reads = (arriving(grads), *op.inputs)
        tracer.emit(name, TokenGateGradient(), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0] / (1 + np.exp(-inputs[1]))]


@dataclass(frozen=True)
class TokenGateGradient(Operator):
    """The backward of `TokenGate`: the gradients of the gated values and of the gate."""

    kind: ClassVar[str] = "activation"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, gate = inputs
        open_ = 1 / (1 + np.exp(-gate))
        return [dy * open_, (dy * x).sum(axis=-1, keepdims=True) * open_ * (1 - open_)]


@dataclass(frozen=True)
class Normalise(Operator):
    """A token's scores divided by their sum, and the sum (batch, seq), which a division keeps for its backward."""

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, NormaliseGradient(), (arriving(grads), op.inputs[0], op.outputs[1]))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        total = inputs[0].sum(axis=-1)
        return [inputs[0] / total[..., None], total]


@dataclass(frozen=True)
class NormaliseGradient(Operator):
    """The backward of `Normalise`: `dx = (dy - Σ dy·x / Σ x) / Σ x`."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, total = inputs[0], inputs[1], inputs[2][..., None]
        return [(dy - (dy * x).sum(axis=-1, keepdims=True) / total) / total]


@dataclass(frozen=True)
class Route(Operator):
    """The target of each choice of this rank's tokens, as `place among the expert's tokens · experts + expert`."""

    kind: ClassVar[str] = "route"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        choices, experts = place.sizes["choices"], place.sizes["experts"]
        token = place.indices("batch")[:, None] * place.sizes["seq"] + place.indices("seq")
        turn = np.repeat(np.arange(experts), place.expert_load or 1)
        expert = turn[(token[..., None] * choices + np.arange(choices)) % len(turn)]
        taken = np.zeros(experts, np.int64)
        order = np.empty(expert.size, np.int64)
        for at, chosen in enumerate(expert.reshape(-1)):
            order[at] = taken[chosen] * experts + chosen
            taken[chosen] += 1
        return [order.reshape(expert.shape)]


@dataclass(frozen=True)
class Deals(Operator):
    """An operator that deals choices to the slots of experts, or brings results back from there.

    Where ranks of tp have the same tokens and other experts, each deals choices to its own experts alone.
    """

    kind: ClassVar[str] = "permute"
    deals: ClassVar[bool] = True

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        read, made = (tuple(_dealt_axes(each.axes) for each in tensors) for tensors in (inputs, outputs))
        return read, made


def _dealt_axes(axes: Labels) -> Labels:
    return tuple(DEALT if axis == "experts" else axis for axis in axes)


def _slots(place: RankPlace, order: Array) -> tuple[Array, Array, Array]:
    """Expert among those of this rank, slot, and whether the slot exists here: a choice without a slot is dropped."""
    experts, here = place.sizes["experts"], place.lengths["experts"]
    expert, slot = order % experts - place.starts.get("experts", 0), order // experts
    kept = (slot < place.lengths["slots"]) & (expert >= 0) & (expert < here)
    return np.clip(expert, 0, here - 1), np.minimum(slot, place.lengths["slots"] - 1), kept


def dealt(place: RankPlace, values: Array, order: Array) -> Array:
    """The values of choices in the slots of their experts; empty slots have zeros.

    values: one for each choice of a token, (batch, seq, choices, …). order: for each choice the number of its expert
    plus, for its slot, slot times the number of experts. Returns (experts, slots, …).
    """
    expert, slot, kept = _slots(place, order)
    out = np.zeros((place.lengths["experts"], place.lengths["slots"], *values.shape[order.ndim :]), values.dtype)
    out[expert[kept], slot[kept]] = values[kept]
    return out


def _returned(place: RankPlace, values: Array, order: Array) -> Array:
    """The value of each choice from its expert's slot; zeros for a choice that was dropped."""
    expert, slot, kept = _slots(place, order)
    return np.asarray(values[expert, slot] * kept.reshape(*kept.shape, *(1,) * (values.ndim - 2)))


@dataclass(frozen=True)
class Dispatch(Deals):
    """A token's hidden state copied to a slot of each of its experts: (batch, seq, hidden) to (experts, slots, hidden).

    The second input gives the slots. The gradients of its result are added on the ranks of the experts, before they
    travel.
    """

    sum_region: ClassVar[str | None] = "experts"
    sum_tags: ClassVar[frozenset[Tag]] = frozenset({Tag.EXPERT})

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, DispatchGradient(), (arriving(grads), op.inputs[1]))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, order = inputs
        return [dealt(place, np.broadcast_to(x[..., None, :], (*order.shape, x.shape[-1])), order)]


@dataclass(frozen=True)
class DispatchGradient(Deals):
    """The backward of `Dispatch`: the sum of the values in the slots of a token's choices."""

    sums_over: ClassVar[tuple[str, ...]] = ("experts",)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, order = inputs
        return [_returned(place, dy, order).sum(axis=-2)]


@dataclass(frozen=True)
class Combine(Deals):
    """The experts' results brought back to the tokens: (experts, slots, hidden) to (batch, seq, choices, hidden)."""

    keeps_shares: ClassVar[bool] = True
    sums_over: ClassVar[tuple[str, ...]] = ("experts",)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, CombineGradient(), (arriving(grads), op.inputs[1]))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [_returned(place, inputs[0], inputs[1])]


@dataclass(frozen=True)
class CombineGradient(Deals):
    """The backward of `Combine`: the gradient of each choice in its expert's slot."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [dealt(place, inputs[0], inputs[1])]


@dataclass(frozen=True)
class WeightedSum(Operator):
    """The results of a token's choices (batch, seq, choices, hidden) added with their weights (batch, seq, choices)."""

    kind: ClassVar[str] = "elementwise"
    keeps_shares: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        reads = (arriving(grads), *op.inputs)
        name = f"{op.name}.input_gradient"
        tracer.emit(name, WeightedSumGradient(), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        values, weights = inputs
        return [(values * weights[..., None]).sum(axis=-2)]


@dataclass(frozen=True)
class WeightedSumGradient(Operator):
    """The backward of `WeightedSum`: the gradients of results and weights."""

    kind: ClassVar[str] = "elementwise"
    outputs_of_shares: ClassVar[tuple[int, ...]] = (1,)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, values, weights = inputs
        return [dy[..., None, :] * weights[..., None], (dy[..., None, :] * values).sum(axis=-1)]
