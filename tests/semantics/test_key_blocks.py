"""Attention that sees blocks of keys which an indexer chooses (MiniMax-M3): choices, gradients, partitioned runs,
counts, serving, and what is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.api.forward_flops import forward_flops
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import RankPlace
from stagedb.ir.operators.key_blocks import KeyBlockAttention, KeyBlockIndex
from stagedb.memory import memory_of
from stagedb.models import Card, from_hugging_face
from stagedb.plans import GraphOptions
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.lowered import program
from tests.semantics.running import check_slopes, example
from tests.semantics.test_experts import assert_same
from tests.semantics.test_serving import TOKENS, Serving, agree, whole
from tests.symbolic_rows import flops

BLOCKS = {"index_block": 2, "index_blocks": 2, "index_local": 1, "block_index_dim": 6}
MODELS: Mapping[str, tuple[dict[str, Any], int]] = {
    "norms of heads": ({**BLOCKS, "qk_norm": "head"}, 2),
    "one head of keys": (BLOCKS, 1),
    "a part of each head": ({**BLOCKS, "index_block": 3, "rotary_dim": 2, "block_index_dim": 2, "bias": "all"}, 4),
    "more blocks than there are": ({**BLOCKS, "index_blocks": 9}, 2),
    "two near blocks": ({**BLOCKS, "index_block": 1, "index_local": 2, "index_blocks": 3}, 2),
}
"""By name: words of layers, and heads of keys."""


def model(name: str, **more: Any) -> Card:
    words, kv_heads = MODELS[name]
    kinds: Any = {"layer": {}, "blocks": words}
    changes: dict[str, Any] = {"kv_heads": kv_heads, "layers": 3, "pattern": ("layer", "blocks", "blocks")}
    return dataclasses.replace(card("llama"), layer_kinds=kinds, **{**changes, **more})


STYLES: Mapping[str, GraphOptions] = {
    "torch": GraphOptions(),
    "written out": GraphOptions(attention="math", kernels="eager"),
    "megatron": GraphOptions(recipe="megatron"),
}


@pytest.mark.parametrize("words", STYLES)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_slopes_of_the_loss(name: str, words: str) -> None:
    """The indexer has none, as in the model's own code."""
    made = model(name)
    case = example(build_graph(made, STYLES[words]))
    assert sum(value.size for value in case.weights.values()) == made.count_parameters()
    gradients = case.run().gradients
    assert {name for name, _ in set(case.weights) - set(gradients)} == {
        f"blocks.attn.index.{part}.weight" for part in ("wq", "wk", "q_norm", "k_norm")
    }
    check_slopes(case, gradients)


MESHES: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "dp": ({}, {"dp": 4}),
    "tp": ({}, {"tp": 4}),
    "tp, sp": ({"sp": True}, {"tp": 4}),
    "cp, tp": ({"cp_kind": "ulysses"}, {"cp": 2, "tp": 2}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "zero 1, the core again": ({"zero": 1, "recompute": "core", "attention": "math"}, {"dp": 4}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 3}, {"tp": 2, "dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("name", ["norms of heads", "a part of each head"])
def test_partitioned_layers_compute_the_same(name: str, words: str) -> None:
    options, degrees = MESHES[words]
    mesh: Any = degrees
    plain = {word: value for word, value in options.items() if word == "recipe"}
    alone = example(build_graph(model(name), GraphOptions(**plain)))
    some = dataclasses.replace(alone, graph=build_graph(model(name), GraphOptions(**options)))
    assert_same(some.run(**mesh), alone.run())


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("name", MODELS)
def test_a_prefill_and_tokens_one_by_one_are_one_forward(name: str, attention: Any) -> None:
    graph = build_graph(model(name, max_positions=64), GraphOptions(workflow="decode", attention=attention))
    agree(Serving(graph).run(TOKENS), whole(graph, TOKENS))
    assert sum(each.name.endswith("attn.index.rotary_k.cache") for each in graph.tensors) == 1  # of the kind's block


def place(queries: int, keys: int) -> RankPlace:
    return RankPlace({"heads": 1}, {}, {"seq": queries, "heads": 1}, before=keys - queries)


def test_a_query_chooses_its_own_block_and_the_best_of_those_before() -> None:
    """Keys 0 to 6 are in blocks of 2, and the products of a query are the keys themselves."""
    keys = np.array([5.0, 0.0, 1.0, 2.0, 9.0, 9.0, -3.0])[None, :, None]
    (chosen,) = KeyBlockIndex(block=2, top=2, local=1).run(place(7, 7), [np.ones((1, 7, 1, 1)), keys])
    assert chosen[0, :, 0].tolist() == [[0, -1], [0, -1], [1, 0], [1, 0], [2, 0], [2, 0], [3, 2]]
    (nearer,) = KeyBlockIndex(block=2, top=2, local=2).run(place(1, 7), [np.ones((1, 1, 1, 1)), keys])
    assert sorted(nearer[0, 0, 0].tolist()) == [2, 3]


def test_other_keys_of_a_query_have_no_effect() -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(1, 6, 1, 4)) for _ in range(3))
    chosen = np.array([[0, -1], [0, -1], [1, 0], [1, 0], [2, 0], [2, 0]])[None, :, None]
    operator = KeyBlockAttention(block=2, top=2)
    usual = operator.run(place(6, 6), [q, k, v, chosen])[0]
    k[:, 2:4], v[:, 2:4] = 7.0, 8.0
    changed = operator.run(place(6, 6), [q, k, v, chosen])[0]
    assert np.array_equal(usual[:, 4:], changed[:, 4:])
    assert not np.array_equal(usual[:, 2:4], changed[:, 2:4])
    assert operator.pairs_seen(6) == 1 + 2 + 3 + 4 + 3 + 4


