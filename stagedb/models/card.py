"""Model cards: the sizes and choices that make a decoder-only transformer, as data."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.models.kinds import CHANNEL_MIXERS, EXPERTS, MIXERS, PARTS, RESIDUALS, LayerKind, LayerPart, OwnBlock
from stagedb.models.kinds.attention import seen
from stagedb.models.kinds.head_sizes import HeadSizes, head_sizes, in_one_block
from stagedb.models.kinds.hyper_connections import of_head
from stagedb.models.kinds.layer_inputs import layer_input_parameters
from stagedb.models.kinds.own import check_tp, part_of, read_blocks
from stagedb.models.kinds.part import FAR, norm_parameters
from stagedb.models.layer_pattern import check_known, check_reads, period, read_kinds, read_pattern
from stagedb.models.sizes import MOST, MOST_PARAMETERS

# The sequence length that plans of a model have if they name none.

LONGEST_GUESS = 8192
"""Tokens. The last position of a model is often far beyond the sequences that it was trained with, and attention over
all positions would then be most of a step. A length that comes from the last position alone is at most this."""

_ORIGINAL = "original_max_position_embeddings"
_ROTARY = ("rope_scaling", "rope_parameters")
"""Where configs keep the choices of rotary positions, in older and newer versions of Transformers."""


@dataclass(frozen=True)
class SequenceLength:
    """tokens: the length of a sequence. reason: where it comes from, in words."""

    tokens: int
    reason: str


def guessed(positions: int, word: str) -> SequenceLength:
    """The sequence length to take for a model that only has a number of positions. word: the name of that number."""
    if positions <= LONGEST_GUESS:
        return SequenceLength(positions, word)
    return SequenceLength(LONGEST_GUESS, f"at most {LONGEST_GUESS:,} of {positions:,}: {word}")


def read_length(config: Mapping[str, Any], positions: int, word: str) -> SequenceLength:
    """The length for a Hugging Face config: the one before its positions were extended, if it has that.

    positions: the number of positions of its model; word: the name of that number. Raises UsageError if the original
    length is no whole number.
    """
    for original in _originals(config):
        if type(original) is not int or original < 1:
            raise UsageError(f"{_ORIGINAL} must be a whole number from 1, not {shown(original)}")
        return SequenceLength(min(original, positions), f"{_ORIGINAL} of config.json")
    return guessed(positions, word)


def _originals(config: Mapping[str, Any]) -> Iterator[Any]:
    """The values of the key in the config and in what it has on rotary positions, for all layers or by their type."""
    rotary = [config[key] for key in _ROTARY if isinstance(config.get(key), Mapping)]
    by_type = [each for one in rotary for each in one.values() if isinstance(each, Mapping)]
    for place in (config, *rotary, *by_type):
        if place.get(_ORIGINAL) is not None:
            yield place[_ORIGINAL]


CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("rmsnorm", "layernorm", "layernorm_no_bias", "layernorm_no_weight", "rmsnorm_no_weight"),
    "mlp": ("gated", "plain"),
    "activation": ("silu", "gelu", "relu", "relu2", "gelu_tanh", "quick_gelu", "clamped_swiglu", "xielu"),
    "positions": ("rotary", "learned", "alibi", "none"),
}
"""The fields of a card whose values are from a list of words."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COUNTS = ("parameters", "experts", "top_k", "expert_ffn", "shared_ffn", "dense_layers")
_LENGTHS = ("train_seq_len", "left_out_window")
_FACTORS = ("mtp_loss_factor", "embedding_scale", "residual_scale", "logit_scale", "logit_softcap")
_AROUND = (
    *("embedding_norm", "head_bias", "position_offset", "multi_token_prediction", "embedding_width", "final_norm"),
    "further_kind",
    *("hyper_connections", "hyper_connection_rounds", "layer_input", "layer_input_vocab"),
    *_FACTORS,
)
"""Fields of what is around the layers."""

_MAY_BE_ZERO = (
    *_COUNTS,
    *_LENGTHS,
    "position_offset",
    "multi_token_prediction",
    "embedding_width",
    "hyper_connections",
    "layer_input",
    "layer_input_vocab",
    "ffn",
)
_OF_LAYERS = ("layer_kinds", "pattern", "blocks")
"""Fields whose values are lists of layers, which have checks of their own."""

