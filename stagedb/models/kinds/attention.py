"""Causal attention over the whole sequence: multi-head, grouped-query or multi-query.

Queries have axes (batch, seq, heads, head_dim), keys and values (batch, seq, kv_heads, head_dim).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.mentions import Word
from stagedb.models.kinds import block_index
from stagedb.models.kinds.attention_core import KEY, PACKED, QUERY, USUAL_HEADS, HeadAxes, core_of, split
from stagedb.models.kinds.head_sizes import HEAD_WORDS, check_head_sizes, head_sizes
from stagedb.models.kinds.part import (
    Architecture,
    Branch,
    Buffers,
    KindWord,
    LayerPart,
    ShardingChoices,
    SizeSymbol,
    Table,
    UserRegion,
    Value,
    Values,
    norm_values,
)

# What is done with the context of all heads before the matmul back: a norm, and gates from a matmul of their own.

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

VALUES, HEADS = "values", "heads"
"""A gate for each value of the context, or one a head."""

CONTEXT_WORDS: Mapping[str, KindWord] = {
    "context_norm": KindWord(
        "whether the results of all heads of a token are normalised before the matmul back", False
    ),
    "gate": KindWord(
        "a matmul of its own whose function multiplies the results of heads: one for each value, or one a head",
        "",
        (VALUES, HEADS),
    ),
    "gate_function": KindWord("the function of that gate", "sigmoid", ("sigmoid", "softplus")),
}
"""What a layer kind may set for the context."""


def gates_of(t: "Tracer", style: "Style", values: Values, x: "Tensor", context: tuple[str, ...]) -> "Tensor | None":
    """The gates before their function. context: the axes of the context."""
    if not values["gate"]:
        return None
    made = context if values["gate"] == VALUES else context[:-1]
    return shared.linear(t, "attn.wg", x, (*made[2:], "hidden"), made, form=style.linear)


def finished(t: "Tracer", values: Values, context: "Tensor", gates: "Tensor | None") -> "Tensor":
    """The context as the matmul back reads it."""
    if values["context_norm"]:
        context = shared.norm_over(t, "attn.context_norm", context, 2)
    if gates is None:
        return context
    function = str(values["gate_function"])
    shares, y = t.activation("attn.gates.shares", gates.axes), t.activation("attn.gated", context.axes)
    t.emit("attn.gates.shares", ops.Activation(function, from_result=function == "sigmoid"), (gates,), shares)
    t.emit("attn.gated", ops.Multiply(), (context, shares), y)
    return y


def context_parameters(card: Architecture, values: Values, heads: int, size: int) -> int:
    """Parameters of the norm and of the gates' matmul. heads, size: those of the context."""
    gates = {"": 0, VALUES: heads * size, HEADS: heads}[str(values["gate"])]
    return card.hidden * gates + (heads * size if values["context_norm"] else 0)


def check_context(card: Architecture, values: Values) -> None:
    """Raise UsageError for words that do not suit each other."""
    if values["gate"] and values["gated"]:
        raise UsageError(f"{card.name}: gate and gated are two ways to gate heads: leave one out")
    if values["gate_function"] != "sigmoid" and not values["gate"]:
        raise UsageError(f"{card.name}: gate_function is for a gate of its own matmul: set gate")


if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir import tensors
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    tensors = DeferredModule("stagedb.ir.tensors")
    shared = DeferredModule("stagedb.models.shared_operations")


GATES = ("batch", "seq", "heads", "gate_dim")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    return attend(t, card, style, x, values)


