"""Weights of a model's own code as weights of a graph: names, and the order of rows in fused and rotary projections.

Each form is linear, so that it holds for weights and for their gradients.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stagedb.ir.operators import Array
from tests.models.differential_names import differential_weights
from tests.models.jetmoe_names import jetmoe_weights
from tests.models.kimi_names import kimi_weights
from tests.models.lightning_names import lightning_weight
from tests.models.longcat_names import SECOND, rows_read, usual_half
from tests.models.recurrence_names import recurrence_weight, usual_name
from tests.models.scan_names import scan_weights
from tests.models.selective_names import selective_weights
from tests.models.short_convolution_names import short_convolution_weights
from tests.models.zamba_names import shared_weights
from tests.semantics.stage import Key

Config = Mapping[str, object]
Shapes = Mapping[Key, tuple[int, ...]]

LAYER = re.compile(r"\.(?:layers|h|blocks)\.(?P<number>\d+)\.(?P<part>.*)")

FURTHER = re.compile(r"\.further\.(?P<depth>\d+)\.(?P<part>.*)")
"""Layers that predict further tokens, as `scripts/record_models` names them."""

ENDS = (
    (r"embed_tokens_per_layer\.", "stack.layer_word"),
    (r"per_layer_model_projection\.", "stack.layer_rows"),
    (r"per_layer_projection_norm\.", "stack.layer_rows_norm"),
    (r"(embed_tokens|embed_in|wte|word_embeddings|embeddings)\.", "embedding.word"),
    (r"(embed_positions|wpe)\.", "embedding.position"),
    (r"word_embeddings_layernorm\.", "embedding.norm"),
    (r"embedding_norm\.", "head.norm"),
    (r"(norm|norm_f|final_norm|final_layernorm|final_layer_norm|ln_f|layer_norm)\.", "head.norm"),
    (r"lm_head\.", "head.out"),
    (r"hc_head\.hc_fn", "head.streams.fn"),
    (r"hc_head\.hc_base", "head.streams.base"),
    (r"hc_head\.hc_scale", "head.streams.scale"),
    (r"project_in\.", "embedding.project_in"),
    (r"project_out\.", "head.project_out"),
)
"""Names outside of layers."""

NORMS = (
    # The first row whose names a layer has decides. A layer with two of these names more has norms after its parts.
    (("post_self_attn_layernorm",), ("input_layernorm", "attn_norm"), ("post_self_attn_layernorm", "attn_post_norm"),
     ("post_attention_layernorm", "ffn_norm"), ("post_mlp_layernorm", "ffn_post_norm")),
    (("pre_mlp_layernorm",), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "attn_post_norm"),
     ("pre_mlp_layernorm", "ffn_norm"), ("post_mlp_layernorm", "ffn_post_norm")),
    (("pre_feedforward_layernorm",), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "attn_post_norm"),
     ("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "ffn_post_norm")),
    (("post_feedforward_layernorm",), ("post_attention_layernorm", "attn_norm"),
     ("post_feedforward_layernorm", "ffn_norm")),
    (("self_attn_layer_norm",), ("self_attn_layer_norm", "attn_norm"), ("final_layer_norm", "ffn_norm")),
    (("pre_ff_layernorm",), ("input_layernorm", "attn_norm"), ("pre_ff_layernorm", "ffn_norm")),
    (("temporal_pre_norm",), ("temporal_pre_norm", "attn_norm"), ("channel_pre_norm", "ffn_norm")),
    (("mixer",), ("norm", "attn_norm")),
    (("operator_norm",), ("operator_norm", "attn_norm"), ("ffn_norm", "ffn_norm")),
    (("feedforward_layernorm",), ("attention_layernorm", "attn_norm"), ("feedforward_layernorm", "ffn_norm")),
    (("ln_2",), ("ln_1", "attn_norm"), ("ln_2", "ffn_norm")),
    (("norm_2",), ("norm_1", "attn_norm"), ("norm_2", "ffn_norm")),
    (("ln_mlp",), ("ln_attn", "attn_norm"), ("ln_mlp", "ffn_norm")),
    (("post_attention_layernorm",), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")),
    ((), ("input_layernorm", "norm"), ("ln_1", "norm")),
)  # fmt: skip

PARTS = (
    *((rf"indexer\.{word}_proj", f"attn.index.w{word}") for word in "qk"),
    *((rf"indexer\.{word}_norm", f"attn.index.{word}_norm") for word in "qk"),
    (r"per_layer_input_gate", "input.gate"),
    (r"per_layer_projection", "input.back"),
    (r"post_per_layer_input_norm", "input.post_norm"),
    *(
        (rf"{part}_hc\.{word}", f"{part}_streams.{word}")
        for part in ("attn", "ffn")
        for word in ("fn", "base", "scale")
    ),
    *(
        (rf"{theirs}\.{word}", f"{ours}.{name}")
        for theirs, ours in (("indexer", "attn.index"), ("compressor", "attn.compressed"))
        for word, name in (("kv_proj", "wkv"), ("gate_proj", "gate"), ("position_bias", "added"), ("kv_norm", "norm"))
    ),
    (r"indexer\.q_b_proj", "attn.index.wq"),
    (r"scorer\.weights_proj", "attn.index.weights"),
    (r"attn\.kv_proj", "attn.wkv"),
    (r"attn\.kv_norm", "attn.kv_norm"),
    (r"attn\.q_a_norm", "attn.q_a_norm"),
    (r"attn\.o_a_proj", "attn.wo_a"),
    (r"attn\.o_b_proj", "attn.wo"),
    (r"attn\.indexer\.wq_b", "attn.index.wq"),
    (r"attn\.indexer\.wk", "attn.index.wk"),
    (r"attn\.indexer\.k_norm", "attn.index.k_norm"),
    (r"attn\.indexer\.weights_proj", "attn.index.weights"),
    (r"attn(\.attention)?\.(q_proj|q_b_proj)", "attn.wq"),
    (r"attn(\.attention)?\.k_proj", "attn.wk"),
    (r"attn(\.attention)?\.v_proj", "attn.wv"),
    (r"attn\.(gate_proj|g_proj)", "attn.wg"),
    (r"attn\.attn_sub_norm", "attn.context_norm"),
    (r"mlp\.ffn_sub_norm", "ffn.inner_norm"),
    (r"mlp\.post_mlp_layernorm", "ffn_post_norm"),
    (r"(attn|attention)\.(o_proj|dense|out_proj|c_proj)", "attn.wo"),
    (r"attn\.(q_norm|query_layernorm|q_layernorm)", "attn.q_norm"),
    (r"attn\.(k_norm|key_layernorm|k_layernorm)", "attn.k_norm"),
    (r"attn\.q_a_proj", "attn.wq_a"),
    (r"attn\.q_a_layernorm", "attn.q_a_norm"),
    (r"attn\.kv_a_proj_with_mqa", "attn.wkv_a"),
    (r"attn\.kv_a_layernorm", "attn.kv_a_norm"),
    (r"attn\.kv_b_proj", "attn.wkv_b"),
    (r"attn\.sinks", "attn.sinks"),
    (r"router\.proj", "ffn.router"),
    (r"router\.scale", "ffn.router.input"),
    (r"router\.per_expert_scale", "ffn.router.expert_scale"),
    (r"post_feedforward_layernorm_1", "ffn.dense_post_norm"),
    (r"pre_feedforward_layernorm_2", "ffn.experts_norm"),
    (r"post_feedforward_layernorm_2", "ffn.experts_post_norm"),
    (r"fc1_latent_proj", "ffn.latent"),
    (r"fc2_latent_proj", "ffn.latent_back"),
    (r"shared_expert_gate", "ffn.shared_gate"),
    (r"shared_(expert|experts|mlp)\.gate_proj", "ffn.shared.w1"),
    (r"shared_(expert|experts|mlp)\.up_proj", "ffn.shared.w3"),
    (r"shared_(expert|experts|mlp)\.(down_proj|output_linear)", "ffn.shared.w2"),
    (
        r"(gate|router)(\.wg|\.layer|\.moe_statics)?\.(weight|bias|e_score_correction_bias)|mlp\.expert_bias",
        "ffn.router",
    ),
    (r"router\.gate\.weight", "ffn.router"),
    (r"(mlp|feed_forward)\.gate_proj", "ffn.w1"),
    (r"(mlp|feed_forward)\.down_proj|fc2|fc_out|dense_4h_to_h|mlp\.c_proj|ffn\.down_proj", "ffn.w2"),
    (r"act_fn\.alpha_p", "ffn.above"),
    (r"act_fn\.alpha_n", "ffn.below"),
    *((rf"feed_forward\.{word}\.", f"ffn.{word}") for word in ("w1", "w2", "w3")),
    (r"fc1|fc_in|dense_h_to_4h|c_fc|ffn\.up_proj", "ffn.w1"),
)
"""Names in layers, apart from norms and fused projections."""

AHEAD = {
    "enorm": "embedding_norm",
    "hnorm": "hidden_norm",
    "norm": "norm",
    "eh_proj": "projection",
    "e_proj": "embedding_projection",
    "h_proj": "hidden_projection",
    "hc_head.hc_fn": "streams.fn",
    "hc_head.hc_base": "streams.base",
    "hc_head.hc_scale": "streams.scale",
}
"""Names in layers that predict further tokens."""

ONE_MORE = (
    *("gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    *("recurrent_gemma", "step3p5", "minimax_m3_vl_text"),
)
"""Models whose norms scale by one more than their weight."""

PAIRS = ("cohere", "cohere2", "glm", "glm4", "gptj", "helium", "llama4_text", "ernie4_5", "ernie4_5_moe",
         "ernie4_5_vl_moe_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "mistral4", "axk1",
         "cohere2_moe", "codegen", "longcat_flash")  # fmt: skip
"""Models that turn pairs of neighbours, and not the halves of a head."""

GROUPED = ("bloom", "gpt_neox", "falcon", "persimmon")
"""Models whose fused projections have the rows of a key's heads together: its queries, the key, the value."""

