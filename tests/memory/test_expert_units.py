"""The peaks of steps of torch in which experts are a unit of their own, to the byte. No store: graphs are copied."""

import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.memory.class_memory import ClassMemory, class_memory
from stagedb.memory.class_program import PlacedWeight, SharePlace
from stagedb.plans import Mesh, Plan
from stagedb.validation.records import card_of, plan_words

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "validation" / "expert_unit_records.json").read_text(encoding="utf-8")
)
SCALARS = 8
"""Bytes that the recording program holds itself: losses of steps and micro-batches before."""


CHECKPOINTED = ("eu3", "eu12", "eu26")


def memory_of(row: dict[str, Any]) -> ClassMemory:
    plan = Plan.from_mapping(plan_words(row["config"]))
    graph = build_graph(card_of(row["config"]), plan.options)
    made = lower(IndexedGraph.of(graph), plan)
    rank, stage = row["config"]["rank"], Mesh.of(plan).coordinates(row["config"]["rank"])["pp"]
    columns = next(each for each in made.workload.classes if stage in each.stages)
    carried = {
        place: tuple(PlacedWeight(*each) for each in weights) for place, weights in made.carried[columns.number].items()
    }
    return class_memory(graph, plan, columns, carried, SharePlace.of_rank(plan, rank))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_peak_is_the_recorded_one(row: dict[str, Any]) -> None:
    found = memory_of(row)
    assert 0 <= row["memory"]["peak"] - sum(found.usage.at(found.peak).values()) <= SCALARS


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["config"]["model"] in CHECKPOINTED], ids=lambda row: row["name"]
)
def test_a_checkpointed_forward_does_not_hold_what_the_matmuls_of_experts_made(row: dict[str, Any]) -> None:
    """The matmuls of experts are no calls that would hold their inputs until what comes after them is sent back."""
    assert sum(dict(memory_of(row).peaks())["forward_peak"].values()) == row["memory"]["peak_by_phase"]["forward"]
