"""What each optimizer holds and computes, by closed forms, and what it cannot be combined with."""

from collections import Counter

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering import Program
from stagedb.memory import memory_of
from stagedb.memory.lifetimes import Category
from stagedb.models import load_card
from stagedb.systems import load_system
from stagedb.systems.cost_model import ORTHOGONALISATION, Work, kernels_of
from stagedb.timing import profile_job
from tests import lowered

LAYERS, HIDDEN, HEADS, GROUPS, HEAD, FFN, VOCAB = 80, 8192, 64, 8, 128, 28672, 128256
"""Llama 3 70B."""

QUERIES, KEYS = HEADS * HEAD, GROUPS * HEAD
MATRICES = HIDDEN * (2 * QUERIES + 2 * KEYS + 3 * FFN)
"""Numbers in the matrices of a layer."""

REST = LAYERS * 2 * HIDDEN + HIDDEN + 2 * VOCAB * HIDDEN
"""Numbers in its norms, the embedding and the head."""


def made(model: str = "llama3-70b", /, **words: object) -> Program:
    return lowered.program(model, **{"seq_len": 128, **words})


def newton_schulz(rows: int, columns: int) -> int:
    """FLOPs of five steps: three matmuls each, of which two have the matrix and one has its square."""
    few = min(rows, columns)
    return 5 * (4 * few * rows * columns + 2 * few**3)


def spent(program: Program, kind: str = "orthogonalisation") -> int:
    """FLOPs of the first rank in the optimizer."""
    ops = program.workload.class_of(0).ops
    return sum(int(flops) for flops, each in zip(ops.flops, ops.kind, strict=True) if each == kind)


@pytest.mark.parametrize(
    ("optimizer", "states", "of_matrices"), [("adamw", 2, 2), ("muon", 2, 1), ("sgd", 0, 0), ("sgd-momentum", 1, 1)]
)
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_each_optimizer_has_its_states(recipe: str, optimizer: str, states: int, of_matrices: int) -> None:
    width, step = (4, 0) if recipe == "megatron" else (2, 4)
    norms = LAYERS * 2 + 1
    own = norms + 2 + (LAYERS * 7 if optimizer == "adamw" else 0)
    steps = step * own if optimizer in ("adamw", "muon") else 0
    held = memory_of(made(recipe=recipe, optimizer=optimizer))[0].usage.before()
    wanted = width * (states * REST + of_matrices * LAYERS * MATRICES) + steps
    assert held.get(Category.OPTIMIZER, 0) == wanted
    assert held.get(Category.MASTER, 0) == (4 * (REST + LAYERS * MATRICES) if recipe == "megatron" else 0)