HALVES = ("nemotron_h",)
"""Models whose layers have one part each: two of them may be a layer of a graph."""

PLAIN = ("nemotron_h",)
"""Models whose experts have one matmul up."""

MIXED_NORMS = ("olmo_hybrid",)
"""Models whose layers have norms before their parts, or after them."""

TRANSPOSED = ("gpt2",)
ONE_HEAD = re.compile(r"attn\.(?P<of>[qk])_layernorm\.norms\.(?P<head>\d+)\.weight")
"""The norm of one head, where each has a module of its own."""

BY_COLUMNS = ("gpt_oss", "llama4_text")
"""Models whose projections, or those of experts, are (inputs, outputs)."""


def weights_of(named: Mapping[str, Array], config: Config, shapes: Shapes, grads: bool) -> dict[Key, Array]:
    """The values of a model's own names, as those of a graph with weights of these shapes.

    grads: they are gradients.
    """
    found: dict[Key, Array] = {}
    inner: Any = config.get("text_config", config)
    config = inner
    blocks = {place: name.split(".")[0] for name, place in shapes}
    if config["model_type"] == "longcat_flash":
        named = {usual_half(name): rows_read(name, value, config) for name, value in named.items()}
    if config["model_type"] in HALVES:
        named = {_with_parts(name, blocks, shapes): value for name, value in named.items()}
    names = {match["part"].split(".")[0] for name in named if (match := LAYER.search(name))}
    norms = _norms(names)
    for name, value in named.items():
        ending = "bias" if name.endswith("bias") else "weight"
        match, further = LAYER.search(name), FURTHER.search(name)
        if config["model_type"] == "zamba2" and match is not None:
            found |= dict(shared_weights(name, value, shapes, config))
        elif further is not None:
            part, own = f"head.further_{int(further['depth']) + 1}", further["part"].removeprefix("layer.")
            if own == further["part"]:
                found[f"{part}.{AHEAD[own.removesuffix('.weight')]}.{ending}", max(blocks)] = value
                continue
            for our, each in _in_layer(own, value, norms, shapes, config, (f"{part}.layer", max(blocks))):
                found[f"{part}.layer.{our}", max(blocks)] = each
        elif match is None:
            short = name.split(".", name.count(".") - 1)[-1]
            ours = next(our for pattern, our in ENDS if re.match(pattern, short))
            if ours == "embedding.position" and config["model_type"] in ("opt", "biogpt"):
                value = np.roll(value, -2, axis=0)  # its first token has the third row
            places = {"head": max(blocks), "stack": 1}
            found[f"{ours}.{ending}", places.get(ours.partition(".")[0], 0)] = value
        else:
            number = int(match["number"])
            stacked = blocks[1] == "stack"
            block, place = (f"stack.layer_{number}", 1) if stacked else (blocks[1 + number], 1 + number)
            if config["model_type"] in MIXED_NORMS:
                beginning = name.removesuffix(match["part"])
                norms = _norms(
                    {its.removeprefix(beginning).split(".")[0] for its in named if its.startswith(beginning)}
                )
            for our, each in _in_layer(match["part"], value, norms, shapes, config, (block, place)):
                key = (f"{block}.{our}", place)
                found[key] = found[key] + each if key in found else each
    more = 0 if grads or config["model_type"] not in ONE_MORE else 1
    return {
        key: _turned(key[0], value.reshape(shapes[key]), config)
        + (more if "norm.weight" in key[0] and "gated_norm" not in key[0] else 0)
        for key, value in found.items()
    }


