"""The memory of the `megatron` recipe against the forms that Megatron publishes, in bytes.

Two sources. `paper`: Korthikanti et al. 2022 (arXiv 2205.05198): table 2 has the activations of a layer, equations 5
and 6 and section 4.3 those of the first stage. `report`: `report_theoretical_memory` of Megatron-LM
(`megatron/training/theoretical_memory_usage.py`, commit 00caa53af309), which `--log-theoretical-memory` prints. Both
leave small terms out. Each such term is a row of `ACTIVATIONS` or `WEIGHTS`: a form and its rows give the bytes of
stagedb as integers. `docs/memory.md` has the same rows; `test_megatron_memory.py` compares.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Literal

from tests.validation.megatron_jobs import Job

Source = Literal["paper", "report"]


def layer_form(job: Job, source: Source) -> Fraction:
    """The activations of a layer for one micro-batch."""
    card, sbh = job.card, Fraction(job.sb * job.card.hidden)
    scores = Fraction(5 * card.heads * job.s, card.hidden)
    if source == "report":
        # `compute_activation_memory` with sequence parallelism and selective recompute, else `..._without_sp`.
        selective = job.sp and job.recompute == "core"
        return (
            sbh * (18 + 4 * Fraction(card.ffn, card.hidden)) / job.t if selective else sbh * (10 + Fraction(24, job.t))
        )
    if job.recompute == "full":
        return 2 * sbh
    scores = Fraction(0) if job.recompute == "core" else scores
    return sbh * ((34 + scores) / job.t if job.sp else 10 + (24 + scores) / job.t)


def activation_form(job: Job, source: Source) -> Fraction:
    """The activations of the first stage, with those of the embedding, and of the head where it is there."""
    h, vocabulary = job.card.hidden, job.vocabulary
    layers = layer_form(job, source)
    if source == "paper":
        head = Fraction(4 * job.sb * (h + vocabulary), job.t) if job.p == 1 else 0
        return layers * job.card.layers * job.penalty + Fraction(job.sb * h * job.p, job.t) + head
    selective = job.sp and job.recompute == "core"
    ends = Fraction((8 * job.sb + job.sb * h) * job.p, job.t if selective else 1)
    total = (layers * job.card.layers + ends) * job.penalty * job.discount
    if job.p == 1 and selective:
        total += Fraction(4 * job.sb * (h + vocabulary), job.t)
    elif job.p == 1:
        total += 2 * (Fraction(job.sb * vocabulary, job.t) + job.sb * h)
    return total if selective else total * Fraction(105, 100)


def weight_form(job: Job) -> Fraction:
    """`compute_weight_and_optimizer_memory`: the first stage."""
    card, h = job.card, job.card.hidden
    gated, norm = Fraction(3 if card.mlp == "gated" else 2, 2), 1 if card.norm == "rmsnorm" else 2
    width = Fraction(card.head_dim * card.heads, h)
    attention = 2 * h * h * (1 + Fraction(card.kv_heads, card.heads)) * width
    inner = card.expert_ffn * card.experts + card.shared_ffn if card.routes else card.ffn
    block = card.layers * (2 * h * (inner * gated + norm) + attention) + norm * h
    table = h * job.vocabulary
    held = block / job.p + table + (table if not card.tied and job.p == 1 else 0)
    return held / job.t * (6 + Fraction(12, job.dp) if job.zero == 1 else 18)


@dataclass(frozen=True)
class Term:
    """A difference: the bytes that stagedb has more than the forms of a source. name: its row in the docs."""

    name: str
    bytes: Callable[[Job, Source], Fraction | int]


def statistics(job: Job, source: Source) -> Fraction:
    """Means and deviations of norms, in fp32. The paper leaves them out as small."""
    each = Fraction((8 if job.card.norm == "layernorm" else 4) * job.sb, job.between)
    return each * ((2 * job.layers if job.recompute != "full" else 0) + (job.p == 1))


def scores(job: Job, source: Source) -> Fraction | int:
    """The report takes the attention core to be recomputed, or to be a fused kernel."""
    kept = source == "report" and job.attention == "math" and job.recompute == "none"
    each = 5 if job.dropout else 2
    return job.layers * Fraction(each * job.card.heads * job.s * job.sb, job.t) if kept else 0


def log_sums(job: Job, source: Source) -> Fraction | int:
    """A fused kernel keeps the logarithm of each softmax's denominator, in fp32."""
    fused = job.attention == "fused" and job.recompute == "none"
    return job.layers * Fraction(4 * job.card.heads * job.sb, job.t) if fused else 0


