"""Configs of Llama-Nemotron, with heads of keys and a width by layer, in the words of the checkpoints."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.models import Card, from_hugging_face
from stagedb.plans import GraphOptions
from tests.semantics.running import check_slopes, example, pipeline
from tests.semantics.test_experts import assert_same


def attention(group: int | None = None, **more: Any) -> dict[str, Any]:
    """The attention of a block with so many heads of queries for each of keys; without it none."""
    without = dict.fromkeys(("num_sink_tokens", "sparsify", "window_length"))
    flags = dict.fromkeys(("replace_with_linear", "unshifted_sink", "use_prefill_window_in_sink_attention"), False)
    return {"n_heads_in_group": group, "no_op": group is None, **without, **flags, **more}


def ffn(times: float | None = None, **more: Any) -> dict[str, Any]:
    """The feed-forward of a block, so many times as wide as two thirds of the hidden size; without it none."""
    return {"ffn_mult": times, "no_op": times is None, "replace_with_linear": False, "sparsify": None, **more}


def block(group: int | None, times: float | None) -> dict[str, Any]:
    return {"attention": attention(group), "ffn": ffn(times)}


CONFIG: Mapping[str, Any] = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "nemotron-nas",
    "attention_bias": False,
    "mlp_bias": False,
    "block_configs": [block(8, 5.25), block(None, 1.3), block(16, None), block(None, None), block(8, 2.625)],
    "hidden_act": "silu",
    "hidden_size": 8192,
    "intermediate_size": None,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_key_value_heads": None,
    "num_hidden_layers": 5,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192},
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def read(**changes: Any) -> Card:
    return from_hugging_face({**CONFIG, **changes}, name="searched")


def with_block(number: int, **parts: Any) -> Card:
    blocks = [dict(each) for each in CONFIG["block_configs"]]
    blocks[number] |= parts
    return read(block_configs=blocks)


def test_each_layer_has_the_heads_and_the_width_of_its_block() -> None:
    card = read()
    # 1.3 times gives 7,099, and the next multiple of 256 is 7,168. The block without both is no layer.
    assert card.sequence == ("kv8_ffn28672", "ffn7168", "kv4", "kv8_ffn14336")
    heads = {kv: 2 * 8192 * 128 * (64 + kv) + 8192 for kv in (4, 8)}
    wide = {width: 3 * 8192 * width + 8192 for width in (28672, 7168, 14336)}
    layers = heads[8] + wide[28672] + wide[7168] + heads[4] + heads[8] + wide[14336]
    assert card.parameters == 2 * 128256 * 8192 + layers + 8192
    biased = read(attention_bias=True, mlp_bias=True).parameters - card.parameters
    assert biased == sum(128 * (64 + 2 * kv) + 8192 for kv in (8, 4, 8)) + sum(
        2 * width + 8192 for width in (28672, 7168, 14336)
    )


def test_newer_words_of_a_block_are_the_same_layer() -> None:
    newer = {"no_op": False, "num_key_value_heads": 8}
    assert with_block(0, attention=newer, ffn={"no_op": False, "intermediate_size": 28672}) == read()


TINY: Mapping[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 32,
    "block_configs": [block(1, 5.0), block(None, 26.0), block(2, None), block(None, None), block(2, 5.0)],
}
MESHES: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp 2, sp, zero 3": ({"sp": True, "zero": 3}, {"tp": 2, "dp": 2}),
    "cp 2": ({"cp_kind": "ulysses"}, {"cp": 2, "dp": 2}),
    "recomputed, megatron": ({"recompute": "full", "recipe": "megatron"}, {"tp": 2}),
}


def tiny(**options: Any) -> Any:
    return build_graph(dataclasses.replace(read(**TINY), vocab_multiple=1), GraphOptions(**options))


def test_gradients_are_the_slopes_of_the_loss() -> None:
    case = example(tiny())
    assert sum(value.size for value in case.weights.values()) == read(**TINY).count_parameters()
    check_slopes(case, case.run().gradients)


@pytest.mark.parametrize("words", MESHES)
def test_partitioned_layers_compute_the_same(words: str) -> None:
    options, degrees = MESHES[words]
    mesh: Any = degrees
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(tiny(**plain))
    some = dataclasses.replace(whole, graph=tiny(**options))
    assert_same(some.run(**mesh), whole.run())


def test_stages_have_layers_of_several_kinds() -> None:
    case = example(tiny(), microbatches=4)
    assert_same(case.run_pipelined(pipeline(case.graph, "1f1b", (1, 3), 4), dp=2), case.run_whole())


BLOCKS: Mapping[str, tuple[int, dict[str, Any], str]] = {
    "linear attention": (0, {"attention": attention(8, replace_with_linear=True)}, "replace_with_linear=True"),
    "a linear layer": (1, {"ffn": ffn(1.3, replace_with_linear=True)}, "ffn of block 1 with replace_with_linear=True"),
    "a window": (0, {"attention": attention(8, window_length=1024)}, "attention of block 0 with window_length=1024"),
    "experts": (0, {"ffn": ffn(1.3, moe={"num_local_experts": 8})}, "ffn of block 0 with moe="),
    "an unknown key": (0, {"ffn": ffn(1.3, made_up=None)}, "ffn of block 0 with made_up"),
    "a group that does not divide": (0, {"attention": attention(7)}, "n_heads_in_group, a divisor of 64"),
    "no group": (0, {"attention": attention(8, n_heads_in_group=None)}, "block 0 must have n_heads_in_group"),
    "no width": (0, {"ffn": ffn(1.3, ffn_mult=None)}, "ffn of block 0 must have ffn_mult"),
    "another activation": (0, {"ffn": ffn(1.3, hidden_act="gelu")}, "feed-forwards with gates and silu only"),
    "no part": (0, {"ffn": None}, "block 0 must have attention and ffn"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_is_not_built_is_refused(name: str) -> None:
    number, parts, error = BLOCKS[name]
    with pytest.raises(UsageError, match=error):
        with_block(number, **parts)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_hidden_layers": 4}, "block_configs of 5 blocks, and there are 4 layers"),
        ({"block_configs": {}}, "block_configs .*, and there are 5 layers"),
        ({"block_configs": [block(None, 1.0)] * 5}, "without any attention"),
        ({"made_up": 2}, "made_up=2 is not supported"),
        ({"hidden_act": "made"}, "hidden_act 'made' is not supported"),
    ],
)
def test_a_file_that_is_not_built_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        read(**changes)
