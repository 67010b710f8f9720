"""The core of attention: a fused kernel, the kernel of ranks that share a sequence, or matmuls and a softmax.

Queries have axes (batch, seq, heads, head_dim), keys and values (batch, seq, kv_heads, head_dim).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stagedb.errors import UsageError
from stagedb.ir.facts import KEY_PARTS, Tag
from stagedb.lazy_names import DeferredModule
from stagedb.mentions import Word
from stagedb.models.kinds.head_sizes import head_sizes
from stagedb.models.kinds.part import Architecture, Values

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")


@dataclass(frozen=True)
class HeadAxes:
    """The axes of queries, keys, values and the context; head, kv_heads and value as in `ops.Attention`."""

    head: str = "head_dim"
    kv_heads: str = "kv_heads"
    value: str = "head_dim"

    @property
    def query(self) -> tuple[str, ...]:
        """The axes of queries."""
        return ("batch", "seq", "heads", self.head)

    @property
    def context(self) -> tuple[str, ...]:
        """The axes of the context."""
        return ("batch", "seq", "heads", self.value)

    @property
    def words(self) -> dict[str, Any]:
        """The fields of a fused kernel."""
        return {"head": self.head, "kv_heads": self.kv_heads, "value": self.value}


USUAL_HEADS = HeadAxes()
QUERY = ("batch", "seq", "heads", "head_dim")
KEY = ("batch", "seq", "kv_heads", "head_dim")
PACKED = ("batch", "seq", "kv_heads", "packed", "head_dim")


def core_of(
    t: "Tracer",
    card: Architecture,
    style: "Style",
    qkv: "tuple[Tensor, ...]",
    values: Values,
    heads: HeadAxes = USUAL_HEADS,
    chosen: "tuple[Tensor, ...]" = (),
    blocks: "tuple[Tensor, ...]" = (),
) -> "Tensor":
    """The attention core as the style writes it: a fused kernel, or matmuls and a softmax.

    qkv: one packed tensor or three, and the scores of sinks if heads have some. chosen: the scores and places of the
    keys that an indexer chose; empty: all are seen. blocks: the numbers of the blocks of keys that one chose.
    """
    if blocks:
        return _core_of_blocks(t, card, style, qkv, values, blocks[0], heads)
    sinks = qkv[-1:] if values["sinks"] else ()
    if style.deals_keys:
        return _dealt_core(t, card, qkv[: len(qkv) - len(sinks)], sinks, rules_of(card, values), heads, chosen)
    core = _plain_core if style.attention == "math" else _fused_core
    return core(t, card, style, qkv[: len(qkv) - len(sinks)], sinks, values, heads, chosen)


def _core_of_blocks(
    t: "Tracer",
    card: Architecture,
    style: "Style",
    qkv: "tuple[Tensor, ...]",
    values: Values,
    chosen: "Tensor",
    heads: HeadAxes,
) -> "Tensor":
    """Attention over the blocks of keys that an indexer chose. chosen: their numbers, for each K/V head."""
    if style.core is not None or style.explicit_mask:
        raise UsageError(
            f"{card.name} has an indexer of blocks of keys, which rings, calls by part and explicit masks do not "
            f"compute: take {Word('cp_kind', 'ulysses')}"
        )
    qkv = split(t, qkv)
    t.enter("attention_core", Tag.ATTENTION_CORE)
    numbers: dict[str, Any] = {
        "block": int(values["index_block"]),
        "top": int(values["index_blocks"]),
        "scale": values["scale"],
    }
    if style.attention == "math":
        softmax = ops.key_blocks.KeyBlockSoftmax(**numbers, head=heads.head)
        return _matmuls(t, card, style, qkv, values, heads, softmax, (chosen,))
    context, lse = t.activation("attn.core", heads.context), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit("attn.core", ops.key_blocks.KeyBlockAttention(**numbers, **heads.words), (*qkv, chosen), context, lse)
    return context


def rules_of(card: Architecture, values: Values) -> dict[str, Any]:
    """The fields of operators that score keys (`ScoredPairs`)."""
    given = {"window": values.get("window"), "chunk_tokens": values.get("chunk"), "alibi": card.positions == "alibi"}
    return {**given, "softcap": values["softcap"], "scale": values["scale"], "sinks": values["sinks"]}


def split(t: "Tracer", qkv: "tuple[Tensor, ...]", views: bool = False) -> "tuple[Tensor, ...]":
    """q, k and v on their own. views: q remains a part of the packed tensor, which is kept whole with it.

    qkv: the three tensors, or one packed tensor.
    """
    if len(qkv) > 1:
        return qkv
    apart = t.activation("attn.q", QUERY), t.activation("attn.k", KEY), t.activation("attn.v", KEY)
    t.emit("attn.split", ops.SplitViews() if views else ops.SplitHeads(), qkv, *apart)
    return apart


def _fused_core(
    t: "Tracer",
    card: Architecture,
    style: "Style",
    qkv: "tuple[Tensor, ...]",
    sinks: "tuple[Tensor, ...]",
    values: Values,
    heads: HeadAxes,
    chosen: "tuple[Tensor, ...]",
) -> "Tensor":
    """Attention as one kernel. If ranks share a sequence, keys and values are moved separately from the queries."""
    qkv = split(t, qkv, style.explicit_mask) if style.apart else qkv
    t.enter("attention_core", Tag.ATTENTION_CORE)
    rules = rules_of(card, values)
    if style.core is not None:
        _check_shared(card, rules, heads, style.core, chosen)
        core = replace(style.core, softcap=rules["softcap"], scale=rules["scale"])
        if not isinstance(core, ops.RingAttention):
            core = replace(core, **heads.words)
        elif heads.value != heads.head:
            core = replace(core, value=heads.value)
        return _shared_core(t, core, qkv, heads)
    rescales = style.sinks == "rescaled"
    rules["sinks"] = bool(sinks) and not rescales
    qkv = (*qkv, *(() if rescales else sinks), *chosen)
    if style.explicit_mask:
        if rules["alibi"] or rules["softcap"] or chosen:
            raise UsageError(
                f"{card.name} has scores that an explicit mask cannot express (ALiBi, a soft cap, or an indexer): "
                f"take {Word('cp_kind', 'ulysses')}"
            )
        mask = t.activation("attn.mask", ("seq", "kseq"))
        t.emit("attn.mask", ops.AdditiveMask(rules["window"], rules["chunk_tokens"]), (), mask)
        qkv = (*qkv, mask)
    context, lse = t.activation("attn.core", heads.context), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit(
        "attn.core",
        ops.Attention(masked=style.explicit_mask, chosen=bool(chosen), **rules, **heads.words),
        qkv,
        context,
        lse,
    )
    return rescaled(t, context, lse, sinks[0], heads) if sinks and rescales else context


def _dealt_core(
    t: "Tracer",
    card: Architecture,
    qkv: "tuple[Tensor, ...]",
    sinks: "tuple[Tensor, ...]",
    rules: dict[str, Any],
    heads: HeadAxes,
    chosen: "tuple[Tensor, ...]",
) -> "Tensor":
    """The context of ranks that each have a part of the keys, from a kernel that does not know sinks."""
    check_no_index(card, chosen)
    qkv = split(t, qkv)
    t.enter("attention_core", Tag.ATTENTION_CORE)
    operator = ops.Attention(**{**rules, "sinks": False}, **heads.words, dealt=True)
    context, sums = dealt_context(t, operator, qkv, heads.context)
    if not sinks:
        return context
    lse = t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit("attn.lse", ops.SumOfParts(), (sums,), lse)
    return rescaled(t, context, lse, sinks[0], heads)


def check_no_index(card: Architecture, chosen: "tuple[Tensor, ...]") -> None:
    """Raise UsageError for an indexer where ranks of cp share the cache. chosen: what the indexer chose."""
    if chosen:
        raise UsageError(
            f"{card.name} has an indexer, which chooses among the keys of a whole request, and ranks of cp that share "
            f"its cache each have some of them: take {Word('cp', 1)}, and {Word('dp')} for more requests"
        )


def dealt_context(
    t: "Tracer", operator: "ops.Attention", operands: "tuple[Tensor, ...]", axes: tuple[str, ...]
) -> "tuple[Tensor, Tensor]":
    """The context of all keys, which ranks of cp add up, and the log-sum-exp of each rank's keys.

    operator: the kernel of a rank's keys. operands: its own. axes: those of the context.
    """
    part = t.activation("attn.part", (KEY_PARTS, *axes))
    sums = t.activation("attn.part_lse", (KEY_PARTS, "batch", "heads", "seq"), "fp32")
    context = t.activation("attn.core", axes)
    t.emit("attn.part", operator, operands, part, sums)
    t.emit("attn.core", ops.ScaleByParts(), (part, sums), context)
    return context, sums


def rescaled(t: "Tracer", context: "Tensor", lse: "Tensor", sinks: "Tensor", heads: HeadAxes) -> "Tensor":
    """The context without the share of a token's sinks, from a kernel that does not know sinks."""
    axes = ("batch", "seq", "heads")
    share, narrow = t.activation("attn.sinks.share", axes, "fp32"), t.activation("attn.sinks.factor", axes)
    scaled = t.activation("attn.rescaled", heads.context)
    t.emit("attn.sinks.share", ops.SinkShare(), (lse, sinks), share)
    t.emit("attn.sinks.factor", ops.Cast(), (share,), narrow)
    t.emit("attn.rescaled", ops.Multiply(), (context, narrow), scaled)
    return scaled


