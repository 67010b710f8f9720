"""What PyTorch's FullyShardedDataParallel holds more than `fully_shard`: the parameters of two units, freed late."""

import dataclasses
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.memory import Category, memory_of, peak_of
from stagedb.models import Card, load_card
from stagedb.validation.step_rows import KNOWN_FILES, job_of, known_rows
from stagedb.validation.step_times import plan_of
from tests import lowered
from tests.ir.tiny import card

GIB = 2**30

TORCHTITAN: dict[str, Any] = {
    "dp": 8,
    "zero": 3,
    "dtype": "bf16",
    "param_dtype": "fp32",
    "reduce_dtype": "fp32",
    "micro_batch_size": 8,
    "seq_len": 2048,
}
MEASURED = {"full": (24.81, 23.92), "operators": (52.98, 52.13)}
"""Percent of 95.0396 GiB at the peak, with each version, by what is computed again (pytorch/torchtitan#165)."""


def peak(model: Card, **words: Any) -> int:
    return peak_of(memory_of(lowered.program(model, **words)))


def more(model: Card, **words: Any) -> int:
    """Bytes that version 1 holds more at the peak."""
    return peak(model, **words, fsdp_version=1) - peak(model, **words)


@pytest.mark.parametrize("recompute", MEASURED)
def test_two_layers_of_parameters_are_what_was_measured_more(recompute: str) -> None:
    model = load_card("llama2-7b")
    layer = 4 * model.hidden**2 + 3 * model.hidden * model.ffn + 2 * model.hidden
    again = {"recompute": "full" if recompute == "full" else "none"}
    counted = more(dataclasses.replace(model, layers=3), **TORCHTITAN, **again)
    assert counted == 2 * layer * 2
    first, second = MEASURED[recompute]
    # Two units are 7 and 11 % less than what was measured.
    assert 0.88 < counted / ((first - second) / 100 * 95.0396 * GIB) < 0.95


@pytest.mark.parametrize("kept", [{"zero": 2}, {"zero": 3, "reshard": False}])
def test_nothing_is_freed_late_where_parameters_stay_gathered(kept: dict[str, Any]) -> None:
    assert more(card("llama", layers=3), dp=4, seq_len=8, **kept) == 0


@pytest.mark.parametrize("copies", [1, 2])
def test_units_of_different_sizes_count_with_the_two_largest(copies: int) -> None:
    model = dataclasses.replace(card("moe", layers=3), dense_layers=1)
    words: dict[str, Any] = {"dp": 4, "hsdp": copies, "zero": 3, "recipe": "torch", "seq_len": 8}
    (of_class,) = memory_of(lowered.program(model, **words, fsdp_version=1))
    late = [state for state in of_class.usage.held.states if state.name == "units.freed_late"]
    units = dict.fromkeys(range(model.layers), 0)
    for tensor in of_class.usage.held.states:
        if tensor.category is Category.PARAMETERS and tensor.layer is not None:
            units[tensor.layer] += tensor.bytes * 4 // copies
    assert [state.bytes for state in late] == [sum(sorted(units.values())[-2:])]
    assert units[0] < min(units[1], units[2])


FULLEST = ("mpt-30b dp 8 batch 168", "mpt-3b dp 8 mb 3 batch 144", "mpt-1b dp 64 mb 20", "mpt-30b dp 8 mb 3 batch 504")


@pytest.mark.parametrize("title", FULLEST)
def test_published_plans_that_ran_fit(title: str) -> None:
    row = next(row for row in known_rows(KNOWN_FILES) if title in row.title)
    job = job_of(row)
    plan, room = plan_of(job), job.system.accelerator.room
    assert plan.options.fsdp_version == 1 and room is not None
    assert 0.9 * room < peak(job.card, **plan.to_dict()) < room


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"zero": 1}, "zero 1 has no units: --fsdp-version 1 needs --zero 2 or 3"),
        ({"zero": 3, "recipe": "megatron"}, "exists only in PyTorch: --fsdp-version 1 needs --recipe torch"),
        ({"zero": 3, "reshard_to": 2}, "has no --reshard-to 2: it needs --fsdp-version 2"),
        ({"zero": 3, "pp": 2}, "--fsdp-version 1 does not suit pp 2: take --pp 1, or leave --fsdp-version 1 out"),
        ({"zero": 3, "fsdp_version": 3}, "unknown version of FSDP 3: --fsdp-version is 1 or 2"),
    ],
)
def test_what_the_first_version_does_not_have_is_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        lowered.program(card("llama"), **{"dp": 4, "seq_len": 8, "recipe": "torch", "fsdp_version": 1, **words})
    assert reason in str(refused.value)
