"""Text models of models with images or sound: which reader reads them, and whether their tables are tied.

A whole model's config has the text model's in `text_config`, or in older ones among its own keys. A `text_config` has
no keys whose values are the defaults of its class, so that the sizes among them are here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.models.card import Card

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "sliding_window",
)

# fmt: off
TEXT_MODELS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "llama": ("LlamaForCausalLM", (4096, 11008, 32, 32, 0, 0, 32000, 2048, 0)),
    "mistral": ("MistralForCausalLM", (4096, 14336, 32, 32, 8, 0, 32000, 131072, 4096)),
    "ministral": ("MinistralForCausalLM", (4096, 14336, 32, 32, 8, 0, 32000, 131072, 4096)),
    "ministral3": ("Ministral3ForCausalLM", (4096, 14336, 34, 32, 8, 128, 131072, 262144, 0)),
    "mistral4": ("Mistral4ForCausalLM", (4096, 12288, 36, 32, 32, 0, 131072, 1048576, 0)),
    "qwen2": ("Qwen2ForCausalLM", (4096, 22016, 32, 32, 32, 0, 151936, 32768, 0)),
    "qwen2_vl_text": ("Qwen2ForCausalLM", (8192, 29568, 80, 64, 8, 0, 152064, 32768, 0)),
    "qwen2_5_vl_text": ("Qwen2ForCausalLM", (8192, 29568, 80, 64, 8, 0, 152064, 32768, 0)),
    "qwen2_5_omni_text": ("Qwen2ForCausalLM", (3584, 18944, 28, 28, 4, 0, 152064, 32768, 0)),
    "qwen3": ("Qwen3ForCausalLM", (4096, 22016, 32, 32, 32, 128, 151936, 32768, 0)),
    "qwen3_vl_text": ("Qwen3ForCausalLM", (4096, 22016, 32, 32, 32, 128, 151936, 128000, 0)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", (2048, 6144, 24, 32, 4, 0, 151936, 32768, 0)),
    "qwen3_vl_moe_text": ("Qwen3MoeForCausalLM", (2048, 5632, 24, 16, 16, 0, 151936, 128000, 0)),
    "qwen3_omni_moe_text": ("Qwen3MoeForCausalLM", (2048, 18944, 28, 28, 4, 0, 3584, 32768, 0)),
    "gemma": ("GemmaForCausalLM", (3072, 24576, 28, 16, 16, 256, 256000, 8192, 0)),
    "gemma2": ("Gemma2ForCausalLM", (2304, 9216, 26, 8, 4, 256, 256000, 8192, 4096)),
    "gemma3_text": ("Gemma3ForCausalLM", (2304, 9216, 26, 8, 4, 256, 262208, 131072, 4096)),
    "cohere": ("CohereForCausalLM", (8192, 22528, 40, 64, 0, 0, 256000, 8192, 0)),
    "cohere2": ("Cohere2ForCausalLM", (8192, 22528, 40, 64, 0, 0, 256000, 8192, 4096)),
    "granite": ("GraniteForCausalLM", (4096, 11008, 32, 32, 0, 0, 32000, 2048, 0)),
    "granitemoe": ("GraniteMoeForCausalLM", (4096, 11008, 32, 32, 0, 0, 32000, 2048, 0)),
    "exaone4": ("Exaone4ForCausalLM", (4096, 16384, 32, 32, 32, 0, 102400, 2048, 4096)),
    "hyperclovax": ("HyperCLOVAXForCausalLM", (4096, 11008, 32, 32, 0, 0, 32000, 2048, 0)),
    "deepseek_v3": ("DeepseekV3ForCausalLM", (7168, 18432, 61, 128, 128, 0, 129280, 4096, 0)),
    "gpt_oss": ("GptOssForCausalLM", (2880, 2880, 36, 64, 8, 64, 201088, 131072, 128)),
    "glm4": ("Glm4ForCausalLM", (4096, 13696, 40, 32, 2, 128, 151552, 131072, 0)),
    "glm4v_text": ("Glm4ForCausalLM", (4096, 13696, 40, 32, 2, 0, 151552, 32768, 0)),
    "glm_ocr_text": ("Glm4ForCausalLM", (1024, 4096, 16, 16, 8, 0, 59392, 131072, 0)),
    "glm4v_moe_text": ("Glm4MoeForCausalLM", (4096, 10944, 46, 96, 8, 0, 151424, 65536, 0)),
    "persimmon": ("PersimmonForCausalLM", (4096, 16384, 36, 64, 0, 0, 262144, 16384, 0)),
    "phi": ("PhiForCausalLM", (2048, 8192, 24, 32, 0, 0, 51200, 2048, 0)),
    "phi3": ("Phi3ForCausalLM", (3072, 8192, 32, 32, 0, 0, 32064, 4096, 0)),
    "smollm3": ("SmolLM3ForCausalLM", (2048, 11008, 36, 16, 4, 0, 128256, 32768, 0)),
    "llama4_text": ("Llama4ForCausalLM", (5120, 8192, 48, 40, 8, 128, 202048, 131072, 0)),
    "paddleocr_vl_text": ("Ernie4_5ForCausalLM", (1024, 3072, 18, 16, 2, 128, 103424, 131072, 0)),
    "olmo2": ("Olmo2ForCausalLM", (4096, 11008, 32, 32, 0, 0, 50304, 2048, 0)),
    "stablelm": ("StableLmForCausalLM", (2560, 6912, 32, 32, 32, 0, 50304, 4096, 0)),
    "starcoder2": ("Starcoder2ForCausalLM", (3072, 12288, 30, 24, 2, 0, 49152, 4096, 0)),
    "hunyuan_vl_text": ("HunYuanDenseV1ForCausalLM", (4096, 11008, 32, 32, 0, 0, 290943, 2048, 0)),
}
# fmt: on
"""By the `model_type` of a text model: the architecture that it has alone, and the sizes of its class (0: none)."""

_LATENT = {"qk_rope_head_dim": 64, "norm_topk_prob": True, "n_shared_experts": 1, "moe_intermediate_size": 2048}
_QWEN_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}

OTHER_DEFAULTS: Mapping[str, Mapping[str, int | float | str | bool]] = {
    "mistral4": _LATENT
    | {"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 128}
    | {"num_experts_per_tok": 4, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0},
    "deepseek_v3": _LATENT
    | {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256}
    | {"num_experts_per_tok": 8, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5},
    "qwen3_moe": {**_QWEN_EXPERTS, "norm_topk_prob": False},
    "qwen3_omni_moe_text": {**_QWEN_EXPERTS, "norm_topk_prob": True},
    "qwen3_vl_moe_text": {
        **_QWEN_EXPERTS,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
    },
    "glm4v_moe_text": {
        "attention_bias": True,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
    },
    "llama4_text": {
        "intermediate_size_mlp": 16384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "use_qk_norm": True,
        "interleave_moe_layer_step": 1,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
    },
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": True},
    "gemma2": {"query_pre_attn_scalar": 256, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3_text": {"query_pre_attn_scalar": 256},
    "persimmon": {"hidden_act": "relu2", "qk_layernorm": True},
    "phi": {"hidden_act": "gelu_new"},
    "starcoder2": {"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
}
"""What else the classes have by default and a `text_config` leaves out, by `model_type`."""

_SAME = {"kimi_k2": "deepseek_v3", "exaone4_5_text": "exaone4"}
"""Other words for a `model_type`."""

Tied = Literal["whole", "whole, by default", "either", "either, by default", "text", "never"]

WHOLE_MODELS: Mapping[str, tuple[str, Tied]] = {
    "AyaVisionForConditionalGeneration": ("cohere2", "whole, by default"),
    "Cohere2VisionForConditionalGeneration": ("cohere2", "whole, by default"),
    "DeepseekVLForConditionalGeneration": ("llama", "whole, by default"),
    "DeepseekVLHybridForConditionalGeneration": ("llama", "whole, by default"),
    "Exaone4_5_ForConditionalGeneration": ("exaone4", "whole"),
    "FuyuForCausalLM": ("persimmon", "whole"),
    "Gemma3ForConditionalGeneration": ("gemma3_text", "whole, by default"),
    "Glm46VForConditionalGeneration": ("glm4v_text", "either"),
    "Glm4vForConditionalGeneration": ("glm4v_text", "either"),
    "Glm4vMoeForConditionalGeneration": ("glm4v_moe_text", "either"),
    "GlmAsrForConditionalGeneration": ("llama", "whole, by default"),
    "GlmOcrForConditionalGeneration": ("glm_ocr_text", "either"),
    "GotOcr2ForConditionalGeneration": ("qwen2", "whole, by default"),
    "GraniteSpeechForConditionalGeneration": ("granite", "whole, by default"),
    "GraniteSpeechPlusForConditionalGeneration": ("granite", "whole, by default"),
    "HyperCLOVAXVisionV2ForConditionalGeneration": ("hyperclovax", "whole, by default"),
    "Idefics2ForConditionalGeneration": ("mistral", "whole"),
    "Idefics3ForConditionalGeneration": ("llama", "whole"),
    "InternVLForConditionalGeneration": ("qwen2", "whole, by default"),
    "JanusForConditionalGeneration": ("llama", "whole, by default"),
    "Kimi_K25ForConditionalGeneration": ("deepseek_v3", "whole, by default"),
    "KimiK25ForConditionalGeneration": ("deepseek_v3", "whole, by default"),
    "LightOnOcrForConditionalGeneration": ("qwen3", "whole, by default"),
    "Llama4ForConditionalGeneration": ("llama4_text", "text"),
    "LlavaForConditionalGeneration": ("llama", "either"),
    "LlavaNextForConditionalGeneration": ("llama", "whole"),
    "LlavaNextVideoForConditionalGeneration": ("llama", "either"),
    "LlavaOnevisionForConditionalGeneration": ("qwen2", "either"),
    "Mistral3ForConditionalGeneration": ("mistral", "whole, by default"),
    "Ovis2ForConditionalGeneration": ("qwen2", "whole, by default"),
    "PaddleOCRVLForConditionalGeneration": ("paddleocr_vl_text", "either, by default"),
    "PaliGemmaForConditionalGeneration": ("gemma", "whole, by default"),
    "QianfanOCRForConditionalGeneration": ("qwen3", "whole"),
    "Qwen2AudioForConditionalGeneration": ("qwen2", "never"),
    "Qwen2_5OmniThinkerForConditionalGeneration": ("qwen2_5_omni_text", "whole"),
    "Qwen3OmniMoeThinkerForConditionalGeneration": ("qwen3_omni_moe_text", "whole"),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl_text", "either"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl_text", "either"),
    "Qwen3ASRForConditionalGeneration": ("qwen3", "whole, by default"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl_text", "whole"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe_text", "whole"),
    "SmolVLMForConditionalGeneration": ("llama", "whole"),
    "VibeVoiceAsrForConditionalGeneration": ("qwen2", "never"),
    "VideoLlama3ForConditionalGeneration": ("qwen2", "either"),
    "VideoLlavaForConditionalGeneration": ("llama", "whole"),
    "VipLlavaForConditionalGeneration": ("llama", "whole"),
    "VoxtralForConditionalGeneration": ("llama", "never"),
}
"""By the architecture of a whole model: the `model_type` of its text model, unless its config names another one, and
whose `tie_word_embeddings` ties the tables of embedding and head: that of the whole model (false, or true, by default),
of either, or of the text model."""


def text_of(architecture: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The architecture of a whole model's text model, and its config. UsageError for one that is not read."""
    inner = config.get("text_config")
    usual = WHOLE_MODELS[architecture][0]
    named = inner.get("model_type") or usual if isinstance(inner, Mapping) else usual
    named = _SAME.get(named, named) if isinstance(named, str) else named
    known = TEXT_MODELS.get(named) if isinstance(named, str) else None
    if known is None:
        raise UsageError(f"{architecture} with the text model {shown(named)} is not supported")
    if not isinstance(inner, Mapping):
        return known[0], dict(config)
    sizes = {key: size for key, size in zip(_SIZES, known[1], strict=True) if size}
    around = {key: value for key, value in config.items() if key not in (*OTHER_PARTS, "tie_word_embeddings")}
    return known[0], {**around, **sizes, **OTHER_DEFAULTS.get(named, {}), **inner, "text_config": None}


OTHER_PARTS = ("hidden_size", "vocab_size", "projection_dim", "image_size", "patch_size", "num_channels")
"""Keys of a whole model for its other parts, where `text_config` has the text model."""


def with_tables(architecture: str, config: Mapping[str, Any], card: Card) -> Card:
    """The card of a text model, with tables that are tied as the whole model ties them."""
    rule = WHOLE_MODELS[architecture][1]
    given = config.get("tie_word_embeddings")
    whole = rule.endswith("by default") if given is None else given
    if not isinstance(whole, bool):
        raise UsageError(f"tie_word_embeddings must be true or false, not {shown(whole)}")
    own = card.tied and isinstance(config.get("text_config"), Mapping)
    tied = {"text": card.tied, "never": False, "either": whole or own}.get(rule.removesuffix(", by default"), whole)
    if given is None and whole and tied != own:
        card = replace(card, source=f"{card.source}; tied tables, the default of its class")
    return replace(card, tied=tied)
