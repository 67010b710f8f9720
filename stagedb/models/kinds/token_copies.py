"""Tokens sent to experts once for each rank or node (`dispatch`): their operators, layouts and axes.

    router      a copy of each token for each target            tokens on their own ranks
    exchange    the copies go to their targets                  all-to-all
    experts     copies of choices, experts, sums of a token     on the ranks of the experts
    exchange    the sums come back
    router      the sums of all targets added

With nodes there are two exchanges each way, over the network and then inside the node, and a relay between them.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stagedb.ir.facts import Tag
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Rule, Table

if TYPE_CHECKING:
    from stagedb.ir.operators import token_copies as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators.token_copies")

EXCHANGES = ("exchange", "relay", "local_exchange")
"""The regions of exchanges, and of what passes tokens on between two of them."""

AXES: Mapping[str, str] = {
    "sent": "B*S",
    "dealt": "B*S / dealers",
    "ranks": "ep",
    "nodes": "epn",
    "locals": "epr",
    "scales": "ceil(H/128)",
    "latent_scales": "ceil(EL/128)",
}
"""Tensor axes. `sent`: the tokens of all senders. `dealt`: those of one, which no tensor has."""


def sent_once(
    t: "Tracer",
    style: "Style",
    x: "Tensor",
    weights: "Tensor",
    order: "Tensor",
    experts: "Callable[[Tensor], Tensor]",
) -> "Tensor":
    """Send each token once to each rank, or each node, that has experts of it, and return the sum of their results.

    x: the tokens. weights, order: the weight and the slot of each of a token's choices. experts: makes the operators of
    the experts, from slots to slots.
    """
    size, nodes = x.axes[-1], style.dispatch == "nodes"
    first = ops.CopyOnce("nodes" if nodes else "ranks")
    sent = _copies(t, "ffn.pack", first, (first.hop,), (x, weights, order))
    narrow, out_axis = style.narrow_tokens, "epn" if nodes else "ep"
    came = _sent(t, "exchange", "ffn.dispatch", ops.ExchangeTokens(out_axis, first.hop), sent, narrow)
    relayed = came[-1]
    if nodes:
        t.enter("relay")
        passed = _copies(t, "ffn.relay", ops.CopyOnce("locals"), ("nodes", "locals"), came)
        came = _sent(t, "local_exchange", "ffn.spread", ops.ExchangeTokens("epr", "locals"), passed, narrow)
    t.enter("experts", Tag.EXPERT)
    got, got_weights, got_order = came
    slots = t.activation("ffn.permute", ("experts", "slots", size))
    t.emit("ffn.permute", ops.PermuteCopies(style.dealers), (got, got_order), slots)
    out = experts(slots)
    back = t.activation("ffn.unpermute", got.axes)
    t.emit("ffn.unpermute", ops.UnpermuteCopies(style.dealers), (out, got_weights, got_order), back)
    if nodes:
        inside = ops.ExchangeTokens("epr", "locals", back=True, narrow=narrow)
        (near,) = _exchanged(t, "local_exchange", "ffn.collect", inside, (back,))
        t.enter("relay")
        back = t.activation("ffn.relay_sum", ("nodes", "sent", size))
        t.emit("ffn.relay_sum", ops.AddTargets("locals"), (near, relayed), back)
    last = ops.ExchangeTokens(out_axis, first.hop, back=True, narrow=narrow)
    (home,) = _exchanged(t, "exchange", "ffn.back", last, (back,))
    t.enter("router")
    y = t.activation("ffn.sum", ("batch", "seq", size))
    t.emit("ffn.sum", ops.AddTargets(first.hop), (home, order), y)
    return y


def _copies(
    t: "Tracer", name: str, operator: "ops.CopyOnce", targets: tuple[str, ...], inputs: "tuple[Tensor, ...]"
) -> "tuple[Tensor, ...]":
    """A copy of each input for each target."""
    made = tuple(
        t.activation(f"{name}.{word}", (*targets, "sent", each.axes[-1]), each.dtype)
        for word, each in zip(_words(inputs), inputs, strict=True)
    )
    t.emit(name, operator, inputs, *made)
    return made


def _exchanged(
    t: "Tracer", region: str, name: str, operator: "ops.ExchangeTokens", inputs: "tuple[Tensor, ...]"
) -> "tuple[Tensor, ...]":
    t.enter(region)
    made = tuple(
        t.activation(f"{name}.{word}", each.axes, each.dtype) for word, each in zip(_words(inputs), inputs, strict=True)
    )
    t.emit(name, operator, inputs, *made)
    return made


def _sent(
    t: "Tracer", region: str, name: str, operator: "ops.ExchangeTokens", inputs: "tuple[Tensor, ...]", narrow: bool
) -> "tuple[Tensor, ...]":
    """Tokens on their way to experts, and what goes with them. narrow: tokens are sent in fp8."""
    if not narrow:
        return _exchanged(t, region, name, operator, inputs)
    t.enter(region)
    tokens, *others = inputs
    sent = (*ops.narrowed(t, f"{name}.narrow", tokens), *others)
    names = ("narrow.came", "scales", *_words(inputs)[1:])
    came = tuple(t.activation(f"{name}.{word}", e.axes, e.dtype) for word, e in zip(names, sent, strict=True))
    t.emit(name, operator, sent, *came)
    wide = t.activation(f"{name}.tokens", tokens.axes, tokens.dtype)
    t.emit(f"{name}.wide", ops.WidenTokens(), came[:2], wide)
    return wide, *came[2:]


def _words(inputs: "tuple[Tensor, ...]") -> tuple[str, ...]:
    """The names of what is sent."""
    return ("tokens", "weights", "slots")[: len(inputs)]


def planned(table: dict[str, Rule], dispatch: str, dealers: tuple[str, ...]) -> Table:
    """The table with rules for tokens that are sent, and for the regions of exchanges. dealers: of whom each deals
    tokens of its own.

    dispatch: the plan's word for how tokens reach their experts.
    """
    if dispatch == "copies":
        return table
    over = ("ep",) if dispatch == "ranks" else ("epn", "epr")
    sent = tuple(part for axis in dealers for part in (over if axis == "ep" else (axis,)))
    router, experts = {**table["router"], "sent": sent}, {**table["experts"], "sent": ("edp",)}
    if dispatch == "ranks":
        exchange = _ends(sent, "ranks", "ep")
        return {**table, "router": router, "experts": {**experts, "ranks": ("ep",)}, "exchange": exchange}
    there: Rule = {"nodes": ("epn",)}
    near = tuple(axis for axis in sent if axis != "epn")
    ends = {**_ends(near, "locals", "epr"), "nodes_of_sender": ("epn",), "nodes_of_receiver": ("epn",)}
    return {
        **table,
        "router": router,
        "exchange": _ends(sent, "nodes", "epn"),
        "relay": {**there, "sent": near},
        "local_exchange": ends,
        "experts": {**experts, **there, "locals": ("epr",)},
    }


def _ends(sent: tuple[str, ...], targets: str, mesh_axis: str) -> Rule:
    """The rules of an exchange over a mesh axis, whose members have tokens before it and targets after it."""
    left = tuple(axis for axis in sent if axis != mesh_axis)
    return {"sent_of_sender": sent, "sent_of_receiver": left, f"{targets}_of_receiver": (mesh_axis,)}
