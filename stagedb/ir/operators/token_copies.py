"""Tokens sent to their experts once for each rank or node that has some of them (DeepEP, HybridEP).

The sender makes one copy of a token for each target, with the slots and weights of its choices, and the rank of the
experts makes the copies of choices. On the way back the results of one rank's experts are added before they travel.
The kernels of these exchanges read tokens where they are, write them to their targets, and add what comes back, so
that neither copies nor sums have kernels of their own (`inside`).

In numpy each target has room for every token of a sender; the room of a token without an expert there is empty. What is
counted and sent is the filled part (`stagedb.graphs.costs`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stagedb.collectives import ALL_TO_ALL
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, arriving
from stagedb.ir.operators.contraction import E4M3, E5M2
from stagedb.workflows import Template
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]
Hop = Literal["ranks", "nodes", "locals"]
"""What gets a copy of a token: each rank of ep that has one of its experts, each node of ep, or each rank of a node."""

TARGETS = ("ranks", "nodes", "locals")
"""Tensor axes with a place for each target."""

TOKENS = "sent"
"""The tensor axis of the tokens that senders have, or that came from them."""

BLOCK = 128
"""Neighbours in a token that share a scale in fp8 (DeepSeek-V3, section 3.3)."""

SCALES = {"hidden": "scales", "expert_latent": "latent_scales"}
"""The axis of a token's scales, by the axis of its values."""

NONE = -1
"""The slot of a choice whose token was not sent."""