def test_muon_computes_as_much_as_published() -> None:
    of_layer = [(QUERIES, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, QUERIES), *[(FFN, HIDDEN)] * 2]
    wanted = LAYERS * (sum(newton_schulz(*each) for each in of_layer) + newton_schulz(HIDDEN, FFN))
    assert spent(made(optimizer="muon")) == wanted
    assert wanted == pytest.approx(1.32e16, rel=0.01)  # 0.75 % of the FLOPs of a step of 4M tokens


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_megatron_orthogonalises_each_part_and_splits_queries_keys_and_values(tp: int) -> None:
    """`TensorParallelMuon`: gate and up are one matrix, and the fused projection is three."""
    parts = [(QUERIES // tp, HIDDEN), (KEYS // tp, HIDDEN), (KEYS // tp, HIDDEN), (HIDDEN, QUERIES // tp)]
    parts += [(2 * FFN // tp, HIDDEN), (HIDDEN, FFN // tp)]
    program = made(optimizer="muon", recipe="megatron", tp=tp)
    assert spent(program) == LAYERS * sum(newton_schulz(*each) for each in parts)


@pytest.mark.parametrize(("recipe", "width"), [("torch", 2), ("megatron", 4)])
def test_gathered_matrices_are_whole_on_each_rank(recipe: str, width: int) -> None:
    alone, program = (made(optimizer="muon", recipe=recipe, tp=tp, muon_tp="duplicated") for tp in (1, 4))
    assert spent(alone) == spent(program)
    ops = program.workload.class_of(0).ops
    gathers = Counter[int]()
    for phase, kind, size in zip(ops.phase, ops.kind, ops.result, strict=True):
        if phase == "optimizer" and kind == "all_gather":
            gathers[int(size)] += 1
    assert sum(size * count for size, count in gathers.items()) == LAYERS * MATRICES * width
    assert sum(gathers.values()) == LAYERS * (7 if recipe == "torch" else 4)


def test_each_expert_is_a_matrix_of_its_own() -> None:
    """Qwen3 30B A3B: 128 experts of 2048 x 768, four ranks of them; routers are matrices too."""
    layers, hidden, ffn, experts = 48, 2048, 768, 128
    attention = [(4096, hidden), (512, hidden), (512, hidden), (hidden, 4096), (experts, hidden)]
    of_layer = sum(newton_schulz(*each) for each in attention) + 3 * experts // 4 * newton_schulz(hidden, ffn)
    assert spent(made("qwen3-30b-a3b", optimizer="muon", ep=4, dp=4)) == layers * of_layer


def test_a_matrix_that_matmuls_read_in_fp8_is_one() -> None:
    usual, narrow = (
        made("llama3-8b", recipe="megatron", optimizer="muon", matmul_dtype=word) for word in ("same", "fp8")
    )
    assert spent(usual) == spent(narrow)


def test_the_kernels_of_an_operator_have_its_flops() -> None:
    """Time follows from these, by the tables of matmuls."""
    ops = made(recipe="megatron", optimizer="muon").workload.class_of(0).ops
    rows = [row for row, kind in enumerate(ops.kind) if kind == ORTHOGONALISATION]
    for row in rows[:4]:
        work = Work(ORTHOGONALISATION, ops.dtype[row], int(ops.flops[row]), int(ops.bytes[row]), ops.dims[row])
        kernels = kernels_of(work)
        assert sum(kernel.flops * count for kernel, count in kernels) == work.flops
        assert ops.dtype[row] == "bf16"


def test_the_optimizer_is_no_work_of_the_model() -> None:
    system = load_system("h100")
    adamw, muon = (
        profile_job(made("llama3.2-1b", optimizer=word).workload, system).merit for word in ("adamw", "muon")
    )
    assert adamw.model_flops == muon.model_flops == adamw.hardware_flops
    assert muon.hardware_flops == adamw.model_flops + spent(made("llama3.2-1b", optimizer="muon"))
    assert muon.step > adamw.step


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ({"optimizer": "muon", "zero": 3}, "zero"),
        ({"optimizer": "muon", "tp": 2}, "muon-tp blockwise"),
        ({"optimizer": "muon", "tp": 16, "muon_tp": "duplicated"}, "blockwise"),
        ({"optimizer": "muon", "dp": 2, "strategy": '{"weights":{"ffn":{"ffn":["dp"]}}}'}, "partitions layer.ffn.w"),
        ({"muon_tp": "blockwise"}, "optimizer"),
        ({"optimizer": "muon", "recipe": "megatron", "model": "qwen3.5-27b"}, "recipe torch"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"optimizer": "sgd", "workflow": "decode"}, "training"),
    ],
)
def test_what_has_no_meaning_names_the_way(words: dict[str, object], way: str) -> None:
    with pytest.raises(UsageError, match=way):
        made(str(words.get("model", "llama3-70b")), **{word: value for word, value in words.items() if word != "model"})


@pytest.mark.parametrize(
    "model",
    [
        "gpt2",
        "gpt-oss-20b",
        "deepseek-v3",
        "qwen3-next-80b-a3b",
        "jamba-v0.1",
        "kimi-linear-48b-a3b",
        "minimax-text-01",
    ],
)
def test_all_matrices_of_linear_layers_are_muons(model: str) -> None:
    """What is left to AdamW: the ends of the model, norms, biases, and what scans and convolutions have."""
    card = load_card(model)
    graph = build_graph(card, lowered.plan_of(card, seq_len=128, optimizer="muon").options)
    found = {each.facts.owner for each in graph.tensors if each.facts.word == "momentum_buffer"}
    left = {each.name for each in graph.tensors if each.role == "weight" and len(each.axes) > 1} - found
    ends = ("word.weight", "out.weight", "position.weight", ".bias", "_norm.weight")
    assert {
        name for name in left if not name.endswith((*ends, "conv.weight", ".a_log", ".step_bias", ".skip"))
    } == set()
    assert {each.name for each in graph.tensors if each.name.endswith((".wo.weight", ".w2.weight"))} <= found
