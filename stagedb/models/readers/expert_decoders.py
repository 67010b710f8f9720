"""Decoders with a mixture of experts and ordinary attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config, rotary
from stagedb.models.readers.gated_decoders import granite_card, granite_scale, rotary_layers, windows
from stagedb.models.readers.layers import Layer, experts_from, layer_types, read_sparse, with_layers
from stagedb.models.readers.parts import activation, biases, decoder, turned, with_mtp_layers, without_mtp_layers


def with_experts(config: Config, card: Card, width: int, shared: int = 0, **changes: Any) -> Card:
    """The card with experts of a width, in the usual words.

    width: of an expert's feed-forward. shared: that of the shared experts; 0: none. changes: other fields of the card.
    """
    return replace(
        card,
        experts=config.count("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
        top_k=config.count("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k"),
        expert_ffn=width,
        shared_ffn=shared,
        **changes,
    )


def softmax_scores(config: Config, default: bool) -> dict[str, Value]:
    """The words for a softmax over all experts, whose chosen scores are divided by their sum or not.

    default: whether they are divided if the file does not set it.
    """
    return {} if config.flag("norm_topk_prob", default=default) else {"scores": "softmax", "normalised": False}


def sigmoid_scores(config: Config, normalised: bool = True, factor: float = 1.0) -> dict[str, Value]:
    """The words for sigmoid scores, a factor included. `noaux_tc` is what older files call them with a bias.

    normalised: whether scores are divided by their sum if the file does not set it.
    """
    if config.get("scoring_func", default="sigmoid") not in ("sigmoid", "noaux_tc"):
        raise UsageError(f"scoring_func {shown(config.get('scoring_func'))} is not supported here: sigmoid only")
    words: dict[str, Value] = {"scores": "sigmoid", "normalised": config.flag("norm_topk_prob", default=normalised)}
    factor = config.number("routed_scaling_factor", default=factor)
    return words | ({} if factor == 1 else {"routing_scale": factor}) | expert_groups(config)


def expert_groups(config: Config) -> dict[str, Value]:
    """The words for groups of experts, if a token chooses experts only from some of the groups; none, if from all."""
    groups, chosen = (config.get(key, default=1) for key in ("n_group", "topk_group"))
    for key, count in (("n_group", groups), ("topk_group", chosen)):
        if type(count) is not int or count < 1:
            raise UsageError(f"{key} must be a whole number from 1, not {shown(count)}")
    return {"expert_groups": groups, "chosen_groups": chosen} if groups > 1 and chosen != groups else {}


def qwen2_moe(config: Config, name: str) -> Card:
    """Qwen 1.5 and 2 MoE: shared experts with a gate, biases of q, k and v."""
    shared = config.count("shared_expert_intermediate_size", default=0, least=0)
    card = with_experts(config, decoder(config, name, "qwen2-moe"), config.count("moe_intermediate_size"), shared)
    seen = windows(config, card.layers) if config.get("use_sliding_window") else [0] * card.layers
    config.uses("layer_types", "sliding_window")
    sparse = read_sparse(config, card.layers)
    layers = [Layer(window=window, dense=not each) for window, each in zip(seen, sparse, strict=True)]
    bias = biases("qkv" if config.flag("qkv_bias", default=True) else "none", False)
    gate: dict[str, Value] = {"shared_gate": True} if shared else {}
    return with_layers(card, layers, {**bias, **gate, **softmax_scores(config, False)})


def gpt_oss(config: Config, name: str) -> Card:
    """gpt-oss: sinks, biases everywhere, windows in every other layer, a bounded gate."""
    card = decoder(config, name, "gpt-oss", activation="clamped_swiglu", qkv_bias=False)
    config.only("hidden_act", "silu", "gpt-oss has one activation")
    card = with_experts(config, card, config.count("intermediate_size"))
    bias = biases("all" if config.flag("attention_bias", default=True) else "none", False)
    words: dict[str, Value] = {"sinks": True, "expert_bias": True, "router_bias": True, **bias}
    return with_layers(card, [Layer(window=each) for each in windows(config, card.layers, 2)], words)


def llama4(config: Config, name: str) -> Card:
    """Llama 4, text: chunks in layers with positions, one expert a token and a shared one, in every n-th layer."""
    width = config.count("intermediate_size")
    dense = config.count("intermediate_size_mlp", default=width)
    card = with_experts(config, decoder(config, name, "llama4", ffn=dense), width, width)
    every = config.count("interleave_moe_layer_step", default=1)
    sparse = config.get("moe_layers")
    numbers = sparse if isinstance(sparse, list) else [n for n in range(card.layers) if (n + 1) % every == 0]
    if any(type(each) is not int or not 0 <= each < card.layers for each in numbers):
        raise UsageError(f"moe_layers must be numbers of layers from 0 to {card.layers - 1}")
    turns = rotary_layers(config, card.layers)
    types = layer_types(config, card.layers, {"chunked_attention": "chunk", "full_attention": "full"})
    types = types or ["chunk" if each else "full" for each in turns]
    chunk = config.count("attention_chunk_size", default=8192)
    normed = config.flag("use_qk_norm", default=True)
    layers = [
        Layer(
            chunk=chunk if kind == "chunk" else 0,
            rotary=rotary,
            dense=number not in numbers,
            words={"qk_norm": "l2"} if normed and rotary else {},
        )
        for number, (kind, rotary) in enumerate(zip(types, turns, strict=True))
    ]
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, layers, {**bias, "scores": "sigmoid", "normalised": False, "scale_inputs": True})


def olmoe(config: Config, name: str) -> Card:
    """OLMoE: norms of queries and keys over all heads."""
    card = with_experts(config, decoder(config, name, "olmoe"), config.count("intermediate_size"))
    if card.heads * card.head_dim != card.hidden:
        raise UsageError(f"head_dim {card.head_dim} is not supported: {card.heads} heads are not {card.hidden} wide")
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, [Layer()] * card.layers, {"qk_norm": "all", **bias, **softmax_scores(config, False)})


def phimoe(config: Config, name: str) -> Card:
    """Phi-3.5 MoE: LayerNorm, and a router that weighs an expert against those that are left (SparseMixer)."""
    config.only("num_experts_per_tok", 2, "its router chooses two experts")
    card = decoder(config, name, "phi-moe", norm="layernorm", head_bias=config.flag("lm_head_bias"))
    card = with_experts(config, card, config.count("intermediate_size"))
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    layers = [Layer(window=each) for each in windows(config, card.layers)]
    near = config.number("router_jitter_noise", default=0.01)
    return with_layers(card, layers, {**bias, "scores": "sparsemixer", "normalised": False, "jitter": near})


def minimax_m3(config: Config, name: str) -> Card:
    """MiniMax M3, text: an indexer of blocks of keys in the layers that its types name, sigmoid scores, a shared
    expert, a bounded gate."""
    config.uses("rotary_dim")  # its class reads the factor alone
    share = rotary(config).get("partial_rotary_factor", config.get("partial_rotary_factor", default=1.0))
    if config.get("hidden_act", default="silu") not in ("silu", "swigluoai"):
        raise UsageError(
            f"hidden_act {shown(config.get('hidden_act'))} is not supported: its class has swigluoai alone"
        )
    config.only("n_shared_experts", 1, "its layers with experts have a shared one")
    config.only("scoring_func", "sigmoid", "its experts have sigmoid scores")
    for key, value in (("use_gemma_norm", True), ("use_qk_norm", True), ("qk_norm_type", "per_head")):
        config.only(key, value, "queries and keys have norms, head by head")
    without_mtp_layers(config, "of this architecture")
    config.uses("use_routing_bias", "num_mtp_modules")
    near = decoder(config, name, "minimax", ffn=config.count("dense_intermediate_size"), activation="clamped_swiglu")
    shared = config.count("shared_intermediate_size")
    card = with_experts(config, near, config.count("intermediate_size"), shared)
    sparse_words = _sparse_words(config)
    types = layer_types(sparse_words, card.layers, {"full_attention": "full", "minimax_m3_sparse": "sparse"})
    heads = sparse_words.count("index_n_heads", default=4)
    words: dict[str, Value] = {
        "index_block": sparse_words.count("index_block_size", default=128),
        "index_blocks": sparse_words.count("index_topk_blocks", default=16),
        "index_local": sparse_words.count("index_local_blocks", default=1),
        "block_index_dim": sparse_words.count("index_head_dim", default=128),
    }
    types = types or ["full"] * card.layers
    if "sparse" in types and heads != card.kv_heads:
        raise UsageError(
            f"index_n_heads {heads} is not supported: one for each of {card.kv_heads} key/value heads only"
        )
    sparse = experts_from(config, card.layers)
    layers = [
        Layer(dense=not each, words=words if kind == "sparse" else {}) for kind, each in zip(types, sparse, strict=True)
    ]
    usual: dict[str, Value] = {"qk_norm": "head", "gate_up": "fused", "scores": "sigmoid"}
    usual |= {"routing_scale": config.number("routed_scaling_factor", default=2.0)}
    return with_layers(card, layers, {**usual, **turned(Config({"partial_rotary_factor": share}), card)})


_OF_CHECKPOINT = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""Words of MiniMax M3's class, each with that of the checkpoint's `sparse_attention_config`, which decides."""