def attend(t: "Tracer", card: Architecture, style: "Style", x: "Tensor", values: Values) -> Branch:
    """Projections, attention, and the projection back. values: those of `WORDS`, and the window or chunk of a kind."""
    t.enter("attention")
    # A parameter of the attention itself, which come before those of its parts.
    sinks = (t.weight("attn.sinks", ("heads",)),) if values["sinks"] else ()
    if values.get("keys") == "earlier":
        qkv, gates = _queries_alone(t, card, style, values, x)
    else:
        qkv, gates = queries_keys_values(t, card, style, values, x)
    if t.keys is not None:
        qkv = split(t, qkv)
        t.keys[seen(values)] = qkv[1], qkv[2]
    heads = heads_of(card, values)
    own_gates = gates_of(t, style, values, x, heads.context)
    blocks = (block_index.chosen_blocks(t, card, style, values, x),) if values.get("index_block") else ()
    t.enter("attention")
    context = core_of(t, card, style, (*qkv, *sinks), values, heads, blocks=blocks)
    t.enter("attention")
    if gates is not None:
        context = _gated(t, context, gates)
    context = finished(t, values, context, own_gates)
    bias = bias_of(card, values) in ("all", "out")
    return shared.row_linear(t, style, "attn.wo", context, ("hidden", "heads", heads.value), bias)


def heads_of(card: Architecture, values: Values) -> HeadAxes:
    """The axes of heads: values may have a size of their own."""
    made = head_sizes(card, values)
    return USUAL_HEADS if made.value_dim == made.head_dim else HeadAxes(value="value_dim")


def bias_of(card: Architecture, values: Values) -> str:
    """The projections that have biases: `all`, `qkv`, `out` or `none`."""
    usual = "all" if card.linear_bias else "qkv" if card.qkv_bias else "none"
    return str(values["bias"] or usual)


def norm_of(card: Architecture, values: Values) -> str:
    """How queries and keys are normalised, one of the choices of `qk_norm`."""
    return str(values["qk_norm"] or ("head" if card.qk_norm else "none"))


def _rotates(card: Architecture, values: Values) -> bool:
    return card.positions == "rotary" and bool(values["rotary"])


def _packs(style: "Style", values: Values) -> bool:
    """Whether one matmul makes q, k and v: as the checkpoint has it, unless the framework always fuses them."""
    return style.pack_gate or (values["qkv"] == "fused" if values["qkv"] else style.pack_qkv)


def queries_keys_values(
    t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor"
) -> "tuple[tuple[Tensor, ...], Tensor | None]":
    """One packed tensor or three, with rotary positions applied; the gates of the result, if it has some.

    x: the normalised input of the layer. values: those of `WORDS`.
    """
    bias, rotary, normed = bias_of(card, values) in ("all", "qkv"), _rotates(card, values), norm_of(card, values)
    size, gates, heads = int(values["rotary_dim"]), None, heads_of(card, values)
    if _packs(style, values) and values["gated"]:
        q, k, v, gates = _packed_with_gates(t, style, x, bias)
    elif _packs(style, values) and (heads != USUAL_HEADS or values["shared_values"]):
        q, k, v = _packed_rows(t, style, values, x, bias, heads)
    elif _packs(style, values):
        qkv = shared.linear(t, "attn.wqkv", x, ("kv_heads", "packed", "head_dim", "hidden"), PACKED, bias, style.linear)
        own = ("value_norm", "value_scale", "key_scale")
        plain = normed == "none" and not any(values.get(word) for word in own)
        if not rotary and plain:
            return (qkv,), None
        if plain:
            turned = t.activation("attn.rotary", PACKED)
            t.emit("attn.rotary", ops.Rotary(packed=True, size=size), (qkv,), turned)
            return (turned,), None
        q, k, v = t.activation("attn.q", QUERY), t.activation("attn.k", KEY), t.activation("attn.v", KEY)
        t.emit("attn.split", ops.SplitHeads(), (qkv,), q, k, v)
    else:
        q, gates = _queries(t, style, values, x, bias)
        k = v = shared.linear(t, "attn.wk", x, ("kv_heads", "head_dim", "hidden"), KEY, bias, style.linear)
        if not values["shared_values"]:
            axes = ("kv_heads", heads.value, "hidden")
            v = shared.linear(t, "attn.wv", x, axes, (*KEY[:-1], heads.value), bias, style.linear)
    k = shared.scaled(t, "attn.key_scale", k, float(values.get("key_scale", 0.0)))
    if normed != "none" and not values["rotary_first"]:
        q, k = (_normed(t, card, style, normed, f"attn.{word}_norm", x) for word, x in (("q", q), ("k", k)))
    if rotary:
        turned_q, turned_k = t.activation("attn.rotary_q", QUERY), t.activation("attn.rotary_k", KEY)
        t.emit("attn.rotary_q", ops.Rotary(size=size), (q,), turned_q)
        t.emit("attn.rotary_k", ops.Rotary(size=size), (k,), turned_k)
        q, k = turned_q, turned_k
    if normed != "none" and values["rotary_first"]:
        q, k = (_normed(t, card, style, normed, f"attn.{word}_norm", x) for word, x in (("q", q), ("k", k)))
    if values["value_norm"]:
        v = _normed(t, card, style, "l2", "attn.v_norm", v)
    return (q, k, shared.scaled(t, "attn.value_scale", v, float(values["value_scale"]))), gates


