"""Nemotron-H and Nemotron 3 without state-space blocks: attention, each followed by a feed-forward or experts.

A block of a config is half a layer of a card: a norm and one part. State-space blocks are not built, so that the
published models, which have some, are refused.
"""

from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import OF_STATES, Config
from stagedb.models.readers.expert_decoders import sigmoid_scores, with_experts
from stagedb.models.readers.layers import Layer, with_layers
from stagedb.models.readers.parts import activation, decoder

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_LEGACY = {"mamba": "linear_attention", "attention": "full_attention"}


def nemotron_h(config: Config, name: str) -> Card:
    """Nemotron-H and Nemotron 3 whose blocks are attention, feed-forwards and experts: no positions, plain and latent
    experts."""
    after = _pairs(config)
    config.uses("sliding_window", *OF_STATES)
    config.only("attention_bias", False, "its attention has no biases")
    config.only("tie_word_embeddings", False, "its own code does not tie the tables")
    config.only("num_nextn_predict_layers", 0, "layers that predict further tokens of this architecture are not built")
    config.uses("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    experts = "moe" in after
    bias = config.flag("mlp_bias")
    if bias and experts:
        raise UsageError("mlp_bias True is not supported with experts: their shared experts and projections have none")
    plain = {"mlp": "plain", "activation": activation(config, "mlp_hidden_act", default="relu2"), "positions": "none"}
    card = decoder(config.changed(num_hidden_layers=len(after)), name, "nemotron-h", **plain)
    words: dict[str, Value] = {"ffn_bias": "all"} if bias else {}
    keys = ("moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size", "n_shared_experts")
    config.uses(*keys, "n_routed_experts", "num_experts_per_tok", "routed_scaling_factor", "norm_topk_prob")
    if experts:
        card = with_experts(config, card, config.count(keys[0]), config.count(keys[1]))
        words |= {**sigmoid_scores(config), "expert_latent": config.count(keys[2], default=0, least=0)}
    return with_layers(card, [Layer(dense=experts and each == "mlp") for each in after], words)


def _pairs(config: Config) -> list[str]:
    """The block behind each block of attention. UsageError for other orders, and for state-space blocks."""
    types = config.get("layers_block_type", "layer_types")
    letters = config.get("hybrid_override_pattern")
    if types is None and isinstance(letters, str):
        types = [_LETTERS.get(each, each) for each in letters]
    if not isinstance(types, list) or not types or not all(isinstance(each, str) for each in types):
        raise UsageError(f"layers_block_type must be a list of types of blocks, not {shown(types)}")
    types = [_LEGACY.get(each, each) for each in types]
    if "linear_attention" in types:
        raise UsageError(
            "layers_block_type linear_attention is not supported: state-space blocks (Mamba 2) are not built"
        )
    unknown = [each for each in types if each not in _LETTERS.values()]
    if unknown:
        raise UsageError(f"layers_block_type {shown(unknown[0])} is not supported: full_attention, mlp and moe only")
    if config.get("num_hidden_layers", default=len(types)) != len(types):
        raise UsageError(f"num_hidden_layers must be {len(types)}, as many as layers_block_type has")
    after = types[1::2]
    if len(types) % 2 or set(types[::2]) != {"full_attention"} or "full_attention" in after:
        raise UsageError(
            "layers_block_type is not supported: each full_attention is followed by one mlp or moe, which are a layer"
        )
    return after


READERS = {"NemotronHForCausalLM": nemotron_h}
"""The reader of each architecture."""