def _sparse_words(config: Config) -> Config:
    """The config with the words of its class for what the checkpoint has in `sparse_attention_config`."""
    given = config.get("sparse_attention_config", default={})
    if not isinstance(given, Mapping):
        raise UsageError(f"sparse_attention_config {shown(given)} is not supported: a mapping only")
    own = Config(given)
    own.only("use_sparse_attention", True, "layers without an indexer are those of sparse_attention_freq")
    own.only("sparse_score_type", "max", "the score of a block is its largest product")
    own.only("sparse_init_block", 0, "a query sees the blocks that score best and those before it")
    own.uses("sparse_disable_index_value")
    changes: dict[str, Any] = {ours: own.get(theirs) for ours, theirs in _OF_CHECKPOINT.items() if theirs in given}
    types = own.get("sparse_attention_freq")
    if types is not None and config.given("layer_types") is None:
        if not isinstance(types, list) or any(each not in (0, 1) for each in types):
            raise UsageError(f"sparse_attention_freq {shown(types)} is not supported: 0 or 1 for each layer only")
        changes["layer_types"] = ["minimax_m3_sparse" if each else "full_attention" for each in types]
    unread = sorted(own.unread())
    if unread:
        raise UsageError(f"sparse_attention_config with {unread[0]}={shown(own[unread[0]])} is not supported")
    config.uses("layer_types", *_OF_CHECKPOINT)
    return config.changed(**changes)


