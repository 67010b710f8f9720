"""A pre-norm layer: the mixer, then the channel mixer. Each reads a norm of the stream and is added to the stream."""

from typing import TYPE_CHECKING

from stagedb.models.deferred_import import DeferredModule
from stagedb.models.kinds.part import Architecture
from stagedb.models.kinds.residual import Part, Residual

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.style import Style
else:
    shared = DeferredModule("stagedb.models.shared_operations")


def _serial(t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor") -> "Tensor":
    t.enter("between")
    x = shared.residual(t, style, "attn.add", x, mixer(shared.norm(t, card, style, "attn_norm", x)))
    return shared.residual(t, style, "ffn.add", x, channel_mixer(shared.norm(t, card, style, "ffn_norm", x)))


SERIAL = Residual("serial", 2, _serial)
