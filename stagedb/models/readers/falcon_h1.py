"""Falcon-H1: attention and a scan side by side in each layer, and factors of what they read and make."""

from dataclasses import replace

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.kinds.part import FAR
from stagedb.models.kinds.state_space import SCALED
from stagedb.models.readers.config import Config
from stagedb.models.readers.layers import Layer, with_layers
from stagedb.models.readers.parts import biases, decoder
from stagedb.models.readers.state_space import ScanKeys, scan_words, step_bounds

MIXER = "attention_and_scan"

_FACTORS = {
    "key_multiplier": "key_scale",
    "attention_in_multiplier": "attention_in_scale",
    "attention_out_multiplier": "attention_out_scale",
    "ssm_in_multiplier": "scan_in_scale",
    "ssm_out_multiplier": "scan_out_scale",
}
"""Factors of layers, each with its word in a card."""


def falcon_h1(config: Config, name: str) -> Card:
    """Falcon-H1: attention and a scan (Mamba-2) side by side in each layer, with factors (muP)."""
    config.only("mamba_use_mlp", True, "its layers have feed-forwards")
    config.only("attn_layer_indices", None, "each of its layers has attention")
    config.uses("num_logits_to_keep")
    card = decoder(config, name, "falcon-h1", floor=True)
    card = replace(
        card,
        embedding_scale=_factor(config, "embedding_multiplier"),
        logit_scale=_factor(config, "lm_head_multiplier"),
    )
    words = _scan(config, card)
    words |= {ours: _factor(config, theirs) for theirs, ours in _FACTORS.items()}
    words |= _several(config, "ssm_multipliers", tuple(f"scan_{each}_scale" for each in SCALED))
    words |= _several(config, "mlp_multipliers", ("gate_scale", "down_scale"))
    words |= biases("all" if config.flag("attention_bias") else "none", config.flag("mlp_bias"))
    return with_layers(card, [Layer(mixer=MIXER, words=words)] * card.layers)


def _scan(config: Config, card: Card) -> dict[str, Value]:
    """The words of its scan, whose width is a key of its own."""
    wide = config.count("mamba_expand", default=2) * card.hidden
    inner = config.count("mamba_d_ssm", default=1024) if config.get("mamba_d_ssm") is not None else wide
    auto = config.get("mamba_d_head", default="auto") == "auto"
    heads = config.count("mamba_n_heads", default=128)
    words = scan_words(config, ScanKeys(), inner // heads if auto else 0) | step_bounds(config)
    if heads * int(words["scan_dim"]) != inner:
        raise UsageError(f"{heads} heads of the scan of {words['scan_dim']} are not mamba_d_ssm = {inner} wide")
    first = config.flag("mamba_norm_before_gate", default=True)
    norm = ("first" if first else "gated") if config.flag("mamba_rms_norm") else "none"
    out = config.flag("projectors_bias")
    own: dict[str, Value] = {} if out == words["scan_bias"] else {"scan_out_bias": "yes" if out else "no"}
    return {**words, "scan_norm": norm, **own}


def _factor(config: Config, key: str) -> float:
    return _checked(key, config.number(key, default=1.0))


def _several(config: Config, key: str, words: tuple[str, ...]) -> dict[str, Value]:
    """The words of a list of factors. UsageError for a list of another length."""
    found = config.get(key, default=[1.0] * len(words))
    if not isinstance(found, list) or len(found) != len(words) or any(type(n) not in (int, float) for n in found):
        raise UsageError(f"{key} must be {len(words)} numbers, not {shown(found)}")
    return {word: _checked(key, float(each)) for word, each in zip(words, found, strict=True)}


def _checked(key: str, factor: float) -> float:
    if not 0 < factor < FAR:
        raise UsageError(f"{key} must be above 0, not {shown(factor)}")
    return factor


READERS = {"FalconH1ForCausalLM": falcon_h1}
"""The reader of each architecture."""