def _norms(names: set[str]) -> dict[str, str]:
    """The norms of layers that have these modules."""
    return dict(next(row[1:] for row in NORMS if {*row[0]} <= names))


Named = Iterator[tuple[str, Array]]


def _with_parts(name: str, blocks: Mapping[int, str], shapes: Shapes) -> str:
    """A name of a model whose layers have one part each, as that of one whose layers have two."""
    match = LAYER.search(name)
    if match is None:
        return name
    number, first = int(match["number"]), blocks[1]
    if any(f"{first}.{norm}_norm.weight" not in {own for own, _ in shapes} for norm in ("attn", "ffn")):
        second = int((f"{blocks[1 + number]}.ffn_norm.weight", 1 + number) in shapes)
    else:
        number, second = divmod(number, 2)
    norm, part = ("post_attention_layernorm", "mlp") if second else ("input_layernorm", "self_attn")
    own = match["part"]
    own = f"{part}.{own.removeprefix('mixer.')}" if own.startswith("mixer.") else own.replace("norm", norm, 1)
    return f"model.layers.{number}.{own}"


def _in_layer(part: str, value: Array, norms: Mapping[str, str], shapes: Shapes, config: Config, key: Key) -> Named:
    """The weights of a layer that one value of the model's own code has. key: the layer's block and place."""
    if part.startswith(SECOND):
        for ours, each in _in_layer(part.removeprefix(SECOND), value, norms, shapes, config, key):
            yield f"{SECOND}{ours}", each
        return
    if recurrent := recurrence_weight(part):
        yield recurrent, value
        return
    part = usual_name(part)
    biased = part.endswith("bias") and not part.endswith("position_bias")
    head, ending = part.split(".")[0], "bias" if biased else "weight"
    block, place = key
    if lightning := lightning_weight(part, shapes, key):
        yield lightning, value
    elif differential := dict(differential_weights(part, value, shapes, key)):
        yield from differential.items()
    elif jetmoe := dict(jetmoe_weights(part, value, shapes, key)):
        yield from jetmoe.items()
    elif kimi := dict(kimi_weights(part, value, shapes, key)):
        yield from kimi.items()
    elif scan := dict(selective_weights(part, value, shapes, key)) or dict(scan_weights(part, value, shapes, key)):
        yield from scan.items()
    elif short := dict(short_convolution_weights(part, value)):
        yield from short.items()
    elif head in norms:
        yield f"{norms[head]}.{ending}", value
    elif one := ONE_HEAD.search(part):
        own = f"attn.{one['of']}_norm.weight"
        every = np.zeros(shapes[f"{block}.{own}", place])
        every[int(one["head"])] = value
        yield own, every
    elif re.search("qkv_proj|query_key_value|c_attn|Wqkv", part):
        yield from _queries_keys_values(
            value.T if config["model_type"] in TRANSPOSED else value, ending, shapes, config, key
        )
    elif "shared_mlp" in part and (f"{block}.ffn.w13.weight", place) in shapes:
        up = "input_linear" in part
        yield f"ffn.{'w13' if up else 'w2'}.{ending}", np.stack(np.split(value, 2), axis=1) if up else value
    elif "shared_mlp.input_linear" in part:
        yield from zip(("ffn.shared.w1.weight", "ffn.shared.w3.weight"), np.split(value, 2), strict=True)
    elif "shared_experts.up_proj" in part and config["model_type"] in PLAIN:
        yield f"ffn.shared.w1.{ending}", value
    elif "experts." in part and "shared" not in part:
        yield from _experts(part, ending, value, config)
    elif "shared_experts.gate_up_proj" in part:
        yield from zip(("ffn.shared.w1.weight", "ffn.shared.w3.weight"), np.split(value, 2), strict=True)
    elif "gate_up_proj" in part:
        yield f"ffn.w13.{ending}", np.stack(np.split(value, 2), axis=1)
    elif re.search(r"(mlp|feed_forward|ffn)\.up_proj", part) and "shared" not in part:
        gated = (f"{block}.ffn.w3.weight", place) in shapes
        yield f"ffn.{'w3' if gated else 'w1'}.{ending}", value
    else:
        ours = next(our for pattern, our in PARTS if re.search(pattern, part))
        own = ours if ours in ("attn.sinks", "ffn.router.expert_scale") else f"{ours}.{ending}"
        yield own, value.T if config["model_type"] in TRANSPOSED and value.ndim == 2 else value


