"""DeepSeek V4: residual streams around attention with shared and compressed keys, and experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config, rotary
from stagedb.models.readers.expert_decoders import with_experts
from stagedb.models.readers.parts import decoder

_TYPES = {
    "sliding_attention": "window",
    "compressed_sparse_attention": "sparse",
    "heavily_compressed_attention": "heavy",
}
"""The kinds of layers by the types of a config."""

_RATIOS = {0: "window", 4: "sparse", 128: "heavy"}
"""The kinds of layers by the ratios of older configs."""


def deepseek_v4(config: Config, name: str) -> Card:
    """DeepSeek V4: streams, shared and compressed keys, scores by roots, experts by a table in the first layers."""
    width = config.count("moe_intermediate_size")
    config.only("num_key_value_heads", 1, "one head has all keys")
    for key in ("attention_bias", "mlp_bias"):
        config.only(key, False, "its projections have no biases")
    config.only("n_shared_experts", 1, "its code has one shared expert")
    config.only("norm_topk_prob", True, "its code divides the scores of a token's experts by their sum")
    # No axis of the graph has heads of keys: each rank of tp has the one.
    config = config.changed(num_key_value_heads=config.count("num_attention_heads"))
    card = with_experts(config, decoder(config, name, "deepseek", ffn=width), width, width)
    kinds, hashed = _kinds(config, card.layers), _hashed(config, card.layers)
    shared: dict[str, Value] = {
        "q_rank": config.count("q_lora_rank"),
        "rope_dim": _rope(config, card.head_dim),
        "window": config.count("sliding_window", default=128),
        "out_groups": config.count("o_groups", default=8),
        "out_rank": config.count("o_lora_rank", default=1024),
        "residual": "hyper_connections",
        "channel_mixer": "experts",
        **_scores(config),
    }
    own: dict[str, dict[str, Value]] = {
        "window": {"mixer": "shared_keys"},
        "heavy": {"mixer": "heavily_compressed", "heavy_ratio": _rate(config, "heavily_compressed_attention", 128)},
        "sparse": {
            "mixer": "compressed_sparse",
            "sparse_ratio": _rate(config, "compressed_sparse_attention", 4),
            "index_heads": config.count("index_n_heads", default=64),
            "index_dim": config.count("index_head_dim", default=128),
            "index_top": config.count("index_topk", default=512),
        },
    }
    depths, kind = config.count("num_nextn_predict_layers", default=1, least=0), _mtp_kind(config, card.layers)
    names = [f"{kind}_hashed" if by_table else kind for kind, by_table in zip(kinds, hashed, strict=True)]
    described: Any = {
        name: {**shared, **own[kind], **({"hashed": True} if by_table else {})}
        for name, kind, by_table in zip(names, kinds, hashed, strict=True)
    }
    if depths:
        described[kind] = {**shared, **own[kind]}
    rounds = config.count("hc_sinkhorn_iters", default=20)
    streams = config.count("hc_mult", default=4)
    return replace(
        card,
        layer_kinds=described,
        pattern=tuple(names),
        hyper_connections=streams,
        hyper_connection_rounds=rounds,
        multi_token_prediction=depths,
        further_kind=kind if depths else "",
    )


def _rope(config: Config, head: int) -> int:
    """The last part of a head, which has positions."""
    share = config.get("partial_rotary_factor", default=rotary(config).get("partial_rotary_factor"))
    if share is None:
        return config.count("qk_rope_head_dim", default=head // 8)
    config.uses("qk_rope_head_dim")
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise UsageError(f"partial_rotary_factor must be above 0 and at most 1, not {shown(share)}")
    return int(head * share)


def _scores(config: Config) -> dict[str, Value]:
    """The words of the router."""
    known = ("sqrtsoftplus", "sigmoid", "softmax")
    scores = config.get("scoring_func", default=known[0])
    if scores not in known:
        raise UsageError(f"scoring_func {shown(scores)} is not supported: {', '.join(known)} only")
    return {"scores": scores, "routing_scale": config.number("routed_scaling_factor", default=1.5)}


def _hashed(config: Config, layers: int) -> list[bool]:
    """Whether a table of tokens chooses the experts of a layer. UsageError for types that are not known."""
    routed, hashed = config.get("mlp_layer_types"), config.count("num_hash_layers", default=3, least=0)
    usual = [*["hash_moe"] * min(hashed, layers), *["moe"] * (layers - hashed)]
    routed = usual if routed is None else routed
    if not isinstance(routed, list) or len(routed) != layers or any(each not in ("moe", "hash_moe") for each in routed):
        raise UsageError(f"mlp_layer_types is not supported: moe or hash_moe for each of {layers} layers only")
    return [each == "hash_moe" for each in routed]


def _mtp_kind(config: Config, layers: int) -> str:
    """The kind of layers for further tokens: that of the ratio behind those of all layers, a window without one."""
    ratios = config.get("compress_ratios")
    behind = ratios[layers:] if isinstance(ratios, list) else []
    kinds = {_RATIOS.get(each) if type(each) is int else None for each in behind} or {"window"}
    if len(kinds) > 1 or None in kinds:
        raise UsageError(
            f"compress_ratios {shown(behind)} behind those of {layers} layers are not supported: one of 0, 4, 128"
        )
    return str(kinds.pop())


def _kinds(config: Config, layers: int) -> list[str]:
    """The kind of each layer. UsageError for types that are not known."""
    types, ratios = config.get("layer_types"), config.get("compress_ratios")
    if types is None and isinstance(ratios, list):
        types = [_RATIOS.get(each) if type(each) is int else None for each in ratios[:layers]]
    elif types is None:
        types = [("heavy", "sparse")[number % 2 if number > 1 else 0] for number in range(layers)]
    elif isinstance(types, list):
        types = [_TYPES.get(each) if isinstance(each, str) else None for each in types]
    if not isinstance(types, list) or len(types) != layers or None in types:
        raise UsageError(
            f"layer_types (or compress_ratios) is not supported: one of {', '.join(_TYPES)} (0, 4, 128) for each of "
            f"{layers} layers only"
        )
    return types


def _rate(config: Config, kind: str, usual: int) -> int:
    """The tokens of a block of a kind of layers."""
    rates = config.get("compress_rates", default={})
    older = "compress_rate_csa" if usual == 4 else "compress_rate_hca"
    named = rates.get(kind, usual) if isinstance(rates, Mapping) else rates
    found = config.get(older, default=named)
    if type(found) is not int or found < 1:
        raise UsageError(f"compress_rates must be whole numbers from 1, not {shown(found)}")
    return found


READERS = {"DeepseekV4ForCausalLM": deepseek_v4}
"""The reader of each architecture."""
