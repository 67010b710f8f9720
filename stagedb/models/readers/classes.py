"""The classes of configs in the package transformers: their keys, with spellings and defaults.

`classes.json` has them, and `scripts/record_models --classes` makes it. Configs of text models leave out what their
class has by default, and files of all versions have each spelling of a key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown


@dataclass(frozen=True)
class ConfigClass:
    """One class. aliases: by another spelling the key that files are written with. defaults: by key the value of a file
    that leaves the key out; None: it follows from other keys. of_code: keys that it lacks, and that its code reads."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    of_code: tuple[str, ...] = ()

    def spellings(self, key: str) -> tuple[str, ...]:
        """All spellings of a key, that of files first."""
        written = self.aliases.get(key, key)
        return (written, *(alias for alias, of in self.aliases.items() if of == written))

    def has(self, key: str) -> bool:
        """Whether the class or its code reads a key."""
        if not self.defaults or key in self.of_code or key in _OF_ALL:
            return True
        return any(each in self.defaults for each in self.spellings(key))

    def default(self, key: str) -> Any:
        """The value of a key that a file leaves out; None if the class has none."""
        found = (self.defaults.get(each) for each in self.spellings(key))
        return next((value for value in found if value is not None), None)


_OF_ALL = (
    *("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_dim"),
    *("_sliding_window_pattern", "sliding_window_pattern", "attention_layers", "hybrid_layer_pattern", "layer_types"),
    *("global_head_dim", "num_global_key_value_heads", "per_layer_config", "layers_block_type", "n_embed"),
    *("num_nextn_predict_layers", "compress_ratios", "compress_rate_csa", "compress_rate_hca", "compress_rates"),
    *("hybrid_override_pattern", "sliding_window_size", "swa_num_attention_heads", "swa_num_key_value_heads"),
    *("swa_head_dim", "swa_v_head_dim", "add_swa_attention_sink_bias", "add_full_attention_sink_bias"),
    "num_hash_layers",
)
"""Keys that classes turn into others, those of rotary positions, and words that the code of publishers reads."""

_TURNED: Mapping[str, tuple[str, ...]] = {
    "jetmoe": ("num_attention_heads",),
    "kimi_linear": ("linear_attn_config", "first_k_dense_replace"),
    "lfm2": ("block_ff_dim", "tie_embedding"),
    "lfm2_moe": ("tie_embedding",),
    "nemotron_h": ("attention_head_dim", "time_step_rank"),
    "longcat_flash": (
        *("attention_method", "mla_scale_kv_lora", "mla_scale_q_lora", "router_bias", "zero_expert_type"),
        "num_hidden_layers",
    ),
    "minimax_m3_vl_text": ("sparse_attention_config", "moe_layer_freq"),
    "step3p5": ("attention_other_setting", "moe_layers_enum", "partial_rotary_factors"),
    "zamba2": ("attention_head_dim", "head_dim"),
}
"""Keys of publishers' files that a class turns into its own, by `model_type`."""

NO_CLASS = ConfigClass()
"""For files whose class the package does not have: readers have the defaults of its publication."""

_NAMED: Mapping[str, tuple[str, ...]] = {
    "DeciLMForCausalLM": ("nemotron-nas", "deci"),
    "DeepseekForCausalLM": ("deepseek",),
    "DeepseekV3ForCausalLM": ("deepseek_v3", "kimi_k2"),
    "IQuestCoderForCausalLM": ("iquestcoder",),
    "InternLM3ForCausalLM": ("internlm3",),
    "KimiK25ForConditionalGeneration": ("kimi_k25",),
    "KimiK2ForCausalLM": ("kimi_k2", "deepseek_v3"),
    "MPTForCausalLM": ("mpt",),
    "MiMoForCausalLM": ("mimo",),
    "MiniMaxM1ForCausalLM": ("minimax_m1",),
    "MiniMaxM2ForCausalLM": ("minimax_m2", "minimax"),
    "MiniMaxText01ForCausalLM": ("minimax_text_01",),
    "PhiMoEForCausalLM": ("phimoe",),
    "Step3p5ForCausalLM": ("step3p5",),
}
"""The `model_type` of architectures whose class the package lacks, or whose publisher has another word for it."""


_ALONE: Mapping[str, str] = {"Step3p5ForCausalLM": "step3p5"}
"""The `model_type` of architectures whose class the package has as that of the text model of a whole one alone."""


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    text = (files("stagedb.models.readers") / "classes.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@lru_cache(maxsize=256)
def class_of(model_type: str) -> ConfigClass:
    """The class of a `model_type`; `NO_CLASS` if there is none."""
    found = _table()["classes"].get(model_type)
    if found is None:
        return NO_CLASS
    return ConfigClass(**{**found, "of_code": (*found["of_code"], *_TURNED.get(model_type, ()))})


def inner_class(architecture: str, model_type: str) -> ConfigClass:
    """The class of a text model in a whole one, which may have defaults of its own for it.

    architecture: of the whole model. model_type: of its text part.
    """
    usual = class_of(model_type)
    own = _table()["inner"].get(architecture, {}).get(model_type, {})
    return replace(usual, defaults={**usual.defaults, **own}) if own else usual


def class_of_architecture(architecture: str) -> ConfigClass:
    """The class of the configs of an architecture."""
    return class_of(_table()["architectures"].get(architecture, _ALONE.get(architecture, "")))


def check_type(architecture: str, config: Mapping[str, Any]) -> None:
    """Raise UsageError for a `model_type` of another class than the architecture's.

    architecture: as the file names it. config: the content of the file.
    """
    known = _NAMED.get(architecture) or (_table()["architectures"].get(architecture),)
    found = config.get("model_type")
    if found is not None and found not in known and known != (None,):
        raise UsageError(
            f"model_type {shown(found)} is another class than that of {architecture}, which is {' or '.join(known)}: "
            "the file has keys of one and layers of the other. Correct the wrong one of `architectures` and model_type"
        )
