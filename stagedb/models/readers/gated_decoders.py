"""Dense decoders with gated feed-forwards, as Llama has them, and their variants."""

import math
from dataclasses import replace

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.layers import Layer, layer_types, repeated, with_layers
from stagedb.models.readers.parts import activation, biases, decoder, turned

_TYPES = {"sliding_attention": "window", "full_attention": "full"}


def windows(config: Config, layers: int, every: int | None = None) -> list[int]:
    """The window of each layer, 0 for the whole sequence.

    every: each layer whose number, from 1, is a multiple of `every` has the whole sequence, if the config does not name
    the types of layers.
    """
    window = config.get("sliding_window")
    used = config.get("use_sliding_window") is not False
    types = layer_types(config, layers, _TYPES)
    pattern = config.get("sliding_window_pattern", "_sliding_window_pattern")
    if types is None and pattern is not None:
        every = config.count("sliding_window_pattern", "_sliding_window_pattern")
    if types is None:
        if not window or not used:
            return [0] * layers
        whole = [False] * layers if every is None else repeated(every, layers)
        types = ["full" if each else "window" for each in whole]
    if "window" in types:
        if not used:
            raise UsageError("layer_types has sliding_attention, and use_sliding_window is false: change one of them")
        window = config.count("sliding_window")
    return [int(window) if each == "window" else 0 for each in types]


def plain_layers(config: Config, card: Card, usual: dict[str, Value], every: int | None = None) -> Card:
    """The card with layers that differ by their windows alone.

    usual: the words of all layers. every: each n-th layer attends to all keys; None: as the file sets it.
    """
    return with_layers(card, [Layer(window=each) for each in windows(config, card.layers, every)], usual)


def gemma(config: Config, name: str) -> Card:
    """Gemma: embedded tokens are scaled by the root of the hidden size."""
    card = _gemma(config, name)
    return with_layers(card, [Layer()] * card.layers, _bias(config))


