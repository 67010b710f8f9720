"""The sizes of a decoder from the shapes of its matmuls and attentions, as one recorded step has them.

A layer is known by its attention: the matmul behind it makes it as wide as the model, those before it make
queries, keys and values, and all until the next layer's are the feed-forward part. The last matmul of a forward is the
head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagedb.matching.degrees import FoundDegrees
from stagedb.matching.planned_ops import ATTENTION, WORK
from stagedb.matching.seen_ops import SeenOp


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a decoder that were found in a run.

    hidden, heads, kv_heads, head_dim, ffn, vocab: of the whole model. layers: by stage. batch, rows: sequences of a
    micro-batch on a rank, and their length. microbatches: of a step on a rank. packed: queries, keys and values are
    made by one matmul. gated: the feed-forward has three matmuls. experts: 0 for a dense model. top_k: experts of a
    token.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    layers: tuple[int, ...]
    batch: int
    rows: int
    microbatches: int
    packed: bool
    gated: bool
    experts: int = 0
    top_k: int = 0


class UnknownSizesError(ValueError):
    """A step from which no sizes follow; the text has the reason."""


def model_sizes(stages: Sequence[Sequence[SeenOp]], found: FoundDegrees) -> ModelSizes:
    """The sizes of a model. stages: the ops of one rank of each pipeline stage, in the order of issue.

    Raises UnknownSizesError.
    """
    work = [[op for op in ops if op.kind in WORK and op.phase == "forward"] for ops in stages]
    if any(op.dims is None for ops in work for op in ops):
        raise UnknownSizesError("no shapes were recorded: record with record_shapes=True")
    cores = [op for op in work[0] if op.kind == ATTENTION]
    if not cores or cores[0].dims is None:
        raise UnknownSizesError("no attention was recorded: only decoders with attention as one operator are known")
    batch, heads, kv_heads, rows, _, head_dim = cores[0].dims[:6]
    if not rows:
        raise UnknownSizesError("requests of several lengths were recorded: name an instance with their requests")
    tokens = batch * rows
    layer = _first_layer(work[0])
    hidden = _other(layer.out, tokens)
    head = _dims(work[-1][-1])
    # The only matmul outside layers is the head's, once a micro-batch.
    microbatches = len(work[-1]) - layer.ops * sum(op.kind == ATTENTION for op in work[-1])
    if microbatches < 1 or any(sum(op.kind == ATTENTION for op in ops) % microbatches for ops in work):
        raise UnknownSizesError("layers differ from each other, or a part of the step was not recorded")
    layers = tuple(sum(op.kind == ATTENTION for op in ops) // microbatches for ops in work)
    tp = found.tp
    experts = _experts(layer.feed_forward, tokens, hidden)
    return ModelSizes(
        hidden=hidden,
        heads=heads * tp,
        kv_heads=kv_heads * tp,
        head_dim=head_dim,
        ffn=experts["ffn"] * tp,
        vocab=_other(head, tokens) * tp,
        layers=layers,
        batch=batch,
        rows=rows * found.cp,
        microbatches=microbatches,
        packed=layer.projections == 1,
        gated=experts["matmuls"] == 3,
        experts=experts["experts"],
        top_k=experts["experts"] and experts["rows"] // tokens,
    )


@dataclass(frozen=True)
class _Layer:
    """The matmuls of a layer. projections: how many make queries, keys and values. out: dims of the next one.

    ops: how many they are, with the attention.
    """

    projections: int
    out: tuple[int, ...]
    feed_forward: Sequence[tuple[int, ...]]

    @property
    def ops(self) -> int:
        return self.projections + 2 + len(self.feed_forward)


def _first_layer(work: Sequence[SeenOp]) -> _Layer:
    places = [place for place, op in enumerate(work) if op.kind == ATTENTION]
    first = places[0]
    # Before the first attention of a stage there is nothing else.
    projections = first
    # The only layer of a stage is followed by nothing, or by the head.
    end = places[1] - projections if len(places) > 1 else len(work)
    if first + 1 >= len(work):
        raise UnknownSizesError("no matmul follows the attention")
    return _Layer(projections, _dims(work[first + 1]), [_dims(op) for op in work[first + 2 : end]])


def _experts(matmuls: Sequence[tuple[int, ...]], tokens: int, hidden: int) -> Mapping[str, int]:
    """Width of the feed-forward part and its number of matmuls; of experts how many there are, and rows of tokens."""
    if not matmuls:
        raise UnknownSizesError("a layer has no feed-forward part")
    router = matmuls[0]
    # Experts have rows of their own: each token is one for each of its experts.
    if len(router) == 3 and len(matmuls) > 1 and (len(matmuls[1]) == 4 or tokens not in matmuls[1][:2]):
        inner = matmuls[1][-3:]
        count = matmuls[1][0] if len(matmuls[1]) == 4 else 1
        width = next(each for each in matmuls[-1][-3:][::-1] if each != hidden)
        per_expert = next((each for each in inner[:2] if each not in (hidden, width)), inner[0])
        return {
            "ffn": width,
            "matmuls": len(matmuls) - 1,
            "experts": _other(router, tokens),
            "rows": count * per_expert,
        }
    return {"ffn": matmuls[-1][-1], "matmuls": len(matmuls), "experts": 0, "rows": 0}


def _dims(op: SeenOp) -> tuple[int, ...]:
    return op.dims or ()


def _other(dims: tuple[int, ...], tokens: int) -> int:
    """The side of a matmul that is not the number of tokens."""
    *_, m, n, _ = dims
    return n if m == tokens else m