def _target(place: RankPlace, hop: Hop, order: Array) -> Array:
    """The target of each choice, in rows of tokens; none for a choice elsewhere."""
    ranks, near = place.degrees["ep"], place.degrees.get("epr", 1)
    rank = order % place.sizes["experts"] // (place.sizes["experts"] // ranks)
    if hop == "ranks":
        found = rank
    elif hop == "nodes":
        found = rank // near
    else:
        found = np.where(rank // near == place.member["ep"] // near, rank % near, NONE)
    return np.where(order < 0, NONE, found)


def _count(place: RankPlace, hop: Hop) -> int:
    ranks, near = place.degrees["ep"], place.degrees.get("epr", 1)
    return {"ranks": ranks, "nodes": ranks // near, "locals": near}[hop]


def _gradients(
    tracer: "Tracer", op: "Operation", operator: Operator, reads: tuple["Tensor", ...], places: tuple[int, ...]
) -> Gradients:
    """Emit the one operator that makes the gradients of some inputs."""
    name = f"{op.name}.input_gradient"
    made = [tracer.gradient(op.inputs[at], f"{name}.{at}" if len(places) > 1 else name) for at in places]
    tracer.emit(name, operator, reads, *made, template=INPUT_GRADIENT)
    yield from zip(places, made, strict=True)


def _arrived(op: "Operation", grads: tuple["Tensor | None", ...]) -> dict[int, "Tensor"]:
    """The gradients of an operator's results, by the place of the input that each result is a copy of."""
    return {place: grad for place, grad in enumerate(grads) if grad is not None and place < len(op.inputs)}


@dataclass(frozen=True)
class CopyOnce(Operator):
    """One copy of each token for each target that has one of its experts: (batch, seq, …) to (targets, sent, …).

    The last input has the slots of a token's choices. The results are copies of the inputs, of the slots only if
    `passes_slots`. At a relay the inputs are (nodes, sent, …), and the results (nodes, locals, sent, …).
    """

    hop: Hop
    passes_slots: bool = True

    kind: ClassVar[str] = "permute"
    deals: ClassVar[bool] = True
    inside: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        came = _arrived(op, grads)
        yield from _gradients(tracer, op, AddTargets(self.hop), tuple(came.values()), tuple(came))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        order = inputs[-1]
        rows = order.reshape(-1, order.shape[-1])
        target, targets = _target(place, self.hop, rows), np.arange(_count(place, self.hop))
        goes = (target[None] == targets[:, None, None]).any(axis=-1)[..., None]
        front = (1,) if self.hop == "locals" else ()
        found = []
        for value in inputs if self.passes_slots else inputs[:-1]:
            copy = np.where(goes, value.reshape(1, len(rows), -1), NONE if value is order else 0)
            found.append(copy.reshape(*front, *copy.shape))
        return found


@dataclass(frozen=True)
class AddTargets(Operator):
    """What came back from all targets, added for each token: (targets, sent, …) to (batch, seq, …).

    An input of slots after it is for the gradient of one sum. At a relay: (nodes, locals, sent, …) to (nodes, sent, …).
    """

    hop: Hop

    kind: ClassVar[str] = "permute"
    deals: ClassVar[bool] = True
    keeps_shares: ClassVar[bool] = True
    inside: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        reads = (arriving(grads), op.inputs[-1])
        yield from _gradients(tracer, op, CopyOnce(self.hop, passes_slots=False), reads, (0,))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        own = (place.lengths["batch"], place.lengths["seq"]) if self.hop != "locals" else None
        values = [value for value in inputs if value.dtype.kind != "i"]
        if own is None:
            return [value.sum(axis=1) for value in values]
        return [value.sum(axis=0).reshape(*own, -1) for value in values]


Side = Literal["of_sender", "of_receiver"]
"""Where tokens are while an operator of an exchange's region reads or makes them."""


def _labels(tensors: tuple["Tensor", ...], side: Side) -> tuple[Labels, ...]:
    """The labels of tensors on one side of an exchange, where targets and tokens have rules of their own."""
    return tuple(
        tuple(f"{axis}_{side}" if axis in (*TARGETS, TOKENS) else axis for axis in tensor.axes) for tensor in tensors
    )


@dataclass(frozen=True)
class NarrowTokens(Operator):
    """Copies of tokens cast to fp8, with a scale in fp32 for each 128 neighbours of a token, before they are sent.

    In numpy, which has no fp8, it is the identity.
    """

    kind: ClassVar[str] = "cast"
    deals: ClassVar[bool] = True

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return _labels(inputs, "of_sender"), _labels(outputs, "of_sender")

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, arriving(grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (value,) = inputs
        return [value, np.ones((*value.shape[:-1], -(-value.shape[-1] // BLOCK)))]


@dataclass(frozen=True)
class WidenTokens(Operator):
    """Copies of tokens that came in fp8, in the format of activations. The second input has their scales."""

    kind: ClassVar[str] = "cast"
    deals: ClassVar[bool] = True

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return _labels(inputs, "of_receiver"), _labels(outputs, "of_receiver")

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, arriving(grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0]]


def narrowed(tracer: "Tracer", name: str, of: "Tensor", template: "Template | None" = None) -> "tuple[Tensor, Tensor]":
    """Emit the cast of tokens to fp8: the tokens, whose gradient has the format of `of`, and their scales.

    name: of the copy, with or without the block's. of: the tokens. template: when the cast runs; None: in the forward.
    """
    own = name.removeprefix(f"{tracer.block}.")
    gradient = template is not None and template.differentiates
    copy = tracer.activation(own, of.axes, E5M2 if gradient else E4M3)
    scales = tracer.activation(f"{own}.scales", (*of.axes[:-1], SCALES[of.axes[-1]]), "fp32")
    tracer.narrowed[copy.name] = of
    tracer.emit(copy.name, NarrowTokens(), (of,), copy, scales, template=template)
    return copy, scales


@dataclass(frozen=True)
class ExchangeTokens(Operator):
    """An all-to-all that sends each token, with what belongs to it, once to every target that has some of its experts.

    On the way to the experts, operands (targets, sent, …) are partitioned over the senders' tokens and results over the
    targets; with `back`, on the way from the experts, the other way round. Its bytes are those of the tokens alone
    (`carried`). mesh_axis: its ranks exchange. hop: what a target is: `ranks`, a rank of ep (one exchange sends tokens
    all the way); `nodes`, a node of ep (the first of two exchanges); `locals`, a rank of the own node (the second one).
    narrow: of an exchange with `back`: its gradients, which travel to the experts, are sent in fp8.
    """

    mesh_axis: str
    hop: Hop
    back: bool = False
    narrow: bool = False

    kind: ClassVar[str] = ALL_TO_ALL.name
    deals: ClassVar[bool] = True
    keeps_shares: ClassVar[bool] = True

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        if self.back:
            return _labels(inputs, "of_receiver"), _labels(outputs, "of_sender")
        return _labels(inputs, "of_sender"), _labels(outputs, "of_receiver")

    @staticmethod
    def carried(tensors: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        """The tensors whose bytes are counted: tokens, without the slots and weights of choices that go with them."""
        return tuple(tensor for tensor in tensors if tensor.axes[-1] != "choices")

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        came = _arrived(op, grads)
        back = ExchangeTokens(self.mesh_axis, self.hop, not self.back)
        if not self.narrow:
            yield from _gradients(tracer, op, back, tuple(came.values()), tuple(came))
            return
        name = f"{op.name}.input_gradient"
        sent = narrowed(tracer, f"{name}.narrow", arriving(grads), INPUT_GRADIENT)
        there = tuple(replace(each, name=f"{each.name}.came") for each in sent)
        tracer.emit(f"{name}.exchange", back, sent, *there, template=INPUT_GRADIENT)
        grad = tracer.gradient(op.inputs[0], name)
        tracer.emit(name, WidenTokens(), there, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return inputs


def _placed(place: RankPlace, dealers: tuple[str, ...], order: Array) -> tuple[Array, Array, Array]:
    """Expert and slot of each choice in rows of tokens, and whether the choice is one of this rank's experts.

    The tokens of each dealer are next to each other, and so are its slots.
    """
    rows = order.reshape(-1, order.shape[-1])
    sources = prod(place.degrees[axis] for axis in dealers)
    each = place.lengths["slots"] // sources
    block = np.arange(len(rows))[:, None] // (len(rows) // sources)
    expert = rows % place.sizes["experts"] - place.starts["experts"]
    own = (rows >= 0) & (expert >= 0) & (expert < place.lengths["experts"])
    slot = block * each + rows // place.sizes["experts"]
    return np.where(own, expert, 0), np.where(own, slot, 0), own


def _in_slots(place: RankPlace, dealers: tuple[str, ...], values: Array, order: Array) -> Array:
    """Values of choices (tokens, choices, hidden) in the slots of this rank's experts."""
    expert, slot, own = _placed(place, dealers, order)
    out = np.zeros((place.lengths["experts"], place.lengths["slots"], values.shape[-1]), values.dtype)
    out[expert[own], slot[own]] = values[own]
    return out


def _of_choices(place: RankPlace, dealers: tuple[str, ...], slots: Array, order: Array) -> Array:
    """The values of choices (tokens, choices, hidden) from the slots of this rank's experts; zeros for others."""
    expert, slot, own = _placed(place, dealers, order)
    return np.asarray(slots[expert, slot] * own[..., None])


def _each(values: Array, choices: int) -> Array:
    """Tokens (…, sent, hidden) repeated for their choices: (tokens, choices, hidden)."""
    rows = values.reshape(-1, values.shape[-1])
    return np.broadcast_to(rows[:, None], (len(rows), choices, rows.shape[-1]))


@dataclass(frozen=True)
class PermuteCopies(Operator):
    """Tokens that came (targets, sent, hidden) copied to the slots of this rank's experts: (experts, slots, hidden).

    The second input has the slots of their choices. dealers: the mesh axes whose ranks the tokens came from.
    """

    dealers: tuple[str, ...]

    kind: ClassVar[str] = "permute"
    deals: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        reads = (arriving(grads), op.inputs[1])
        yield from _gradients(tracer, op, PermuteCopiesGradient(tuple(self.dealers)), reads, (0,))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        values, order = inputs
        return [_in_slots(place, self.dealers, _each(values, order.shape[-1]), order)]


@dataclass(frozen=True)
class PermuteCopiesGradient(Operator):
    """The backward of `PermuteCopies`: the sum of the values in the slots of a token's choices on this rank."""

    dealers: tuple[str, ...]

    kind: ClassVar[str] = "permute"
    deals: ClassVar[bool] = True
    passes_shares: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        slots, order = inputs
        found = _of_choices(place, self.dealers, slots, order).sum(axis=-2)
        return [found.reshape(*order.shape[:-1], -1)]


@dataclass(frozen=True)
class UnpermuteCopies(Operator):
    """The results of a token's experts on this rank, added with their weights: (experts, slots, hidden) to (targets,
    sent, hidden). The other inputs are weights and slots of choices."""

    dealers: tuple[str, ...]

    kind: ClassVar[str] = "permute"
    deals: ClassVar[bool] = True
    keeps_shares: ClassVar[bool] = True
    passes_shares: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        reads = (arriving(grads), *op.inputs)
        yield from _gradients(tracer, op, UnpermuteCopiesGradient(tuple(self.dealers)), reads, (0, 1))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        slots, weights, order = inputs
        values = _of_choices(place, self.dealers, slots, order)
        found = (values * weights.reshape(*values.shape[:-1], 1)).sum(axis=-2)
        return [found.reshape(*order.shape[:-1], -1)]


@dataclass(frozen=True)
class UnpermuteCopiesGradient(Operator):
    """The backward of `UnpermuteCopies`: the gradients of the results in their slots, and of the weights."""

    dealers: tuple[str, ...]

    kind: ClassVar[str] = "permute"
    deals: ClassVar[bool] = True
    passes_shares: ClassVar[bool] = True
    outputs_of_shares: ClassVar[tuple[int, ...]] = (1,)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, slots, weights, order = inputs
        grads = _each(dy, order.shape[-1])
        values = _of_choices(place, self.dealers, slots, order)
        scaled = grads * weights.reshape(*values.shape[:-1], 1)
        return [_in_slots(place, self.dealers, scaled, order), (grads * values).sum(axis=-1).reshape(order.shape)]


OPERATORS: tuple[type[Operator], ...] = (
    AddTargets,
    CopyOnce,
    ExchangeTokens,
    NarrowTokens,
    PermuteCopies,
    PermuteCopiesGradient,
    UnpermuteCopies,
    UnpermuteCopiesGradient,
    WidenTokens,
)
