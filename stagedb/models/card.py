"""A model card: the sizes and choices that make a dense decoder-only transformer, as data."""

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
_MAY_BE_ZERO = ("parameters",)
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

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check(field.name, getattr(self, field.name), field.type)
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"a model's name has letters, digits, '.', '_' and '-' only, not {self.name!r}")
        if self.heads % self.kv_heads != 0:
            raise UsageError(f"{self.name}: heads={self.heads} is not divisible by kv_heads={self.kv_heads}")
        if self.positions == "rotary" and self.head_dim % 2 != 0:
            raise UsageError(f"{self.name}: rotary positions want an even head_dim, not {self.head_dim}")

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
        return tables + self.layers * (self._attention() + self._feed_forward() + 2 * norm) + norm

    def _attention(self) -> int:
        queries, keys_values = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        biases = queries + keys_values if self.linear_bias or self.qkv_bias else 0
        biases += self.hidden if self.linear_bias else 0
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