_REACH = {
    "window": "sliding-window attention",
    "chunk_tokens": "chunked attention",
    "alibi": "ALiBi",
    "sinks": "sinks",
}


def _check_shared(
    card: Architecture,
    rules: Mapping[str, Any],
    heads: HeadAxes,
    core: "ops.RingAttention | ops.PartAttention",
    chosen: "tuple[Tensor, ...]",
) -> None:
    """Raise UsageError for scores that the kernels of rings and calls by part do not compute."""
    if chosen:
        raise UsageError(
            f"{card.name} has an indexer, which chooses keys of the whole sequence, and rings and calls by part have "
            f"those of one rank at a time: take {Word('cp_kind', 'ulysses')}"
        )
    if heads.kv_heads == "kv_heads" and heads != USUAL_HEADS and isinstance(core, ops.RingAttention):
        raise UsageError(
            f"{card.name} has values with a size of their own, and rings send keys and values of one size: take "
            f"{Word('cp_kind', 'ulysses')}"
        )
    for word, about in _REACH.items():
        if rules[word]:
            reads = "read all keys of other ranks" if word in ("window", "chunk_tokens") else "do not compute that"
            raise UsageError(
                f"{card.name} has {about}, and rings and calls by part {reads}: take {Word('cp_kind', 'ulysses')}"
            )


