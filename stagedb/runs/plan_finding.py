"""The plan of a recorded run, found from the run alone.

Degrees follow from groups (`degrees`), sizes from shapes. All other words are tried, one after another,
and each keeps the value under which most ops of the run are ops of the plan.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from stagedb.errors import UsageError
from stagedb.lowering import program_of
from stagedb.mentions import call
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.runs.degrees import FoundDegrees, degrees_of
from stagedb.runs.rank_match import (
    ATTENTION,
    WORK,
    Known,
    PlannedRun,
    RankMatch,
    SeenOp,
    group_calls,
    match_rank,
    seen_ops,
)
from stagedb.runs.stored_run import StoredRun

# The sizes of a decoder from the shapes of its matmuls and attentions, as one recorded step has them.
#
# A layer is known by its attention: the matmul behind it makes it as wide as the model, those before it make queries,
# keys and values, and all until the next layer's are the feed-forward part. The last matmul of a forward is the head.


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


Words = Mapping[str, Any]

_MASTER = {"dtype": "bf16", "param_dtype": "fp32", "grad_dtype": "bf16", "reduce_dtype": "fp32", "opt_dtype": "fp32"}


@dataclass(frozen=True)
class Tried:
    """Values of words that are tried together, the usual one first. matters: whether they change what is recorded."""

    values: tuple[Words, ...]
    matters: Callable[[FoundDegrees, ModelSizes], bool] = lambda found, sizes: True


def _of_tp(found: FoundDegrees, sizes: ModelSizes) -> bool:
    return found.tp > 1


def _of_experts(found: FoundDegrees, sizes: ModelSizes) -> bool:
    return sizes.experts > 0 and found.dp > 1


def _of_microbatches(found: FoundDegrees, sizes: ModelSizes) -> bool:
    return sizes.microbatches > 1


TRIED = (
    Tried(({"zero": 0}, {"zero": 3}, {"zero": 2}, {"zero": 1}), lambda found, sizes: found.dp > 1),
    Tried(({"dtype": "bf16"}, {"dtype": "fp32"}, {"dtype": "bf16", "reduce_dtype": "fp32"}, _MASTER)),
    Tried(({"sp": False}, {"sp": True}), _of_tp),
    Tried(({"recompute": "none"}, {"recompute": "full"}, {"recompute": "core"}, {"recompute": "pointwise"})),
    Tried(({"loss_parallel": True}, {"loss_parallel": False}), _of_tp),
    Tried(({"shared_input": False}, {"shared_input": True}), _of_tp),
    Tried(
        ({"schedule": "1f1b"}, {"schedule": "gpipe"}, {"schedule": "zb-h1"}),
        lambda found, sizes: found.pp > 1 and sizes.microbatches > 1,
    ),
    Tried(({"grad_sync": True}, {"grad_sync": False}), _of_microbatches),
    Tried(({"ep_sync": True}, {"ep_sync": False}), _of_experts),
    Tried(({"expert_unit": False}, {"expert_unit": True}), _of_experts),
    Tried(({"clip_norm": False}, {"clip_norm": True})),
    Tried(({"tied": False}, {"tied": True})),
)
"""All words that are tried; `tied` is one of the model."""

OF_MODEL = ("tied",)


@dataclass(frozen=True)
class FoundPlan:
    """The plan under which a recorded run was made, as far as it is known.

    degrees: of parallelism. sizes, card: of the model; None if no sizes were found. words: of the plan. left: ops of
    one rank of each stage that differ from the plan, of `of` ops. ties: what stays open, as sentences. undecided: words
    whose other values fit as well.
    """

    degrees: FoundDegrees
    sizes: ModelSizes | None
    card: Card | None
    words: Words
    left: int
    of: int
    ties: tuple[str, ...]
    undecided: tuple["Undecided", ...] = ()


@dataclass(frozen=True)
class Undecided:
    """Words of a plan, and other values under which as many ops of the run are as planned."""

    chosen: Words
    others: tuple[Words, ...]


def without_plan(run: str) -> str:
    """What else to ask of a run whose plan is not found. run: its id."""
    return (
        f"Plans are those of transformer models; without one {call('query', 'critical-breakdown', run=run[:12])} has "
        f"where the time goes, and {call('diff', run[:12], 'OTHER')} compares it with another run of any model"
    )


def find_plan(run: StoredRun) -> FoundPlan:
    """The plan of a run. Raises UsageError if its groups of ranks were not recorded."""
    calls = group_calls(run)
    if run.job_ranks > 1 and not any(calls.values()):
        if "nsight" in run.tool:
            raise UsageError(
                "exports of Nsight Systems have no process groups, from which a plan is found: name an instance of the "
                f"plan that was run. {without_plan(run.id)}"
            )
        raise UsageError(
            "no group of ranks was recorded, and a plan does not follow from anything else: record with a version of "
            f"PyTorch that has process groups in profiles, or name an instance. {without_plan(run.id)}"
        )
    found = degrees_of(calls, run.job_ranks)
    stages = {rank: _first_step(seen_ops(run, rank)) for rank in _firsts(run, found) if rank is not None}
    if len(stages) < found.pp or not all(stages.values()):
        return FoundPlan(
            found, None, None, _degree_words(found), 0, 0, (*found.ties, "no rank of some stage was recorded")
        )
    try:
        sizes = model_sizes([*stages.values()], found)
    except UnknownSizesError as reason:
        return FoundPlan(
            found, None, None, _degree_words(found), 0, 0, (*found.ties, f"no sizes of the model: {reason}")
        )
    # Without experts, gradients that are reduced over fewer ranks are those of something else.
    return _tried(stages, found if sizes.experts else replace(found, ep=1), sizes)


def _firsts(run: StoredRun, found: FoundDegrees) -> list[int | None]:
    """A recorded rank of each stage, None if there is none."""
    each = run.job_ranks // found.pp
    return [next((rank for rank in sorted(run.timed) if rank // each == stage), None) for stage in range(found.pp)]


def _first_step(seen: Sequence[SeenOp]) -> list[SeenOp]:
    first = min((op.step for op in seen if op.step is not None), default=None)
    return [op for op in seen if op.step == first]


def _degree_words(found: FoundDegrees) -> dict[str, Any]:
    return {"tp": found.tp, "pp": found.pp, "dp": found.dp, "cp": found.cp, "ep": found.ep}


@dataclass(frozen=True)
class _Trial:
    """A run whose plan is sought. stages: the first step of one rank of each stage, by rank.

    tried: values of the words that matter."""

    sizes: ModelSizes
    stages: Mapping[int, Sequence[SeenOp]]
    known: Known
    tried: Sequence[tuple[Words, ...]]

    def left(self, words: Words) -> int | None:
        """How many ops differ under these words; None for a plan that is refused."""
        try:
            planned = PlannedRun(program_of(*plan_of(self.sizes, words)))
        except UsageError:
            return None
        stops = planned.stops_early
        return sum(_left(match_rank(planned.ops(rank), seen, self.known), stops) for rank, seen in self.stages.items())

    def climbed(self, best: int, words: Words) -> tuple[int, Words]:
        """The best words from some on: one word is changed, or two where none alone helps, as long as that helps."""
        while best:
            for changes in (self.tried, self._pairs()):
                before = best
                for value in (value for values in changes for value in values):
                    left = self.left({**words, **value})
                    if left is not None and left < best:
                        best, words = left, {**words, **value}
                if best < before:
                    break
            else:
                break
        return best, words

    def _pairs(self) -> Iterator[list[Words]]:
        for one, other in combinations(self.tried, 2):
            yield [{**first, **second} for first in one for second in other]


def plan_of(sizes: ModelSizes, words: Words) -> tuple[Card, Plan]:
    """The model and the plan of some words. Raises UsageError."""
    card = card_of(sizes)
    of_plan = {word: value for word, value in words.items() if word not in OF_MODEL}
    return replace(card, tied=bool(words.get("tied"))), Plan.from_mapping(of_plan)


def card_of(sizes: ModelSizes) -> Card:
    """A decoder of these sizes, with the usual choices where a run has none."""
    gpt = sizes.packed and not sizes.gated
    return Card(
        name="found",
        family="moe" if sizes.experts else "gpt" if gpt else "llama",
        hidden=sizes.hidden,
        layers=sum(sizes.layers),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        ffn=sizes.ffn,
        vocab=sizes.vocab,
        vocab_multiple=1,
        norm="layernorm" if gpt else "rmsnorm",
        mlp="gated" if sizes.gated else "plain",
        activation="silu" if sizes.gated else "gelu",
        positions="learned" if gpt else "rotary",
        max_positions=sizes.rows,
        tied=False,
        linear_bias=gpt,
        qkv_bias=False,
        parameters=0,
        experts=sizes.experts,
        top_k=sizes.top_k,
        expert_ffn=sizes.ffn if sizes.experts else 0,
        source="the shapes of a recorded run",
    )


def _left(match: RankMatch, stops: bool) -> int:
    extra = len(match.beyond_plan(stops))
    moved = sum(pair.moved for pair in match.matched)
    return len(match.missing) + extra + len(match.changed) + moved + match.reordered


def _tried(stages: Mapping[int, Sequence[SeenOp]], found: FoundDegrees, sizes: ModelSizes) -> FoundPlan:
    sent = {op.dtype for seen in stages.values() for op in seen if op.sent is not None and not op.scalar}
    tried = [first_of_wire(each.values, sent) for each in TRIED if each.matters(found, sizes)]
    trial = _Trial(sizes, stages, Known.of([op for seen in stages.values() for op in seen]), tried)
    known = {**_degree_words(found), **_batch(found, sizes), **_uneven(sizes), **_copies(found), "recipe": "torch"}
    of = sum(map(len, stages.values()))
    begin = _first(trial, known)
    if begin is None:
        return FoundPlan(found, sizes, None, known, of, of, (*found.ties, _refusal(sizes, known)))
    best, words = trial.climbed(*begin)
    if 2 * best > of:
        return FoundPlan(found, sizes, None, words, best, of, (*found.ties, *_why_none_fits(stages, best)))
    undecided = tuple(_undecided(trial, words, best))
    return FoundPlan(found, sizes, plan_of(sizes, words)[0], words, best, of, found.ties, undecided)


def first_of_wire(values: tuple[Words, ...], sent: Collection[str]) -> tuple[Words, ...]:
    """Values to try, with the format of all that was sent first, so that it is chosen where others fit as well.

    values: of words that are tried together. sent: formats, as plans write them.
    """
    return tuple(sorted(values, key=lambda words: {*sent} != {words.get("dtype")} or len(words) > 1))


def _first(trial: _Trial, words: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """The first words of a plan that is not refused; None if all are."""
    usual = {word: value for values in trial.tried for word, value in values[0].items()}
    for chosen in ({}, {"zero": 3}, {"zero": 0}, {"sp": True}, {"recompute": "none"}):
        start = {**words, **usual, **chosen}
        for leave in ((), ("shared_input", "loss_parallel"), ("grad_sync",), ("ep_sync", "expert_unit"), tuple(usual)):
            tried = {word: value for word, value in start.items() if word not in leave or word in words}
            left = trial.left(tried)
            if left is not None:
                return left, tried
    return None


def _refusal(sizes: ModelSizes, words: Words) -> str:
    """Why a plan of these words is refused."""
    model = f"a model of {sum(sizes.layers)} layers of {sizes.hidden} with {sizes.heads} heads"
    try:
        program_of(*plan_of(sizes, words))
    except UsageError as reason:
        return f"no plan was tried on {model}: {reason}"
    return f"no plan was tried on {model}, as other choices are refused"


def _why_none_fits(stages: Mapping[int, Sequence[SeenOp]], best: int) -> Iterator[str]:
    yield f"no plan fits: under the best one {best:,} ops differ"
    if not any(op.phase == "backward" for seen in stages.values() for op in seen):
        yield "no backward was recorded, and only steps of training are compared"


def _batch(found: FoundDegrees, sizes: ModelSizes) -> dict[str, Any]:
    return {
        "micro_batch_size": sizes.batch,
        "global_batch_size": sizes.batch * sizes.microbatches * found.dp,
        "seq_len": sizes.rows,
    }


def _uneven(sizes: ModelSizes) -> dict[str, Any]:
    return {"layers_per_stage": list(sizes.layers)} if len({*sizes.layers}) > 1 else {}


def _copies(found: FoundDegrees) -> dict[str, Any]:
    """Hybrid sharding: two kinds of groups of dp that have one rank in common."""
    shapes = sorted(shape for shape, axis in found.axes.items() if axis == "dp")
    for inner in shapes:
        for outer in shapes:
            if inner[0] * outer[0] == found.dp * found.cp and outer[1] == inner[0] * inner[1]:
                return {"hsdp": outer[0], "zero": 3}
    return {}


def _undecided(trial: _Trial, words: Words, best: int) -> Iterator[Undecided]:
    """Words whose other values fit as well."""
    for values in trial.tried:
        names = {word for value in values for word in value}
        own = {word: words[word] for word in names if word in words}
        others = {word: value for word, value in words.items() if word not in names}
        same = [value for value in values if value != own and trial.left({**others, **value}) == best]
        if same:
            yield Undecided(own, tuple(same))
