"""Causal attention over the whole sequence: multi-head, grouped-query or multi-query.

Queries have axes (batch, seq, heads, head_dim), keys and values (batch, seq, kv_heads, head_dim).
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.ir.tags import Tag
from stagedb.models.deferred_import import DeferredModule
from stagedb.models.kinds.part import (
    Architecture,
    Branch,
    Buffers,
    LayerPart,
    ShardingChoices,
    SizeSymbol,
    Table,
    UserRegion,
    Values,
)

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir import tensors
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.style import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    tensors = DeferredModule("stagedb.ir.tensors")
    shared = DeferredModule("stagedb.models.shared_operations")

QUERY = ("batch", "seq", "heads", "head_dim")
KEY = ("batch", "seq", "kv_heads", "head_dim")
PACKED = ("batch", "seq", "kv_heads", "packed", "head_dim")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    return attend(t, card, style, x)


def attend(t: "Tracer", card: Architecture, style: "Style", x: "Tensor", window: int | None = None) -> Branch:
    """Projections, attention, and the projection back. window: how many keys a query sees; None: all before it."""
    t.enter("attention")
    qkv = _queries_keys_values(t, card, style, x)
    core = _plain_core if style.attention == "math" else _fused_core
    context = core(t, card, style, qkv, window)
    t.enter("attention")
    return shared.row_linear(t, card, style, "attn.wo", context, ("hidden", "heads", "head_dim"))


def _queries_keys_values(t: "Tracer", card: Architecture, style: "Style", x: "Tensor") -> "tuple[Tensor, ...]":
    """One packed tensor or three, with rotary positions applied."""
    bias, rotary = card.linear_bias or card.qkv_bias, card.positions == "rotary"
    if style.pack_qkv:
        qkv = shared.linear(t, "attn.wqkv", x, ("kv_heads", "packed", "head_dim", "hidden"), PACKED, bias, style.fp8)
        if not rotary and not card.qk_norm:
            return (qkv,)
        if not card.qk_norm:
            turned = t.activation("attn.rotary", PACKED)
            t.emit("attn.rotary", ops.Rotary(packed=True), (qkv,), turned)
            return (turned,)
        q, k, v = t.activation("attn.q", QUERY), t.activation("attn.k", KEY), t.activation("attn.v", KEY)
        t.emit("attn.split", ops.SplitHeads(), (qkv,), q, k, v)
    else:
        q = shared.linear(t, "attn.wq", x, ("heads", "head_dim", "hidden"), QUERY, bias, style.fp8)
        k = shared.linear(t, "attn.wk", x, ("kv_heads", "head_dim", "hidden"), KEY, bias, style.fp8)
        v = shared.linear(t, "attn.wv", x, ("kv_heads", "head_dim", "hidden"), KEY, bias, style.fp8)
    if card.qk_norm:
        q, k = shared.norm(t, card, style, "attn.q_norm", q), shared.norm(t, card, style, "attn.k_norm", k)
    if not rotary:
        return q, k, v
    turned_q, turned_k = t.activation("attn.rotary_q", QUERY), t.activation("attn.rotary_k", KEY)
    t.emit("attn.rotary_q", ops.Rotary(), (q,), turned_q)
    t.emit("attn.rotary_k", ops.Rotary(), (k,), turned_k)
    return turned_q, turned_k, v


def _split(t: "Tracer", qkv: "tuple[Tensor, ...]", views: bool = False) -> "tuple[Tensor, ...]":
    """q, k and v on their own. views: q remains a part of the packed tensor, which is kept whole with it."""
    if len(qkv) > 1:
        return qkv
    apart = t.activation("attn.q", QUERY), t.activation("attn.k", KEY), t.activation("attn.v", KEY)
    t.emit("attn.split", ops.SplitViews() if views else ops.SplitHeads(), qkv, *apart)
    return apart


def _fused_core(
    t: "Tracer", card: Architecture, style: "Style", qkv: "tuple[Tensor, ...]", window: int | None
) -> "Tensor":
    """One kernel. If ranks share a sequence, keys and values are moved separately from the queries."""
    qkv = _split(t, qkv, style.explicit_mask) if style.apart else qkv
    t.enter("attention_core", Tag.ATTENTION_CORE)
    if style.core is not None:
        if window is not None:
            raise UsageError(
                f"{card.name} has sliding-window attention, and rings and calls by part read all keys of other ranks: "
                "take --cp-kind ulysses"
            )
        return _shared_core(t, style.core, qkv)
    if style.explicit_mask:
        mask = t.activation("attn.mask", ("seq", "kseq"))
        t.emit("attn.mask", ops.AdditiveMask(window), (), mask)
        qkv = (*qkv, mask)
    context, lse = t.activation("attn.core", QUERY), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit("attn.core", ops.Attention(style.explicit_mask, window), qkv, context, lse)
    return context


def _shared_core(t: "Tracer", core: "ops.Operator", qkv: "tuple[Tensor, ...]") -> "Tensor":
    """Keys and values of other ranks in turn, or gathered. PyTorch puts the result of its balanced ring in order."""
    context, lse = t.activation("attn.core", QUERY), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    t.emit("attn.core", core, qkv, context, lse)
    if not isinstance(core, ops.RingAttention) or core.passing == "sent" or not core.balanced:
        return context
    ordered = t.activation("attn.contiguous", QUERY)
    t.emit("attn.contiguous", ops.Contiguous(), (context,), ordered)
    return ordered


def _plain_core(
    t: "Tracer", card: Architecture, style: "Style", qkv: "tuple[Tensor, ...]", window: int | None
) -> "Tensor":
    """Scores, softmax and context as matmuls; grouped keys and values repeated for their query heads."""
    q, k, v = _split(t, qkv)
    t.enter("attention_core", Tag.ATTENTION_CORE)
    if card.heads != card.kv_heads:
        wide_k, wide_v = t.activation("attn.wide_k", QUERY), t.activation("attn.wide_v", QUERY)
        t.emit("attn.wide_k", ops.RepeatHeads(), (k,), wide_k)
        t.emit("attn.wide_v", ops.RepeatHeads(), (v,), wide_v)
        k, v = wide_k, wide_v
    keys, pairs = ("batch", "kseq", "heads", "head_dim"), ("batch", "heads", "seq", "kseq")
    scores, weights = t.activation("attn.scores", pairs), t.activation("attn.weights", pairs)
    t.emit("attn.scores", ops.Einsum(QUERY, keys, pairs), (q, k), scores)
    t.emit("attn.weights", ops.Softmax(window), (scores,), weights)
    weights = shared.dropout(t, style, "attn.weights.dropout", weights)
    context = t.activation("attn.context", QUERY)
    t.emit("attn.context", ops.Einsum(pairs, keys, QUERY), (weights, v), context)
    return context


def _parameters(card: Architecture) -> int:
    queries, keys_values = card.heads * card.head_dim, 2 * card.kv_heads * card.head_dim
    biases = queries + keys_values if card.linear_bias or card.qkv_bias else 0
    biases += card.hidden if card.linear_bias else 0
    biases += 2 * card.head_dim if card.qk_norm else 0
    return card.hidden * (2 * queries + keys_values) + biases


def _check(card: Architecture) -> None:
    if card.heads % card.kv_heads != 0:
        raise UsageError(f"{card.name}: heads={card.heads} is not divisible by kv_heads={card.kv_heads}")
    if card.positions == "rotary" and card.head_dim % 2 != 0:
        raise UsageError(f"{card.name}: rotary positions want an even head_dim, not {card.head_dim}")


def _buffers(card: Architecture, style: "Style") -> Buffers:
    """Positions, rotary tables and the causal mask."""
    held = [(tensors.Tensor("stage.positions", ("seq",), "int64", "buffer"), "attention")]
    if card.positions == "rotary":
        # Cosine and sine, each for half of the head's dimensions.
        held.append((tensors.Tensor("stage.rotary", ("seq", "head_dim"), "act", "buffer"), "attention"))
    if style.attention == "math" or style.explicit_mask:
        held.append((tensors.Tensor("stage.mask", ("seq", "kseq"), "bool", "buffer"), "attention_core"))
    return tuple(held)


def _rows(choices: ShardingChoices) -> Table:
    """Tensor parallelism partitions heads.

    Ulysses (Jacobs et al. 2023): inside attention each rank has the whole sequence of some heads. Without it queries
    are partitioned there. Keys and values, whose sequence `kseq` is in no rule, are gathered.
    """
    heads = {"batch": ("dp",), "seq": ("cp",), "heads": ("tp",), "kv_heads": ("tp",)}
    over_context = {"batch": ("dp",), "heads": ("tp", "cp"), "kv_heads": ("tp", "cp")}
    return {"attention": heads, "attention_core": over_context if choices.cp_kind == "ulysses" else heads}


def _planned(choices: ShardingChoices, table: Table) -> Table:
    """Ulysses inside a ring (Fang and Zhao 2024): neighbours exchange sequence for heads, a ring joins the rest."""
    if choices.cp_kind != "ulysses-ring":
        return {}
    return {
        "attention_core": {"batch": ("dp",), "seq": ("cpr",), "heads": ("tp", "cpa"), "kv_heads": ("tp", "cpa")},
    }


ATTENTION = LayerPart(
    name="attention",
    forward=_forward,
    parameters=_parameters,
    check=_check,
    symbols={
        "A": SizeSymbol("heads", "attention heads", lambda card: card.heads),
        "KV": SizeSymbol("kv_heads", "heads of keys and values", lambda card: card.kv_heads),
        "D": SizeSymbol("head_dim", "size of one head", lambda card: card.head_dim),
    },
    axes={
        "kseq": "S",
        "heads": "A",
        "kv_heads": "KV",
        "packed": "A / KV + 2",  # for each K/V head its queries, its key and its value
        "head_dim": "D",
        "state": "3",
    },
    replicable=frozenset({"kv_heads"}),
    rows=_rows,
    planned=_planned,
    user={
        "attention": UserRegion(
            ("batch", "heads", "kv_heads", "head_dim", "hidden"),
            {"head_dim": "attention and rotary positions read all values of a head"},
        )
    },
    left={"attention_core": "which follows --cp-kind"},
    buffers=_buffers,
)
