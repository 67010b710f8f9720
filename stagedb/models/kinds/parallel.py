"""Parallel layers: mixer and channel mixer read the same stream, and their results are added to it together.

Sources: Wang and Komatsuzaki 2021 (GPT-J), Black et al. 2022 (GPT-NeoX). Without dropout the two results are added
first, so that tensor-parallel ranks reduce their sum once.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Architecture, Branch, Part, Residual, Values

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    shared = DeferredModule("stagedb.models.shared_operations")


def _one_norm(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    """`x + mixer(norm(x)) + channel_mixer(norm(x))` with one norm."""
    t.enter("between")
    normal = shared.norm(t, card, style, "norm", x)
    return _added(t, card, style, x, mixer(normal), channel_mixer(normal))


def _two_norms(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    """`x + mixer(norm(x)) + channel_mixer(other_norm(x))`."""
    t.enter("between")
    mixed = mixer(shared.norm(t, card, style, "attn_norm", x))
    t.enter("between")
    return _added(t, card, style, x, mixed, channel_mixer(shared.norm(t, card, style, "ffn_norm", x)))


def _added(t: "Tracer", card: Architecture, style: "Style", x: "Tensor", mixed: Branch, channels: Branch) -> "Tensor":
    t.enter("between")
    if card.residual_scale:
        raise UsageError(f"{card.name}: residual_scale is for serial layers, and these are parallel: leave it out")
    if style.dropout == 0:
        both = shared.add(t, "parallel.sum", mixed.result, channels.result)
        biases = [branch.bias for branch in (mixed, channels) if branch.bias is not None]
        return shared.add(t, "parallel.add", both, x, *biases)
    dropped = []
    for word, branch in (("attn", mixed), ("ffn", channels)):
        made = branch.result
        if branch.bias is not None:
            made = shared.add(t, f"{word}.add.bias", made, branch.bias)
        dropped.append(shared.dropout(t, style, f"{word}.add.dropout", made))
    return shared.add(t, "parallel.add", *dropped, x)


PARALLEL = Residual("parallel", 1, _one_norm)
PARALLEL_TWO_NORMS = Residual("parallel_two_norms", 2, _two_norms)


def parallel_of(norms: int) -> Residual:
    """The parallel layer with this many norms, as Hugging Face's Falcon counts them."""
    return PARALLEL_TWO_NORMS if norms == 2 else PARALLEL
