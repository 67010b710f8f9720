"""Recomputing Megatron-Core's modules: which operators each name covers, and which names are refused."""

import dataclasses
from typing import Any

import pytest

from stagedb.api import Memory, Stagedb
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.graphs.recomputation import MODULES
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions
from stagedb.plans.aspects.recompute import RECOMPUTE_MODULES
from stagedb.store import Store


def again(card: Card, *modules: str, **more: Any) -> dict[str, list[str]]:
    """By block, the operators that run again, in their order."""
    options = GraphOptions(recipe="megatron", recompute="modules", recompute_modules=modules, **more)
    found: dict[str, list[str]] = {}
    for op in build_graph(card, options).ops:
        if op.phase == "recompute":
            block, _, name = op.name.partition(".")
            found.setdefault(block, []).append(name.removesuffix(".recompute"))
    return found


DEEPSEEK, QWEN = load_card("deepseek-v3"), load_card("qwen3-30b-a3b")
UP = ["attn.q_a_norm", "attn.wq", "attn.rotary_q", "attn.rotary_k", "attn.kv_a_norm", "attn.wkv_b", "attn.k"]


def test_every_name_that_a_plan_takes_has_its_functions() -> None:
    assert tuple(MODULES) == RECOMPUTE_MODULES


def test_each_name_covers_the_functions_of_its_module() -> None:
    assert again(QWEN, "layernorm") == {"layer": ["ffn_norm", "attn_norm"]}
    assert again(QWEN, "moe_act") == {"layer": ["ffn.experts.gate"]}
    assert again(DEEPSEEK, "mla_up_proj") == {"dense": UP, "layer": UP}
    reduced = "ffn.w2.all_reduce.tp"
    assert again(DEEPSEEK, "mlp") == {"dense": ["ffn_norm", "ffn.w13", "ffn.gate", "ffn.w2", reduced]}
    assert again(DEEPSEEK, "shared_experts") == {
        "layer": [f"ffn.shared.{name}" for name in ("w13", "gate", "w2", "w2.all_reduce.tp")]
    }
    whole = again(DEEPSEEK, "moe")["layer"]
    assert whole[:1] == ["ffn.router"]
    assert whole[-1:] == ["ffn.both"]
    assert {"ffn.dispatch.all_to_all.ep", "ffn.experts.w2", "ffn.shared.w2"} <= set(whole)
    core = again(load_card("llama2-7b"), "core_attn", attention="math")["layer"]
    assert core == ["attn.scores", "attn.weights", "attn.context"]


def test_an_output_is_made_again_right_before_the_backward_that_reads_it() -> None:
    options = GraphOptions(recipe="megatron", recompute="modules", recompute_modules=("layernorm", "moe_act"))
    names = [op.name.removeprefix("layer.") for op in build_graph(QWEN, options).ops if op.block == "layer"]
    for copy, reader in (
        ("ffn.experts.gate.recompute", "ffn.experts.w2.weight_gradient"),
        ("ffn_norm.recompute", "ffn.router.weight_gradient"),
        ("attn_norm.recompute", "attn.wqkv.weight_gradient"),
    ):
        at = names.index(copy)
        # The input gradient of the same matmul comes first, and takes all that its backward has saved.
        assert names[at + 1 : at + 3][-1] == reader or names[at + 1] == reader.replace("weight", "input"), names[at:]


def test_a_function_that_runs_again_as_a_whole_makes_its_norm_once() -> None:
    both = again(DEEPSEEK, "mlp", "layernorm")
    assert both["dense"].count("ffn_norm") == 1
    assert both["layer"] == ["ffn_norm", "attn_norm"]


def test_casts_to_fp8_are_made_again_from_a_discarded_output() -> None:
    found = again(QWEN, "layernorm", "moe_act", matmul_dtype="fp8")["layer"]
    assert found == ["ffn.experts.gate", "ffn.experts.w2.cast_input", "ffn_norm", "attn_norm", "attn.wqkv.cast_input"]


@pytest.mark.parametrize(
    ("card", "words", "reason"),
    [
        ("qwen3-30b-a3b", {"recompute_modules": ("mla_up_proj",)}, "has no latent attention"),
        ("qwen3-30b-a3b", {"recompute_modules": ("mlp",)}, "has no feed-forward without experts"),
        ("qwen3-30b-a3b", {"recompute_modules": ("shared_experts",)}, "has no shared experts"),
        ("llama2-7b", {"recompute_modules": ("moe_act",)}, "takes core_attn, layernorm, mlp for it"),
        ("deepseek-v3", {"recompute_modules": ("moe", "moe_act")}, "leave moe_act out of --recompute-modules"),
        ("gemma-4-26b-a4b-text", {"recompute_modules": ("moe",)}, "a feed-forward and experts side by side"),
        ("llama2-7b", {"recompute_modules": ("norms",)}, "unknown module 'norms': --recompute-modules takes core_attn"),
        ("llama2-7b", {"recompute_modules": ("core_attn",)}, "the fused attention kernel recomputes its core already"),
        ("llama2-7b", {"recompute_modules": ()}, "--recompute modules needs the names: add --recompute-modules"),
        ("llama2-7b", {"recompute": "full", "recompute_modules": ("mlp",)}, "needs --recompute modules"),
        (
            "llama2-7b",
            {"recipe": "torch", "recompute_modules": ("mlp",)},
            "--recompute modules needs --recipe megatron",
        ),
    ],
)
def test_names_without_meaning_are_refused(card: str, words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_graph(load_card(card), GraphOptions(**{"recipe": "megatron", "recompute": "modules", **words}))
    assert reason in str(caught.value)


TOKENS = 4096
DEGREES: dict[str, Any] = {"recipe": "megatron", "dp": 8, "ep": 8, "seq_len": 4096}


def saved_by_a_layer(db: Stagedb, card: Card, *modules: str) -> int:
    """Bytes at the peak that one layer more adds to the activations."""
    words: dict[str, Any] = {"recompute": "modules", "recompute_modules": modules} if modules else {}
    peaks = []
    for layers in (1, 2):
        few = dataclasses.replace(card, layers=layers + card.dense_layers, parameters=0)
        found: Memory = db.memory(db.instantiate(few, **DEGREES, **words).id)
        rows = [row for row in found.levels if (row["class"], row["moment"]) == (0, "peak")]
        peaks.append(sum(int(row["bytes"]) for row in rows if row["category"] == "activations"))
    return peaks[1] - peaks[0]


def test_a_layer_saves_as_much_less_as_its_discarded_outputs_hold(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    kept = saved_by_a_layer(db, QWEN)
    norms = 2 * TOKENS * (QWEN.hidden * 2 + 4)  # each norm's result, and a number in fp32 a token for its backward
    activations = TOKENS * QWEN.top_k * QWEN.expert_ffn * 2
    for modules, less in (
        (("layernorm",), norms),
        (("moe_act",), activations),
        (("layernorm", "moe_act"), norms + activations),
    ):
        assert kept - saved_by_a_layer(db, QWEN, *modules) == less, modules
