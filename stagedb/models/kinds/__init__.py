"""Kinds of layers, a file each: mixers, channel mixers, and residuals that combine the two.

A new kind is a file with a `LayerPart` (or a `Residual`), and a line in the imports and in a tuple below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from stagedb.models.kinds.attention import ATTENTION
from stagedb.models.kinds.attention_and_scan import ATTENTION_AND_SCAN
from stagedb.models.kinds.attention_experts import ATTENTION_EXPERTS
from stagedb.models.kinds.dense_and_experts import DENSE_AND_EXPERTS
from stagedb.models.kinds.differential_attention import DIFFERENTIAL_ATTENTION
from stagedb.models.kinds.experts import EXPERTS
from stagedb.models.kinds.feed_forward import FEED_FORWARD
from stagedb.models.kinds.gated_delta import GATED_DELTA
from stagedb.models.kinds.gated_recurrence import GATED_RECURRENCE
from stagedb.models.kinds.hyper_connections import SEVERAL
from stagedb.models.kinds.kimi_delta import KIMI_DELTA
from stagedb.models.kinds.latent_attention import LATENT_ATTENTION
from stagedb.models.kinds.lightning_attention import LIGHTNING_ATTENTION
from stagedb.models.kinds.one_part import CHANNEL_MIXER_ALONE, MIXER_ALONE, MIXER_MAKES_STREAM, MIXER_OF_STREAM, NONE
from stagedb.models.kinds.own import OwnBlock, part_of
from stagedb.models.kinds.parallel import PARALLEL, PARALLEL_TWO_NORMS
from stagedb.models.kinds.part import (
    HIDDEN,
    Architecture,
    Branch,
    KindWord,
    LayerPart,
    Residual,
    SizeSymbol,
    Value,
    Values,
)
from stagedb.models.kinds.selective_scan import SELECTIVE_SCAN
from stagedb.models.kinds.serial import (
    AFTER_SUM,
    FFN_POST_NORM,
    NORMED_STREAM,
    POST_NORM,
    SANDWICH,
    SANDWICH_OF_STREAM,
    SANDWICH_SCALED,
    SERIAL,
)
from stagedb.models.kinds.shared_block import SHARED_BLOCK
from stagedb.models.kinds.shared_keys import COMPRESSED_SPARSE, HEAVILY_COMPRESSED, SHARED_KEYS
from stagedb.models.kinds.short_convolution import SHORT_CONVOLUTION
from stagedb.models.kinds.shortcut_experts import SHORTCUT_EXPERTS
from stagedb.models.kinds.sliding_window import CHUNKED, SLIDING_WINDOW
from stagedb.models.kinds.state_space import STATE_SPACE

MIXERS: Mapping[str, LayerPart] = {
    each.name: each
    for each in (
        *(ATTENTION, SLIDING_WINDOW, CHUNKED, LATENT_ATTENTION),
        *(SHARED_KEYS, HEAVILY_COMPRESSED, COMPRESSED_SPARSE),
        *(STATE_SPACE, SELECTIVE_SCAN, GATED_DELTA, GATED_RECURRENCE, NONE),
        *(SHORT_CONVOLUTION, ATTENTION_AND_SCAN, KIMI_DELTA, LIGHTNING_ATTENTION),
        *(SHARED_BLOCK, SHORTCUT_EXPERTS, DIFFERENTIAL_ATTENTION, ATTENTION_EXPERTS),
    )
}
"""Mixers by the name that a card uses."""

CHANNEL_MIXERS: Mapping[str, LayerPart] = {each.name: each for each in (FEED_FORWARD, EXPERTS, DENSE_AND_EXPERTS, NONE)}
"""Channel mixers by the name that a card uses."""

RESIDUALS: Mapping[str, Residual] = {
    each.name: each
    for each in (
        SERIAL,
        PARALLEL,
        PARALLEL_TWO_NORMS,
        POST_NORM,
        SANDWICH,
        SANDWICH_SCALED,
        SANDWICH_OF_STREAM,
        AFTER_SUM,
        FFN_POST_NORM,
        NORMED_STREAM,
        SEVERAL,
        MIXER_ALONE,
        MIXER_OF_STREAM,
        MIXER_MAKES_STREAM,
        CHANNEL_MIXER_ALONE,
    )
}
"""Residuals, which combine a mixer and a channel mixer, by the name that a card uses."""

PARTS: tuple[LayerPart, ...] = tuple(dict.fromkeys((*MIXERS.values(), *CHANNEL_MIXERS.values())))
"""All parts. The rows of later ones see those of earlier ones."""

__all__ = [
    "ATTENTION",
    "CHANNEL_MIXERS",
    "EXPERTS",
    "FEED_FORWARD",
    "HIDDEN",
    "MIXERS",
    "PARTS",
    "RESIDUALS",
    "Architecture",
    "Branch",
    "KindWord",
    "LayerKind",
    "LayerPart",
    "OwnBlock",
    "Residual",
    "SizeSymbol",
    "Value",
    "Values",
]


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer by name: its block in a graph, its mixer, its channel mixer, and its residual.

    values: the values that it sets for its parts, by name; those at their default are left out. own: the blocks of the
    card that are parts of it.
    """

    name: str
    mixer: str = ATTENTION.name
    channel_mixer: str = FEED_FORWARD.name
    residual: str = SERIAL.name
    values: tuple[tuple[str, Value], ...] = ()
    own: tuple[OwnBlock, ...] = ()

    @property
    def parts(self) -> tuple[LayerPart, LayerPart]:
        """The mixer and the channel mixer."""
        own = {block.name: part_of(block) for block in self.own}
        mixer, channel_mixer = own.get(self.mixer), own.get(self.channel_mixer)
        return mixer or MIXERS[self.mixer], channel_mixer or CHANNEL_MIXERS[self.channel_mixer]

    @cached_property
    def words(self) -> Mapping[str, KindWord]:
        """The words that a card may set for this kind, with their types and defaults: those of its mixer, its channel
        mixer and its residual, by name.
        """
        return {name: word for part in (*self.parts, RESIDUALS[self.residual]) for name, word in part.words.items()}

    @cached_property
    def settings(self) -> Values:
        """The value of each of these words: as the card sets it, else its default."""
        defaults = {name: word.default for name, word in self.words.items() if word.default is not None}
        return {**defaults, **dict(self.values)}

    def to_dict(self) -> dict[str, Value]:
        """All fields except its name and own blocks, as in a card."""
        words: dict[str, Value] = {"mixer": self.mixer, "channel_mixer": self.channel_mixer, "residual": self.residual}
        return {**words, **dict(self.values)}

    @property
    def shares(self) -> bool:
        """Whether it has blocks whose weights several layers share."""
        return any(part.shared is not None for part in self.parts)

    @property
    def reads_keys(self) -> bool:
        """Whether its attention has the keys and values of an earlier layer."""
        return self.settings.get("keys") == "earlier"

    @property
    def routes(self) -> bool:
        """Whether ranks of ep divide a part of it among them."""
        return any(part.routes for part in self.parts)
