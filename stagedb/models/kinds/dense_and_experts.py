"""A feed-forward and routed experts in parallel, each with norms before and after it (Gemma 4 26B-A4B).

Both read the residual stream, and so does the router, through a norm with a learned factor for each channel. Each
expert has a learned factor of its weights.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.experts import EXPERTS, chosen_experts, routed
from stagedb.models.kinds.feed_forward import FEED_FORWARD
from stagedb.models.kinds.part import Architecture, Branch, LayerPart, Values, norm_parameters
from stagedb.models.kinds.serial import normed_branch

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    shared = DeferredModule("stagedb.models.shared_operations")

NORMS = 4
"""Norms of its own: before and after the feed-forward, and before and after the experts."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("between")
    made = FEED_FORWARD.forward(t, card, style, values, shared.norm(t, card, style, "ffn_norm", x))
    dense = normed_branch(t, card, style, "ffn.dense_post_norm", made).result
    t.enter("between")
    read = shared.norm(t, card, style, "ffn.router.input", x)
    read = shared.scaled(t, "ffn.router.scaled", read, card.hidden**-0.5)
    weights, chosen = chosen_experts(t, style, values, read, scaled=True)
    t.enter("between")
    normal = shared.norm(t, card, style, "ffn.experts_norm", x)
    t.enter("router")
    made = Branch(routed(t, card, style, values, normal, weights, chosen))
    sparse = normed_branch(t, card, style, "ffn.experts_post_norm", made).result
    return Branch(shared.add(t, "ffn.both", dense, sparse))


def _parameters(card: Architecture, values: Values) -> int:
    own = NORMS * norm_parameters(card) + card.hidden + card.experts
    return FEED_FORWARD.parameters(card, values) + EXPERTS.parameters(card, values) + own


def _check_values(card: Architecture, values: Values) -> None:
    EXPERTS.check_values(card, values)
    FEED_FORWARD.check_values(card, values)
    if not card.experts or card.shared_ffn:
        raise UsageError(f"{card.name}: {DENSE_AND_EXPERTS.name} wants experts, and no shared_ffn next to its own ffn")
    if card.norm != "rmsnorm" or values["scores"] == "sparsemixer":
        raise UsageError(f"{card.name}: {DENSE_AND_EXPERTS.name} is with norm: rmsnorm, and without sparsemixer")


_LEFT_OUT = ("ffn", "sum_bias", "zero_experts")
"""Words of its parts that it does not take: its feed-forward has the card's width, its router factors of experts."""

DENSE_AND_EXPERTS = LayerPart(
    name="dense_and_experts",
    forward=_forward,
    parameters=_parameters,
    idle=EXPERTS.idle,
    check_values=_check_values,
    words={word: each for word, each in {**FEED_FORWARD.words, **EXPERTS.words}.items() if word not in _LEFT_OUT},
    routes=True,
    reads_stream=True,
)
