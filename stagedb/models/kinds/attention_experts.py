"""A mixture of attention heads (MoA): experts make the queries of attention, and project its results back (JetMoe).

A router chooses experts for each token, each of which makes a query for each K/V head. Keys and values are those of
usual attention, and of all tokens alike. The results of a choice's heads go to its expert again, whose projection makes
a part of the hidden state. The sum of a token's parts, weighted as the router has it, has a bias.

So tokens are sent to experts and back twice in a layer: before attention for their queries, and after it for results.
Ranks of ep have whole experts, and ranks of tp parts of all heads, those of the experts included.

Sources: Zhang et al. 2022 (arXiv 2210.05144), Shen et al. 2024 (arXiv 2404.07413), `modeling_jetmoe.py` of transformers
5.24.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.ir.facts import Tag
from stagedb.lazy_names import DeferredModule
from stagedb.mentions import Word
from stagedb.models.kinds.attention import ATTENTION, WORDS
from stagedb.models.kinds.attention_core import KEY, QUERY, core_of
from stagedb.models.kinds.experts import CHOICE_AXES, EXPERTS
from stagedb.models.kinds.part import (
    HIDDEN,
    Architecture,
    Branch,
    LayerPart,
    ShardingChoices,
    SizeSymbol,
    Table,
    Values,
)

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

NAME, REGION = "attention_experts", "chosen_heads"
OF_EXPERT = ("query_heads", "head_dim")
EXPERT_MATMULS = "attn.experts"
"""How the names of the experts' matmuls begin, in their block."""

SLOTS, SLOT_HEADS = ("experts", "slots", "hidden"), ("experts", "slots", *OF_EXPERT)
CHOSEN_HEADS = (*CHOICE_AXES, *OF_EXPERT)
MATRIX = ("experts", "hidden", *OF_EXPERT)
"""The axes of the experts' matrices, those of queries and those of results."""

TAKEN = ("rotary", "rotary_dim", "scale")
"""The words of attention that this mixer takes too."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    if style.dispatch != "copies":
        raise UsageError(
            f"{card.name} has experts of attention, which get tokens for their queries and other values of these "
            f"tokens for their results: take {Word('dispatch', 'copies')}"
        )
    values = _whole(values)
    t.enter("attention")
    bias = t.weight("attn.bias", ("hidden",))
    weights, order = _routed(t, style, x)
    q = _queries(t, style, x, order)
    k, v = _keys_values(t, style, x)
    if card.positions == "rotary" and values["rotary"]:
        q, k = (_turned(t, f"attn.rotary_{word}", each, values) for word, each in (("q", q), ("k", k)))
    context = core_of(t, card, style, (q, k, v), values)
    return Branch(_results(t, style, context, weights, order), bias)


def _routed(t: "Tracer", style: "Style", x: "Tensor") -> "tuple[Tensor, Tensor]":
    """The weights of a token's experts, by a softmax over their logits, and the slots that its choices go to."""
    t.enter("router")
    experts = "routed_experts" if style.copied_experts else "experts"
    logits = shared.linear(t, "attn.router", x, (experts, "hidden"), ("batch", "seq", experts))
    chosen, order = (t.activation(f"attn.{word}", CHOICE_AXES, "int64") for word in ("chosen", "order"))
    best, weights = (t.activation(f"attn.{word}", CHOICE_AXES) for word in ("topk", "router_weights"))
    wide, shares = (t.activation(f"attn.{word}", CHOICE_AXES, "fp32") for word in ("wide", "shares"))
    t.emit("attn.topk", ops.TopK(), (logits,), best, chosen)
    t.emit("attn.wide", ops.Cast(), (best,), wide)
    t.emit("attn.shares", ops.ChoiceSoftmax(), (wide,), shares)
    t.emit("attn.router_weights", ops.Cast(), (shares,), weights)
    t.emit("attn.order", ops.Route(), (chosen,), order)
    return weights, order


def _queries(t: "Tracer", style: "Style", x: "Tensor", order: "Tensor") -> "Tensor":
    """The queries of all heads, made by the experts of each token."""
    slots = t.activation("attn.dispatch", SLOTS)
    t.emit("attn.dispatch", ops.Dispatch(), (x, order), slots)
    t.enter("experts", Tag.EXPERT)
    made = shared.linear(t, f"{EXPERT_MATMULS}.wq", slots, MATRIX, SLOT_HEADS, form=style.experts)
    t.enter("router")
    back, q = t.activation("attn.combine", CHOSEN_HEADS), t.activation("attn.q", QUERY)
    t.emit("attn.combine", ops.Combine(), (made, order), back)
    t.enter(REGION)
    t.emit("attn.q", ops.heads.ChoicesToHeads(), (back,), q)
    return q