def seen(values: Values) -> tuple[Value, ...]:
    """What queries of a layer kind see of a sequence: its window and its chunk, 0 without."""
    return values.get("window", 0), values.get("chunk", 0)


def _queries_alone(
    t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor"
) -> "tuple[tuple[Tensor, ...], Tensor | None]":
    """Queries of the layer, with keys and values of an earlier one; the gates of the result, if it has some."""
    k, v = (t.keys or {})[seen(values)]
    q, gates = _queries(t, style, values, x, bias_of(card, values) in ("all", "qkv"))
    normed, rotary = norm_of(card, values), _rotates(card, values)
    for step in ("rotary", "norm") if values["rotary_first"] else ("norm", "rotary"):
        if step == "norm" and normed != "none":
            q = _normed(t, card, style, normed, "attn.q_norm", q)
        if step == "rotary" and rotary:
            turned = t.activation("attn.rotary_q", QUERY)
            t.emit("attn.rotary_q", ops.Rotary(size=int(values["rotary_dim"])), (q,), turned)
            q = turned
    return (q, k, v), gates


def _packed_rows(
    t: "Tracer", style: "Style", values: Values, x: "Tensor", bias: bool, heads: HeadAxes
) -> "tuple[Tensor, ...]":
    """Queries, keys and values of one matmul, apart, where values have another size or are the keys."""
    own = not values["shared_values"]
    rows = "packed_rows" if own else "packed_keys"
    made = shared.linear(
        t, "attn.wqkv", x, ("kv_heads", rows, "hidden"), ("batch", "seq", "kv_heads", rows), bias, style.linear
    )
    q, k = t.activation("attn.q", QUERY), t.activation("attn.k", KEY)
    v = t.activation("attn.v", (*KEY[:-1], heads.value)) if own else k
    t.emit("attn.split", ops.SplitRows(heads.value if own else ""), (made,), q, k, *((v,) if own else ()))
    return q, k, v


def _queries(t: "Tracer", style: "Style", values: Values, x: "Tensor", bias: bool) -> "tuple[Tensor, Tensor | None]":
    """Queries, and with gates these: each head has its queries and then its gates in one matmul (Qwen3-Next)."""
    axes = ("heads", "gated_dim", "hidden") if values["gated"] else ("heads", "head_dim", "hidden")
    made = shared.linear(t, "attn.wq", x, axes, (*QUERY[:-1], axes[1]), bias, style.linear)
    if not values["gated"]:
        return made, None
    q, gates = t.activation("attn.q", QUERY), t.activation("attn.gates", GATES)
    t.emit("attn.q", ops.SplitLastViews("head_dim", "gate_dim"), (made,), q, gates)
    return q, gates


