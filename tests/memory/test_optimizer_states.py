"""States of optimizers that are no copy of the weight, compared with those that PyTorch and its libraries made.

`optimizer_states.json` is what `scripts/recording/under_torch/optimizer_states.py` recorded of `torch.optim.Adafactor`,
`bitsandbytes.optim.AdamW8bit` and `torchao.optim.AdamW8bit`.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.lowering import Program
from stagedb.memory import Category, memory_of
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.systems import load_system
from stagedb.timing import profile_job
from tests import lowered
from tests.ir.environments import environment
from tests.ir.tiny import card

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "optimizer_states.json").read_text())
NAMES = [name for name in RECORDED if name != "version"]
PLACES = {"ffn.gate": "ffn.w1", "ffn.up": "ffn.w3", "ffn.down": "ffn.w2"}
"""The names of weights here, by those of the record."""


def llama(**words: Any) -> Card:
    return dataclasses.replace(card("llama", kv_heads=2), hidden=64, head_dim=16, ffn=99, **words)


def made(name: str, model: Card | None = None, /, **words: Any) -> Program:
    return lowered.program(llama() if model is None else model, optimizer=name, **{"seq_len": 8, **words})


def states(name: str, model: Card, tp: int = 1) -> dict[str, dict[str, int]]:
    """Bytes of each state of a rank, by weight and word."""
    options: Any = {"optimizer": name}
    graph = build_graph(model, GraphOptions(**options))
    env, found = environment(graph, 1, tp), dict[str, dict[str, int]]()
    for tensor in graph.tensors:
        if tensor.role == "optimizer_state" and tensor.facts.word != "master":
            found.setdefault(tensor.facts.owner or "", {})[tensor.facts.word or ""] = evaluate(tensor.bytes, env)
    return found


def with_scales(row: dict[str, int]) -> dict[str, int]:
    """A recorded row, with the scales of bitsandbytes next to the bytes that they are of."""
    scales = {"state1": row.get("absmax1", 0), "state2": row.get("absmax2", 0)}
    return {word: size + scales.get(word, 0) for word, size in row.items() if not word.startswith("absmax")}


@pytest.mark.parametrize("name", NAMES)
def test_each_state_has_the_bytes_of_the_library(name: str) -> None:
    mine = states(name, llama())
    for parameter, row in RECORDED[name]["llama"]["states"].items():
        block, _, weight = parameter.partition(".")
        weight = weight.partition(".")[2] if block == "layer" else weight
        place = next((own for theirs, own in PLACES.items() if weight == theirs), weight)
        found = mine[f"{block}.{place}.weight"]
        assert found == with_scales(row), parameter


@pytest.mark.parametrize("name", NAMES)
def test_states_of_experts_are_those_of_tensors_with_three_dimensions(name: str) -> None:
    mine = states(name, dataclasses.replace(card("moe"), hidden=64, expert_ffn=24))
    for theirs, own in (("router", "router"), ("up", "experts.w1"), ("up", "experts.w3"), ("down", "experts.w2")):
        row = with_scales(RECORDED[name]["experts"]["states"][theirs])
        # The columns of a weight here may be the rows there.
        assert sorted(mine[f"layer.ffn.{own}.weight"].values()) == sorted(row.values()), own


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_holds_all_of_them(name: str) -> None:
    row = RECORDED[name]["llama"]
    own = sum(size for each in row["states"].values() for size in each.values())
    steps = 0 if name == "adamw-8bit" else 4 * len(row["states"])  # bitsandbytes counts in Python
    for words in ({}, {"dp": 2}, {"cp": 2, "cp_kind": "allgather-kv"}):
        (found,) = memory_of(made(name, **words))
        assert found.usage.before()[Category.OPTIMIZER] == own + row["shared"] + steps


def test_a_model_without_a_large_weight_has_no_table() -> None:
    model = dataclasses.replace(card("llama"), vocab=64)
    (found,) = memory_of(made("adamw-8bit", model))
    assert found.usage.before()[Category.OPTIMIZER] == 8 * model.count_parameters()


def test_adafactor_computes_and_moves_what_pytorch_did() -> None:
    """The record has 28 bytes a weight more: scalars, which are norms, their values on the host, and steps."""
    row = RECORDED["adafactor"]["llama"]
    program = made("adafactor", dtype="fp32")
    ops = program.workload.class_of(0).ops
    chosen = [at for at, phase in enumerate(ops.phase) if phase == "optimizer"]
    assert len(chosen) == len(row["states"])
    assert sum(int(ops.flops[at]) for at in chosen) == row["flops"]
    assert sum(int(ops.bytes[at]) for at in chosen) == row["read"] + row["written"] - 28 * len(chosen)
    (found,) = memory_of(program)
    assert 0 <= row["held"] - dict(found.peaks())["optimizer_peak"]["temporaries"] <= 16


@pytest.mark.parametrize("tp", [1, 2])
def test_torchao_has_blocks_of_the_part_of_a_rank(tp: int) -> None:
    """4,096 numbers in a part have blocks; fewer are kept as the weight is."""
    for heads, blocks in ((4, tp == 1), (8, True)):
        model = dataclasses.replace(llama(), heads=heads, kv_heads=heads)
        numbers = heads * 16 * 64 // tp
        wanted = numbers + 4 * numbers // 256 + 1024 if blocks else 2 * numbers
        assert set(states("adamw-8bit-ao", model, tp)["layer.attn.wq.weight"].values()) == {wanted}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_timed(name: str) -> None:
    usual, own = (profile_job(made(each).workload, load_system("h100")).merit for each in ("adamw", name))
    assert own.model_flops == usual.model_flops
    assert own.step > 0


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ({"recipe": "megatron"}, "needs --recipe torch, or take --optimizer adamw"),
        ({"zero": 1, "dp": 2}, "shards the optimizer over dp: .* needs --zero 0"),
        ({"master_dtype": "fp32"}, "needs --master-dtype none, not fp32"),
        ({"opt_dtype": "fp32"}, "needs --opt-dtype bf16"),
        ({"workflow": "decode"}, "training"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_what_the_libraries_do_not_have_is_refused(name: str, words: dict[str, Any], way: str) -> None:
    with pytest.raises(UsageError, match=way):
        made(name, **words)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("name", ["adafactor", "adamw-8bit"])
def test_states_of_whole_weights_are_not_sharded(name: str, zero: int) -> None:
    with pytest.raises(
        UsageError, match=r"has states of whole weights, and zero . shards .* over dp: .* needs --zero 0"
    ):
        made(name, zero=zero, dp=2)


@pytest.mark.parametrize("name", ["adafactor", "adamw-8bit"])
@pytest.mark.parametrize(("model", "words"), [("llama", {"tp": 2}), ("moe", {"ep": 2, "dp": 2})])
def test_parts_of_weights_are_refused(name: str, model: str, words: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"knows no DTensor, .* take --optimizer adamw"):
        made(name, card(model), **words)


def test_adafactor_needs_shapes_that_are_known() -> None:
    with pytest.raises(UsageError, match="neither a vector nor of a linear layer or an embedding: take"):
        lowered.program("jamba-v0.1", optimizer="adafactor", seq_len=128)


@pytest.mark.parametrize("name", ["adafactor", "adamw-8bit"])
def test_weights_that_a_strategy_cuts_over_dp_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"partitions layer.ffn.w\d.weight over dp: take .* leave dp out"):
        made(name, card("llama"), dp=2, strategy='{"weights":{"ffn":{"ffn":["dp"]}}}')
