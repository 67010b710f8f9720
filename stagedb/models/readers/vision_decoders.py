"""Text models of models that also read images or video. Their other parts are left out.

Their layers are those of a model of text alone, so that each has the reader of that one.
"""

from collections.abc import Callable, Mapping

from stagedb.models.card import Card
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import glm4_moe, llama4
from stagedb.models.readers.first_decoders import qwen2, qwen3, qwen3_moe
from stagedb.models.readers.gated_decoders import glm4


def llama4_whole(config: Config, name: str) -> Card:
    """Llama 4 with its vision part, which is left out."""
    return llama4(config, name)


def qwen2_vl(config: Config, name: str) -> Card:
    """Qwen 2-VL and 2.5-VL: the text model is Qwen 2."""
    return qwen2(config, name)


def qwen3_vl(config: Config, name: str) -> Card:
    """Qwen 3-VL: the text model is Qwen 3."""
    return qwen3(config, name)


def qwen3_vl_moe(config: Config, name: str) -> Card:
    """Qwen 3-VL with experts: the text model is Qwen 3 with experts."""
    return qwen3_moe(config, name)


def glm4v(config: Config, name: str) -> Card:
    """GLM-4.1V: the text model is GLM-4 of 2025."""
    return glm4(config, name)


def glm4v_moe(config: Config, name: str) -> Card:
    """GLM-4.5V: the text model is GLM-4.5."""
    return glm4_moe(config, name)


READERS: Mapping[str, Callable[[Config, str], Card]] = {
    "Llama4ForConditionalGeneration": llama4_whole,
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen2_vl,
    "Qwen3VLForConditionalGeneration": qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl_moe,
    "Glm4vForConditionalGeneration": glm4v,
    "Glm4vMoeForConditionalGeneration": glm4v_moe,
}
"""The reader of each architecture."""