def _keys_values(t: "Tracer", style: "Style", x: "Tensor") -> "tuple[Tensor, Tensor]":
    """Keys and values, which one matmul makes."""
    t.enter("attention")
    axes = (*KEY[:-1], "key_value")
    both = shared.linear(t, "attn.wkv", x, ("kv_heads", "key_value", "hidden"), axes, form=style.linear)
    k, v = t.activation("attn.k", KEY), t.activation("attn.v", KEY)
    t.emit("attn.kv", ops.SplitLast("head_dim", "head_dim"), (both,), k, v)
    return k, v


def _turned(t: "Tracer", name: str, x: "Tensor", values: Values) -> "Tensor":
    y = t.activation(name, x.axes)
    t.emit(name, ops.Rotary(size=int(values["rotary_dim"])), (x,), y)
    return y


def _results(t: "Tracer", style: "Style", context: "Tensor", weights: "Tensor", order: "Tensor") -> "Tensor":
    """The weighted sum of what a token's experts make of the results of their heads."""
    t.enter(REGION)
    own, slots = t.activation("attn.contexts", CHOSEN_HEADS), t.activation("attn.dispatch_contexts", SLOT_HEADS)
    t.emit("attn.contexts", ops.heads.HeadsToChoices(), (context,), own)
    t.enter("router")
    t.emit("attn.dispatch_contexts", ops.DispatchChoices(), (own, order), slots)
    t.enter("experts", Tag.EXPERT)
    out = shared.linear(t, f"{EXPERT_MATMULS}.wo", slots, MATRIX, SLOTS, form=style.experts)
    t.enter("router")
    back, y = t.activation("attn.combine_results", (*CHOICE_AXES, "hidden")), t.activation("attn.sum", HIDDEN)
    t.emit("attn.combine_results", ops.Combine(), (out, order), back)
    t.emit("attn.sum", ops.WeightedSum(), (back, weights), y)
    return y


def _whole(values: Values) -> Values:
    """These values, with those of attention that the mixer does not take at their defaults."""
    usual = {name: word.default for name, word in WORDS.items() if word.default is not None}
    return {**usual, **values}


def _with_so_many(card: Architecture, experts: int) -> int:
    """Parameters of a layer's mixer with this many experts."""
    wide = card.kv_heads * card.head_dim
    return card.hidden * (card.experts + 2 * experts * wide + 2 * wide + 1)


def _check(card: Architecture, values: Values) -> None:
    ATTENTION.check_values(card, _whole(values))
    if not card.experts or "scores" not in values:
        raise UsageError(f"{card.name}: {NAME} is next to experts in its layers: set channel_mixer to {EXPERTS.name}")
    if card.heads != card.top_k * card.kv_heads:
        raise UsageError(
            f"{card.name}: {NAME} has a query of each of top_k={card.top_k} experts for each of "
            f"kv_heads={card.kv_heads}: heads must be {card.top_k * card.kv_heads}, not {card.heads}"
        )


def _rows(choices: ShardingChoices) -> Table:
    """Ranks of tp have the queries that each choice has for their K/V heads."""
    return {REGION: {"batch": ("dp",), "seq": ("cp",), "heads": ("tp",), "query_heads": ("tp",)}}


ATTENTION_EXPERTS = LayerPart(
    name=NAME,
    forward=_forward,
    parameters=lambda card, values: _with_so_many(card, card.experts),
    idle=lambda card, values: _with_so_many(card, card.experts) - _with_so_many(card, card.top_k),
    check_values=_check,
    words={name: WORDS[name] for name in TAKEN},
    symbols={
        "QH": SizeSymbol(
            "query_heads",
            "queries of an expert of attention, one for each K/V head",
            lambda card: card.kv_heads if card.has(NAME) else 0,
        ),
    },
    axes={"query_heads": "QH", "key_value": "2 * D"},
    rows=_rows,
    left={REGION: "in which ranks of tp have the same heads of each choice"},
    buffers=ATTENTION.buffers,
    routes=True,
)
