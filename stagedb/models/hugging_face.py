"""Cards from the `config.json` of a Hugging Face checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.models.card import CHOICES, USUAL, Card
from stagedb.models.kinds import ATTENTION, EXPERTS, FEED_FORWARD, LayerKind
from stagedb.models.kinds.experts import read_sparse
from stagedb.models.kinds.parallel import parallel_of
from stagedb.models.kinds.sliding_window import SLIDING_WINDOW, read_windows
from stagedb.models.sequence_length import read_length

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
_POSITIONS = ("max_position_embeddings", "n_positions")
"""Keys of the number of positions."""

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def from_hugging_face(config: Mapping[str, Any], *, name: str) -> Card:
    """The card of a decoder-only model.

    UsageError, with the reason, for an architecture that is none of `ARCHITECTURES`, a missing key, or a choice that a
    card cannot express.
    """
    named = config.get("architectures") or []
    words = [word for word in named if isinstance(word, str)] if isinstance(named, list) else []
    found = [word for word in words if word in ARCHITECTURES]
    if not found:
        given = shown(", ".join(words)) if words else "none named in `architectures`"
        raise UsageError(f"architecture not supported: {given}; supported are {', '.join(ARCHITECTURES)}")
    card = ARCHITECTURES[found[0]](config, name)
    experts = [key for key in _EXPERTS if config.get(key)]
    if experts and not card.experts:
        raise UsageError(
            f"a mixture of experts ({experts[0]}={shown(config[experts[0]])}) is not supported in {found[0]}"
        )
    named = [key for key in _POSITIONS if config.get(key) is not None]
    length = read_length(config, card.max_positions, f"{named[0]} of config.json" if named else "the usual positions")
    return replace(
        card,
        parameters=card.count_parameters(),
        train_seq_len=length.tokens,
        train_seq_len_source=length.reason,
    )


def _need(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise UsageError(f"missing {key}")
    return config[key]


def _either(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """A key's value; Hugging Face writes null for the default."""
    value = config.get(key)
    return default if value is None else value


def _head_dim(hidden: int, heads: int) -> int:
    if not (isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0):
        raise UsageError(f"no head_dim, and hidden size {hidden} is not divisible by {heads} heads")
    return hidden // heads


