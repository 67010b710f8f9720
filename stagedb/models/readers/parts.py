"""What readers of several families share: activations, head sizes, and the usual gated decoder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config, rotary_dim

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
"""Activations of configs, and what cards call them."""


def activation(config: Config, *keys: str, default: str = "silu") -> str:
    """The activation that the first of these keys names. default: without any of them."""
    found = config.get(*keys, default=default)
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise UsageError(f"{keys[0]} {shown(found)} is not supported: {', '.join(ACTIVATIONS)} only")
    return ACTIVATIONS[found]


def head_size(config: Config, hidden: int, heads: int, floor: bool = False) -> int:
    """The size of a head: `head_dim`, or the hidden size over the heads. floor: a rest is left out."""
    found = config.get("head_dim")
    if found is not None:
        return config.count("head_dim")
    if hidden % heads and not floor:
        raise UsageError(f"no head_dim, and hidden size {hidden} is not divisible by {heads} heads")
    return hidden // heads


def decoder(config: Config, name: str, family: str, **changes: Any) -> Card:
    """A gated decoder with RMSNorm and rotary positions. changes: fields of the card that differ.

    name: the card's. family: the card's.
    """
    hidden, heads = config.count("hidden_size", "n_embd"), config.count("num_attention_heads", "n_head")
    values: dict[str, Any] = {
        "hidden": hidden,
        "layers": config.count("num_hidden_layers", "n_layer"),
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", default=heads),
        "head_dim": head_size(config, hidden, heads, changes.pop("floor", False)),
        "vocab": config.count("vocab_size"),
        "norm": "rmsnorm",
        "mlp": "gated",
        "positions": "rotary",
        "tied": config.flag("tie_word_embeddings", default=changes.pop("tied_default", False)),
        "linear_bias": False,
        "qkv_bias": False,
        "source": "config.json",
    }
    if "activation" not in changes:
        values["activation"] = activation(config, "hidden_act", "hidden_activation")
    if "max_positions" not in changes:
        values["max_positions"] = config.count("max_position_embeddings", "n_positions")
    if "ffn" not in changes:
        values["ffn"] = config.count("intermediate_size")
    return Card(name=name, family=family, **{**values, **changes})


def with_mtp_layers(config: Config, card: Card) -> Card:
    """The card with the layers that predict further tokens (`num_nextn_predict_layers`)."""
    return replace(card, multi_token_prediction=config.count("num_nextn_predict_layers", default=0, least=0))


def without_mtp_layers(config: Config, which: str) -> None:
    """Raise UsageError for layers that predict further tokens, where those of an architecture are not built.

    which: the model or architecture, for the error.
    """
    config.only(
        "num_nextn_predict_layers",
        0,
        f"layers that predict further tokens {which} are not built; 0 leaves them out, as transformers does",
    )


def turned(config: Config, card: Card, default: float = 1.0) -> dict[str, Value]:
    """The word for rotary positions on a part of each head.

    default: the share of a head that is turned, if the file has none.
    """
    size = rotary_dim(config, card.head_dim, default)
    return {"rotary_dim": size} if size else {}


def mlp_biases(config: Config, shared: int = 0) -> dict[str, Value]:
    """The words for `mlp_bias`: biases of feed-forwards and of shared experts, if there are some; experts have none."""
    if not config.flag("mlp_bias"):
        return {}
    return {"ffn_bias": "all"} | ({"shared_bias": True} if shared else {})


def biases(attention: str, ffn: bool) -> dict[str, Value]:
    """The words for biases of projections (`none`, `qkv` or `all`) and of a feed-forward.

    attention: one of these three. ffn: whether the feed-forward has biases.
    """
    words: dict[str, Value] = {} if attention == "none" else {"bias": attention}
    return words | ({"ffn_bias": "all"} if ffn else {})
