"""The smallest plans of what records showed, and of clipping: their exports pass all rules, and a replay."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import validate
from stagedb.models import Card
from tests import lowered
from tests.memory.test_recorded_causes import GPT, LLAMA, MOE, ROWS

WIDE = {"param_dtype": "fp32", "grad_dtype": "bf16", "reduce_dtype": "fp32", "opt_dtype": "fp32"}
TIED = dataclasses.replace(LLAMA, tied=True)
TWO_HEADS = dataclasses.replace(LLAMA, heads=2, kv_heads=2)

PLANS: dict[str, tuple[Card, dict[str, Any]]] = {
    "a pipeline keeps units gathered, and reduces once a step": (
        LLAMA,
        {"pp": 2, "dp": 2, "zero": 3, "tp": 2, "sp": True, "global_batch_size": 8},
    ),
    "norm gradients cross tp in their own format": (LLAMA, {"tp": 2, "sp": True, "zero": 3, "dp": 2, **WIDE}),
    "a reduced gradient is copied to the parameters' format": (LLAMA, {"dp": 2, "zero": 3, "reduce_dtype": "fp32"}),
    "unsharded gradients are summed in the reduction's format": (
        LLAMA,
        {"dp": 2, "zero": 3, "grad_sync": False, "global_batch_size": 4, **WIDE},
    ),
    "inputs of matmuls alone are gathered on their own": (GPT, {"tp": 2, "sp": True, "shared_input": False}),
    "a query is a view of the packed projection": (GPT, {"cp": 2, "cp_kind": "allgather-kv"}),
    "both gradients of a tied table live before their sum": (TIED, {"dp": 2}),
    "the last layer is gathered before the backward of a tied head": (TIED, {"dp": 2, "zero": 3}),
    "receives are posted before gathers, and ahead of compute": (
        LLAMA,
        {"pp": 2, "dp": 2, "zero": 2, "virtual_stages": 2, "global_batch_size": 8},
    ),
    "the last rank's shard is smaller": (LLAMA, {"dp": 3, "zero": 3}),
    "a ring keeps the result of its call": (
        LLAMA,
        {"cp": 4, "cp_kind": "ring-alltoall", "recompute": "pointwise"},
    ),
    "a ring of one local head makes no copy": (TWO_HEADS, {"tp": 2, "cp": 2, "cp_kind": "ring-alltoall"}),
    "buffers of gathers of root and layer live together": (
        LLAMA,
        {"dp": 4, "hsdp": 2, "cp": 2, "zero": 3, "cp_kind": "ring-alltoall"},
    ),
}
"""By cause, as in `ROWS`."""

CLIPPED: dict[str, tuple[Card, dict[str, Any]]] = {
    "between stages": (LLAMA, {"pp": 2, "dp": 2, "zero": 3, "global_batch_size": 4}),
    "of three stages": (dataclasses.replace(LLAMA, layers=3), {"pp": 3}),
    "of experts": (MOE, {"dp": 4, "ep": 2, "tp": 2, "sp": True, "zero": 3}),
    "of experts on stages": (MOE, {"dp": 2, "ep": 2, "pp": 2, "zero": 2, "global_batch_size": 4}),
}


def assert_runs(out: Path, card: Card, words: dict[str, Any]) -> None:
    report = validate(lowered.export(lowered.workload(card, seq_len=16, **words), out / "traces"))
    assert report.faults == ()
    assert report.replayed


def test_every_cause_has_a_plan() -> None:
    assert PLANS.keys() == ROWS.keys()


@pytest.mark.parametrize("cause", PLANS)
def test_the_plan_of_a_cause_runs(tmp_path: Path, cause: str) -> None:
    assert_runs(tmp_path, *PLANS[cause])


@pytest.mark.parametrize("norms", CLIPPED)
def test_a_clipped_step_runs(tmp_path: Path, norms: str) -> None:
    card, words = CLIPPED[norms]
    assert_runs(tmp_path, card, {**words, "clip_norm": True})