def minimax_m2(config: Config, name: str) -> Card:
    """MiniMax M2: norms of queries and keys over all heads, sigmoid scores."""
    kinds = config.get("attn_type_list", default=[])
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        raise UsageError("attn_type_list with another number than 1 is not supported: linear attention has no reader")
    config.only("qk_norm_type", "per_layer", "norms of queries and keys are over all heads")
    config.only("use_routing_bias", True, "its router has a bias of scores")
    card = with_experts(config, decoder(config, name, "minimax"), config.count("intermediate_size"))
    normed: dict[str, Value] = {"qk_norm": "all"} if config.flag("use_qk_norm", default=True) else {}
    return with_layers(card, [Layer()] * card.layers, {**normed, **turned(config, card), **sigmoid_scores(config)})


def glm4_moe(config: Config, name: str) -> Card:
    """GLM-4.5 and later: sigmoid scores, shared experts, biases of q, k and v, norms of queries and keys in some."""
    normed = "head" if config.flag("use_qk_norm") else "none"
    return with_mtp_layers(config, _first_dense(config, name, "glm4-moe", normed, 0.5, first=1))


def dots1(config: Config, name: str) -> Card:
    """dots.llm1: as GLM-4.5, with norms of queries and keys and whole rotary positions."""
    return _first_dense(config, name, "dots", "head", 1.0, "all")


def solar_open(config: Config, name: str) -> Card:
    """Solar Open: GLM-4.5's experts in every layer, behind Llama's attention."""
    width = config.count("moe_intermediate_size")
    config.uses("intermediate_size")
    card = decoder(config, name, "glm4-moe", floor=True, ffn=width)
    card = with_experts(config, card, width, width * config.count("n_shared_experts", default=1, least=0))
    bias = biases("qkv" if config.flag("attention_bias") else "none", False)
    words = {**bias, **turned(config, card), **sigmoid_scores(config)}
    return with_mtp_layers(config, with_layers(card, [Layer()] * card.layers, words))


def exaone_moe(config: Config, name: str) -> Card:
    """K-EXAONE: EXAONE 4's attention behind a norm, sigmoid scores, the first layers dense."""
    width = config.count("moe_intermediate_size")
    shared = width * config.count("num_shared_experts", default=1, least=0)
    card = with_experts(config, decoder(config, name, "exaone4"), width, shared)
    windowed, sparse = windows(config, card.layers, 4), experts_from(config, card.layers, 1)
    layers = [
        Layer(window=window, rotary=bool(window) or not any(windowed), dense=not each)
        for window, each in zip(windowed, sparse, strict=True)
    ]
    return with_mtp_layers(config, with_layers(card, layers, {"qk_norm": "head", **sigmoid_scores(config, factor=2.5)}))


