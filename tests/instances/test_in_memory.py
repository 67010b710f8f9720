"""An instance that is copied in memory is the one that the store has, column by column."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.api import Stagedb
from stagedb.build.model_graph import build_graph
from stagedb.lowering.copied_rows import IndexedGraph
from stagedb.lowering.program import lower
from stagedb.memory.class_memory import class_memory
from stagedb.memory.class_program import PlacedWeight
from stagedb.plans import Plan
from stagedb.store import Store
from stagedb.store.contents.instance_reading import read_workload
from stagedb.store.contents.memory import analyse
from tests.ir.tiny import card

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "one rank": ("llama", {}),
    "tensor and pipeline": ("llama", {"tp": 2, "sp": True, "pp": 2, "dp": 2, "global_batch_size": 8}),
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
    "a ring": ("llama", {"cp": 4, "dp": 2, "cp_kind": "ring-p2p", "recipe": "megatron", "zero": 1}),
    "a ring of gathers": ("llama", {"cp": 2, "tp": 2, "pp": 2, "cp_kind": "ring-allgather"}),
    "heads in a ring": ("llama", {"cp": 4, "ulysses": 2, "cp_kind": "ulysses-ring"}),
    "experts": ("moe", {"dp": 4, "ep": 2, "pp": 2, "tp": 2, "global_batch_size": 8, "zero": 1, "recipe": "megatron"}),
    "units of experts": (
        "moe",
        {"dp": 4, "ep": 2, "pp": 2, "zero": 3, "expert_unit": True, "recompute": "full", "global_batch_size": 8},
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
    if isinstance(ours, tuple) and any(map(dataclasses.is_dataclass, ours)):
        if len(ours) != len(theirs):
            return [where]
        parts = enumerate(zip(ours, theirs, strict=True))
        return [each for at, (one, other) in parts for each in unequal(one, other, f"{where}[{at}]")]
    return [] if ours == theirs else [where]


@pytest.mark.parametrize("name", PLANS)
def test_a_copy_in_memory_is_the_stored_one(store: Store, name: str) -> None:
    style, given = PLANS[name]
    words: dict[str, Any] = {**given, "seq_len": 8}
    model = card(style, layers=4, tied=words.pop("tied", False))
    stored = Stagedb(store).instantiate(model, **words)
    plan = Plan.from_mapping(stored.plan)
    copied = lower(IndexedGraph.of(build_graph(model, plan.options)), plan)
    assert unequal(copied.workload, read_workload(store, stored.id)) == []
    for columns, theirs in zip(copied.workload.classes, analyse(store, stored.id), strict=True):
        carried = {op: tuple(PlacedWeight(*each) for each in of) for op, of in copied.carried[columns.number].items()}
        ours = class_memory(copied.graph, plan, columns, carried)
        assert ours.usage.held == theirs.usage.held
        assert list(ours.peaks()) == list(theirs.peaks())
