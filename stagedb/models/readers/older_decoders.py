"""Decoders with plain feed-forwards or norms of their own: GPT-Neo, CodeGen, BioGPT, Persimmon, Jais 2, BitNet."""

import math
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.layers import Layer, with_layers
from stagedb.models.readers.parts import activation, biases, decoder, turned


def gpt_neo(config: Config, name: str) -> Card:
    """GPT-Neo: learned positions, windows in the layers that are local, scores without a factor."""
    layers = config.count("num_layers", "num_hidden_layers")
    hidden = config.count("hidden_size")
    words: dict[str, Any] = {"num_attention_heads": config.count("num_heads", "num_attention_heads")}
    words |= {"num_hidden_layers": layers}
    card = decoder(
        config.changed(**words),
        name,
        "gpt-neo",
        norm="layernorm",
        mlp="plain",
        activation=activation(config, "activation_function", default="gelu_new"),
        positions="learned",
        tied_default=True,
        ffn=config.count("intermediate_size", default=4 * hidden),
    )
    window = config.count("window_size", default=256)
    types = _attention_types(config, card.layers)
    made = [Layer(window=window if each == "local" else 0) for each in types]
    return with_layers(card, made, {"qkv": "apart", "bias": "out", "ffn_bias": "all", "scale": 1.0})


def _attention_types(config: Config, layers: int) -> list[str]:
    """`global` or `local` for each layer: lists of types, each with how often it is repeated."""
    given = config.get("attention_layers")
    if given is None:
        given = []
        for each in config.get("attention_types", default=[[["global", "local"], layers // 2]]):
            if (
                not isinstance(each, list)
                or len(each) != 2
                or not isinstance(each[0], list)
                or type(each[1]) is not int
            ):
                raise UsageError(f"attention_types must be lists of types, each with a number, not {shown(each)}")
            if len(each[0]) * each[1] > layers:
                raise UsageError(f"attention_types has more than {layers} layers")
            given += each[0] * each[1]
    else:
        config.uses("attention_types")
    if not isinstance(given, list) or len(given) != layers or any(each not in ("global", "local") for each in given):
        raise UsageError(f"attention_types is not supported: global or local for each of {layers} layers only")
    return given


def openai_gpt(config: Config, name: str) -> Card:
    """GPT of 2018: learned positions, norms after sums, none after the last layer."""
    known = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
    act = config.get("afn", default="gelu")
    if not isinstance(act, str) or act not in known:
        raise UsageError(f"afn {shown(act)} is not supported: {', '.join(known)} only")
    config.uses("n_ctx")
    words: dict[str, Any] = {"mlp": "plain", "activation": known[act], "final_norm": False, "linear_bias": True}
    words |= {"ffn": 4 * config.count("n_embd"), "positions": "learned", "tied_default": True}
    card = decoder(config, name, "gpt", norm="layernorm", **words)
    return with_layers(card, [Layer()] * card.layers, {"qkv": "fused", "residual": "after_sum"})


def codegen(config: Config, name: str) -> Card:
    """CodeGen: parallel layers with one norm, q, k and v from one matmul, biases of the feed-forward and the head."""
    hidden = config.count("n_embd", "hidden_size")
    act = activation(config, "activation_function", default="gelu_new")
    words: dict[str, Any] = {"mlp": "plain", "activation": act, "head_bias": True}
    card = decoder(
        config.changed(max_position_embeddings=config.count("n_positions", "max_position_embeddings", default=2048)),
        name,
        "codegen",
        norm="layernorm",
        ffn=config.count("n_inner", default=4 * hidden),
        **words,
    )
    config.uses("n_ctx")
    usual: dict[str, Value] = {"residual": "parallel", "qkv": "fused", "ffn_bias": "all", **turned(config, card)}
    return with_layers(card, [Layer()] * card.layers, usual)


def biogpt(config: Config, name: str) -> Card:
    """BioGPT: embedded tokens are scaled; two rows of the table of learned positions come before the first position."""
    hidden = config.count("hidden_size")
    card = decoder(
        config,
        name,
        "biogpt",
        norm="layernorm",
        mlp="plain",
        activation=activation(config, "hidden_act", default="gelu"),
        positions="learned",
        position_offset=2,
        tied_default=True,
        linear_bias=True,
        embedding_scale=math.sqrt(hidden) if config.flag("scale_embedding", default=True) else 0.0,
    )
    return with_layers(card, [Layer()] * card.layers, {"qkv": "apart"})


def persimmon(config: Config, name: str) -> Card:
    """Persimmon: squared ReLU, biases everywhere, norms of queries and keys, positions on half of each head."""
    act = activation(config, "hidden_act", default="relu2")
    card = decoder(config, name, "persimmon", norm="layernorm", mlp="plain", activation=act, linear_bias=True)
    usual: dict[str, Value] = {"qkv": "fused", **turned(config, card, 0.5)}
    normed: dict[str, Value] = {"qk_norm": "head"} if config.flag("qk_layernorm", default=True) else {}
    return with_layers(card, [Layer()] * card.layers, usual | normed)


def jais2(config: Config, name: str) -> Card:
    """Jais 2: LayerNorm, squared ReLU, biases everywhere."""
    act = activation(config, "hidden_act", default="relu2")
    card = decoder(config, name, "jais", norm="layernorm", mlp="plain", activation=act)
    attention, ffn = config.flag("attention_bias", default=True), config.flag("mlp_bias", default=True)
    return with_layers(card, [Layer()] * card.layers, biases("all" if attention else "none", ffn))


def nanochat(config: Config, name: str) -> Card:
    """nanochat: norms without weights, one of them of the embedding, squared ReLU, bounded logits."""
    act = activation(config, "hidden_act", default="relu2")
    cap = config.number("final_logit_softcapping", default=0.0)
    words: dict[str, Any] = {"mlp": "plain", "activation": act, "embedding_norm": True, "logit_softcap": cap}
    card = decoder(config, name, "nanochat", norm="rmsnorm_no_weight", **words)
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, [Layer()] * card.layers, {"qk_norm": "l2", "rotary_first": True, **bias})


def bitnet(config: Config, name: str) -> Card:
    """BitNet: norms of what the matmuls back to the stream read, squared ReLU. The plan decides number formats."""
    card = decoder(config, name, "bitnet", activation=activation(config, "hidden_act", default="relu2"))
    if card.heads * card.head_dim != card.hidden:
        raise UsageError(f"head_dim {card.head_dim} is not supported: {card.heads} heads are not {card.hidden} wide")
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, [Layer()] * card.layers, {"context_norm": True, "inner_norm": True, **bias})


READERS = {
    "GPTNeoForCausalLM": gpt_neo,
    "CodeGenForCausalLM": codegen,
    "OpenAIGPTLMHeadModel": openai_gpt,
    "BioGptForCausalLM": biogpt,
    "PersimmonForCausalLM": persimmon,
    "Jais2ForCausalLM": jais2,
    "NanoChatForCausalLM": nanochat,
    "BitNetForCausalLM": bitnet,
}
"""The reader of each architecture."""
