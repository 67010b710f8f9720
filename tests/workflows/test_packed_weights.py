"""Weights that serving stores in 4 bits, against published sizes, closed forms and arrays packed here."""

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stagedb.api.searching import search
from stagedb.api.serving_search import search_serving
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate, number
from stagedb.ir.operators import Array
from stagedb.ir.packed_weights import PACKED
from stagedb.ir.symbolic_graph import Compute
from stagedb.lowering import Program
from stagedb.memory import Category, memory_of
from stagedb.models import load_card
from stagedb.plans import GraphOptions
from stagedb.store import Store, write_graph
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.stored_programs import read_workload
from stagedb.systems import System, load_system
from stagedb.systems.system import FLAT
from stagedb.timing import profile_job
from tests import lowered
from tests.ir.tiny import card
from tests.semantics.test_serving import TOKENS, Serving, agree

WORDS: Mapping[str, Any] = {"workflow": "decode", "cache_len": 1_023}


def served(model: str, **words: Any) -> Program:
    return lowered.program(model, **{**WORDS, **words})


def parameters(model: str, **words: Any) -> list[int]:
    """Bytes of the parameters of a rank of each class."""
    return [dict(each.usage.at(each.peak))[Category.PARAMETERS] for each in memory_of(served(model, **words))]


@pytest.mark.parametrize(
    ("model", "billions", "published"), [("gpt-oss-120b", "116.83", "60.8"), ("gpt-oss-20b", "20.91", "12.8")]
)
def test_gpt_oss_has_the_published_size(model: str, billions: str, published: str) -> None:
    """Table 1 of the model card (arXiv 2508.10925): parameters in all, and the size of the checkpoint in GiB."""
    (found,) = parameters(model, weight_dtype="mxfp4")
    assert f"{load_card(model).parameters / 1e9:.2f}" == billions
    assert f"{found / 2**30:.1f}" == published


