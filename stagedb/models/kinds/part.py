"""Parts of a layer: a mixer (of tokens with each other) or a channel mixer (of a token's channels).

A part is one object that owns everything that depends on its kind: its forward, its parameters, the sizes that it adds
to a model, the rows of the sharding table, and the checks of a card. `stagedb.models.kinds` lists the kinds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stagedb.models.sizes import WIDEST

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models.shared_operations import Style

HIDDEN = ("batch", "seq", "hidden")
"""The axes of the tensors between layers."""

Rule = Mapping[str, tuple[str, ...]]
"""By logical axis, the mesh axes that partition it."""

Table = Mapping[str, Rule]
"""Rules by region."""


class Architecture(Protocol):
    """The fields of a model card that parts use."""

    @property
    def name(self) -> str: ...
    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def norm(self) -> str: ...
    @property
    def mlp(self) -> str: ...
    @property
    def activation(self) -> str: ...
    @property
    def positions(self) -> str: ...
    @property
    def linear_bias(self) -> bool: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def experts(self) -> int: ...
    @property
    def top_k(self) -> int: ...
    @property
    def expert_ffn(self) -> int: ...
    @property
    def shared_ffn(self) -> int: ...
    @property
    def dense_layers(self) -> int: ...
    @property
    def layers_without_experts(self) -> int: ...
    @property
    def hashed_tokens(self) -> int: ...
    def word(self, name: str, *mixers: str) -> int: ...
    def has(self, mixer: str) -> bool: ...
    @property
    def tied(self) -> bool: ...
    @property
    def embedding_width(self) -> int: ...
    @property
    def final_norm(self) -> bool: ...
    @property
    def multi_token_prediction(self) -> int: ...
    @property
    def mtp_loss_factor(self) -> float: ...
    @property
    def hyper_connections(self) -> int: ...
    @property
    def hyper_connection_rounds(self) -> int: ...
    @property
    def embedding_norm(self) -> bool: ...
    @property
    def head_bias(self) -> bool: ...
    @property
    def embedding_scale(self) -> float: ...
    @property
    def residual_scale(self) -> float: ...
    @property
    def logit_scale(self) -> float: ...
    @property
    def logit_softcap(self) -> float: ...
    @property
    def layer_input(self) -> int: ...
    @property
    def layer_input_vocab(self) -> int: ...


class ShardingChoices(Protocol):
    """The options of a graph that rows of the sharding table use."""

    @property
    def sp(self) -> bool: ...
    @property
    def expert_tp(self) -> bool: ...

    @property
    def experts_of_tp(self) -> bool: ...
    @property
    def routes_whole(self) -> bool: ...
    @property
    def cp_kind(self) -> str: ...
    @property
    def dispatch(self) -> str: ...


@dataclass(frozen=True)
class Branch:
    """The result of a part for the residual stream, and the bias that is added to it later, if any."""

    result: "Tensor"
    bias: "Tensor | None" = None


@dataclass(frozen=True)
class SizeSymbol:
    """A symbol of a graph's expressions: its property in the store, its description, and its value (0: none)."""

    property: str
    about: str
    size: Callable[[Architecture], int]


@dataclass(frozen=True)
class UserRegion:
    """The freedom of a user's strategy in a region.

    axes: the logical axes that its rules may partition. whole: the axes that its operators need whole, with the reason;
    weights may be kept in parts of them.
    """

    axes: tuple[str, ...]
    whole: Mapping[str, str] = field(default_factory=dict)


Value = int | float | bool | str

Values = Mapping[str, Value]
"""Values of a layer kind for its parts, such as `window`: those that a card sets, and the defaults of the others."""