def masks(job: Job, source: Source) -> Fraction | int:
    """Without dropout there are no masks: two in a layer, one behind the embedding."""
    return -2 * job.layers * Fraction(job.sb * job.card.hidden, job.between) if not job.dropout else 0


def heads(job: Job, source: Source) -> Fraction:
    """Queries, keys, values and the context are as wide as their heads, and grouped keys and values have fewer."""
    card = job.card
    repeated = job.attention == "math" and job.recompute == "none"
    keys = card.heads if repeated else card.kv_heads
    return job.layers * Fraction(job.sb * (4 * (card.heads + keys) * card.head_dim - 8 * card.hidden), job.t)


def feed_forward(job: Job, source: Source) -> Fraction:
    """A gate makes a third tensor. The form without sequence parallelism has a width of 4h."""
    card = job.card
    assumed = card.ffn if job.sp and job.recompute == "core" else 4 * card.hidden
    inner = (6 if card.mlp == "gated" else 4) * card.ffn - 4 * assumed
    return job.layers * Fraction(job.sb * inner, job.t)


def without_sp(job: Job, source: Source) -> Fraction | int:
    """The report has the form without sequence parallelism for plans with it that do not recompute."""
    whole = source == "report" and job.sp and job.recompute == "none"
    return -job.layers * 10 * job.sb * job.card.hidden * (1 - Fraction(1, job.t)) if whole else 0


def recomputed_input(job: Job, source: Source) -> Fraction | int:
    """Full recompute keeps the input of a layer, which is a shard under sequence parallelism."""
    full = job.recompute == "full"
    return -2 * job.layers * job.sb * job.card.hidden * (1 - Fraction(1, job.between)) if full else 0


def in_flight(job: Job, source: Source) -> Fraction:
    """The forms for interleaved stages, and the paper's, do not ask how many micro-batches there are."""
    return layer_form(job, source) * (
        job.layers - (job.claimed if source == "report" else job.card.layers * job.penalty)
    )


def embedding(job: Job, source: Source) -> Fraction:
    """The mask of the embedding's dropout: for each micro-batch in flight, and whole without sequence parallelism."""
    sbh = job.sb * job.card.hidden
    held = Fraction(sbh * job.inputs, job.between) if job.dropout else Fraction(0)
    if source == "paper":
        return held - Fraction(sbh * job.p, job.t)
    selective = job.sp and job.recompute == "core"
    return held - Fraction(sbh * job.p, job.t if selective else 1) * job.penalty * job.discount


def tokens(job: Job, source: Source) -> Fraction:
    """Tokens of micro-batches in flight, which tp does not cut, and labels where the head is."""
    held = Fraction(8 * job.sb * (job.inputs + (job.p == 1)))
    if source == "paper":
        return held
    selective = job.sp and job.recompute == "core"
    return held - Fraction(8 * job.sb * job.p, job.t if selective else 1) * job.penalty * job.discount


def head(job: Job, source: Source) -> Fraction | int:
    """The inputs of the last norm and of the head are whole without sequence parallelism; logits are in fp32."""
    if job.p > 1:
        return 0
    sbh, sbv = job.sb * job.card.hidden, job.sb * job.vocabulary
    held = Fraction(4 * sbh, job.between) + Fraction(4 * sbv, job.t)
    if source == "paper" or (job.sp and job.recompute == "core"):
        return held - Fraction(4 * (sbh + sbv), job.t)
    return held - Fraction(2 * sbv, job.t) - 2 * sbh


def scalars(job: Job, source: Source) -> int:
    """The loss, and the number of tokens that it is averaged over."""
    return 8 if job.p == 1 else 0


def overhead(job: Job, source: Source) -> Fraction | int:
    """The report adds 5 % to its form without sequence parallelism."""
    added = source == "report" and not (job.sp and job.recompute == "core")
    return -activation_form(job, source) * Fraction(5, 105) if added else 0


ACTIVATIONS = (
    Term("statistics of norms", statistics),
    Term("attention scores", scores),
    Term("log-sums of fused attention", log_sums),
    Term("no dropout", masks),
    Term("widths of heads", heads),
    Term("width of the feed-forward", feed_forward),
    Term("sequence parallelism", without_sp),
    Term("input of a recomputed layer", recomputed_input),
    Term("micro-batches in flight", in_flight),
    Term("mask of the embedding", embedding),
    Term("tokens and labels", tokens),
    Term("head", head),
    Term("loss", scalars),
    Term("overhead", overhead),
)