def test_only_experts_are_in_blocks_of_mxfp4() -> None:
    """128 experts of 36 layers, each with a gate, an up and a down matrix of 2,880 by 2,880: 17 bytes a block of 32."""
    experts = 36 * 128 * 3 * 2_880 * 2_880
    rest = 2 * (load_card("gpt-oss-120b").parameters - experts)
    assert parameters("gpt-oss-120b", weight_dtype="mxfp4") == [experts // 32 * 17 + rest]
    biases = 2 * 36 * 128 * 3 * 2_880  # in 16 bits
    divided = (experts // 32 * 17 + biases) // 8
    assert set(parameters("gpt-oss-120b", weight_dtype="mxfp4", dp=8, ep=8)) == {divided + rest - biases}


QUANTISED = 80 * (8_192 * (2 * 8_192 + 2 * 1_024) + 3 * 8_192 * 28_672)
"""Numbers of the linear layers of Llama 3 70B: queries, keys, values and outputs, gate, up and down."""


@pytest.mark.parametrize(
    ("word", "of_group", "numbers"),
    [("int4", 64 + 2 + 0.5, 128), ("int4_symmetric", 64 + 2, 128), ("mxfp4", 16 + 1, 32), ("nvfp4", 8 + 1, 16)],
)
def test_a_group_has_its_numbers_a_scale_and_perhaps_a_zero_point(word: str, of_group: float, numbers: int) -> None:
    bytes_ = PACKED[word].bytes(number(1_024), number(0))
    assert evaluate(str(bytes_), {}) == of_group * 1_024 / numbers


def test_awq_of_llama_3_70b_has_the_size_of_its_files() -> None:
    """39.8 GB: all linear layers of layers, and neither norms nor the tables of tokens."""
    (found,) = parameters("llama3-70b", weight_dtype="int4")
    rest = load_card("llama3-70b").parameters - QUANTISED
    assert found == QUANTISED // 128 * 133 // 2 + 2 * rest
    assert f"{found / 1e9:.1f}" == "39.8"
    (symmetric,) = parameters("llama3-70b", weight_dtype="int4_symmetric")
    assert symmetric == QUANTISED // 128 * 66 + 2 * rest
    matrices = 80 * 5  # engines load gate and up as one matrix; queries, keys, values and outputs are four, down is one
    (narrow,) = parameters("llama3-70b", weight_dtype="nvfp4")
    assert narrow == QUANTISED // 16 * 9 + 4 * (matrices + 80) + 2 * rest


def test_ranks_have_equal_parts_of_groups() -> None:
    """Norms are whole on each rank of tp, and all else is divided."""
    norms = 2 * 8_192 * (2 * 80 + 1)
    (whole,) = parameters("llama3-70b", weight_dtype="int4")
    for tp in (2, 8):
        assert parameters("llama3-70b", weight_dtype="int4", tp=tp) == [(whole - norms) // tp + norms]
    assert sum(parameters("llama3-70b", weight_dtype="int4", pp=2)) == whole


def test_each_expert_has_its_own_scale() -> None:
    """Mixtral: an fp32 scale for each matrix of attention, and for each of two matrices of an expert."""
    experts, attention = 32 * 8 * 3 * 4_096 * 14_336, 32 * 4_096 * (2 * 4_096 + 2 * 1_024)
    rest = 2 * (load_card("mixtral-8x7b").parameters - experts - attention)
    scales = 4 * 32 * (4 + 2 * 8)
    assert parameters("mixtral-8x7b", weight_dtype="nvfp4") == [(experts + attention) // 16 * 9 + scales + rest]
    shared = (attention // 16 * 9) + 4 * 32 * 4 + rest
    halves = experts // 16 * 9 // 2 + 4 * 32 * 2 * 4
    assert set(parameters("mixtral-8x7b", weight_dtype="nvfp4", dp=2, ep=2)) == {shared + halves}


def packed(values: Array, group: int, zeros: bool) -> tuple[int, Array]:
    """The bytes of a matrix in 4 bits, and the matrix that a kernel multiplies: two numbers in a byte, a scale in 16
    bits for each group along the inputs, two zero points in a byte.

    values: outputs by inputs.
    """
    rows, inputs = values.shape
    grouped = values.reshape(rows, inputs // group, group)
    low = grouped.min(axis=-1) if zeros else -np.abs(grouped).max(axis=-1)
    high = grouped.max(axis=-1) if zeros else np.abs(grouped).max(axis=-1)
    scales = ((high - low) / 15).astype(np.float16)
    zero = np.rint(-low / scales) if zeros else np.full(low.shape, 7.5)
    codes = np.clip(np.rint(grouped / scales[..., None] + zero[..., None]), 0, 15).astype(np.uint8)
    flat, points = codes.reshape(-1), zero.astype(np.uint8).reshape(-1)
    stored = [flat[::2] | flat[1::2] << 4, scales, *([points[::2] | points[1::2] << 4] if zeros else [])]
    back = np.stack((stored[0] & 15, stored[0] >> 4), axis=-1).reshape(codes.shape)
    made = (back - zero[..., None]) * scales[..., None].astype(np.float64)
    return sum(each.nbytes for each in stored), made.reshape(rows, inputs)


@pytest.mark.parametrize(("word", "zeros"), [("int4", True), ("int4_symmetric", False)])
def test_a_packed_array_has_the_bytes_of_the_graph(word: Any, zeros: bool) -> None:
    graph = build_graph(load_card("llama3-8b"), GraphOptions(workflow="decode", weight_dtype=word))
    env = lowered.plan_of(load_card("llama3-8b"), **WORDS, weight_dtype=word).env(graph.sizes)
    weight = next(each for each in graph.tensors if each.name == "layer.attn.wk.weight")
    values = np.random.default_rng(1).normal(size=(1_024, 4_096))
    size, made = packed(values, 128, zeros)
    assert evaluate(weight.bytes, env) == size
    assert 0 < np.abs(made - values).max() < 0.4, "numbers are within half a step"


@pytest.mark.parametrize(
    ("style", "word", "degrees"),
    [("llama", "int4", {}), ("llama", "nvfp4", {"tp": 2}), ("moe", "mxfp4", {}), ("llama", "int4", {"dp": 2})],
)
def test_products_are_those_of_the_numbers_that_were_stored(style: str, word: Any, degrees: dict[str, Any]) -> None:
    """Numpy has the weights of a plain graph rounded to 15 steps, and that of a packed one has the same results."""
    plain, narrow = (
        build_graph(card(style), GraphOptions(workflow="decode", weight_dtype=each)) for each in ("same", word)
    )
    reference, found = Serving(plain), Serving(narrow, **degrees)
    rounded = {}
    for key, value in reference.weights.items():
        step = np.abs(value).max() / 7
        rounded[key] = np.rint(value / step) * step
    reference.weights = found.weights = rounded
    steps = TOKENS[:3]
    agree(found.run(steps), reference.run(steps))


def test_matmuls_compute_in_the_format_of_activations_and_read_fewer_bytes() -> None:
    plain, narrow = (
        build_graph(load_card("llama3-8b"), GraphOptions(workflow="decode", weight_dtype=each))
        for each in ("same", "int4")
    )
    env = lowered.plan_of(load_card("llama3-8b"), **WORDS).env(plain.sizes)
    others = {op.name: op for op in plain.ops}
    assert [op.name for op in narrow.ops] == list(others), "no cast, no copy"
    saved: dict[str, int] = {}
    for op in narrow.ops:
        ours, theirs = op.work, others[op.name].work
        assert isinstance(ours, Compute) == isinstance(theirs, Compute)
        if isinstance(ours, Compute) and isinstance(theirs, Compute):
            assert (ours.flops, ours.dtype, ours.bytes_written) == (theirs.flops, theirs.dtype, theirs.bytes_written)
            less = evaluate(theirs.bytes_read, env) - evaluate(ours.bytes_read, env)
            saved |= {op.name: less} if less else {}
    read = {op.name for op in narrow.ops if op.facts.packed == "int4"}
    assert (
        read
        == saved.keys()
        == {f"layer.{each}" for each in ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "ffn.w13", "ffn.w2")}
    )
    assert saved["layer.attn.wk"] == 1_024 * 4_096 // 256 * (512 - 133)


@pytest.mark.parametrize(
    ("model", "words", "reason"),
    [
        (
            "gpt-oss-120b",
            {"weight_dtype": "mxfp4", "tp": 8},
            "the nearest is --tp 2, or --ep 8 --no-expert-tp, or --weight",
        ),
        (
            "gpt-oss-20b",
            {"weight_dtype": "int4"},
            "layer.attn.wk has 2,880 inputs, .* groups of 128 .*: take --weight-dtype",
        ),
        ("qwen3-30b-a3b", {"weight_dtype": "int4", "tp": 4}, "ffn.experts.w2 has 192 inputs.*: the nearest is --tp 2"),
        ("llama3-8b", {"weight_dtype": "mxfp4"}, "llama3-8b has no experts.* one of int4, int4_symmetric, nvfp4"),
        (
            "llama3-8b",
            {"weight_dtype": "int4", "matmul_dtype": "fp8"},
            "take --matmul-dtype same, or --weight-dtype same",
        ),
        ("llama3-8b", {"weight_dtype": "int4", "zero": 3}, "needs --zero 0, not 3"),
        (
            "llama3-8b",
            {"weight_dtype": "int4", "dtype": "fp32"},
            "not in fp32: take --dtype bf16, or --weight-dtype same",
        ),
        (
            "llama3-8b",
            {"weight_dtype": "awq"},
            "unknown format of stored weights 'awq'.* int4, int4_symmetric, mxfp4 or",
        ),
    ],
)
def test_what_no_engine_stores_so_is_refused(model: str, words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        served(model, **words)


@pytest.mark.parametrize("workflow", ["training", "forward-only"])
def test_training_has_no_weights_of_4_bits(workflow: str) -> None:
    with pytest.raises(
        UsageError, match=r"after training, for serving.* needs --workflow prefill .* --matmul-dtype fp8"
    ):
        lowered.program("llama3-8b", workflow=workflow, weight_dtype="int4")


def test_a_search_of_training_is_refused_before_it_begins() -> None:
    with pytest.raises(UsageError, match=r"after training, for serving.* needs workflow=.prefill"):
        search("llama3-8b", [8], words={"global_batch_size": 16, "weight_dtype": "int4"})


def test_a_search_of_engines_has_them_in_all() -> None:
    """A rank of an H100 has no room for gpt-oss-120b in 16 bits."""
    found = {
        stored: search_serving("gpt-oss-120b", [1], input_len=64, output_len=8, top=1, words={"weight_dtype": stored})
        for stored in ("same", "mxfp4")
    }
    assert not found["same"].plans.rows and found["mxfp4"].plans.rows


SERVED: list[dict[str, Any]] = [
    {"workflow": "prefill", "seq_len": 512},
    {"workflow": "decode", "cache_len": 511},
    {"workflow": "mixed", "requests": "2x512+0,4x1+512"},
    {"workflow": "speculative", "seq_len": 4, "cache_len": 508},
]


@pytest.mark.parametrize("words", SERVED, ids=lambda words: str(words["workflow"]))
def test_every_step_of_serving_reads_them(words: dict[str, Any]) -> None:
    whole, narrow = (lowered.program("llama3-8b", **words, weight_dtype=each).workload for each in ("same", "int4"))
    read = [int(each.classes[0].ops.bytes.sum()) for each in (whole, narrow)]
    layers = 32 * (4_096 * (2 * 4_096 + 2 * 1_024) + 3 * 4_096 * 14_336)
    assert read[0] - read[1] == layers // 256 * (512 - 133)


def step(system: System, **words: Any) -> int:
    """ns of a step."""
    return profile_job(lowered.workload("llama3-8b", **words), system).step


def test_a_decode_waits_for_fewer_bytes_and_a_prefill_for_as_many_flops() -> None:
    """Without tables an operator is as long as its bytes or its FLOPs are; a decode of one request is long by bytes."""
    chip = load_system("h100")
    chip = replace(chip, tables=(), accelerator=replace(chip.accelerator, launch=Fraction(0), graph_launch=Fraction(0)))
    chip = replace(chip, accelerator=replace(chip.accelerator, memory=FLAT))
    whole, narrow = (step(chip, **WORDS, weight_dtype=each) for each in ("same", "int4"))
    layers = 32 * (4_096 * (2 * 4_096 + 2 * 1_024) + 3 * 4_096 * 14_336)
    less = (layers // 256 * (512 - 133)) / float(chip.accelerator.bandwidth)
    assert whole - narrow == pytest.approx(less, abs=32 * 6)  # each matmul is rounded to a ns
    words = {"workflow": "prefill", "seq_len": 8_192}
    assert step(chip, **words) == step(chip, **words, weight_dtype="int4")


@pytest.mark.parametrize(("system", "most"), [("h100", 3.7), ("b200", 3.7)])
def test_with_tables_a_decode_is_shorter_and_a_long_prefill_is_not(system: str, most: float) -> None:
    chip = load_system(system)
    decode = [step(chip, **WORDS, weight_dtype=each) for each in ("same", "int4")]
    assert 2 * decode[1] < decode[0] < most * decode[1]
    prefill = [step(chip, workflow="prefill", seq_len=8_192, weight_dtype=each) for each in ("same", "int4")]
    assert prefill[0] == prefill[1]


def test_a_store_has_the_same(store: Store) -> None:
    """The facts and bytes of an instance that a store's statements copy are those of the one in memory."""
    words = {**WORDS, "cache_len": 7, "weight_dtype": "mxfp4", "dp": 2, "ep": 2}
    model = replace(card("moe"), hidden=32, head_dim=8, expert_ffn=64)
    made, plan = lowered.program(model, **words), lowered.plan_of(model, **words)
    write_graph(store, made.graph)
    found = read_workload(store, instantiate(store, made.graph.key, plan))
    assert json.loads(made.graph.options)["weight_dtype"] == "mxfp4"
    for ours, theirs in zip(made.workload.classes, found.classes, strict=True):
        assert ours.ops.facts == theirs.ops.facts
        assert ours.ops.bytes.tolist() == theirs.ops.bytes.tolist()
        assert {each.packed for each in theirs.ops.facts} == {None, "mxfp4"}