def test_flops_of_an_indexer_and_of_the_keys_it_chooses() -> None:
    graph = build_graph(model("norms of heads"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    tokens, seq = env["B"] * env["S"], env["S"]
    assert found["blocks.attn.index.wq"] == 2 * tokens * env["H"] * 2 * 6
    assert found["blocks.attn.index.wk"] == 2 * tokens * env["H"] * 6
    assert found["blocks.attn.index"] == 2 * tokens * seq * 2 * 6
    assert found["blocks.attn.core"] == 4 * tokens * env["A"] * 4 * env["D"]  # two blocks of two keys
    assert found["layer.attn.core"] == 4 * tokens * env["A"] * seq * env["D"]
    counted = forward_flops(model("norms of heads"), 8)
    pairs = 8 * 9 // 2
    chosen = sum(at % 2 + 1 + min(1, at // 2) * 2 for at in range(8))
    left_out = 4 * 4 * 4 * (64 - pairs) + 2 * (4 * 4 * 4 * (32 - chosen) + 2 * 2 * 6 * (64 - pairs))
    assert counted.counted - counted.without_masked == left_out


def test_ranks_of_tp_have_the_heads_of_their_keys_and_all_keys_of_the_indexer() -> None:
    lowered = program(dataclasses.replace(model("norms of heads"), vocab_multiple=1), seq_len=8, tp=2, dp=1)
    (held,) = memory_of(lowered)
    parameters = dict(held.ends())["start"]["parameters"]
    made = model("norms of heads")
    layer = 16 * (4 + 2 * 2) * 4 + 16 * 16 + 3 * 16 * 24
    index = 16 * 6 * 2
    whole_ones = 2 * (16 * 6 + 2 * 6 + 2 * 4) + 3 * 2 * 16 + 16
    assert made.count_parameters() == 2 * 512 * 16 + 3 * layer + 2 * index + whole_ones
    assert parameters == 2 * (512 * 16 + (3 * layer + 2 * index) // 2 + whole_ones)


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "half of it": ({"index_block": 2}, "needs index_block, index_blocks, index_local and block_index_dim"),
    "near blocks alone": ({"index_local": 2}, "index_local is for layers with index_block"),
    "more near blocks than all": ({**BLOCKS, "index_local": 3}, "index_local=3 is above index_blocks"),
    "a window": ({**BLOCKS, "mixer": "sliding_window", "window": 4}, "is not built with window"),
    "sinks": ({**BLOCKS, "sinks": True}, "is not built with sinks"),
    "no positions": ({**BLOCKS, "rotary": False}, "is not built with layers without rotary positions"),
    "heads that are too small": ({**BLOCKS, "block_index_dim": 2}, "block_index_dim=2 is below the 4 dimensions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_words_that_do_not_suit_are_refused(name: str) -> None:
    words, why = REFUSED[name]
    kinds: Any = {"layer": words}
    with pytest.raises(UsageError, match=why):
        dataclasses.replace(card("llama"), layer_kinds=kinds)


@pytest.mark.parametrize("kind", ["ring-p2p", "ring-allgather", "allgather-kv"])
def test_kernels_that_do_not_choose_keys_are_refused(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"rings, calls by part and explicit masks do not compute: take .*ulysses"):
        build_graph(model("norms of heads"), GraphOptions(cp_kind=kind))


CHECKPOINT: Mapping[str, Any] = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "model_type": "minimax_m3_vl",
    "text_config": {
        "model_type": "minimax_m3_vl_text",
        "hidden_act": "swigluoai",
        "n_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "moe_layer_freq": [0] * 3 + [1] * 57,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "num_mtp_modules": 0,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": [0] * 3 + [1] * 57,
            "sparse_disable_index_value": [0] * 3 + [1] * 57,
        },
    },
}
"""MiniMax-M3 in the words of its checkpoint."""


def read(**changes: Any) -> Card:
    text = {**CHECKPOINT["text_config"], **changes}
    return from_hugging_face({**CHECKPOINT, "text_config": text}, name="m3")


def test_the_words_of_the_checkpoint_are_read() -> None:
    made = read()
    assert made.sequence == ("dense",) * 3 + ("blocks",) * 57
    words = made.kinds["blocks"].settings
    assert [words[word] for word in (*BLOCKS, "rotary_dim")] == [128, 16, 1, 128, 64]
    assert made.parameters == 426_174_565_632  # of its class in transformers 5.24


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sparse_attention_config": {"sparse_score_type": "mean"}}, "sparse_score_type 'mean' is not supported"),
        ({"sparse_attention_config": {"sparse_init_block": 1}}, "sparse_init_block 1 is not supported"),
        ({"sparse_attention_config": {"made_up": 1}}, "sparse_attention_config with made_up=1"),
        ({"sparse_attention_config": {"sparse_attention_freq": [2] * 60}}, "sparse_attention_freq"),
        ({"sparse_attention_config": 3}, "sparse_attention_config 3 is not supported"),
        ({"num_key_value_heads": 8}, "index_n_heads 4 is not supported: one for each of 8"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"qk_norm_type": "all"}, "qk_norm_type 'all' is not supported"),
        ({"n_shared_experts": 2}, "n_shared_experts 2 is not supported"),
    ],
)
def test_what_a_card_of_minimax_m3_cannot_express_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read(**changes)