def _first_dense(
    config: Config, name: str, family: str, normed: str, share: float, bias: str = "qkv", first: int = 0
) -> Card:
    """first: the dense first layers and the shared experts of a config that does not name them."""
    width = config.count("moe_intermediate_size")
    shared = width * config.count("n_shared_experts", default=first, least=0)
    card = with_experts(config, decoder(config, name, family, floor=True), width, shared)
    sparse = experts_from(config, card.layers, first)
    layers = [
        Layer(window=window, dense=not each) for window, each in zip(windows(config, card.layers), sparse, strict=True)
    ]
    words: dict[str, Value] = {"qk_norm": normed} if normed != "none" else {}
    words |= biases(bias if config.flag("attention_bias") else "none", False)
    return with_layers(card, layers, {**words, **turned(config, card, share), **sigmoid_scores(config)})


def granite_moe(config: Config, name: str) -> Card:
    """Granite 3 MoE: its factors, and shared experts in some."""
    shared = config.count("shared_intermediate_size", default=0, least=0)
    card = with_experts(config, granite_card(config, name), config.count("intermediate_size"), shared)
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, [Layer()] * card.layers, {**bias, **granite_scale(config)})


def jet_moe(config: Config, name: str) -> Card:
    """JetMoE: experts make queries and project results of attention back (MoA), and experts in all layers."""
    kv_heads, top_k = config.count("num_key_value_heads"), config.count("num_experts_per_tok")
    config.only("num_attention_heads", kv_heads * top_k, "each expert of a token has a query for each key/value head")
    config.uses("aux_loss_coef")
    changed = config.changed(num_attention_heads=kv_heads * top_k, head_dim=config.count("kv_channels"))
    act = activation(config, "activation_function")
    card = decoder(changed, name, "jetmoe", activation=act, tied_default=True)
    card = with_experts(changed, card, changed.count("intermediate_size"))
    layers = [Layer(mixer="attention_experts")] * card.layers
    return with_layers(card, layers, {"sum_bias": True})


def ernie_moe(config: Config, name: str) -> Card:
    """ERNIE 4.5 MoE: dense first layers, shared experts, a softmax over all experts."""
    if config.inner:  # the text model of one with images
        return _ernie_vl(config, name)
    config.only("moe_gate", "topk", "its router chooses the best")
    config.uses("moe_capacity", "moe_use_aux_free")
    width = config.count("moe_intermediate_size")
    shared = width * config.count("moe_num_shared_experts", default=2, least=0)
    bias = config.flag("use_bias")
    card = decoder(config, name, "ernie-moe", tied_default=True, head_bias=bias)
    card = with_experts(config, card, width, shared)
    first = config.count("moe_layer_start_index", default=1, least=0)
    last = config.count("moe_layer_end_index", default=-1, least=-1)
    last = card.layers - 1 if last == -1 else last
    every = config.count("moe_layer_interval", default=1)
    sparse = [(n + 1) % every == 0 and first <= n <= last for n in range(card.layers)]
    # The bias that corrects the scores is a parameter in the model's own code.
    words: dict[str, Value] = {"scores": "softmax", "router_bias": True, **biases("all" if bias else "none", bias)}
    words |= {"shared_bias": True} if bias and shared else {}
    return with_layers(card, [Layer(dense=not each) for each in sparse], words)


def _ernie_vl(config: Config, name: str) -> Card:
    """The text model of ERNIE 4.5 VL for tokens of text: experts and shared experts, without the experts for images."""
    widths = config.get("moe_intermediate_size", default=[1536, 512])
    if not isinstance(widths, list) or len(widths) != 2 or any(type(each) is not int or each < 1 for each in widths):
        raise UsageError(
            f"moe_intermediate_size {shown(widths)} is not supported: the widths of experts for text and for images"
        )
    config.uses("moe_norm_min")
    bias = config.flag("use_bias")
    shared = widths[0] * config.count("moe_num_shared_experts", default=2, least=0)
    card = with_experts(config, decoder(config, name, "ernie-moe", tied_default=True), widths[0], shared)
    _check_sections(config, card)
    # The bias that corrects the scores is a parameter in the model's own code.
    words: dict[str, Value] = {"scores": "softmax", "router_bias": True, **biases("all" if bias else "none", bias)}
    words |= {"shared_bias": True} if bias and shared else {}
    return with_layers(card, [Layer(dense=not each) for each in experts_from(config, card.layers, 1)], words)


def _check_sections(config: Config, card: Card) -> None:
    """Raise UsageError for parts of rotary positions (`mrope_section`) that tokens of text do not turn as usual."""
    given = rotary(config).get("mrope_section", [22, 22, 20])
    known = isinstance(given, list) and len(given) == 3 and all(type(each) is int and each > 0 for each in given)
    if not known or given[0] != given[1] or 2 * sum(given) != card.head_dim:
        raise UsageError(
            f"mrope_section {shown(given)} is not supported with heads of {card.head_dim}: height and width have as "
            f"many values, and all three together {card.head_dim // 2}"
        )


