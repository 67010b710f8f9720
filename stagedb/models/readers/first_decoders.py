"""The decoders whose cards the library has had from the start: Llama, Mistral, Qwen, GPT-2, GPT-NeoX, Falcon, StableLM.

Their plain activations are all `gelu`: its approximations count alike.
"""

from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import CHOICES, Card
from stagedb.models.kinds import Value
from stagedb.models.kinds.parallel import parallel_of
from stagedb.models.kinds.sliding_window import read_windows
from stagedb.models.readers.config import Config, rotary
from stagedb.models.readers.expert_decoders import softmax_scores
from stagedb.models.readers.layers import Layer, read_sparse, with_layers
from stagedb.models.readers.parts import biases, decoder, head_size, turned, with_mtp_layers

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def _gated(config: Config, name: str, family: str, **changes: Any) -> tuple[Card, dict[str, Value]]:
    """A gated decoder, and the words for biases that are not the same everywhere."""
    attention, ffn = config.flag("attention_bias"), config.flag("mlp_bias")
    card = decoder(config, name, family, linear_bias=attention and ffn, **changes)
    return card, {} if attention == ffn else biases("all" if attention else "none", ffn)


def _laid_out(config: Config, card: Card, usual: dict[str, Value], windowed: bool = True) -> Card:
    windows = read_windows(config, card.layers) if windowed else (False,) * card.layers
    sparse = read_sparse(config, card.layers) if card.experts else (True,) * card.layers
    layers = [
        Layer(window=config["sliding_window"] if window else 0, dense=not each)
        for window, each in zip(windows, sparse, strict=True)
    ]
    return with_layers(card, layers, usual)


def _experts(config: Config, card: Card, keys: tuple[str, ...], width: int, shared: int = 0) -> Card:
    changes = {"experts": config.need(*keys), "top_k": config.need("num_experts_per_tok")}
    return replace(card, **changes, expert_ffn=width, shared_ffn=shared)


def llama(config: Config, name: str) -> Card:
    """Llama 1 to 3."""
    card, usual = _gated(config, name, "llama")
    return _laid_out(config, card, usual, windowed=False)


def mistral(config: Config, name: str) -> Card:
    """Mistral: a window in all layers, in some, or in none."""
    card, usual = _gated(config, name, "mistral")
    return _laid_out(config, card, usual)


def qwen2(config: Config, name: str) -> Card:
    """Qwen 1.5 to 2.5: biases of q, k and v."""
    # Its biases are those of q, k and v for every value of `attention_bias`.
    card, usual = _gated(config.changed(attention_bias=False), name, "qwen2.5", qkv_bias=True)
    return _laid_out(_used(config), card, usual)


def mimo(config: Config, name: str) -> Card:
    """MiMo: Qwen 2 with layers that predict further tokens."""
    return with_mtp_layers(config, qwen2(config, name))


def qwen3(config: Config, name: str) -> Card:
    """Qwen 3: norms of queries and keys."""
    card, usual = _gated(config, name, "qwen3", qk_norm=True)
    return _laid_out(_used(config), card, usual)


def _used(config: Config) -> Config:
    """The config with `use_sliding_window` set to false where the file leaves it out, as its class does."""
    return config.changed(use_sliding_window=bool(config.get("use_sliding_window")))


def mixtral(config: Config, name: str) -> Card:
    """Mixtral: experts in all layers."""
    card, usual = _gated(config, name, "mixtral")
    card = _experts(config, card, ("num_local_experts",), config.need("intermediate_size"))
    return _laid_out(config, card, usual)


def qwen3_moe(config: Config, name: str) -> Card:
    """Qwen 3 with experts."""
    config.only("use_qk_norm", True, "its attention has norms of queries and keys")
    card, usual = _gated(config, name, "qwen3", qk_norm=True)
    card = _experts(config, card, ("num_experts", "num_local_experts"), config.need("moe_intermediate_size"))
    return _laid_out(_used(config), card, usual | softmax_scores(config, True))


def deepseek(config: Config, name: str) -> Card:
    """DeepSeekMoE: dense first layers, shared experts."""
    width = config.need("moe_intermediate_size")
    card, usual = _gated(config, name, "deepseek")
    card = _experts(config, card, ("n_routed_experts",), width, width * config.get("n_shared_experts", default=0))
    config.uses("norm_topk_prob", "scoring_func", "routed_scaling_factor")
    return _laid_out(config, card, usual)


