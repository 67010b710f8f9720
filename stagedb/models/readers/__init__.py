"""Readers of Hugging Face configs, a file for each family. A new architecture is a function with a row in `READERS`."""

from collections.abc import Callable, Mapping

from stagedb.models.card import Card
from stagedb.models.readers import (
    block_configs,
    deepseek_v4,
    delta_decoders,
    expert_decoders,
    falcon_h1,
    first_decoders,
    gated_decoders,
    head_decoders,
    kimi_linear,
    latent_decoders,
    longcat_flash,
    minimax_01,
    nemotron_h,
    older_decoders,
    plain_decoders,
    recurrent_gemma,
    selective_decoders,
    short_convolutions,
    state_space,
    windowed_decoders,
    zamba2,
)
from stagedb.models.readers.config import UNUSED_WHERE, WITHOUT_EFFECT, Config

READERS: Mapping[str, Callable[[Config, str], Card]] = {
    **first_decoders.READERS,
    **gated_decoders.READERS,
    **plain_decoders.READERS,
    **expert_decoders.READERS,
    **latent_decoders.READERS,
    **windowed_decoders.READERS,
    **older_decoders.READERS,
    **head_decoders.READERS,
    **nemotron_h.READERS,
    **state_space.READERS,
    **selective_decoders.READERS,
    **recurrent_gemma.READERS,
    **delta_decoders.READERS,
    **short_convolutions.READERS,
    **falcon_h1.READERS,
    **kimi_linear.READERS,
    **minimax_01.READERS,
    **deepseek_v4.READERS,
    **zamba2.READERS,
    **longcat_flash.READERS,
    **block_configs.READERS,
}
"""The reader of each architecture, by its name in `architectures`."""

__all__ = ["READERS", "UNUSED_WHERE", "WITHOUT_EFFECT", "Config"]