@dataclass(frozen=True)
class KindWord:
    """A word that a layer kind of a card may set for a part.

    about: its description. default: its value where a card leaves it out; None: a card must set it, as a whole number
    from 1. The type of the default is the type of the word. choices: the texts that it takes. most: the largest whole
    number.
    """

    about: str
    default: Value | None = None
    choices: tuple[str, ...] = ()
    most: int = WIDEST

    def refused(self, value: object) -> str:
        """What the word takes, if it does not take this value; otherwise an empty text."""
        if type(value) is int and value > self.most and not isinstance(self.default, float):
            return f"{self.about}, at most {self.most:,}"
        if self.default is None:
            return "" if type(value) is int and value >= 1 else f"{self.about}, a whole number from 1"
        if isinstance(self.default, bool):
            return "" if isinstance(value, bool) else "true or false"
        if isinstance(self.default, str):
            known = value in self.choices or value == self.default
            return "" if known else f"one of {', '.join(self.choices)}"
        if isinstance(self.default, int):
            return "" if type(value) is int and value >= 0 else f"{self.about}, a whole number from 0"
        return "" if type(value) in (int, float) and 0 <= float(str(value)) < FAR else f"{self.about}, a number from 0"


FAR = 1e30
"""Numbers of a card are below this."""

Forward = Callable[["Tracer", Architecture, "Style", Values, "Tensor"], Branch]
"""Writes a part's forward on its normalised input (batch, seq, hidden), and returns its branch of the stream."""

Buffers = tuple[tuple["Tensor", str], ...]
"""Tensors that every part of a model holds in addition to weights, each with the region that reads it."""


def _no_rows(choices: ShardingChoices, table: Table) -> Table:
    return {}


@dataclass(frozen=True, eq=False)
class LayerPart:
    """One kind of mixer or channel mixer.

    name: its word in a card. forward: see `Forward`. parameters: the number in a layer; idle: the number of those that
    do not process a token. shared: the number in each block whose weights several layers share; None: a layer has all
    of its own. check: raises UsageError for a card that it does not suit; it is called for all cards.
    check_values: raises UsageError for values that do not suit each other; it is called for the layer kinds with it.
    words: what a layer kind of a card may set for it.
    symbols: the sizes that it adds to a model. axes: the size of each of its logical axes, as a text of the symbols;
    `dealers` in it is the number of ranks that deal tokens of their own. replicable: axes of which ranks hold copies if
    a degree exceeds their size.
    rows: its rows of the built-in sharding table. planned: rows that follow from the others and the plan, for every
    user's strategy. user: the regions that a user's strategy may name. left: the regions that it leaves to the plan,
    and the options that decide them.
    buffers: the tensors held in addition to weights. routes: ranks of ep divide it among them. reads_stream: it reads
    the residual stream, and normalises that itself. makes_stream: its result is the stream after the layer. alone: why
    ranks of cp cannot divide its sequence; empty: they can. exchanged: what these exchange for the whole sequence, with
    which they can nevertheless (Ulysses); empty: nothing.
    """

    name: str
    forward: Forward
    parameters: Callable[[Architecture, Values], int]
    idle: Callable[[Architecture, Values], int] = lambda card, values: 0
    shared: Callable[[Architecture, Values], int] | None = None
    check: Callable[[Architecture], None] = lambda card: None
    check_values: Callable[[Architecture, Values], None] = lambda card, values: None
    words: Mapping[str, KindWord] = field(default_factory=dict)
    symbols: Mapping[str, SizeSymbol] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    replicable: frozenset[str] = frozenset()
    rows: Callable[[ShardingChoices], Table] = lambda choices: {}
    planned: Callable[[ShardingChoices, Table], Table] = _no_rows
    user: Mapping[str, UserRegion] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    buffers: Callable[[Architecture, "Style"], Buffers] = lambda card, style: ()
    routes: bool = False
    reads_stream: bool = False
    makes_stream: bool = False
    alone: str = ""
    exchanged: str = ""


def norm_parameters(card: Architecture) -> int:
    """Parameters of a norm over the hidden axis."""
    return card.hidden * norm_values(card)


def norm_values(card: Architecture, biased: bool = True) -> int:
    """Parameters of a norm for each value that it normalises. biased: a LayerNorm has its bias, if the model's have."""
    return {"layernorm": 2 if biased else 1, "layernorm_no_weight": 0, "rmsnorm_no_weight": 0}.get(card.norm, 1)


# Residuals combine the parts of a layer: the places of norms, and the order of additions to the residual stream.

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
