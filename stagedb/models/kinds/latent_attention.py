"""Multi-head latent attention as it is trained (DeepSeek-AI 2024): queries, and keys with values, pass a narrow latent.

The weights that make latents are whole on every rank of tp; heads are partitioned. With sp a framework gathers what the
latents are made from (torchtitan), or the latents, which each rank has made for its own tokens (Megatron-LM). Keys have
a part of each head's own, made from the latent, and one that all heads share, which has the rotary positions.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.ir.facts import Tag
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds import key_index
from stagedb.models.kinds.attention import ATTENTION
from stagedb.models.kinds.attention_core import HeadAxes, check_no_index, core_of, dealt_context
from stagedb.models.kinds.part import (
    Architecture,
    Branch,
    Buffers,
    KindWord,
    LayerPart,
    SizeSymbol,
    UserRegion,
    Values,
    norm_values,
)

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

HEADS = HeadAxes(head="qk_dim", kv_heads="heads", value="value_dim")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("attention")
    bias = values["latent_bias"] is True
    q, latent = _queries(t, card, style, values, x, bias)
    narrow, rope = _latents(t, card, style, x, bias)
    narrow = shared.scaled(t, "attn.latent_scale", narrow, float(values["latent_scale"]))
    if style.absorbs:
        t.enter("attention")
        weight = t.weight("attn.wkv_b.weight", UP, 2)
        chosen = key_index.chosen_keys(t, values, x, latent) if values["index_heads"] else ()
        if style.deals_keys:
            check_no_index(card, chosen)
        context = _absorbed(t, values, weight, (q, narrow, rope), chosen, _turns(card))
        return shared.row_linear(t, style, "attn.wo", context, ("hidden", "heads", "value_dim"), bias)
    k, v = _keys_values(t, style, narrow, rope)
    chosen = key_index.chosen_keys(t, values, x, latent) if values["index_heads"] else ()
    context = core_of(t, card, style, (q, k, v), {**DEFAULTS, "scale": values["scale"]}, HEADS, chosen)
    t.enter("attention")
    return shared.row_linear(t, style, "attn.wo", context, ("hidden", "heads", "value_dim"), bias)


DEFAULTS: Values = {"softcap": 0.0, "scale": 0.0, "sinks": False}
"""The rules of scores, which are those of plain attention."""


def _queries(
    t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor", bias: bool
) -> "tuple[Tensor, Tensor]":
    """Queries, and what they are made from. Where queries read latents, their positions follow in `_absorbed`."""
    source, axis = x, "hidden"
    if values["q_rank"]:
        narrow = ("batch", "seq", "q_rank")
        t.enter(style.latents)
        source, axis = shared.linear(t, "attn.wq_a", x, ("q_rank", "hidden"), narrow, bias, style.linear), "q_rank"
        source = shared.norm(t, card, style, "attn.q_a_norm", source)
    t.enter("attention")
    q = shared.linear(t, "attn.wq", source, ("heads", "qk_dim", axis), HEADS.query, form=style.linear)
    q = shared.scaled(t, "attn.query_scale", q, float(values["query_scale"]))
    if style.absorbs or not _turns(card):
        return q, source
    turned = t.activation("attn.rotary_q", HEADS.query)
    t.emit("attn.rotary_q", ops.Rotary(size=int(values["rope_dim"]), last=True), (q,), turned)
    return turned, source


def _latents(t: "Tracer", card: Architecture, style: "Style", x: "Tensor", bias: bool) -> "tuple[Tensor, Tensor]":
    """The latents of keys and values, and the part of keys that all heads share, of the new positions."""
    t.enter(style.latents)
    both = shared.linear(t, "attn.wkv_a", x, ("kv_a", "hidden"), ("batch", "seq", "kv_a"), bias, style.linear)
    latent, key = t.activation("attn.latent", ("batch", "seq", "kv_rank")), t.activation("attn.k_rope", ROPE)
    split = ops.SplitLastViews if style.latent_views else ops.SplitLast
    t.emit("attn.latent", split("kv_rank", "rope_dim"), (both,), latent, key)
    if _turns(card):
        t.enter("attention")
        turned = t.activation("attn.rotary_k", ROPE)
        t.emit("attn.rotary_k", ops.Rotary(), (key,), turned)
        key = turned
    t.enter(style.latents)
    return shared.norm(t, card, style, "attn.kv_a_norm", latent), key


def _turns(card: Architecture) -> bool:
    """Whether queries and keys have rotary positions. Without them the part that all heads share is left as it is."""
    return card.positions == "rotary"


def _keys_values(t: "Tracer", style: "Style", latent: "Tensor", turned: "Tensor") -> "tuple[Tensor, Tensor]":
    """Keys and values of each head, made from the latents of all positions."""
    t.enter("attention")
    axes = ("batch", "kseq", "heads", "kv_b")
    # A cache keeps latents in a format of its own, and not the operand of a matmul in fp8; engines that absorb this
    # weight keep it in that of activations.
    made = shared.linear(t, "attn.wkv_b", latent, UP, axes, form="" if t.caches else style.linear)
    k, v = (t.activation(f"attn.{word}", (*axes[:-1], size)) for word, size in (("k", HEADS.head), ("v", HEADS.value)))
    t.emit("attn.k", ops.LatentKeysViews() if style.latent_views else ops.LatentKeys(), (made, turned), k, v)
    return k, v


UP = ("heads", "kv_b", "kv_rank")
ROPE = ("batch", "seq", "rope_dim")


def _absorbed(
    t: "Tracer",
    values: Values,
    weight: "Tensor",
    parts: "tuple[Tensor, Tensor, Tensor]",
    chosen: "tuple[Tensor, ...]",
    turns: bool,
) -> "Tensor":
    """The context of queries that read latents from the cache.

    A score of a head is `(q W) · c` in place of `q · (W c)`, and its result `V Σ p c`: the matrices of the latent are
    applied to the few queries, not to the keys of all positions (DeepSeek-AI 2024, appendix C).

    weight: the matrices of keys and values. parts: queries, latents, and the part of keys that heads share. chosen: the
    scores and places of an indexer's keys. turns: whether queries have rotary positions.
    """
    q, latent, rope = parts
    t.enter("attention")
    up = [
        t.activation(f"attn.wkv_b.{word}", ("heads", f"{word}_dim", "kv_rank"), "param") for word in ("nope", "value")
    ]
    t.emit("attn.wkv_b", ops.PartViews(1, "nope_dim"), (weight,), *up)
    own, part = (t.activation(f"attn.q.{word}", (*HEADS.query[:-1], f"{word}_dim")) for word in ("nope", "rope"))
    t.emit("attn.q.parts", ops.PartViews(3, "nope_dim"), (q,), own, part)
    if turns:
        turned = t.activation("attn.rotary_q", part.axes)
        t.emit("attn.rotary_q", ops.Rotary(), (part,), turned)
        part = turned
    narrow = _projected(t, "attn.q.latent", own, up[0], "kv_rank")
    query, keys = t.activation("attn.q.joined", NARROW), t.activation("attn.keys", ("batch", "seq", "kv_a"))
    t.emit("attn.q.joined", ops.JoinLast(), (narrow, part), query)
    t.emit("attn.keys", ops.JoinLast(), (latent, rope), keys)
    t.enter("attention_core", Tag.ATTENTION_CORE)
    scale = float(values["scale"]) or (int(values["nope_dim"]) + int(values["rope_dim"])) ** -0.5
    operator = ops.LatentAttention(head="kv_a", value="kv_rank", scale=scale, chosen=bool(chosen), dealt=t.deals_keys)
    if t.deals_keys:
        context, _ = dealt_context(t, operator, (query, keys), (*NARROW[:-1], "kv_rank"))
    else:
        context, lse = t.activation("attn.core", (*NARROW[:-1], "kv_rank")), t.activation("attn.lse", LSE, "fp32")
        t.emit("attn.core", operator, (query, keys, *chosen), context, lse)
    t.enter("attention")
    return _projected(t, "attn.values", context, up[1], "value_dim")


NARROW, LSE = ("batch", "seq", "heads", "kv_a"), ("batch", "heads", "seq")


def _projected(t: "Tracer", name: str, x: "Tensor", weight: "Tensor", axis: str) -> "Tensor":
    """A matmul of each head, whose result has the axis `axis` last."""
    y = t.activation(name, (*x.axes[:-1], axis))
    t.emit(name, ops.Einsum(x.axes, weight.axes, y.axes), (x, weight), y)
    return y


def _parameters(card: Architecture, values: Values) -> int:
    q_rank, kv_rank, nope, rope, value = (int(values[word]) for word in SIZES)
    source, norms = q_rank or card.hidden, (q_rank + kv_rank) * norm_values(card)
    queries = card.hidden * q_rank + source * card.heads * (nope + rope)
    keys = card.hidden * (kv_rank + rope) + kv_rank * card.heads * (nope + value)
    biases = q_rank + kv_rank + rope + card.hidden if values["latent_bias"] else 0
    return queries + keys + card.heads * value * card.hidden + norms + biases + key_index.parameters(card, values)


def _check(card: Architecture, values: Values) -> None:
    if card.positions not in ("rotary", "none") or (values["index_heads"] and not _turns(card)):
        raise UsageError(
            f"{card.name}: latent attention has rotary positions, or none and no indexer, and positions is "
            f"{card.positions}"
        )
    if int(values["rope_dim"]) % 2 and _turns(card):
        raise UsageError(f"{card.name}: rotary positions want an even rope_dim, not {values['rope_dim']}")
    key_index.check(card, values)


def _buffers(card: Architecture, style: "Style") -> Buffers:
    held = [(tensors.Tensor("stage.positions", ("seq",), "int64", "buffer"), "attention")]
    if _turns(card):
        held.append((tensors.Tensor("stage.rotary", ("seq", "rope_dim"), "act", "buffer"), "attention"))
    if style.attention == "math" or style.explicit_mask:
        held.append((tensors.Tensor("stage.mask", ("seq", "kseq"), "bool", "buffer"), "attention_core"))
    return tuple(held)


SIZES = ("q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")

LATENT_ATTENTION = LayerPart(
    name="latent_attention",
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={
        "q_rank": KindWord("the size of the latent of queries (0: they are made from the hidden state)", 0),
        "kv_rank": KindWord("the size of the latent of keys and values"),
        "nope_dim": KindWord("the part of a head of queries and keys without positions"),
        "rope_dim": KindWord("the part of a head of queries and keys with rotary positions"),
        "value_dim": KindWord("the size of a head of values"),
        "latent_bias": KindWord("whether the projections to the latents, and the one back, have biases", False),
        "scale": KindWord("the factor of scores (0: one over the root of the head's size)", 0.0),
        "query_scale": KindWord("the factor of queries (0: none)", 0.0),
        "latent_scale": KindWord("the factor of the normalised latents of keys and values (0: none)", 0.0),
        **key_index.WORDS,
    },
    symbols={
        "RQ": SizeSymbol("q_rank", "size of the latent of queries", lambda card: card.word("q_rank")),
        "RK": SizeSymbol("kv_rank", "size of the latent of keys and values", lambda card: card.word("kv_rank")),
        "DN": SizeSymbol("nope_dim", "part of a head without positions", lambda card: card.word("nope_dim")),
        "DR": SizeSymbol("rope_dim", "part of a head with rotary positions", lambda card: card.word("rope_dim")),
        "DV": SizeSymbol(
            "value_dim",
            "size of a head of values",
            lambda card: card.word("value_dim", "latent_attention", "shortcut_experts"),
        ),
        **key_index.SYMBOLS,
    },
    axes={
        "q_rank": "RQ",
        "kv_rank": "RK",
        "kv_a": "RK + DR",
        "kv_b": "DN + DV",
        "qk_dim": "DN + DR",
        "key_and_value": "DN + DR + DV",
        "nope_dim": "DN",
        "rope_dim": "DR",
        "value_dim": "DV",
        **key_index.AXES,
    },
    user={
        "attention": UserRegion(
            ("batch", "heads", "kv_heads", "head_dim", "hidden"),
            {"head_dim": "attention and rotary positions read all values of a head"},
        )
    },
    left=ATTENTION.left,
    buffers=_buffers,
)