def gpt2(config: Config, name: str) -> Card:
    """GPT-2: learned positions."""
    if config.get("add_cross_attention"):
        raise UsageError("add_cross_attention is not supported: decoder-only models only")
    hidden = config.count("n_embd")
    card = decoder(
        config,
        name,
        "gpt2",
        ffn=config.count("n_inner", default=4 * hidden),
        vocab_multiple=128,  # padded like frameworks that split the vocabulary; 50257 is divisible by 29 and 1733 only
        norm="layernorm",
        mlp="plain",
        activation=_plain(config, "activation_function", "gelu_new"),
        positions="learned",
        tied_default=True,
        linear_bias=True,
    )
    config.uses("n_ctx")
    return card


def gpt_neox(config: Config, name: str) -> Card:
    """GPT-NeoX and Pythia: parallel layers with two norms."""
    act, bias = _plain(config, "hidden_act", "gelu"), config.flag("attention_bias", default=True)
    card = decoder(config, name, "gpt-neox", norm="layernorm", mlp="plain", activation=act, linear_bias=bias)
    card = _in_part(config, card, "rotary_pct", {} if bias else biases("none", True))
    return _in_parallel(card, 2) if config.flag("use_parallel_residual", default=True) else card


def _in_part(config: Config, card: Card, key: str, usual: dict[str, Value]) -> Card:
    """The card with rotary positions on the part of each head that the config names, and on whole heads without that.

    Its source notes the second, because the default of these models is a quarter of each head.
    """
    if config.get(key, "partial_rotary_factor") is None and "partial_rotary_factor" not in rotary(config):
        card = replace(card, source="config.json; rotary positions on whole heads")
    else:
        usual = usual | turned(config, card)
    return with_layers(card, [Layer()] * card.layers, usual)


def stablelm(config: Config, name: str) -> Card:
    """StableLM: LayerNorm, parallel layers in some, norms of each head of queries and keys in some."""
    config.only("rotary_scaling_factor", 1.0, "it was an older word of rope_scaling")
    card, usual = _gated(config, name, "stablelm", norm="layernorm", qkv_bias=config.flag("use_qkv_bias"))
    if config.flag("qk_layernorm"):
        usual = {**usual, "qk_norm": "each_head_no_bias"}
    card = _in_part(config, card, "partial_rotary_factor", usual)
    return _in_parallel(card, 1) if config.flag("use_parallel_residual") else card


def falcon(config: Config, name: str) -> Card:
    """Falcon: parallel layers with one or two norms; ALiBi in some."""
    hidden, heads = config.count("hidden_size", "n_embed"), config.count("num_attention_heads", "n_head")
    new, alibi = config.flag("new_decoder_architecture"), config.flag("alibi")
    old_heads = 1 if config.flag("multi_query", default=True) else heads
    kv_heads = config.count("num_kv_heads", "n_head_kv", default=heads)
    card = Card(
        name=name,
        family="falcon",
        hidden=hidden,
        layers=config.count("num_hidden_layers", "n_layer"),
        heads=heads,
        kv_heads=kv_heads if new else old_heads,
        head_dim=head_size(config, hidden, heads),
        ffn=config.count("ffn_hidden_size", default=4 * hidden),
        vocab=config.count("vocab_size"),
        norm="layernorm",
        mlp="plain",
        activation=_plain(config, "activation", "gelu"),
        positions="alibi" if alibi else "rotary",
        max_positions=config.count("max_position_embeddings", default=2048),
        tied=config.flag("tie_word_embeddings", default=True),
        linear_bias=config.flag("bias"),
        qkv_bias=False,
        source="config.json",
    )
    norms, parallel = config.get("num_ln_in_parallel_attn", default=2), config.flag("parallel_attn", default=True)
    if new:
        return _in_parallel(card, norms)
    return _in_parallel(card, 1) if parallel else card


def _in_parallel(card: Card, norms: int) -> Card:
    """The card with parallel layers that have this many norms."""
    if norms not in (1, 2):
        raise UsageError(f"num_ln_in_parallel_attn {shown(norms)} is not supported: 1 or 2")
    kinds = tuple(replace(kind, residual=parallel_of(norms).name) for kind in card.kinds.values())
    return replace(card, layer_kinds=kinds)


def _plain(config: Config, key: str, default: str) -> str:
    found, known = config.get(key, default=default), CHOICES["activation"]
    if found not in (*_GELU, *known):
        raise UsageError(f"{key} {shown(found)} is not supported: {', '.join(sorted(known))} only")
    return "gelu" if found in _GELU else str(found)


READERS = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "MiMoForCausalLM": mimo,
    "Qwen3ForCausalLM": qwen3,
    "MixtralForCausalLM": mixtral,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "DeepseekForCausalLM": deepseek,
    "GPT2LMHeadModel": gpt2,
    "GPTNeoXForCausalLM": gpt_neox,
    "StableLmForCausalLM": stablelm,
    "FalconForCausalLM": falcon,
}
"""The reader of each architecture."""