def _llama_like(config: Mapping[str, Any], name: str, family: str, *, qkv_bias: bool = False) -> Card:
    hidden, heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
    activation = _either(config, "hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UsageError(f"hidden_act {shown(activation)} is not supported here: silu only")
    biases = {key: bool(_either(config, key, False)) for key in ("attention_bias", "mlp_bias")}
    if len(set(biases.values())) > 1:
        raise UsageError("attention_bias and mlp_bias that differ are not supported")
    return Card(
        name=name,
        family=family,
        hidden=hidden,
        layers=_need(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=_either(config, "num_key_value_heads", heads),
        head_dim=_either(config, "head_dim", None) or _head_dim(hidden, heads),
        ffn=_need(config, "intermediate_size"),
        vocab=_need(config, "vocab_size"),
        norm="rmsnorm",
        mlp="gated",
        activation="silu",
        positions="rotary",
        max_positions=_need(config, "max_position_embeddings"),
        tied=bool(_either(config, "tie_word_embeddings", False)),
        linear_bias=biases["attention_bias"],
        qkv_bias=qkv_bias,
        source="config.json",
    )


def _llama(config: Mapping[str, Any], name: str) -> Card:
    return _llama_like(config, name, "llama")


def _mistral(config: Mapping[str, Any], name: str) -> Card:
    return _with_layers(_llama_like(config, name, "mistral"), config)


def _qwen2(config: Mapping[str, Any], name: str) -> Card:
    return _with_layers(_llama_like(config, name, "qwen2.5", qkv_bias=True), _with_use(config))


def _qwen3(config: Mapping[str, Any], name: str) -> Card:
    return _with_layers(replace(_llama_like(config, name, "qwen3"), qk_norm=True), _with_use(config))


def _with_use(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with `use_sliding_window`, which is off by default."""
    return {**config, "use_sliding_window": bool(config.get("use_sliding_window"))}


def _mixtral(config: Mapping[str, Any], name: str) -> Card:
    card = _llama_like(config, name, "mixtral")
    return _with_layers(_with_experts(card, config, "num_local_experts", _need(config, "intermediate_size")), config)


def _qwen3_moe(config: Mapping[str, Any], name: str) -> Card:
    card = replace(_llama_like(config, name, "qwen3"), qk_norm=True)
    card = _with_experts(card, config, "num_experts", _need(config, "moe_intermediate_size"))
    return _with_layers(card, _with_use(config))


def _deepseek(config: Mapping[str, Any], name: str) -> Card:
    width = _need(config, "moe_intermediate_size")
    shared = width * _either(config, "n_shared_experts", 0)
    card = _with_experts(_llama_like(config, name, "deepseek"), config, "n_routed_experts", width, shared)
    return _with_layers(card, config)


def _with_experts(card: Card, config: Mapping[str, Any], experts: str, width: int, shared_ffn: int = 0) -> Card:
    return replace(
        card,
        experts=_need(config, experts),
        top_k=_need(config, "num_experts_per_tok"),
        expert_ffn=width,
        shared_ffn=shared_ffn,
    )


def _gpt_neox(config: Mapping[str, Any], name: str) -> Card:
    hidden, heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
    activation = _plain_activation(config, "hidden_act", "gelu")
    if _either(config, "attention_bias", True) is not True:
        raise UsageError("attention_bias false is not supported here: all linear layers have biases, or none")
    card = Card(
        name=name,
        family="gpt-neox",
        hidden=hidden,
        layers=_need(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=_head_dim(hidden, heads),
        ffn=_need(config, "intermediate_size"),
        vocab=_need(config, "vocab_size"),
        norm="layernorm",
        mlp="plain",
        activation=activation,
        positions="rotary",
        max_positions=_need(config, "max_position_embeddings"),
        tied=bool(_either(config, "tie_word_embeddings", False)),
        linear_bias=True,
        qkv_bias=False,
        source=_source(config, "rotary_pct"),
    )
    return _in_parallel(card, 2) if _either(config, "use_parallel_residual", True) else card


def _source(config: Mapping[str, Any], share: str) -> str:
    """The card's source, and what it leaves out. The default of these models is a quarter of each head."""
    return "config.json" if _either(config, share, 0.25) == 1 else "config.json; rotary positions on whole heads"


def _stablelm(config: Mapping[str, Any], name: str) -> Card:
    if config.get("qk_layernorm"):
        raise UsageError("qk_layernorm is not supported: queries and keys are normalised by RMSNorm only")
    qkv_bias = bool(_either(config, "use_qkv_bias", False))
    plain = _llama_like(config, name, "stablelm", qkv_bias=qkv_bias)
    card = replace(plain, norm="layernorm", source=_source(config, "partial_rotary_factor"))
    return _in_parallel(card, 1) if config.get("use_parallel_residual") else card


def _falcon(config: Mapping[str, Any], name: str) -> Card:
    hidden, heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
    if config.get("alibi"):
        raise UsageError("alibi is not supported: positions are rotary or learned")
    new, bias = bool(config.get("new_decoder_architecture")), bool(_either(config, "bias", False))
    old_heads = 1 if _either(config, "multi_query", True) else heads
    card = Card(
        name=name,
        family="falcon",
        hidden=hidden,
        layers=_need(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=_either(config, "num_kv_heads", heads) if new else old_heads,
        head_dim=_head_dim(hidden, heads),
        ffn=_either(config, "ffn_hidden_size", 4 * hidden),
        vocab=_need(config, "vocab_size"),
        norm="layernorm",
        mlp="plain",
        activation=_plain_activation(config, "activation", "gelu"),
        positions="rotary",
        max_positions=_either(config, "max_position_embeddings", 2048),
        tied=bool(_either(config, "tie_word_embeddings", True)),
        linear_bias=bias,
        qkv_bias=False,
        source="config.json",
    )
    if new:
        return _in_parallel(card, _either(config, "num_ln_in_parallel_attn", 2))
    return _in_parallel(card, 1) if _either(config, "parallel_attn", True) else card


def _in_parallel(card: Card, norms: int) -> Card:
    """The card with parallel layers that have this many norms."""
    if norms not in (1, 2):
        raise UsageError(f"num_ln_in_parallel_attn {shown(norms)} is not supported: 1 or 2")
    return replace(card, layer_kinds=(replace(card.kinds[USUAL], residual=parallel_of(norms).name),))


def _plain_activation(config: Mapping[str, Any], key: str, default: str) -> str:
    activation = _either(config, key, default)
    known = CHOICES["activation"]
    if activation not in (*_GELU, *known):
        raise UsageError(f"{key} {shown(activation)} is not supported: {', '.join(sorted(known))} only")
    return "gelu" if activation in _GELU else str(activation)


def _with_layers(card: Card, config: Mapping[str, Any]) -> Card:
    """The card with sliding-window attention, and without experts, in the layers that the config names."""
    windows, sparse = read_windows(config, card.layers), read_sparse(config, card.layers)
    dense = tuple(bool(card.experts) and not each for each in sparse)
    first = sum(dense)
    if not any(windows) and dense == (True,) * first + (False,) * (card.layers - first):
        return replace(card, dense_layers=first)
    names = {(False, False): USUAL, (True, False): "local", (False, True): "dense", (True, True): "local_dense"}
    if all(windows):
        names |= {(True, False): USUAL, (True, True): "dense"}
    places = list(zip(windows, dense, strict=True))
    return replace(
        card,
        layer_kinds=tuple(_kind(names[place], card, *place, config) for place in dict.fromkeys(places)),
        pattern=tuple(names[place] for place in places),
    )


def _kind(name: str, card: Card, window: bool, dense: bool, config: Mapping[str, Any]) -> LayerKind:
    return LayerKind(
        name,
        mixer=SLIDING_WINDOW.name if window else ATTENTION.name,
        channel_mixer=EXPERTS.name if card.experts and not dense else FEED_FORWARD.name,
        values=(("window", config["sliding_window"]),) if window else (),
    )


def _gpt2(config: Mapping[str, Any], name: str) -> Card:
    hidden, heads = _need(config, "n_embd"), _need(config, "n_head")
    activation = _plain_activation(config, "activation_function", "gelu_new")
    if config.get("add_cross_attention"):
        raise UsageError("add_cross_attention is not supported: decoder-only models only")
    return Card(
        name=name,
        family="gpt2",
        hidden=hidden,
        layers=_need(config, "n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=_head_dim(hidden, heads),
        ffn=_either(config, "n_inner", 4 * hidden),
        vocab=_need(config, "vocab_size"),
        vocab_multiple=128,  # padded like frameworks that split the vocabulary; 50257 is divisible by 29 and 1733 only
        norm="layernorm",
        mlp="plain",
        activation=activation,
        positions="learned",
        max_positions=_need(config, "n_positions"),
        tied=bool(_either(config, "tie_word_embeddings", True)),
        linear_bias=True,
        qkv_bias=False,
        source="config.json",
    )


ARCHITECTURES = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "DeepseekForCausalLM": _deepseek,
    "GPT2LMHeadModel": _gpt2,
    "GPTNeoXForCausalLM": _gpt_neox,
    "StableLmForCausalLM": _stablelm,
    "FalconForCausalLM": _falcon,
}
"""The architectures that are read, each with its reader."""