def _gemma(config: Config, name: str, family: str = "gemma") -> Card:
    act = activation(config, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    scale = math.sqrt(config.count("hidden_size"))
    return decoder(config, name, family, activation=act, tied_default=True, embedding_scale=scale)


def _bias(config: Config) -> dict[str, Value]:
    return biases("all" if config.flag("attention_bias") else "none", config.flag("mlp_bias"))


def gemma2(config: Config, name: str) -> Card:
    """Gemma 2: four norms a layer, windows in every other layer, bounded scores and logits."""
    config.only("sliding_window_size", config.get("sliding_window", default=4096), "sliding_window is another")
    return _capped(config, _gemma(config, name, "gemma2"), 2)


def gemma3(config: Config, name: str) -> Card:
    """Gemma 3: as Gemma 2, with norms of queries and keys, and the whole sequence in every sixth layer."""
    return _capped(config, _gemma(config, name, "gemma3"), 6, {"qk_norm": "head"})


def _capped(config: Config, card: Card, every: int, words: dict[str, Value] | None = None) -> Card:
    scalar = config.number("query_pre_attn_scalar", default=256.0)
    if scalar <= 0:
        raise UsageError(f"query_pre_attn_scalar must be above 0, not {shown(scalar)}")
    usual: dict[str, Value] = {"residual": "sandwich", "scale": scalar**-0.5, **_bias(config), **(words or {})}
    usual |= {"softcap": config.number("attn_logit_softcapping", default=0.0)}
    cap = config.number("final_logit_softcapping", default=0.0)
    return plain_layers(config, replace(card, logit_softcap=cap), usual, every)


def vault_gemma(config: Config, name: str) -> Card:
    """VaultGemma: as Gemma 2, without norms after the parts."""
    return _capped(config, _gemma(config, name, "gemma2"), 2, {"residual": "serial"})


def phi3(config: Config, name: str) -> Card:
    """Phi-3 and Phi-4: q, k and v from one matmul, gate and up from another."""
    config.only("full_attn_mod", 1, "its layers have one kind of attention")
    config.only("interpolate_factor", 1, "its layers have one kind of attention")
    card = decoder(config, name, "phi3")
    usual: dict[str, Value] = {"qkv": "fused", "gate_up": "fused", **turned(config, card), **_bias(config)}
    return plain_layers(config, card, usual)


def glm(config: Config, name: str) -> Card:
    """GLM-4 of 2024: biases of q, k and v, rotary positions on half of each head."""
    return _glm(config, name, "serial")


def glm4(config: Config, name: str) -> Card:
    """GLM-4 of 2025: as GLM, with norms before and after each part."""
    return _glm(config, name, "sandwich")


def _glm(config: Config, name: str, residual: str) -> Card:
    card = decoder(config, name, "glm")
    bias = "qkv" if config.flag("attention_bias", default=True) else "none"
    usual: dict[str, Value] = {
        "residual": residual,
        "gate_up": "fused",
        **turned(config, card, 0.5),
        **biases(bias, False),
    }
    return with_layers(card, [Layer()] * card.layers, usual | biases(bias, False))


def granite(config: Config, name: str) -> Card:
    """Granite 3: the embedding, scores, each part's result and the logits have factors."""
    card = granite_card(config, name)
    return with_layers(card, [Layer()] * card.layers, {**_bias(config), **granite_scale(config)})


def granite_card(config: Config, name: str, tied: bool = False) -> Card:
    """A Granite card with its factors around the layers. tied: the default of `tie_word_embeddings`.

    name: the card's.
    """
    scaling = config.number("logits_scaling", default=1.0)
    if scaling <= 0:
        raise UsageError(f"logits_scaling must be above 0, not {shown(scaling)}")
    return decoder(
        config,
        name,
        "granite",
        tied_default=tied,
        embedding_scale=config.number("embedding_multiplier", default=1.0),
        residual_scale=config.number("residual_multiplier", default=1.0),
        logit_scale=1 / scaling,
    )


def granite_scale(config: Config) -> dict[str, Value]:
    """The word for the factor of scores."""
    return {"scale": config.number("attention_multiplier", default=1.0)}


def hyperclova_x(config: Config, name: str) -> Card:
    """HyperCLOVA X: Granite's factors, of which logits are multiplied by theirs, and norms after the parts too."""
    card = decoder(
        config,
        name,
        "granite",
        embedding_scale=config.number("embedding_multiplier", default=1.0),
        residual_scale=config.number("residual_multiplier", default=1.0),
        logit_scale=config.number("logits_scaling", default=1.0),
    )
    residual = "sandwich" if config.flag("use_post_norm", default=True) else "serial"
    usual: dict[str, Value] = {"residual": residual, **_bias(config)}
    usual |= {"scale": config.number("attention_multiplier", default=card.head_dim**-0.5)}
    return with_layers(card, [Layer()] * card.layers, usual)


def cwm(config: Config, name: str) -> Card:
    """Code World Model: windows in all layers but each fourth, from the first on."""
    config.only("mlp_bias", False, "feed-forwards have no biases here")
    card = decoder(config, name, "llama")
    types = ["sliding_attention" if number % 4 else "full_attention" for number in range(card.layers)]
    return plain_layers(config if config.get("layer_types") else config.changed(layer_types=types), card, {})


def smollm3(config: Config, name: str) -> Card:
    """SmolLM 3: every fourth layer has no positions."""
    card = decoder(config, name, "smollm3", tied_default=True)
    rotary = rotary_layers(config, card.layers)
    windowed = windows(config, card.layers)
    layers = [Layer(window=window, rotary=each) for window, each in zip(windowed, rotary, strict=True)]
    return with_layers(card, layers, _bias(config))


def rotary_layers(config: Config, layers: int) -> list[bool]:
    """Which layers have rotary positions: `no_rope_layers` has a 1 for each that has."""
    given = config.get("no_rope_layers")
    every = config.count("no_rope_layer_interval", default=4)
    if not given:
        return [not last for last in repeated(every, layers)]
    if not isinstance(given, list) or len(given) != layers or any(each not in (0, 1) for each in given):
        raise UsageError(f"no_rope_layers must have a 0 or 1 for each of {layers} layers, not {shown(given)}")
    return [bool(each) for each in given]


def olmo(config: Config, name: str) -> Card:
    """OLMo 1: LayerNorm without a weight and a bias."""
    card = decoder(config, name, "olmo", norm="layernorm_no_weight")
    return with_layers(card, [Layer()] * card.layers, _bias(config))


def olmo2(config: Config, name: str) -> Card:
    """OLMo 2 and 3: norms after the parts, and of queries and keys over all heads; OLMo 3 has windows."""
    card = decoder(config, name, "olmo")
    return plain_layers(config, card, {"residual": "post_norm", "qk_norm": "all", **_bias(config)}, 4)


def seed_oss(config: Config, name: str) -> Card:
    """Seed-OSS: biases of q, k and v, and of the projection back if a key of its own sets it."""
    card = decoder(config, name, "seed-oss")
    qkv, out = config.flag("attention_bias", default=True), config.flag("attention_out_bias")
    both = {(True, True): "all", (True, False): "qkv", (False, True): "out", (False, False): "none"}[qkv, out]
    usual = biases(both, config.flag("mlp_bias"))
    return with_layers(card, [Layer()] * card.layers, usual)


def exaone4(config: Config, name: str) -> Card:
    """EXAONE 4: norms after the parts and of queries and keys; where layers have windows, the others no positions."""
    card = decoder(config, name, "exaone4")
    windowed = windows(config, card.layers, 4)
    hybrid = any(windowed)
    layers = [Layer(window=each, rotary=bool(each) or not hybrid) for each in windowed]
    return with_layers(card, layers, {"residual": "post_norm", "qk_norm": "head"})


def ernie(config: Config, name: str) -> Card:
    """ERNIE 4.5: `use_bias` is for all linear layers."""
    card = decoder(config, name, "ernie", tied_default=True, linear_bias=config.flag("use_bias"))
    return with_layers(card, [Layer()] * card.layers)


def diff_llama(config: Config, name: str) -> Card:
    """DiffLlama: differential attention, two calls a layer whose results are subtracted by pairs of heads."""
    card = decoder(config, name, "diffllama")
    config.uses("lambda_std_dev")
    if card.kv_heads % 2:
        raise UsageError(f"num_key_value_heads {card.kv_heads} is not supported: DiffLlama has pairs of heads")
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, [Layer(mixer="differential_attention")] * card.layers, bias)


