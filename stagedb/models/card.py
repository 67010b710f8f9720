"""A model card: the sizes and choices that make a decoder-only transformer, as data."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields

from stagedb.errors import UsageError

CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("rmsnorm", "layernorm"),
    "mlp": ("gated", "plain"),
    "activation": ("silu", "gelu", "relu"),
    "positions": ("rotary", "learned"),
}
"""The fields of a card that are one of a few words."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAY_BE_ZERO = ("parameters", "experts", "top_k", "expert_ffn", "shared_ffn", "dense_layers")
_ABOUT = ("parameters", "source")
"""Fields that say something about the model and do not shape it."""


@dataclass(frozen=True)
class Card:
    """One model.

    hidden, ffn: widths; head_dim: of one head (heads · head_dim need not be hidden); vocab: as published.
    vocab_multiple: frameworks pad the vocabulary of this model to a multiple of this (1: not at all).
    linear_bias: every linear layer but the head has a bias; qkv_bias: the projections to q, k and v have one.
    tied: embedding and head share their weight. max_positions: the longest sequence that the model is made for.
    parameters: the published count, or the exact one of the published sizes; 0 where nobody has counted.
    source: where the sizes are from.
    qk_norm: queries and keys are normalised head by head (RMSNorm).
    experts: routed experts of a layer, 0 in a dense model; top_k of them process a token, each `expert_ffn` wide.
    shared_ffn: width of what processes every token beside them (shared experts together). dense_layers: how many of the
    first layers have a plain feed-forward (of width `ffn`) instead.

    Raises UsageError, naming the field, for what is no model.
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

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check(field.name, getattr(self, field.name), field.type)
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"a model's name has letters, digits, '.', '_' and '-' only, not {self.name!r}")
        if self.heads % self.kv_heads != 0:
            raise UsageError(f"{self.name}: heads={self.heads} is not divisible by kv_heads={self.kv_heads}")
        if self.positions == "rotary" and self.head_dim % 2 != 0:
            raise UsageError(f"{self.name}: rotary positions want an even head_dim, not {self.head_dim}")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.experts == 0:
            given = [name for name in ("top_k", "expert_ffn", "shared_ffn", "dense_layers") if getattr(self, name)]
            if given:
                raise UsageError(f"{self.name}: {given[0]} is for a mixture of experts, and experts is 0")
            return
        if not 1 <= self.top_k <= self.experts:
            raise UsageError(f"{self.name}: top_k={self.top_k} is not from 1 to experts={self.experts}")
        if self.expert_ffn == 0:
            raise UsageError(f"{self.name}: expert_ffn must be positive, not 0")
        if self.dense_layers >= self.layers:
            raise UsageError(f"{self.name}: dense_layers={self.dense_layers} leaves no layer with experts")
        if self.mlp != "gated" or self.linear_bias:
            raise UsageError(f"{self.name}: experts are gated and have no biases")

    def _check(self, name: str, value: object, kind: object) -> None:
        if type(value) is not kind:
            wanted = getattr(kind, "__name__", kind)
            raise UsageError(f"{self.name}: {name} must be {_WORDS.get(str(wanted), wanted)}, not {value!r}")
        if type(value) is int and value < (0 if name in _MAY_BE_ZERO else 1):
            raise UsageError(f"{self.name}: {name} must be positive, not {value}")
        if name in CHOICES and value not in CHOICES[name]:
            raise UsageError(f"{self.name}: {name} must be one of {', '.join(CHOICES[name])}, not {value!r}")

    @property
    def padded_vocab(self) -> int:
        """The vocabulary as frameworks hold it."""
        return -(-self.vocab // self.vocab_multiple) * self.vocab_multiple

    def count_parameters(self) -> int:
        """The number of parameters, vocabulary unpadded, a tied weight counted once."""
        norm = self.hidden * (2 if self.norm == "layernorm" else 1)
        positions = self.max_positions * self.hidden if self.positions == "learned" else 0
        tables = self.vocab * self.hidden * (1 if self.tied else 2) + positions
        dense = self.dense_layers if self.experts else self.layers
        feed_forwards = dense * self._feed_forward() + (self.layers - dense) * self._mixture(self.experts)
        return tables + self.layers * (self._attention() + 2 * norm) + feed_forwards + norm

    def count_active(self) -> int:
        """The number of parameters that one token passes: all but those of experts that it is not sent to."""
        idle = self._mixture(self.experts) - self._mixture(self.top_k)
        return self.count_parameters() - (self.layers - self.dense_layers) * idle

    def _mixture(self, experts: int) -> int:
        """Of a layer's feed-forward with so many routed experts, shared ones and router included."""
        return self.hidden * (self.experts + 3 * experts * self.expert_ffn + 3 * self.shared_ffn)

    def _attention(self) -> int:
        queries, keys_values = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        biases = queries + keys_values if self.linear_bias or self.qkv_bias else 0
        biases += self.hidden if self.linear_bias else 0
        biases += 2 * self.head_dim if self.qk_norm else 0
        return self.hidden * (2 * queries + keys_values) + biases

    def _feed_forward(self) -> int:
        up = 2 if self.mlp == "gated" else 1
        biases = up * self.ffn + self.hidden if self.linear_bias else 0
        return (up + 1) * self.hidden * self.ffn + biases

    def to_dict(self) -> dict[str, str | int | bool]:
        """Every field, ready for JSON or YAML; `Card(**card.to_dict())` is the card."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """sha256 of what shapes the model and of its name: not of where the sizes are from."""
        shape = {name: value for name, value in self.to_dict().items() if name not in _ABOUT}
        return hashlib.sha256(json.dumps(shape, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_WORDS = {"int": "an integer", "bool": "true or false", "str": "a text"}
