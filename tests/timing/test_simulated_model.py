"""The collective model with a simulator's rules next to stagedb's own: where they differ, and by how much."""

import dataclasses
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from stagedb.lowering import program_of
from stagedb.lowering.columns import Workload
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.systems import Accelerator, Collectives, Dimension, Overlap, System
from stagedb.timing import profile_job

CHIP = Accelerator(
    "chip",
    {dtype: Fraction("989.4") for dtype in ("bf16", "fp16", "fp32")},
    Fraction(3350),
    Fraction(1000),
    Fraction(0),
)
TWO = System(
    "two",
    ("-",),
    CHIP,
    (
        Dimension("inside", 4, "switch", Fraction(200), Fraction(300)),
        Dimension("outside", None, "switch", Fraction(25), Fraction(1000)),
    ),
    Overlap("out-of-order", "one"),
)


@cache
def workload(words: tuple[tuple[str, Any], ...]) -> Workload:
    card = dataclasses.replace(load_card("llama3.2-1b"), layers=2, name="two-layers")
    plan = Plan.from_mapping({"seq_len": 1024, **dict(words)})
    return program_of(card, plan).workload


def step(collectives: Collectives, **words: Any) -> int:
    system = dataclasses.replace(TWO, collectives=collectives)
    return profile_job(workload(tuple(sorted(words.items()))), system).step


SIMULATED, STRICT, IN_PARTS = Collectives("astra-sim", 4), Collectives(), Collectives("fastest", 8)


@pytest.mark.parametrize("words", [{"dp": 16, "zero": 3}, {"tp": 4, "pp": 2, "dp": 2}], ids=str)
def test_groups_of_all_ranks_and_groups_in_one_dimension_take_as_long(words: dict[str, Any]) -> None:
    simulated = step(SIMULATED, global_batch_size=16, **words)
    for own in (STRICT, IN_PARTS):
        assert 0.93 < simulated / step(own, global_batch_size=16, **words) < 1.2


@pytest.mark.parametrize("words", [{"tp": 2, "dp": 8}, {"tp": 2, "cp": 2, "dp": 4}], ids=str)
def test_a_group_of_some_ranks_on_several_dimensions_takes_a_quarter_longer_at_most(words: dict[str, Any]) -> None:
    simulated = step(SIMULATED, global_batch_size=8, **words)
    assert 1.05 < simulated / step(STRICT, global_batch_size=8, **words) <= 1.25
    assert simulated / step(IN_PARTS, global_batch_size=8, **words) > simulated / step(
        STRICT, global_batch_size=8, **words
    )


def test_parts_shorten_a_step_whose_collectives_span_dimensions() -> None:
    assert step(IN_PARTS, dp=16, zero=3, global_batch_size=16) < step(STRICT, dp=16, zero=3, global_batch_size=16)
    same = {"tp": 4, "dp": 4, "global_batch_size": 4}
    assert step(IN_PARTS, **same) == step(STRICT, **same)
