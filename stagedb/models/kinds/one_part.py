"""Layers with one part: a norm, and a mixer or a channel mixer, which is added to the stream (Mamba, Nemotron-H).

The part that such a layer lacks is `none`. A mixer may read the stream itself, and has norms of its own then; one
that is a whole layer makes the stream after it too.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Architecture, Branch, LayerPart, Part, Residual, Values

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    shared = DeferredModule("stagedb.models.shared_operations")


def _no_forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    raise TypeError("a layer without this part asked for its forward")


def _mixer(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    t.enter("between")
    return shared.residual(t, card, style, "attn.add", x, mixer(shared.norm(t, card, style, "attn_norm", x)))


def _channel_mixer(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    t.enter("between")
    return shared.residual(t, card, style, "ffn.add", x, channel_mixer(shared.norm(t, card, style, "ffn_norm", x)))


def _mixer_of_stream(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    return shared.residual(t, card, style, "attn.add", x, mixer(x))


def _mixer_makes_stream(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    return mixer(x).result


NONE = LayerPart(name="none", forward=_no_forward, parameters=lambda card, values: 0)
"""No mixer, or no channel mixer."""

MIXER_ALONE = Residual("mixer_alone", 1, _mixer, without="channel_mixer")
MIXER_OF_STREAM = Residual("mixer_of_stream", 0, _mixer_of_stream, without="channel_mixer", reads_stream=True)
MIXER_MAKES_STREAM = Residual(
    "mixer_makes_stream", 0, _mixer_makes_stream, without="channel_mixer", reads_stream=True, makes_stream=True
)
CHANNEL_MIXER_ALONE = Residual("channel_mixer_alone", 1, _channel_mixer, without="mixer")
