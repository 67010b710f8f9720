"""Multi-token prediction: layers behind the model that predict further tokens, one after another.

Layer k reads what layer k - 1 (for the first one the model, after its last norm) made of each token, and the embedding
of the token k places further on. Both are normalised, joined and projected to the hidden size. A layer of the model's
last kind follows, then a norm. Embedding and head are the model's. The loss is the model's loss plus a factor times the
mean of the losses of these layers.

With several residual streams (DeepSeek V4) layer k reads the streams of layer k - 1, each normalised. A matrix brings
each of them, and another one the normalised embedding, to the hidden size; the second is added to all streams. Each
layer merges its streams with weights of its own before the norm.

Sources: DeepSeek-AI 2024 (arXiv 2412.19437, section 2.2, equations 21 to 25). The order of norms and the
column-parallel projection are those of Megatron-LM (`megatron/core/transformer/multi_token_prediction.py`, commit
d98e8a64ddf3). The inputs of the step have the tokens behind a sequence, so that every position has a label. Megatron
leaves the last k out. That of several streams: `MTPBlock` of the code next to the weights of DeepSeek V4.
"""

import re
from collections.abc import Callable

from stagedb.ir.operators import CopyGathered, Einsum, Embedding, JoinLast, hyper_connections
from stagedb.ir.tensors import Operation, Tensor, Tracer
from stagedb.models.kinds import HIDDEN, Architecture
from stagedb.models.kinds.hyper_connections import merged
from stagedb.models.shared_operations import Style, dropout, linear, norm, scaled

PART = "further"
"""The beginning of the names of these layers, in the block of the head."""

JOINED = ("batch", "seq", "joined")
SQUARE = ("hidden", "read_hidden")
"""The axes of a matrix of the hidden size by itself."""

_INSIDE = re.compile(
    rf"head\.({PART}_\d+)\.(embedding_norm|hidden_norm|embedding_projection|hidden_projection|joined|projection|layer|streams|norm(?!\.gradient_sum))\b"
)
"""What is in these layers. The gradients of their results are added up before they are reached."""

Layer = Callable[[Tensor], Tensor]
"""Writes a layer on the stream (batch, seq, hidden)."""


def labels(t: Tracer, depth: int) -> Tensor:
    """The token that is `depth` + 1 places further on, at each position."""
    return t.tensor(f"labels_{depth}" if depth else "labels", ("batch", "seq"), "int64", "input")


def part_of(depth: int) -> str:
    """The part of the head's block that has the layer of a depth, from 1."""
    return f"{PART}_{depth}"


def mtp_layer(
    t: Tracer,
    card: Architecture,
    style: Style,
    layer: Layer,
    table: Tensor,
    depth: int,
    before: Tensor,
    tokens: Tensor,
) -> Tensor:
    """The normalised result of the layer of a depth, from 1.

    table: the embedding. before: the normalised result of the depth before. tokens: those `depth` places further on.
    """
    with t.within(part_of(depth)):
        ahead = _embedded(t, card, style, table, tokens)
        t.enter("between")
        parts = norm(t, card, style, "embedding_norm", ahead), norm(t, card, style, "hidden_norm", before)
        joined = t.activation("joined", JOINED)
        t.emit("joined", JoinLast(), parts, joined)
        t.enter("prediction" if style.gathers_projection else "between")
        x = linear(t, "projection", joined, ("hidden", "joined"), HIDDEN, form=style.linear)
        if style.gathers_projection:
            t.enter("gathered")
            whole = t.activation("projection.whole", HIDDEN)
            t.emit("projection.whole", CopyGathered("tp"), (x,), whole)
            x = whole
        with t.within("layer"):
            t.enter("between")
            x = layer(x)
        t.enter("between")
        return norm(t, card, style, "norm", x)


def mtp_streams(
    t: Tracer,
    card: Architecture,
    style: Style,
    layer: Layer,
    table: Tensor,
    depth: int,
    before: Tensor,
    tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """The streams of the layer of a depth, from 1, and its normalised result.

    table: the embedding. before: the streams of the depth before. tokens: those `depth` places further on.
    """
    with t.within(part_of(depth)):
        ahead = _embedded(t, card, style, table, tokens)
        t.enter("between")
        parts = norm(t, card, style, "embedding_norm", ahead), norm(t, card, style, "hidden_norm", before)
        same, own = (
            _square(t, f"{word}_projection", x) for word, x in zip(("embedding", "hidden"), parts, strict=True)
        )
        x = t.activation("joined", before.axes)
        t.emit("joined", hyper_connections.AddToStreams(), (own, same), x)
        with t.within("layer"):
            t.enter("between")
            x = layer(x)
        made = merged(t, x)
        t.enter("between")
        return x, norm(t, card, style, "norm", made)


def _embedded(t: Tracer, card: Architecture, style: Style, table: Tensor, tokens: Tensor) -> Tensor:
    """The embedding of the tokens ahead."""
    t.enter("embedding")
    ahead = t.activation("word", HIDDEN)
    t.emit("word", Embedding(), (tokens, table), ahead)
    ahead = scaled(t, "scale", ahead, card.embedding_scale)
    t.enter(style.embedding_dropout)
    return dropout(t, style, "dropout", ahead)


def _square(t: Tracer, name: str, x: Tensor) -> Tensor:
    """A matrix of the hidden size by itself: what is read has its axis under another name."""
    weight, y = t.weight(f"{name}.weight", SQUARE), t.activation(name, x.axes)
    t.emit(name, Einsum((*x.axes[:-1], SQUARE[1]), SQUARE, x.axes), (x, weight), y)
    return y


def recomputed_with(depth: int) -> Callable[[Operation], bool]:
    """Whether an operation of the head is in the checkpointed function of the layer of a depth.

    That begins behind the embedding and ends with the last norm.
    """

    def inside(op: Operation) -> bool:
        found = [_INSIDE.match(name) for name in (op.name, op.origin)]
        return all(match is not None and match[1] == part_of(depth) for match in found)

    return inside


def depth_of(name: str) -> int | None:
    """The depth, from 1, of the layer that an operation or a weight is in; None for others.

    name: of the operation or the weight.
    """
    match = _INSIDE.match(name)
    return None if match is None else int(match[1].removeprefix(f"{PART}_"))


def name_in_layer(name: str) -> str:
    """The name of an operation as that of its layer, for the layers of this module; any other name itself."""
    match = _INSIDE.match(name)
    return name if match is None or match[2] != "layer" else f"layer{name[match.end() :]}"