_LEFT_OUT = (*_OF_LAYERS, *_LENGTHS, "train_seq_len_source", *_AROUND)
"""Fields that a card with their default does not show. A new field belongs here: most models have none of them."""

USUAL = "layer"
"""The kind of all layers of a card without a pattern."""

_ABOUT = ("parameters", "source", *_LENGTHS, "train_seq_len_source")
"""Fields that describe the model and do not shape its graph."""


@dataclass(frozen=True)
class Card:
    """One model.

    hidden, ffn: widths (ffn 0: no layer has a feed-forward); head_dim: width of one head (heads · head_dim need not be
    hidden); vocab: as published.
    vocab_multiple: frameworks pad the vocabulary of this model to a multiple of this (1: not at all).
    linear_bias: every linear layer but the head has a bias; qkv_bias: the projections to q, k and v have one.
    tied: embedding and head share their weight. max_positions: the longest sequence that the model supports.
    train_seq_len: the length of the sequences of most of its pre-training, the default of plans; 0 if unknown.
    train_seq_len_source: the publication of that length, or the rule that chose it.
    left_out_window: the model attends to so many tokens at most, by a window or in chunks, and this card to all of
    them: longer sequences are refused. 0: nothing is left out.
    parameters: the published count, or the exact one of the published sizes; 0 if unknown.
    source: the publication of the sizes.
    qk_norm: queries and keys are normalised head by head (RMSNorm).
    experts: routed experts of a layer, 0 in a dense model; top_k of them process a token, each `expert_ffn` wide.
    shared_ffn: width of all shared experts together, which process every token in addition to the routed ones.
    dense_layers: how many of the first layers have a plain feed-forward (of width `ffn`) instead.
    pattern: the kinds of layers, by name, as a list that repeats (`layer_pattern.read_pattern` has other forms);
    empty: all alike, except for dense_layers. layer_kinds: the parts of kinds (`layer_pattern.read_kinds`). Without a
    description `layer` has attention and experts, if the model has some, and `dense` a feed-forward instead.
    blocks: mixers and channel mixers of the card's own, by name (`kinds.own`), which layer kinds name.
    embedding_norm: the embedded tokens are normalised. head_bias: the head has a bias. position_offset: rows of the
    table of learned positions before the first position.
    embedding_scale, residual_scale, logit_scale: the factors that multiply embedded tokens, each part's result, and
    logits; 0: none. logit_softcap: the bound of logits, by a tanh; 0: none.
    multi_token_prediction: layers behind the last one that each predict a token further on (multi-token prediction).
    further_kind: the kind of those layers, by name; empty: that of the last layer.
    mtp_loss_factor: what multiplies the mean of their losses; Megatron-LM's default is 0.1.
    embedding_width: the width of the tables of embedding and head, which matrices without a bias bring to the hidden
    size and back; 0: the hidden size. final_norm: there is a norm after the last layer.
    hyper_connections: the residual streams of each token, for layers whose residual is `hyper_connections`; 0: one
    stream, without weights.
    hyper_connection_rounds: how often the matrix that mixes streams is divided by the sums of its columns.
    layer_input: the width of the rows that a token has for each layer in a second table; 0: there is none.
    layer_input_vocab: the tokens of that table.

    Raises UsageError, naming the field, if the values make no model.
    """

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm: str
    mlp: str
    activation: str
    positions: str
    max_positions: int
    tied: bool
    linear_bias: bool
    qkv_bias: bool
    source: str
    parameters: int = 0
    vocab_multiple: int = 1
    qk_norm: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    layer_kinds: tuple[LayerKind, ...] = ()
    pattern: tuple[str, ...] = ()
    blocks: tuple[OwnBlock, ...] = ()
    train_seq_len: int = 0
    train_seq_len_source: str = ""
    left_out_window: int = 0
    embedding_norm: bool = False
    head_bias: bool = False
    position_offset: int = 0
    embedding_scale: float = 0.0
    residual_scale: float = 0.0
    logit_scale: float = 0.0
    logit_softcap: float = 0.0
    multi_token_prediction: int = 0
    further_kind: str = ""
    mtp_loss_factor: float = 0.1
    embedding_width: int = 0
    final_norm: bool = True
    hyper_connections: int = 0
    hyper_connection_rounds: int = 20
    layer_input: int = 0
    layer_input_vocab: int = 0

    def __post_init__(self) -> None:
        for name in _FACTORS:
            if type(getattr(self, name)) is int:
                object.__setattr__(self, name, float(getattr(self, name)))
        for field in fields(self):
            if field.name not in _OF_LAYERS:
                self._check(field.name, getattr(self, field.name), field.type)
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"a model's name has letters, digits, '.', '_' and '-' only, not {shown(self.name)}")
        self._check_lengths()
        self._check_multi_token_prediction()
        for part in PARTS:
            part.check(self)
        self._settle_layers()
        if self.count_parameters() > MOST_PARAMETERS:
            raise UsageError(
                f"{self.name}: its sizes make more than {MOST_PARAMETERS:,} parameters, which is the most of a model"
            )

    def _check(self, name: str, value: object, kind: object) -> None:
        if type(value) is not kind:
            wanted = getattr(kind, "__name__", kind)
            raise UsageError(f"{self.name}: {name} must be {_WORDS.get(str(wanted), wanted)}, not {shown(value)}")
        if type(value) is int and value < (0 if name in _MAY_BE_ZERO else 1):
            raise UsageError(f"{self.name}: {name} must be positive, not {value}")
        if type(value) is int and value > MOST[name]:
            raise UsageError(f"{self.name}: {name} must be at most {MOST[name]:,}, not {shown(value)}")
        if isinstance(value, float) and not 0 <= value < FAR:
            raise UsageError(f"{self.name}: {name} must be a number from 0, not {shown(value)}")
        if name in CHOICES and value not in CHOICES[name]:
            raise UsageError(f"{self.name}: {name} must be one of {', '.join(CHOICES[name])}, not {shown(value)}")

    def _check_lengths(self) -> None:
        if self.train_seq_len > self.max_positions:
            raise UsageError(
                f"{self.name}: train_seq_len={self.train_seq_len} is above max_positions={self.max_positions}"
            )
        if self.train_seq_len_source and not self.train_seq_len:
            raise UsageError(f"{self.name}: train_seq_len_source has no train_seq_len: set both, or neither")

    def _check_multi_token_prediction(self) -> None:
        if self.hyper_connection_rounds != 20 and not self.hyper_connections:
            raise UsageError(f"{self.name}: hyper_connection_rounds is for several streams, and hyper_connections is 0")
        if self.multi_token_prediction and (self.embedding_width or not self.final_norm):
            raise UsageError(
                f"{self.name}: multi_token_prediction is for models with final_norm and without embedding_width"
            )
        if self.multi_token_prediction and (self.positions == "learned" or self.embedding_norm):
            raise UsageError(
                f"{self.name}: layers for further tokens embed them without learned positions and without a norm of "
                "the embedding: leave multi_token_prediction out, or positions: learned and embedding_norm"
            )

    def check_sequence(self, tokens: int) -> None:
        """Raise UsageError for a sequence in which the model's window or chunks, which the card leaves out, matter.

        tokens: of the sequence.
        """
        if self.left_out_window and tokens > self.left_out_window:
            raise UsageError(
                f"{self.name} attends to {self.left_out_window:,} tokens at most, and its card to whole sequences, so "
                f"that FLOPs of {tokens:,} tokens would be wrong: {Word('seq_len')} takes at most "
                f"{self.left_out_window}; a card whose layers have `sliding_window` has no such limit, as "
                "mistral-7b-window"
            )

    def check_requests(self, positions: int, tokens: int | None) -> None:
        """Raise UsageError for requests with more positions than the model has.

        positions: those of the longest. tokens: the number of new ones of each request, for the way out that the error
        names; None if requests differ.
        """
        if positions <= self.max_positions:
            return
        if tokens is None:
            way = f"a request of {Word('requests')} has at most {self.max_positions:,} new and cached tokens"
        elif tokens > self.max_positions:
            way = f"take less {Word('seq_len')}"
        else:
            way = f"{Word('cache_len')} takes at most {self.max_positions - tokens}"
        raise UsageError(
            f"{self.name} has {self.max_positions:,} positions, and these requests {positions:,}: {way}; a card of "
            "your own with other max_positions has more"
        )

    def check_tp(self, tp: int) -> None:
        """Raise UsageError if ranks of tp cannot have equal parts of its own blocks, or of its groups of heads."""
        groups = self.word("out_groups")
        if groups % tp:
            raise UsageError(f"tp {tp} does not divide the {groups} out_groups of {self.name}: take a tp that does")
        for block in self.blocks:
            check_tp(block, self, tp)

    @property
    def usual_length(self) -> SequenceLength:
        """The sequence length of plans that name none."""
        if self.train_seq_len:
            return SequenceLength(self.train_seq_len, self.train_seq_len_source or "train_seq_len of its card")
        return guessed(self.max_positions, "max_positions of its card")

    @property
    def padded_vocab(self) -> int:
        """The vocabulary as frameworks hold it."""
        return -(-self.vocab // self.vocab_multiple) * self.vocab_multiple

    @cached_property
    def kinds(self) -> Mapping[str, LayerKind]:
        """The kinds of its layers by name, in the order of their first layers; that of multi-token prediction last."""
        known = {**self._usual_kinds(), **{kind.name: kind for kind in self.layer_kinds}}
        mtp_kind = (self.further_kind,) if self.further_kind else ()
        return {name: known[name] for name in dict.fromkeys((*self.sequence, *mtp_kind))}

    @property
    def mtp_kind(self) -> LayerKind:
        """The kind of layers for multi-token prediction: `further_kind`, else that of the last layer. Models without
        them have one too.
        """
        return self.kinds[self.further_kind or self.sequence[-1]]

    @cached_property
    def sequence(self) -> tuple[str, ...]:
        """The kind of each layer, in forward order."""
        if self.pattern:
            return read_pattern(self.pattern, self.layers)
        return ("dense",) * self.dense_layers + (USUAL,) * (self.layers - self.dense_layers)

    def _usual_kinds(self) -> dict[str, LayerKind]:
        """The kinds that need no description: one with experts, if the model has some, then one without."""
        if not self.experts:
            return {USUAL: LayerKind(USUAL)}
        return {USUAL: LayerKind(USUAL, channel_mixer=EXPERTS.name), "dense": LayerKind("dense")}

    def _settle_layers(self) -> None:
        """Give equal sequences of layers one form, and check them."""
        usual = self._usual_kinds()
        if self.blocks:
            object.__setattr__(self, "blocks", self._checked_blocks())
        try:
            named = read_kinds(self.layer_kinds, usual, self.blocks)
            given = self.pattern or self.sequence
            if self.pattern and self.dense_layers:
                raise UsageError(f"pattern names all layers: leave dense_layers={self.dense_layers} out, or pattern")
            sequence = read_pattern(given, self.layers)
            named = self._with_mtp_kind(sequence, {**usual, **named}, named)
            check_known(sequence, {**usual, **named}, (name for name in named if name != self.further_kind))
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}") from error
        own = (kind for name, kind in sorted(named.items()) if usual.get(name) != kind)
        object.__setattr__(self, "layer_kinds", tuple(own))
        found = period(sequence)
        object.__setattr__(self, "pattern", () if not self.pattern or found == (USUAL,) else found)
        used = {block.name for kind in self.kinds.values() for block in kind.own}
        for block in self.blocks:
            if block.name not in used:
                raise UsageError(f"{self.name}: blocks: {block.name} is a part of no layer: name it in layer_kinds")
        for kind in self.kinds.values():
            self._check_residual(kind)
            for part in kind.parts:
                part.check_values(self, kind.settings)
            check_reads(self.name, kind)
        self._check_shared()
        self._check_stacked()
        if self.multi_token_prediction and self.mtp_kind.settings.get("hashed"):
            raise UsageError(
                f"{self.name}: layers for further tokens would have experts that a table of tokens chooses: set "
                "further_kind to a kind without hashed, or leave multi_token_prediction out"
            )
        if self.experts and not self.routes:
            raise UsageError(f"{self.name}: experts={self.experts}, and the pattern has no layer with experts")

    def _check_residual(self, kind: LayerKind) -> None:
        """Raise UsageError for a layer that has one stream where others have several, or the other way round."""
        if RESIDUALS[kind.residual].several != (self.hyper_connections > 0):
            has = f"hyper_connections={self.hyper_connections}" if self.hyper_connections else "no hyper_connections"
            raise UsageError(
                f"{self.name}: layer_kinds: {kind.name} has the residual {kind.residual}, and the card has {has}: the "
                "residual `hyper_connections` and the number of streams, such as 4, go together, in all layers"
            )

    def _with_mtp_kind(
        self, sequence: tuple[str, ...], known: Mapping[str, LayerKind], named: dict[str, LayerKind]
    ) -> dict[str, LayerKind]:
        """The named kinds, without that of multi-token prediction where no layer predicts further tokens."""
        mtp_kind = self.further_kind
        if mtp_kind and mtp_kind not in known:
            raise UsageError(f"further_kind: {shown(mtp_kind)} is no kind of layer_kinds: describe it there")
        if mtp_kind and not self.multi_token_prediction and mtp_kind not in sequence:
            named = {name: kind for name, kind in named.items() if name != mtp_kind}
        if not self.multi_token_prediction or mtp_kind == sequence[-1]:
            object.__setattr__(self, "further_kind", "")
        return named

    def _check_shared(self) -> None:
        """Raise UsageError for layers with shared blocks that nothing gives one meaning."""
        sharing = [kind.name for kind in self.kinds.values() if kind.shares]
        if len(sharing) > 1:
            raise UsageError(
                f"{self.name}: layer_kinds: {' and '.join(sharing)} share blocks, which one kind of layer takes in "
                "turn: give their layers one kind"
            )
        if bool(self.layer_input) != bool(self.layer_input_vocab):
            raise UsageError(f"{self.name}: layer_input and layer_input_vocab go together: set both, or neither")

    def _check_stacked(self) -> None:
        """Raise UsageError for layers that cannot be one block, and for keys of an earlier layer that there is not."""
        if not self.stacked:
            return
        what = f"{self.name}: layers with {' and '.join(self.stacked)}"
        if self.multi_token_prediction or self.hyper_connections:
            raise UsageError(
                f"{what} read more than one stream of the layer before: leave multi_token_prediction and "
                "hyper_connections out"
            )
        if not all(in_one_block(self, kind) for kind in self.kinds.values()):
            raise UsageError(
                f"{what} are one block of a graph with all others, whose heads are of one number: leave heads, "
                "kv_heads and value_dim out of layer_kinds"
            )
        if self.layer_input and not all(RESIDUALS[kind.residual].layer_input for kind in self.kinds.values()):
            fit = " or ".join(name for name, each in RESIDUALS.items() if each.layer_input)
            raise UsageError(f"{what} end with what they make of their rows: the residual of all is {fit}")
        made: dict[object, HeadSizes] = {}
        for kind in (self.kinds[name] for name in self.sequence):
            sees, sizes = seen(kind.settings), head_sizes(self, kind.settings)
            if not kind.reads_keys:
                made[sees] = sizes
            elif (
                (sizes.kv_heads, sizes.head_dim) != (made[sees].kv_heads, made[sees].head_dim) if sees in made else True
            ):
                raise UsageError(
                    f"{self.name}: layer_kinds: {kind.name} has keys: earlier, and no layer before it makes keys of "
                    "its heads that queries see as much of: give an earlier layer keys: own with the same window, "
                    "kv_heads and head_dim"
                )

    @property
    def stacked(self) -> tuple[str, ...]:
        """What layers read of others or of the embedding, so that all layers of the model are one block of a graph."""
        kinds = self.kinds.values()
        found = {
            "shared blocks": any(kind.shares for kind in kinds),
            "keys of earlier layers": any(kind.reads_keys for kind in kinds),
            "rows of their own of each token": self.layer_input > 0,
        }
        return tuple(what for what, there in found.items() if there)

    def _of_shared_blocks(self) -> int:
        """The number of parameters of blocks that layers share."""
        count = 0
        for kind in self.kinds.values():
            layers = self.sequence.count(kind.name)
            for part in kind.parts:
                if part.shared is not None:
                    count += min(layers, int(kind.settings["shared_blocks"])) * part.shared(self, kind.settings)
        return count

    def _checked_blocks(self) -> tuple[OwnBlock, ...]:
        """Its own blocks, with names that no other part has."""
        blocks = read_blocks(self.blocks, None, self.name)
        for block in blocks:
            if block.name in (*MIXERS, *CHANNEL_MIXERS):
                raise UsageError(f"{self.name}: blocks: {block.name} is a part that stagedb has: take another name")
        return tuple(sorted(blocks, key=lambda block: block.name))

    @property
    def parts(self) -> tuple[LayerPart, ...]:
        """All parts that layers of the model may have: those of stagedb, and its own blocks."""
        return (*PARTS, *map(part_of, self.blocks))

    def word(self, name: str, *mixers: str) -> int:
        """The size that its layer kinds give a word; 0 if none has it. UsageError if they give it several.

        name: the word's. mixers: those whose word it is; without any, all.
        """
        kinds = [kind for kind in self.kinds.values() if not mixers or kind.mixer in mixers]
        sizes = {int(kind.settings[name]) for kind in kinds if name in kind.settings} - {0}
        if len(sizes) > 1:
            raise UsageError(
                f"{self.name}: layer kinds have {name} of several sizes, {shown(sorted(sizes))}: one is read"
            )
        return next(iter(sizes), 0)

    def has(self, mixer: str) -> bool:
        """Whether layers of the model have this mixer. mixer: its name in a card."""
        return any(kind.mixer == mixer for kind in self.kinds.values())

    @property
    def routes(self) -> bool:
        """Whether ranks of ep divide a part of it among them."""
        return any(kind.routes for kind in self.kinds.values())

    @property
    def layers_without_experts(self) -> int:
        """The number of layers without experts, if other layers have some."""
        return sum(not self.kinds[name].routes for name in self.sequence) if self.routes else 0

    @property
    def hashed_tokens(self) -> int:
        """The rows of tables that choose experts by tokens; 0 if no layer has one."""
        return self.vocab if any(kind.settings.get("hashed") for kind in self.kinds.values()) else 0

    def count_parameters(self) -> int:
        """The number of parameters, vocabulary unpadded, a tied weight counted once."""
        positions = self.position_rows * self.hidden if self.positions == "learned" else 0
        width = self.embedding_width or self.hidden
        tables = self.vocab * width * (1 if self.tied else 2) + positions
        tables += 2 * width * self.hidden if self.embedding_width else 0
        norms = norm_parameters(self) * (self.embedding_norm + self.final_norm)
        around = norms + (self.vocab if self.head_bias else 0)
        of_depth = self._of_layer(self.mtp_kind) + 2 * self.hidden**2 + 3 * norm_parameters(self) + of_head(self)
        of_mtp = self.multi_token_prediction * of_depth
        kinds = Counter(self.sequence)
        layers = sum(count * self._of_layer(self.kinds[name]) for name, count in kinds.items())
        own = self._of_shared_blocks() + layer_input_parameters(self)
        return tables + layers + own + around + of_mtp + of_head(self)

    @property
    def position_rows(self) -> int:
        """The rows of its table of learned positions."""
        return self.max_positions + self.position_offset

    def count_active(self) -> int:
        """The number of parameters that process one token: all but those of experts that it is not sent to."""
        of_mtp = (self.mtp_kind,) * self.multi_token_prediction
        kinds = (*(self.kinds[name] for name in self.sequence), *of_mtp)
        idle = (part.idle(self, kind.settings) for kind in kinds for part in kind.parts)
        return self.count_parameters() - sum(idle)

    def _of_layer(self, kind: LayerKind) -> int:
        residual = RESIDUALS[kind.residual]
        norms = residual.norms * norm_parameters(self) + residual.parameters(self)
        return norms + sum(part.parameters(self, kind.settings) for part in kind.parts)

    def to_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON or YAML; `Card(**card.to_dict())` is the card."""
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _LEFT_OUT or getattr(self, field.name) != field.default
        }
        forms = {
            "layer_kinds": {kind.name: kind.to_dict() for kind in self.layer_kinds},
            "pattern": list(self.pattern),
            "blocks": {block.name: block.to_dict() for block in self.blocks},
        }
        return {**values, **{name: form for name, form in forms.items() if name in values}}

    @property
    def digest(self) -> str:
        """sha256 of the values that shape the model and of its name, without the source of the sizes."""
        shape = {name: value for name, value in self.to_dict().items() if name not in _ABOUT}
        return hashlib.sha256(json.dumps(shape, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_WORDS = {"int": "an integer", "bool": "true or false", "str": "a text", "float": "a number"}