def _shared_core(
    t: "Tracer", core: "ops.RingAttention | ops.PartAttention", qkv: "tuple[Tensor, ...]", heads: HeadAxes
) -> "Tensor":
    """Keys and values of other ranks in turn, or gathered. PyTorch puts the result of its balanced ring in order."""
    context, lse = t.activation("attn.core", heads.context), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit("attn.core", core, qkv, context, lse)
    if not isinstance(core, ops.RingAttention) or core.passing == "sent" or not core.balanced:
        return context
    ordered = t.activation("attn.contiguous", heads.context)
    t.emit("attn.contiguous", ops.Contiguous(), (context,), ordered)
    return ordered


def _plain_core(
    t: "Tracer",
    card: Architecture,
    style: "Style",
    qkv: "tuple[Tensor, ...]",
    sinks: "tuple[Tensor, ...]",
    values: Values,
    heads: HeadAxes,
    chosen: "tuple[Tensor, ...]",
) -> "Tensor":
    """Scores, softmax and context as matmuls; grouped keys and values repeated for their query heads."""
    softmax = ops.Softmax(**rules_of(card, values), head=heads.head, chosen=bool(chosen))
    return _matmuls(t, card, style, split(t, qkv), values, heads, softmax, (*sinks, *chosen))


def _matmuls(
    t: "Tracer",
    card: Architecture,
    style: "Style",
    qkv: "tuple[Tensor, ...]",
    values: Values,
    heads: HeadAxes,
    softmax: "ops.Softmax",
    further: "tuple[Tensor, ...]",
) -> "Tensor":
    """Attention with this softmax, as matmuls. further: what it reads in addition to the products."""
    q, k, v = qkv
    t.enter("attention_core", Tag.ATTENTION_CORE)
    numbers = head_sizes(card, values)
    if heads.kv_heads == "kv_heads" and numbers.heads != numbers.kv_heads:
        wide_k = t.activation("attn.wide_k", ("batch", "kseq", "heads", heads.head))
        wide_v = t.activation("attn.wide_v", ("batch", "kseq", "heads", heads.value))
        t.emit("attn.wide_k", ops.RepeatHeads(), (k,), wide_k)
        t.emit("attn.wide_v", ops.RepeatHeads(), (v,), wide_v)
        k, v = wide_k, wide_v
    keys, pairs = ("batch", "kseq", "heads", heads.head), ("batch", "heads", "seq", "kseq")
    scores, weights = t.activation("attn.scores", pairs), t.activation("attn.weights", pairs)
    t.emit("attn.scores", ops.Einsum(heads.query, keys, pairs), (q, k), scores)
    t.emit("attn.weights", softmax, (scores, *further), weights)
    weights = shared.dropout(t, style, "attn.weights.dropout", weights)
    context = t.activation("attn.context", heads.context)
    read = ("batch", "kseq", "heads", heads.value)
    t.emit("attn.context", ops.Einsum(pairs, read, heads.context), (weights, v), context)
    return context