def bytes_each(job: Job) -> Fraction:
    """Bytes of a parameter with its gradient, its moments and its master copy."""
    return Fraction(6) + Fraction(12, job.dp) if job.zero == 1 else Fraction(18)


def biases(job: Job) -> Fraction:
    """The report leaves biases out. Those behind row-parallel matmuls are whole on each rank."""
    card, widths = job.card, 0
    queries = (card.heads + 2 * card.kv_heads) * card.head_dim
    if card.linear_bias or card.qkv_bias:
        widths += queries
    if card.linear_bias:
        widths += card.ffn * (2 if card.mlp == "gated" else 1)
    whole = 2 * card.hidden if card.linear_bias else 0
    return Fraction(card.layers, job.p) * (Fraction(widths, job.t) + whole)


def positions(job: Job) -> int:
    """The report leaves the table of learned positions out. Each rank has all of it."""
    return job.card.max_positions * job.card.hidden if job.card.positions == "learned" else 0


def norms(job: Job) -> Fraction:
    """Each rank has the norms whole. The report divides them by tp."""
    each = job.card.hidden * (2 if job.card.norm == "layernorm" else 1)
    return 2 * each * Fraction(job.card.layers, job.p) * (1 - Fraction(1, job.t))


def last_norm(job: Job) -> Fraction:
    """The last norm is on the last stage. The report divides it by the stages, and by tp."""
    each = job.card.hidden * (2 if job.card.norm == "layernorm" else 1)
    return each * ((1 if job.p == 1 else 0) - Fraction(1, job.p * job.t))


def routers(job: Job) -> Fraction | int:
    """The report leaves routers out. Each rank has them whole."""
    return job.card.hidden * job.card.experts * Fraction(job.card.layers, job.p)


def experts(job: Job) -> Fraction:
    """The report does not divide experts by ep."""
    card = job.card
    each = card.hidden * card.expert_ffn * (3 if card.mlp == "gated" else 2)
    return -Fraction(card.layers, job.p) * each * card.experts * (1 - Fraction(1, job.ep)) / job.t


def shapes(job: Job, chunk: int) -> list[int]:
    """Elements of each parameter of a chunk of the first stage on one rank."""
    card, h, t = job.card, job.card.hidden, job.t
    norm = [h, h] if card.norm == "layernorm" else [h]
    queries = (card.heads + 2 * card.kv_heads) * card.head_dim
    up = card.ffn * (2 if card.mlp == "gated" else 1)
    layer = [*norm, *norm, queries * h // t, card.heads * card.head_dim * h // t, up * h // t, card.ffn * h // t]
    layer += [queries // t] if card.linear_bias or card.qkv_bias else []
    layer += [h, up // t, h] if card.linear_bias else []
    table = job.vocabulary * h // t
    ends = [table, *([positions(job)] if positions(job) else [])] if chunk == 0 else []
    if job.p == 1:
        ends += [*norm, *([] if card.tied else [table])]
    return [*ends, *layer * (card.layers // (job.p * job.v))]


def padding(job: Job) -> int:
    """The distributed optimizer's buffer of each chunk: parameters begin at multiples of 64, ranks' parts are equal."""
    if job.zero != 1 or job.dp == 1:
        return 0
    found, unit = 0, lcm(job.dp, 128)
    for chunk in range(job.v):
        sizes = shapes(job, chunk)
        begun = sum(-(-each // 64) * 64 for each in sizes)
        found += -(-begun // unit) * unit - sum(sizes)
    return found


WEIGHTS: dict[str, Callable[[Job], Fraction | int]] = {
    "biases": biases,
    "learned positions": positions,
    "norms of layers": norms,
    "last norm": last_norm,
    "routers": routers,
    "experts": experts,
    "padding of the buffer": padding,
}
"""The parameters that the first stage has more than the report's form, each with `bytes_each`."""


def explained(job: Job, source: Source) -> Fraction:
    """A form's bytes and those of all differences."""
    return activation_form(job, source) + sum(term.bytes(job, source) for term in ACTIVATIONS)


def state_form(job: Job) -> Fraction:
    """The report's form and all differences."""
    return weight_form(job) + bytes_each(job) * sum(term(job) for term in WEIGHTS.values())
