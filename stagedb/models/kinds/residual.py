"""Residuals combine the parts of a layer: the places of norms, and the order of additions to the residual stream."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagedb.models.kinds.part import Architecture, Branch, KindWord, Values

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models.style import Style

Part = Callable[["Tensor"], Branch]
"""A part of the layer, written on its normalised input."""


@dataclass(frozen=True, eq=False)
class Residual:
    """One kind of layer around its parts.

    name: its word in a card. norms: the number in a layer. forward: writes a layer on the stream (batch, seq, hidden),
    with its mixer and its channel mixer, and returns the stream after it. words: what a layer kind of a card may set
    for it; their values are forward's last argument. reads_stream: its channel mixer (without one its mixer) reads
    the stream itself, and has norms of its own. parameters: those of a layer in addition to norms. several: it is for
    models with several streams, (batch, seq, streams, hidden). makes_stream: the result of its mixer is the stream
    after the layer. without: the part that its layers lack, `mixer` or `channel_mixer`, which is `none` then; empty:
    they have both. layer_input: its layers may have an input of their own.
    """

    name: str
    norms: int
    forward: Callable[["Tracer", Architecture, "Style", Part, Part, "Tensor", Values], "Tensor"]
    reads_stream: bool = False
    parameters: Callable[[Architecture], int] = lambda card: 0
    several: bool = False
    makes_stream: bool = False
    without: str = ""
    layer_input: bool = False
    words: Mapping[str, KindWord] = field(default_factory=dict)
