"""Text models of models with images or sound: which reader reads them, and whether their tables are tied.

A whole model's config has the text model's in `text_config`, or in older ones among its own keys. A `text_config` has
no keys whose values are the defaults of its class, which `classes` has.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.readers.classes import class_of_architecture, inner_class
from stagedb.models.readers.config import WITHOUT_EFFECT, Config

TEXT_MODELS: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm_ocr_text": "Glm4ForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "persimmon": "PersimmonForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "paddleocr_vl_text": "Ernie4_5ForCausalLM",
    "ernie4_5_vl_moe_text": "Ernie4_5_MoeForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "hunyuan_vl_text": "HunYuanDenseV1ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4UnifiedForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
    "minimax_m3_vl_text": "MiniMaxM3VLForCausalLM",
}
"""By the `model_type` of a text model: the architecture that it has alone."""

OF_CODE: Mapping[str, Mapping[str, bool]] = {
    "glm4v_text": {"attention_bias": True},
    "glm_ocr_text": {"attention_bias": False},
}
"""What the code of text models has without a key of their class, in the words of the reader, by `model_type`."""

_SAME = {"kimi_k2": "deepseek_v3", "exaone4_5_text": "exaone4"}
"""Other words for a `model_type`."""

Tied = Literal["whole", "whole, by default", "either", "either, by default", "text", "never"]

WHOLE_MODELS: Mapping[str, tuple[str, Tied]] = {
    "AyaVisionForConditionalGeneration": ("cohere2", "whole, by default"),
    "Cohere2VisionForConditionalGeneration": ("cohere2", "whole, by default"),
    "DeepseekVLForConditionalGeneration": ("llama", "whole, by default"),
    "DeepseekVLHybridForConditionalGeneration": ("llama", "whole, by default"),
    "Ernie4_5_VLMoeForConditionalGeneration": ("ernie4_5_vl_moe_text", "whole, by default"),
    "Exaone4_5_ForConditionalGeneration": ("exaone4", "whole"),
    "FuyuForCausalLM": ("persimmon", "whole"),
    "Gemma3ForConditionalGeneration": ("gemma3_text", "whole, by default"),
    "Gemma4ForConditionalGeneration": ("gemma4_text", "whole, by default"),
    "Gemma4UnifiedForConditionalGeneration": ("gemma4_unified_text", "whole, by default"),
    "Glm46VForConditionalGeneration": ("glm4v_text", "whole"),
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
    "MiniMaxM3SparseForConditionalGeneration": ("minimax_m3_vl_text", "either"),
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
    "Qwen3_5ForConditionalGeneration": ("qwen3_5_text", "whole"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe_text", "whole"),
    "Qwen3ASRForConditionalGeneration": ("qwen3", "whole, by default"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl_text", "whole"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe_text", "whole"),
    "SmolVLMForConditionalGeneration": ("llama", "whole"),
    "Step3p7ForConditionalGeneration": ("step3p5", "whole"),
    "VibeVoiceAsrForConditionalGeneration": ("qwen2", "never"),
    "VideoLlama3ForConditionalGeneration": ("qwen2", "either"),
    "VideoLlavaForConditionalGeneration": ("llama", "whole"),
    "VipLlavaForConditionalGeneration": ("llama", "whole"),
    "VoxtralForConditionalGeneration": ("llama", "never"),
}
"""By the architecture of a whole model: the `model_type` of its text model, unless its config names another one, and
whose `tie_word_embeddings` ties the tables of embedding and head: that of the whole model (false, or true, by default),
of either, or of the text model."""


def text_of(architecture: str, config: Mapping[str, Any]) -> tuple[str, Config]:
    """The architecture of a whole model's text model, and its config. UsageError for one that is not read."""
    inner = config.get("text_config")
    usual = WHOLE_MODELS[architecture][0]
    named = inner.get("model_type") or usual if isinstance(inner, Mapping) else usual
    named = _SAME.get(named, named) if isinstance(named, str) else named
    known = TEXT_MODELS.get(named) if isinstance(named, str) else None
    if known is None:
        raise UsageError(f"{architecture} with the text model {shown(named)} is not supported")
    nested = isinstance(inner, Mapping)
    content = dict(inner) if isinstance(inner, Mapping) else dict(config)
    fixed = OF_CODE.get(named, {})
    for key, value in fixed.items():
        if content.get(key, value) != value:
            raise UsageError(
                f"{key} {shown(content[key])} is not supported in {architecture}: the class of its text model has no "
                f"such key, and its code does as with {shown(value)}"
            )
    if nested:
        _check_around(architecture, config, inner or {})
    known_class = inner_class(architecture, named)
    return known, Config(content, of=replace(known_class, defaults={**known_class.defaults, **fixed}), inner=nested)


def _check_around(architecture: str, config: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
    """Raise UsageError for a key next to `text_config` that neither the whole model nor its text model reads."""
    whole = class_of_architecture(architecture)
    known = {each for key in whole.defaults for each in whole.spellings(key)} | {*OTHER_PARTS, "tie_word_embeddings"}
    for key, value in config.items():
        if key in known or key in WITHOUT_EFFECT or key == "text_config" or value in (None, False, "", [], {}):
            continue
        if key.endswith(("_token_id", "_token_ids", "_token_index")):
            continue
        if key not in inner or inner[key] != value:
            raise UsageError(
                f"{architecture} with {key}={shown(value)} next to text_config is not supported: its text model reads "
                "the keys in text_config alone; move the key there, or take it out"
            )


OTHER_PARTS = ("hidden_size", "vocab_size", "projection_dim", "image_size", "patch_size", "num_channels")
"""Keys of a whole model for its other parts, where `text_config` has the text model."""


def with_tables(architecture: str, config: Mapping[str, Any], card: Card) -> Card:
    """The card of a text model, with tables that are tied as the whole model ties them.

    architecture: of the whole model. config: the content of its file. card: of its text model.
    """
    rule = WHOLE_MODELS[architecture][1]
    given = config.get("tie_word_embeddings")
    whole = rule.endswith("by default") if given is None else given
    if not isinstance(whole, bool):
        raise UsageError(f"tie_word_embeddings must be true or false, not {shown(whole)}")
    own = card.tied and isinstance(config.get("text_config"), Mapping)
    tied = {"text": card.tied, "never": False, "either": whole or own}.get(rule.removesuffix(", by default"), whole)
    if architecture == "Ovis2ForConditionalGeneration" and not tied:
        _check_own_head(config, card)
    if given is None and whole and tied != own:
        card = replace(card, source=f"{card.source}; tied tables, the default of its class")
    # The head is the whole model's, which has no bias where that of the text model alone has one.
    return replace(card, tied=tied, head_bias=False)


def _check_own_head(config: Mapping[str, Any], card: Card) -> None:
    """Raise UsageError for a head whose sizes, those of the whole model, are not those of the text model."""
    usual = class_of_architecture("Ovis2ForConditionalGeneration")
    for key, size in (("hidden_size", card.hidden), ("vocab_size", card.vocab)):
        found = config.get(key, usual.default(key))
        if found != size:
            raise UsageError(
                f"{key} {shown(found)} is not supported: a head that is not tied has it, and the text model {size}"
            )