def _packed_with_gates(t: "Tracer", style: "Style", x: "Tensor", bias: bool) -> "tuple[Tensor, ...]":
    """Queries, keys, values and gates of one matmul, apart."""
    out = ("batch", "seq", "kv_heads", "packed_gated", "head_dim")
    made = shared.linear(t, "attn.wqkv", x, (*out[2:], "hidden"), out, bias, style.linear)
    q, k, v, gates = (
        t.activation(f"attn.{word}", axes) for word, axes in (("q", QUERY), ("k", KEY), ("v", KEY), ("gates", GATES))
    )
    t.emit("attn.split", ops.SplitHeads(gated=True), (made,), q, k, v, gates)
    return q, k, v, gates


def _gated(t: "Tracer", context: "Tensor", gates: "Tensor") -> "Tensor":
    """The context times the sigmoid of its gates."""
    shares, y = t.activation("attn.gates.shares", QUERY), t.activation("attn.gated", QUERY)
    t.emit("attn.gates.shares", ops.Activation("sigmoid", from_result=True), (gates,), shares)
    t.emit("attn.gated", ops.Multiply(), (context, shares), y)
    return y


def _normed(t: "Tracer", card: Architecture, style: "Style", normed: str, name: str, x: "Tensor") -> "Tensor":
    """Queries or keys, normalised head by head, or over all heads of a token."""
    if normed == "head":
        return shared.norm(t, card, style, name, x)
    if normed == "l2":
        y = t.activation(name, x.axes)
        t.emit(name, ops.UnitRMS(), (x,), y, t.activation(f"{name}.rstd", x.axes[:-1], "fp32"))
        return y
    if normed == "each_head":
        return shared.norm(t, card, style, name, x, x.axes[-2:])
    if normed == "each_head_no_bias":
        return shared.norm(t, card, style, name, x, x.axes[-2:], biased=False)
    return shared.norm_over(t, name, x, 2)


def _parameters(card: Architecture, values: Values) -> int:
    heads = head_sizes(card, values)
    queries, keys = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
    contexts, of_values = heads.heads * heads.value_dim, heads.kv_heads * heads.value_dim
    gates = queries if values["gated"] else 0
    bias, normed = bias_of(card, values), norm_of(card, values)
    own = values.get("keys") != "earlier"
    keys, of_values = (keys, 0 if values["shared_values"] else of_values) if own else (0, 0)
    made = queries + gates + keys + of_values
    biases = {"none": 0, "qkv": made, "out": card.hidden, "all": made + card.hidden}[bias]
    norms = {"none": 0, "l2": 0, "head": (1 + own) * heads.head_dim}.get(normed, queries + keys)
    norms *= 1 if normed == "all" else norm_values(card, biased=normed != "each_head_no_bias")
    around = context_parameters(card, values, heads.heads, heads.value_dim) + (heads.heads if values["sinks"] else 0)
    return card.hidden * (made + contexts) + biases + norms + around + block_index.parameters(card, values)


