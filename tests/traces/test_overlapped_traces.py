"""Traces of forwards and backwards that run together: every rule of `validate`, the replay, and what follows."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, unpack, validate
from stagedb.store import Store
from tests import lowered
from tests.ir.tiny import card
from tests.traces.written import pack_workload, traces_of

MEGATRON: dict[str, Any] = {"recipe": "megatron", "dp": 4, "ep": 2, "zero": 1}
CHUNKS: dict[str, Any] = {"virtual_stages": 2}
UP_AND_DOWN: dict[str, Any] = {"pp": 2, "virtual_stages": 2, "schedule": "dualpipev"}

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "one stage": ("moe", {**MEGATRON, "ep": 4, "global_batch_size": 12}),
    "one stage, zero 0, full": ("deepseek", {"dp": 4, "ep": 2, "recompute": "full", "global_batch_size": 8}),
    "two stages, tp": ("moe", {**MEGATRON, **CHUNKS, "pp": 2, "tp": 2, "sp": True, "global_batch_size": 16}),
    "two stages, zero 2": ("moe", {"dp": 4, "ep": 2, "zero": 2, **CHUNKS, "pp": 2, "global_batch_size": 16}),
    "four stages": ("deepseek", {**MEGATRON, **CHUNKS, "ep": 4, "pp": 4, "global_batch_size": 32}),
    "four stages, pointwise": (
        "moe",
        {"dp": 2, "ep": 2, **CHUNKS, "pp": 4, "recompute": "pointwise", "global_batch_size": 16},
    ),
    "dualpipev": ("deepseek", {"dp": 4, "ep": 2, "zero": 2, **UP_AND_DOWN, "global_batch_size": 24}),
    "dualpipev, zero 3, tp": ("moe", {"dp": 2, "ep": 2, "tp": 2, "sp": True, "zero": 3, **UP_AND_DOWN}),
    "dualpipev, recompute": ("moe", {**MEGATRON, "recompute": "full", **UP_AND_DOWN, "global_batch_size": 16}),
    "uneven experts": ("moe", {"dp": 4, "ep": 4, "expert_load": (3, 1, 2, 2), "global_batch_size": 12}),
    "experts over tp": (
        "moe",
        {"recipe": "megatron", "dp": 2, "tp": 2, "sp": True, "expert_tp": False, "ep": 4, "global_batch_size": 6},
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_traces_run_to_their_end(tmp_path: Path, name: str) -> None:
    style, given = PLANS[name]
    words = {"global_batch_size": 10, **given, "overlap_experts": True, "seq_len": 512}
    model = dataclasses.replace(card(style, layers=8), max_positions=512)
    made = lowered.workload(model, **words)
    for granularity in ("op", "block"):
        report = validate(lowered.export(made, tmp_path / granularity, granularity=granularity))
        assert report.replayed
        assert report.faults == ()
    pack_workload(made, tmp_path / "packed")
    unpack(tmp_path / "packed", out=tmp_path / "unpacked")
    assert traces_of(tmp_path / "unpacked") == traces_of(tmp_path / "op")


def test_all_that_follows_from_an_instance_has_its_pairs(embedded_store: Store, tmp_path: Path) -> None:
    """Another plan's id, a sound copy of the store, a profile with its report, and a trace for Perfetto."""
    db = Stagedb(embedded_store)
    model, words = card("moe", layers=8), {**MEGATRON, **CHUNKS, "pp": 2, "global_batch_size": 16, "seq_len": 8}
    plain = db.instantiate(model, **words)
    made = db.instantiate(model, **words, overlap_experts=True)
    assert made.id != plain.id
    assert made.graph == plain.graph
    profile = db.profile(made.id, system="h100")
    assert profile.job.step > 0
    db.memory(made.id)
    assert "<svg" in db.report_page(profile.info.id)
    assert db.timeline(profile=profile.info.id, out=tmp_path / "step.pftrace").slices > 0
    assert "forward" in str(db.chart(profile=profile.info.id))
    db.dump(tmp_path / "store.dump")
    db.rm(made.id, force=True)
    db.load(tmp_path / "store.dump")
    assert db.check() == ()
    assert db.instantiate(model, **words, overlap_experts=True).id == made.id