def arcee(config: Config, name: str) -> Card:
    """Arcee: a feed-forward with one matmul up and squared ReLU."""
    act = activation(config, "hidden_act", default="relu2")
    card = decoder(config, name, "arcee", mlp="plain", activation=act)
    return with_layers(card, [Layer()] * card.layers, _bias(config))


def hunyuan(config: Config, name: str) -> Card:
    """Hunyuan, dense: norms of queries and keys."""
    card = decoder(config, name, "hunyuan")
    config.only("use_cla", False, "keys and values shared across layers are not built")
    return with_layers(card, [Layer()] * card.layers, {"qk_norm": "head", "rotary_first": True, **_bias(config)})


def helium(config: Config, name: str) -> Card:
    """Helium: `attention_bias` is for q, k and v alone."""
    card = decoder(config, name, "llama")
    if card.heads * card.head_dim != card.hidden:
        raise UsageError(f"head_dim {card.head_dim} is not supported: {card.heads} heads are not {card.hidden} wide")
    attention = "qkv" if config.flag("attention_bias") else "none"
    return with_layers(card, [Layer()] * card.layers, biases(attention, config.flag("mlp_bias")))


def internlm3(config: Config, name: str) -> Card:
    """InternLM 3: `qkv_bias` is for q, k and v, `bias` for the other linear layers."""
    qkv, others = config.flag("qkv_bias", "attention_bias"), config.flag("bias", "mlp_bias")
    words = {(True, True): "all", (True, False): "qkv", (False, True): "out", (False, False): "none"}
    card = decoder(config, name, "llama")
    return with_layers(card, [Layer()] * card.layers, biases(words[qkv, others], others))


def plain_llama(config: Config, name: str) -> Card:
    """Decoders with Llama's layers, whose biases their configs set."""
    card = decoder(config, name, "llama")
    return with_layers(card, [Layer()] * card.layers, _bias(config))


def llama_alike(config: Config, name: str) -> Card:
    """Decoders that differ from Llama by their name alone."""
    card = decoder(config, name, "llama")
    return plain_layers(config, card, _bias(config))


READERS = {
    "GemmaForCausalLM": gemma,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "VaultGemmaForCausalLM": vault_gemma,
    "CwmForCausalLM": cwm,
    "HyperCLOVAXForCausalLM": hyperclova_x,
    "Phi3ForCausalLM": phi3,
    "GlmForCausalLM": glm,
    "Glm4ForCausalLM": glm4,
    "GraniteForCausalLM": granite,
    "SmolLM3ForCausalLM": smollm3,
    "OlmoForCausalLM": olmo,
    "Olmo2ForCausalLM": olmo2,
    "Olmo3ForCausalLM": olmo2,
    "SeedOssForCausalLM": seed_oss,
    "Exaone4ForCausalLM": exaone4,
    "Ernie4_5ForCausalLM": ernie,
    "ArceeForCausalLM": arcee,
    "HunYuanDenseV1ForCausalLM": hunyuan,
    "HeliumForCausalLM": helium,
    "InternLM3ForCausalLM": internlm3,
    "IQuestCoderForCausalLM": plain_llama,
    "Emu3ForCausalLM": plain_llama,
    "MinistralForCausalLM": llama_alike,
    "Ministral3ForCausalLM": llama_alike,
    "DiffLlamaForCausalLM": diff_llama,
}
"""The reader of each architecture."""