def _check_values(card: Architecture, values: Values) -> None:
    check_context(card, values)
    check_head_sizes(card, values)
    block_index.check(card, values)
    lost = [word for word in OF_OWN_KEYS if values.get(word)] if values.get("keys") == "earlier" else []
    if lost:
        raise UsageError(f"{card.name}: keys: earlier is without keys and values of its own: leave {lost[0]} out")
    size, most = int(values["rotary_dim"]), head_sizes(card, values).head_dim
    if size > most or size % 2:
        raise UsageError(f"{card.name}: rotary_dim must be even and at most head_dim={most}, not {size}")
    if size and not _rotates(card, values):
        raise UsageError(f"{card.name}: rotary_dim={size}, and these layers have no rotary positions: leave it out")


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
    are partitioned there. Keys and values, whose sequence `kseq` is in no rule there, are gathered; an indexer too
    reads all of them. Indexers of blocks have a head for each K/V head, which tp partitions too.
    """
    queries = {"batch": ("dp",), "seq": ("cp",), "heads": ("tp",), "kv_heads": ("tp",)}
    over_context = {"batch": ("dp",), "heads": ("tp", "cp"), "kv_heads": ("tp", "cp")}
    core = over_context if choices.cp_kind == "ulysses" else queries
    index = {axis: queries[axis] for axis in ("batch", "seq", "kv_heads")}
    return {"attention": {**queries, "kseq": ("cp",)}, "attention_core": core, "index": index}


def _planned(choices: ShardingChoices, table: Table) -> Table:
    """Ulysses inside a ring (Fang and Zhao 2024): neighbours exchange sequence for heads, a ring joins the rest."""
    if choices.cp_kind != "ulysses-ring":
        return {}
    return {
        "attention_core": {"batch": ("dp",), "seq": ("cpr",), "heads": ("tp", "cpa"), "kv_heads": ("tp", "cpa")},
    }


OF_OWN_KEYS = ("qkv", "shared_values", "value_norm", "value_scale", "key_scale")
"""Words of layers that make keys and values."""

WORDS: Mapping[str, KindWord] = {
    **HEAD_WORDS,
    **CONTEXT_WORDS,
    **block_index.WORDS,
    "bias": KindWord(
        "the projections with biases; without it linear_bias and qkv_bias decide", "", ("none", "qkv", "out", "all")
    ),
    "gated": KindWord("whether the result of each head is multiplied by the sigmoid of a gate", False),
    "keys": KindWord(
        "whether keys and values are the layer's own, or those of the last earlier layer that makes some and sees as "
        "much",
        "own",
        ("own", "earlier"),
    ),
    "qk_norm": KindWord(
        "norms of queries and keys: head by head (with one weight, with one for each head, or with none: l2), or over "
        "all heads of a token; without it the card's qk_norm decides",
        "",
        ("none", "head", "each_head", "each_head_no_bias", "all", "l2"),
    ),
    "qkv": KindWord("whether one matmul makes queries, keys and values", "", ("apart", "fused")),
    "rotary": KindWord("whether these layers have the model's rotary positions", True),
    "rotary_dim": KindWord("how many of a head's dimensions rotary positions turn (0: all)", 0),
    "rotary_first": KindWord("whether queries and keys are turned before they are normalised", False),
    "scale": KindWord("the factor of scores (0: one over the root of the head's size)", 0.0),
    "shared_values": KindWord("whether values are the keys, before their norm and positions", False),
    "sinks": KindWord("whether each head has a learned score without a value in its softmax", False),
    "softcap": KindWord("the bound of scores, by a tanh (0: none)", 0.0),
    "value_norm": KindWord("whether values are normalised head by head, without a weight", False),
    "value_scale": KindWord("the factor of values (0: none)", 0.0),
}
"""What a layer kind may set for attention."""

ATTENTION = LayerPart(
    name="attention",
    forward=_forward,
    parameters=_parameters,
    check=_check,
    check_values=_check_values,
    words=WORDS,
    symbols={
        "A": SizeSymbol("heads", "attention heads", lambda card: card.heads),
        "KV": SizeSymbol("kv_heads", "heads of keys and values", lambda card: card.kv_heads),
        "D": SizeSymbol("head_dim", "size of one head", lambda card: card.head_dim),
        **block_index.SYMBOLS,
    },
    axes={
        "heads": "A",
        "kv_heads": "KV",
        "packed": "A / KV + 2",  # for each K/V head its queries, its key and its value
        "head_dim": "D",
        # Queries and gates of a head, its gates, and a K/V head with the gates of its queries.
        "gated_dim": "2 * D",
        "gate_dim": "D",
        "packed_gated": "2 * A / KV + 2",
        # The rows of a K/V head where values have another size, or are the keys.
        "packed_rows": "D * A / KV + D + DV",
        "packed_keys": "D * A / KV + D",
        "state": "3",
        **block_index.AXES,
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
    left={
        "attention_core": f"which follows {Word('cp_kind')}",
        "index": "in which each rank chooses keys for its own queries",
    },
    buffers=_buffers,
)
