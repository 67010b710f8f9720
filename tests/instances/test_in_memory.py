"""An instance that is copied in memory is the one that the store has, column by column."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.api import Stagedb
from stagedb.api.model_names import find_source
from stagedb.lowering import Program, program_of
from stagedb.lowering.graph_values import OP_COLUMNS, WEIGHT_COLUMNS
from stagedb.memory import memory_of
from stagedb.models import Card, load_card
from stagedb.plans import Plan
from stagedb.store import Store, load
from stagedb.store.contents.stored_programs import read_program
from tests.instances.drawn_plans import drawn_plan
from tests.ir.tiny import card
from tests.plans.checking import plans, title
from tests.sampling import ALL, rows
from tests.semantics.test_shortcut_experts import model as two_halves

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "one rank": ("llama", {}),
    "tensor and pipeline": ("llama", {"tp": 2, "sp": True, "pp": 2, "dp": 2, "global_batch_size": 8}),
    "a loss in parts": (
        "llama",
        {"loss_chunks": 4, "tp": 2, "sp": True, "pp": 2, "dp": 2, "zero": 3, "global_batch_size": 8},
    ),
    "interleaved": (
        "gpt",
        {"pp": 2, "virtual_stages": 2, "dp": 2, "recipe": "megatron", "zero": 1, "global_batch_size": 8},
    ),
    "split backwards": ("llama", {"pp": 4, "schedule": "zb-h1", "tp": 2, "global_batch_size": 6}),
    "up and down": ("llama", {"pp": 2, "virtual_stages": 2, "schedule": "zb-v", "tp": 2, "sp": True, "dp": 2}),
    "a map of chunks": (
        "gpt",
        {"pp": 2, "virtual_stages": 2, "schedule": "breadth-first", "chunk_placement": "0,0,1,1", "recipe": "megatron"},
    ),
    "late weight gradients": (
        "llama",
        {"pp": 2, "virtual_stages": 2, "schedule": "interleaved-zb", "dp": 2, "zero": 3},
    ),
    "sharded": ("llama", {"dp": 4, "zero": 3, "hsdp": 2, "recompute": "full", "recompute_every": 2}),
    "first layers of chunks": (
        "llama",
        {"pp": 2, "virtual_stages": 2, "dp": 2, "zero": 3, "recompute": "full", "recompute_first": 1}
        | {"global_batch_size": 8},
    ),
    "a ring": ("llama", {"cp": 4, "dp": 2, "cp_kind": "ring-p2p", "recipe": "megatron", "zero": 1}),
    "a ring of gathers": ("llama", {"cp": 2, "tp": 2, "pp": 2, "cp_kind": "ring-allgather"}),
    "copies of heads": ("llama", {"cp": 4, "cp_kind": "ulysses"}),
    "heads in a ring": ("llama", {"cp": 4, "ulysses": 2, "cp_kind": "ulysses-ring"}),
    "experts": ("moe", {"dp": 4, "ep": 2, "pp": 2, "tp": 2, "global_batch_size": 8, "zero": 1, "recipe": "megatron"}),
    "owned layers": (
        "llama",
        {"dp": 2, "cp": 2, "pp": 2, "tp": 2, "recipe": "megatron", "optimizer": "dist-muon", "global_batch_size": 4},
    ),
    "owned chunks": (
        "moe",
        {"dp": 4, "ep": 2, "pp": 2, "virtual_stages": 2, "recipe": "megatron", "optimizer": "dist-muon"}
        | {"global_batch_size": 8},
    ),
    "owned experts": (
        "moe",
        {"dp": 4, "ep": 2, "tp": 2, "recipe": "megatron", "optimizer": "dist-muon", "muon_tp": "duplicated"},
    ),
    "units of experts": (
        "moe",
        {"dp": 4, "ep": 2, "pp": 2, "zero": 3, "expert_unit": True, "recompute": "full", "global_batch_size": 8},
    ),
    "first layers with experts": (
        "moe",
        {"dp": 4, "ep": 2, "pp": 2, "tp": 2, "sp": True, "recipe": "megatron", "zero": 1, "global_batch_size": 8}
        | {"recompute": "full", "recompute_first": 1},
    ),
    "first layers in a ring": (
        "llama",
        {"cp": 2, "cp_kind": "ring-p2p", "tp": 2, "pp": 2, "recipe": "megatron", "recompute": "full"}
        | {"recompute_first": 1},
    ),
    "experts of tp": (
        "deepseek",
        {"workflow": "prefill", "micro_batch_size": 4, "tp": 2, "dp": 2, "ep": 4, "expert_tp": False}
        | {"expert_load": (3, 1, 2, 2)},
    ),
    "copied experts": (
        "deepseek",
        {"workflow": "prefill", "micro_batch_size": 4, "tp": 2, "dp": 2, "ep": 2, "pp": 2}
        | {"expert_load": (4, 2, 1, 1), "redundant_experts": 2, "global_batch_size": 16},
    ),
    "shared caches": (
        "llama",
        {"workflow": "prefill", "micro_batch_size": 3, "tp": 2, "cp": 3, "dp": 2, "pp": 2} | {"global_batch_size": 12},
    ),
    "shared caches and experts": (
        "deepseek",
        {"workflow": "prefill", "micro_batch_size": 2, "cp": 2, "dp": 2, "ep": 4} | {"expert_load": (3, 1, 2, 2)},
    ),
    "uneven experts": ("deepseek", {"dp": 4, "ep": 4, "expert_load": (3, 1, 2, 2)}),
    "overlapped experts": (
        "moe",
        {"dp": 4, "ep": 2, "pp": 2, "virtual_stages": 2, "tp": 2, "global_batch_size": 16, "recipe": "megatron"}
        | {"overlap_experts": True},
    ),
    "overlapped experts, split backwards": (
        "deepseek",
        {"dp": 2, "ep": 2, "pp": 2, "virtual_stages": 2, "schedule": "dualpipev", "global_batch_size": 10, "zero": 2}
        | {"overlap_experts": True},
    ),
    "an optimizer on the host": (
        "llama",
        {"dp": 2, "pp": 2, "zero": 1, "recipe": "megatron", "offload": "optimizer", "tied": True},
    ),
    "means of rows and columns": ("moe", {"dp": 2, "pp": 2, "optimizer": "adafactor"}),
    "inputs of layers on the host": (
        "llama",
        {"dp": 2, "pp": 2, "recompute": "full", "recompute_every": 2, "offload": "activations", "global_batch_size": 8},
    ),
    "states in blocks": ("llama", {"tp": 2, "dp": 2, "optimizer": "adamw-8bit-ao"}),
    "repeated key heads": ("llama", {"tp": 4, "dp": 2, "zero": 1}),
    "forward only": ("llama", {"workflow": "forward-only", "pp": 2, "global_batch_size": 4}),
    "tied": ("qwen3", {"pp": 2, "tp": 2, "tied": True}),
}


def unequal(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """The fields of two values that differ."""
    if dataclasses.is_dataclass(ours) and not isinstance(ours, type):
        pairs = [
            (field.name, getattr(ours, field.name), getattr(theirs, field.name)) for field in dataclasses.fields(ours)
        ]
        return [each for name, one, other in pairs for each in unequal(one, other, f"{where}.{name}")]
    if isinstance(ours, np.ndarray):
        return [] if np.array_equal(ours, theirs) else [where]
    if isinstance(ours, Mapping) and ours.keys() == theirs.keys():
        return [each for key, one in ours.items() for each in unequal(one, theirs[key], f"{where}[{key}]")]
    if isinstance(ours, tuple) and any(map(dataclasses.is_dataclass, ours)):
        if len(ours) != len(theirs):
            return [where]
        parts = enumerate(zip(ours, theirs, strict=True))
        return [each for at, (one, other) in parts for each in unequal(one, other, f"{where}[{at}]")]
    return [] if ours == theirs else [where]


def check_equal(store: Store, program: Program, model: Card | str, words: Mapping[str, Any]) -> None:
    """What is lowered in memory is what the store has copied: columns, buckets, graph, and the memory of it."""
    stored = read_program(store, Stagedb(store).instantiate(model, **words).id)
    assert unequal(program, stored) == []
    for ours, theirs in zip(memory_of(program), memory_of(stored), strict=True):
        assert ours.usage.held == theirs.usage.held
        assert list(ours.peaks()) == list(theirs.peaks())


@pytest.mark.parametrize("name", PLANS)
def test_a_copy_in_memory_is_the_stored_one(store: Store, name: str) -> None:
    style, given = PLANS[name]
    words: dict[str, Any] = {**given, "seq_len": 8}
    model = card(style, layers=4, tied=words.pop("tied", False))
    plan = Plan.from_mapping(words)
    check_equal(store, program_of(model, plan), model, words)


@pytest.mark.parametrize("row", rows(plans()[::3]) if not ALL else plans(), ids=title)
def test_a_plan_of_the_table_is_lowered_as_it_is_stored(store: Store, row: dict[str, Any]) -> None:
    words = {word: value for word, value in row.items() if word != "model"}
    plan = find_source(store, row["model"], words).new_plan(words)
    program = program_of(load_card(row["model"]), plan)
    check_equal(store, program, row["model"], words)


@pytest.mark.parametrize("seed", range(200 if ALL else 12))
def test_a_drawn_plan_is_lowered_as_it_is_stored(store: Store, seed: int) -> None:
    drawn = drawn_plan(seed)
    check_equal(store, drawn.program, drawn.model, drawn.words)


def test_a_change_is_found() -> None:
    drawn = drawn_plan(1).program
    first, *others = drawn.workload.classes
    bytes_ = first.ops.bytes.copy()
    bytes_[3] += 1
    changed = dataclasses.replace(first, ops=dataclasses.replace(first.ops, bytes=bytes_))
    workload = dataclasses.replace(drawn.workload, classes=(changed, *others))
    assert unequal(drawn, dataclasses.replace(drawn, workload=workload)) == [".workload.classes[0].ops.bytes"]


def test_statements_return_what_lowering_reads() -> None:
    assert tuple(column.name for column in load("instantiate/ops").columns) == OP_COLUMNS
    assert tuple(column.name for column in load("instantiate/weights").columns) == WEIGHT_COLUMNS


def test_layers_of_two_halves_are_lowered_as_they_are_stored(store: Store) -> None:
    words: dict[str, Any] = {"tp": 2, "sp": True, "pp": 2, "dp": 2, "ep": 2, "zero": 1, "global_batch_size": 8}
    words |= {"seq_len": 8, "expert_load": [3, 1, 2, 2]}
    model = two_halves()
    check_equal(store, program_of(model, Plan.from_mapping(words)), model, words)
