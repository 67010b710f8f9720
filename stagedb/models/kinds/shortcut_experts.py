"""Layers with two latent attentions and two feed-forwards, and experts on a shortcut past the second (LongCat-Flash).

Experts read what the first feed-forward reads, and their result is added at the end of the layer, so that the tokens of
experts may travel while the second half computes. What each half has is written alike; the names of the second begin
with `second.`.

Sources: arXiv 2509.01322, section 2.2; `modeling_longcat_flash.py` of transformers 5.24.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.adapters import SECOND
from stagedb.models.kinds import key_index
from stagedb.models.kinds.experts import EXPERTS
from stagedb.models.kinds.feed_forward import FEED_FORWARD
from stagedb.models.kinds.latent_attention import LATENT_ATTENTION
from stagedb.models.kinds.part import Architecture, Branch, Buffers, LayerPart, SizeSymbol, Values, norm_parameters

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    shared = DeferredModule("stagedb.models.shared_operations")

NORMS = 4
"""Norms of its own: before each attention and each feed-forward."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    values = _complete(values)
    x = _attended(t, card, style, values, x)
    normal = shared.norm(t, card, style, "ffn_norm", x)
    sparse = EXPERTS.forward(t, card, style, values, normal)
    x = shared.residual(t, card, style, "ffn.add", x, FEED_FORWARD.forward(t, card, style, values, normal))
    with t.within(SECOND):
        x = _attended(t, card, style, values, x)
        made = FEED_FORWARD.forward(t, card, style, values, shared.norm(t, card, style, "ffn_norm", x))
        x = shared.residual(t, card, style, "ffn.add", x, made)
    return Branch(shared.residual(t, card, style, "shortcut.add", x, sparse))


def _attended(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> "Tensor":
    """The stream with what attention adds to it; norms and residual follow in the same region."""
    t.enter("between")
    made = LATENT_ATTENTION.forward(t, card, style, values, shared.norm(t, card, style, "attn_norm", x))
    return shared.residual(t, card, style, "attn.add", x, made)


def _complete(values: Values) -> Values:
    """The values with those of an indexer of keys, which these layers do not have."""
    return {**{name: word.default for name, word in key_index.WORDS.items() if word.default is not None}, **values}


def _parameters(card: Architecture, values: Values) -> int:
    values = _complete(values)
    half = LATENT_ATTENTION.parameters(card, values) + FEED_FORWARD.parameters(card, values)
    return 2 * half + EXPERTS.parameters(card, values) + NORMS * norm_parameters(card)


def _check_values(card: Architecture, values: Values) -> None:
    values = _complete(values)
    for part in (LATENT_ATTENTION, FEED_FORWARD, EXPERTS):
        part.check_values(card, values)
    if not card.experts or card.shared_ffn:
        raise UsageError(f"{card.name}: {SHORTCUT_EXPERTS.name} wants experts, and no shared_ffn next to its own ffn")


def _buffers(card: Architecture, style: "Style") -> Buffers:
    return (*LATENT_ATTENTION.buffers(card, style), *EXPERTS.buffers(card, style))


_WORDS = {**LATENT_ATTENTION.words, **FEED_FORWARD.words, **EXPERTS.words}

SHORTCUT_EXPERTS = LayerPart(
    name="shortcut_experts",
    forward=_forward,
    parameters=_parameters,
    idle=EXPERTS.idle,
    check_values=_check_values,
    words={word: each for word, each in _WORDS.items() if word not in ("ffn", *key_index.WORDS)},
    symbols={
        "LH": SizeSymbol(
            "layer_halves",
            "halves of a layer, each with an attention and a feed-forward",
            lambda card: 2 if card.word("kv_rank", "shortcut_experts") else 0,
        )
    },
    buffers=_buffers,
    routes=True,
    reads_stream=True,
    makes_stream=True,
)