def _queries_keys_values(value: Array, ending: str, shapes: Shapes, config: Config, key: Key) -> Named:
    """Fused rows: by groups of a key's heads, or all queries, all keys, all values."""
    block, place = key
    fused = shapes.get((f"{block}.attn.wqkv.{ending}", place))
    if fused is None:
        parts = [(name, shapes[f"{block}.attn.{name}.{ending}", place]) for name in ("wq", "wk", "wv")]
        groups, size = parts[1][1][0], parts[0][1][1]
        each = parts[0][1][0] // groups
    else:
        groups, each, size = fused[0], fused[1] - 2, fused[2]
    rest = value.shape[1:]
    if config["model_type"] in GROUPED:
        grouped = value.reshape(groups, each + 2, size, *rest)
    elif config["model_type"] == "codegen":
        # Four parts, each with queries, values and keys of a quarter of the heads.
        quarters = value.reshape(4, 3, groups // 4, size, *rest)[:, [0, 2, 1]]
        grouped = np.moveaxis(quarters, 1, 2).reshape(groups, 3, size, *rest)
        grouped[:, :2] = _halves(grouped[:, :2], 2, config)
    else:
        ends = (groups * each * size, groups * (each + 1) * size)
        q, k, v = np.split(value, ends)
        one = (groups, 1, size, *rest)
        grouped = np.concatenate([q.reshape(groups, each, size, *rest), k.reshape(one), v.reshape(one)], axis=1)
    if fused is not None:
        yield f"attn.wqkv.{ending}", grouped
        return
    yield f"attn.wq.{ending}", grouped[:, :-2]
    yield f"attn.wk.{ending}", grouped[:, -2]
    yield f"attn.wv.{ending}", grouped[:, -1]


def _experts(part: str, ending: str, value: Array, config: Config) -> Named:
    """Weights of all experts: gate and up together, by rows, by columns, or column by column."""
    columns = config["model_type"] in BY_COLUMNS
    turned = value if columns or ending == "bias" else value.swapaxes(1, 2)
    if "down_proj" in part:
        yield f"ffn.experts.w2.{ending}", turned
        return
    if config["model_type"] in PLAIN:
        yield f"ffn.experts.w1.{ending}", turned
        return
    in_turn = config["model_type"] == "gpt_oss"
    gate, up = (turned[..., ::2], turned[..., 1::2]) if in_turn else np.split(turned, 2, axis=-1)
    yield f"ffn.experts.w1.{ending}", gate
    yield f"ffn.experts.w3.{ending}", up


LAST_TURNED = {r"attn\.wq\.|attn\.wkv\.|index\.wq\.|added\.": 1, r"norm\.|\.wkv\.|\.gate\.": 0, r"wo_a\.": 3}
"""Weights of shared keys, each with its axis of heads: of the first of these that its name has."""


def _last_turned(name: str, value: Array, config: Mapping[str, Any]) -> Array:
    """The weights of DeepSeek V4, whose pairs of neighbours at the end of each head are turned together."""
    size = config["index_head_dim"] if ".index." in name else config["head_dim"]
    turned = int(config["head_dim"] * config["partial_rotary_factor"])
    axis = next((axis for pattern, axis in LAST_TURNED.items() if re.search(pattern, name)), None)
    if axis is None or "q_a_norm" in name or "index.weights" in name:
        return value
    start = size - turned
    order = np.concatenate([np.arange(start), start + np.arange(0, turned, 2), start + np.arange(1, turned, 2)])
    heads = np.arange(value.shape[axis] // size)[:, None] * size
    return np.asarray(value.take((heads + order).reshape(-1), axis=axis))


def _turned(name: str, value: Array, config: Config) -> Array:
    """Pairs of neighbours that are turned together, as the two halves that the graph turns."""
    if config["model_type"] == "nanochat" and re.search(r"attn\.(wq|wk)\.", name):
        return np.roll(value, value.shape[1] // 2, axis=1)  # it turns the other way round
    if config["model_type"] == "deepseek_v4" and ".attn." in name:
        return _last_turned(name, value, config)
    if config["model_type"] not in PAIRS or not re.search(r"attn\.(wq|wk|wkv_a)\.", name):
        return value
    return _halves(value, 0 if "wkv_a" in name else 1, config)


def _halves(value: Array, axis: int, config: Config) -> Array:
    """Pairs of neighbours along an axis of heads, as halves."""
    last = "qk_rope_head_dim" in config
    size = value.shape[axis]
    turned = _turned_size(config, size)
    start = size - turned if last else 0
    order = np.arange(size)
    order[start : start + turned] = start + np.concatenate([np.arange(0, turned, 2), np.arange(1, turned, 2)])
    return value.take(order, axis=axis)


def _turned_size(config: Config, size: int) -> int:
    given = config.get("qk_rope_head_dim") or config.get("rotary_dim")
    share = config.get("partial_rotary_factor", 1.0)
    return int(str(given)) if given else int(size * float(str(share)))