def flex_olmo(config: Config, name: str) -> Card:
    """FlexOlmo: OLMo 2 with experts."""
    card = with_experts(config, decoder(config, name, "olmo"), config.count("intermediate_size"))
    words: dict[str, Value] = {"residual": "post_norm", "qk_norm": "all", **softmax_scores(config, False)}
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, [Layer()] * card.layers, words | bias)


def hunyuan_moe(config: Config, name: str) -> Card:
    """Hunyuan with experts: a shared one, and norms of queries and keys."""
    config.only("use_cla", False, "keys and values shared across layers are not built")
    config.uses("cla_share_factor", "dense_list", "org_vocab_size", "pool_type")
    config = config.changed(**{key: config.alike(key) for key in ("moe_topk", "num_shared_expert") if key in config})
    width = config.count("intermediate_size")
    if config.alike("moe_intermediate_size", default=width) != width:
        raise UsageError("moe_intermediate_size must be intermediate_size, which is the width of its experts")
    for key, value in (("norm_type", "rms"), ("use_mixed_mlp_moe", True), ("use_rotary_pos_emb", True)):
        config.only(key, value, "Hunyuan has no other")
    config.only("use_qk_norm", True, "Hunyuan has norms of queries and keys")
    config.only("attention_head_dim", config.get("head_dim"), "head_dim has another size")
    shared = width * config.count("num_shared_expert", default=1, least=0)
    card = with_experts(config, decoder(config, name, "hunyuan"), width, shared)
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, [Layer()] * card.layers, {"qk_norm": "head", "rotary_first": True, **bias})


def dbrx(config: Config, name: str) -> Card:
    """DBRX: LayerNorm without a bias, q, k and v from one matmul, experts in all layers."""
    attention, ffn = (_inner(config, key) for key in ("attn_config", "ffn_config"))
    if config.given("d_model") is None and config.given("hidden_size") is not None:
        raise UsageError("hidden_size is not supported: its class takes the width of experts from d_model, write that")
    hidden, heads = config.count("d_model", "hidden_size"), config.count("n_heads", "num_attention_heads")
    words: dict[str, Any] = {"hidden_size": hidden, "num_attention_heads": heads}
    words |= {"intermediate_size": ffn.count("ffn_hidden_size")}
    words |= {"num_hidden_layers": config.count("n_layers", "num_hidden_layers")}
    words |= {"max_position_embeddings": config.count("max_seq_len", "max_position_embeddings", default=2048)}
    words |= {"num_key_value_heads": attention.count("kv_n_heads", default=1)}
    act = ffn.get("ffn_act_fn", default={"name": "silu"})
    words |= {"hidden_act": act.get("name") if isinstance(act, dict) else act}
    words |= {"num_local_experts": ffn.count("moe_num_experts"), "num_experts_per_tok": ffn.count("moe_top_k")}
    changed = config.changed(**words)
    card = decoder(changed, name, "dbrx", norm="layernorm_no_bias")
    card = with_experts(changed, card, ffn.count("ffn_hidden_size"))
    return with_layers(card, [Layer()] * card.layers, {"qkv": "fused"})


def _inner(config: Config, key: str) -> Config:
    """A mapping inside of a config. UsageError if it is none."""
    found = config.need(key)
    if not isinstance(found, dict):
        raise UsageError(f"{key} must be a mapping")
    return Config(found)


READERS = {
    "DbrxForCausalLM": dbrx,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "GptOssForCausalLM": gpt_oss,
    "Llama4ForCausalLM": llama4,
    "OlmoeForCausalLM": olmoe,
    "PhimoeForCausalLM": phimoe,
    "PhiMoEForCausalLM": phimoe,
    "MiniMaxM2ForCausalLM": minimax_m2,
    "MiniMaxM3VLForCausalLM": minimax_m3,
    "Glm4MoeForCausalLM": glm4_moe,
    "Dots1ForCausalLM": dots1,
    "SolarOpenForCausalLM": solar_open,
    "ExaoneMoeForCausalLM": exaone_moe,
    "GraniteMoeForCausalLM": granite_moe,
    "GraniteMoeSharedForCausalLM": granite_moe,
    "Ernie4_5_MoeForCausalLM": ernie_moe,
    "FlexOlmoForCausalLM": flex_olmo,
    "JetMoeForCausalLM": jet_moe,
    "HunYuanMoEV1ForCausalLM": hunyuan_moe,
}
"""The reader of each architecture."""
