"""Attention and a scan of Mamba-2 side by side (Falcon-H1): both read the layer's norm, and their results are added.

Each reads its input times a factor, and its result is multiplied by one (Yang et al. 2022). Without dropout between
them ranks of tp reduce the sum of both once.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.attention import ATTENTION, attend
from stagedb.models.kinds.part import Architecture, Branch, KindWord, LayerPart, Values
from stagedb.models.kinds.state_space import STATE_SPACE

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    shared = DeferredModule("stagedb.models.shared_operations")

SCAN = "scan"
"""The part of the layer's block under whose name the scan is."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    with t.within(SCAN):
        read = _scaled(t, "attn.in_scale", x, values["scan_in_scale"])
        made = STATE_SPACE.forward(t, card, style, values, read)
        scanned = _scaled(t, "attn.out_scale", _whole(t, made), values["scan_out_scale"])
    read = _scaled(t, "attn.in_scale", x, values["attention_in_scale"])
    made = attend(t, card, style, read, values)
    seen = _scaled(t, "attn.out_scale", _whole(t, made), values["attention_out_scale"])
    t.enter("between")
    return Branch(shared.add(t, "attn.both", scanned, seen))


def _scaled(t: "Tracer", name: str, x: "Tensor", factor: object) -> "Tensor":
    t.enter("between")
    return shared.scaled(t, name, x, float(str(factor)))


def _whole(t: "Tracer", made: Branch) -> "Tensor":
    """The result of a part with its bias, which a factor multiplies too."""
    t.enter("between")
    return made.result if made.bias is None else shared.add(t, "attn.biased", made.result, made.bias)


def _parameters(card: Architecture, values: Values) -> int:
    return ATTENTION.parameters(card, values) + STATE_SPACE.parameters(card, values)


def _check(card: Architecture, values: Values) -> None:
    ATTENTION.check_values(card, values)
    STATE_SPACE.check_values(card, values)


ATTENTION_AND_SCAN = LayerPart(
    name="attention_and_scan",
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={
        **ATTENTION.words,
        **STATE_SPACE.words,
        "attention_in_scale": KindWord("the factor of what attention reads (0: none)", 0.0),
        "attention_out_scale": KindWord("the factor of attention's result (0: none)", 0.0),
        "key_scale": KindWord("the factor of keys (0: none)", 0.0),
        "scan_in_scale": KindWord("the factor of what the scan reads (0: none)", 0.0),
        "scan_out_scale": KindWord("the factor of the scan's result (0: none)", 0.0),
    },
    buffers=ATTENTION.buffers,
    alone=STATE_SPACE.alone,
    exchanged=STATE_SPACE.exchanged,
)
