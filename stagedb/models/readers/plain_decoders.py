"""Decoders with plain feed-forwards or parallel layers: the families of GPT, Phi, Bloom, Cohere."""

from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.kinds.feed_forward import LEARNED
from stagedb.models.readers.config import Config
from stagedb.models.readers.gated_decoders import plain_layers, windows
from stagedb.models.readers.layers import Layer, with_layers
from stagedb.models.readers.parts import activation, biases, decoder, turned


def _layers(card: Card, usual: dict[str, Value]) -> Card:
    return with_layers(card, [Layer()] * card.layers, usual)


def _plain(config: Config, name: str, family: str, act: str, **changes: Any) -> Card:
    """A decoder with LayerNorm and a plain feed-forward, by default of four times the hidden size."""
    hidden = config.count("hidden_size", "n_embd")
    width = config.count("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    return decoder(config, name, family, norm="layernorm", mlp="plain", activation=act, ffn=width, **changes)


def phi(config: Config, name: str) -> Card:
    """Phi 1 and 2: parallel layers with one norm, biases everywhere, the head included."""
    act = activation(config, "hidden_act", default="gelu_new")
    card = _plain(config, name, "phi", act, linear_bias=True, head_bias=True)
    usual: dict[str, Value] = {"residual": "parallel", **turned(config, card, 0.5)}
    return _layers(card, usual | ({"qk_norm": "head"} if config.flag("qk_layernorm") else {}))


def gptj(config: Config, name: str) -> Card:
    """GPT-J: parallel layers with one norm, biases of the feed-forward and the head alone."""
    config.only("rotary", True, "GPT-J has rotary positions")
    act = activation(config, "activation_function", default="gelu_new")
    card = _plain(config, name, "gpt-j", act, head_bias=True)
    return _layers(card, {"residual": "parallel", "ffn_bias": "all", **turned(config, card)})


def bloom(config: Config, name: str) -> Card:
    """BLOOM: ALiBi, a norm of the embedded tokens, biases everywhere."""
    config.only("apply_residual_connection_post_layernorm", False, "the stream goes round the norms here")
    config.uses("skip_bias_add", "skip_bias_add_qkv")
    card = _plain(
        config.changed(hidden_size=config.need("hidden_size", "n_embed")),
        name,
        "bloom",
        "gelu_tanh",
        linear_bias=True,
        positions="alibi",
        embedding_norm=True,
        tied_default=True,
        max_positions=config.count("seq_length", "max_position_embeddings", default=2048),
    )
    return _layers(card, {"qkv": "fused"})


def opt(config: Config, name: str) -> Card:
    """OPT: learned positions, two rows of whose table come before the first position; norms after sums, and tables
    that are narrower than the hidden size, in some."""
    config.only("layer_norm_elementwise_affine", True, "norms have weights")
    config.uses("prefix")
    before = config.flag("do_layer_norm_before", default=True)
    hidden = config.count("hidden_size")
    width = config.count("word_embed_proj_dim", default=hidden)
    act = activation(config, "activation_function", default="relu")
    bias = config.flag("enable_bias", default=True)
    changes: dict[str, Any] = {"positions": "learned", "position_offset": 2, "tied_default": True, "linear_bias": bias}
    changes |= {"embedding_width": 0 if width == hidden else width}
    changes["final_norm"] = before and not config.flag("_remove_final_layer_norm")
    residual = "serial" if before else "after_sum"
    return _layers(_plain(config, name, "opt", act, **changes), {"qkv": "apart", "residual": residual})


def apertus(config: Config, name: str) -> Card:
    """Apertus: a plain feed-forward with xIELU, whose two numbers are learned, and norms of queries and keys."""
    config.only("mlp_bias", False, "feed-forwards have no biases here")
    config.only("qk_norm", True, "Apertus has norms of queries and keys")
    config.only("post_norm", False, "norms are before the parts")
    learned = config.get("hidden_act", default=LEARNED) == LEARNED
    act = LEARNED if learned else activation(config, "hidden_act")
    card = decoder(config, name, "apertus", mlp="plain", activation=act)
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return _layers(card, {"qk_norm": "head", **bias})


def mpt(config: Config, name: str) -> Card:
    """MPT: ALiBi, LayerNorm without a bias, q, k and v from one matmul."""
    attention = config.get("attn_config", default={})
    if not isinstance(attention, dict):
        raise UsageError(f"attn_config must be a mapping, not {shown(attention)}")
    inner = Config({**attention})
    alibi, heads = inner.flag("alibi", default=True), config.count("n_heads")
    inner.only("qk_ln", False, "norms of queries and keys are not read for MPT")
    inner.only("prefix_lm", False, "attention is causal here")
    inner.only("attn_type", "multihead_attention", "heads are as kv_n_heads has them")
    inner.only("attn_uses_sequence_id", False, "a sequence is one document")
    inner.uses("attn_impl")
    config.uses("tokenizer_name")
    hidden = config.count("d_model")
    if hidden % heads:
        raise UsageError(f"d_model {hidden} is not divisible by n_heads {heads}")
    config.only("expansion_ratio", 4, "the feed-forward of the model's own code is four times as wide as its stream")
    if not alibi:
        raise UsageError("attn_config without alibi is not supported: MPT's learned positions are not read")
    config.only("no_bias", True, "MPT with biases is not read")
    config.only("norm_type", "low_precision_layernorm", "norms are LayerNorm")
    card = Card(
        name=name,
        family="mpt",
        hidden=hidden,
        layers=config.count("n_layers"),
        heads=heads,
        kv_heads=inner.count("kv_n_heads", default=heads),
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=config.count("vocab_size"),
        norm="layernorm_no_bias",
        mlp="plain",
        activation="gelu",
        positions="alibi",
        max_positions=config.count("max_seq_len", default=2048),
        tied=config.flag("tie_word_embeddings", default=True),
        linear_bias=False,
        qkv_bias=False,
        source="config.json",
    )
    scale = inner.number("softmax_scale", default=0.0)
    return _layers(card, {"qkv": "fused", "scale": scale})


def bigcode(config: Config, name: str) -> Card:
    """StarCoder: learned positions, one head of keys and values, biases everywhere."""
    act = activation(config, "activation_function", default="gelu_pytorch_tanh")
    heads = config.count("n_head", "num_attention_heads")
    kv_heads = 1 if config.flag("multi_query", default=True) else heads
    if config.get("num_key_value_heads", default=kv_heads) != kv_heads:
        raise UsageError(f"num_key_value_heads is not supported with multi_query: {kv_heads} only")
    changes: dict[str, Any] = {"positions": "learned", "linear_bias": True, "tied_default": True, "kv_heads": kv_heads}
    return _layers(_plain(config, name, "starcoder", act, **changes), {"qkv": "fused"})


def starcoder2(config: Config, name: str) -> Card:
    """StarCoder 2: grouped heads, rotary positions, a window, biases everywhere."""
    act = activation(config, "hidden_act", default="gelu_pytorch_tanh")
    bias = config.flag("use_bias", default=True)
    config.only("mlp_type", "default", "the feed-forward is plain")
    config.only("norm_type", "layer_norm", "norms are LayerNorm")
    card = _plain(config, name, "starcoder2", act, linear_bias=bias, tied_default=True)
    return plain_layers(config, card, {})


def nemotron(config: Config, name: str) -> Card:
    """Nemotron 4: squared ReLU, rotary positions on half of each head."""
    act = activation(config, "hidden_act", default="relu2")
    card = _plain(config, name, "nemotron", act)
    bias = biases("all" if config.flag("attention_bias") else "none", config.flag("mlp_bias"))
    return _layers(card, {**turned(config, card, 0.5), **bias})


def cohere(config: Config, name: str) -> Card:
    """Command R: parallel layers with one norm without a bias; norms of each head of queries and keys in some."""
    card = _cohere(config, name)
    normed: dict[str, Value] = {"qk_norm": "each_head"} if config.flag("use_qk_norm") else {}
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return _layers(card, {"residual": "parallel", **normed, **bias})


def cohere2(config: Config, name: str) -> Card:
    """Command R7B and A: layers with a window have positions, every fourth one sees the whole sequence and has none."""
    card = _cohere(config, name)
    layers = [Layer(window=each, rotary=bool(each)) for each in windows(config, card.layers, 4)]
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, layers, {"residual": "parallel", **bias})


def _cohere(config: Config, name: str) -> Card:
    scale = config.number("logit_scale", default=0.0625)
    return decoder(config, name, "command-r", norm="layernorm_no_bias", tied_default=True, logit_scale=scale)


READERS = {
    "ApertusForCausalLM": apertus,
    "PhiForCausalLM": phi,
    "GPTJForCausalLM": gptj,
    "BloomForCausalLM": bloom,
    "OPTForCausalLM": opt,
    "MptForCausalLM": mpt,
    "MPTForCausalLM": mpt,
    "GPTBigCodeForCausalLM": bigcode,
    "Starcoder2ForCausalLM": starcoder2,
    "NemotronForCausalLM": nemotron,
    "CohereForCausalLM": cohere,
    "Cohere2ForCausalLM": cohere2,
}
"""The reader of each architecture."""
