"""The roofline: no operator is above a limit of its accelerator, by the pairs that it computes and by all of them."""

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stagedb.lowering import program_of
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.reports.roofline_chart import roofline
from stagedb.reports.step_view import StepView, works
from stagedb.systems import load_system
from stagedb.timing import JobProfile, Scaling, profile_job

WORDS = {"recipe": "megatron", "tp": 2, "dp": 4, "global_batch_size": 8, "seq_len": 8192}


def timed(model: str = "llama3-8b", system: str = "h100", scale: str = "", **words: Any) -> JobProfile:
    plan = Plan.from_mapping({**WORDS, **words})
    card = replace(load_card(model), layers=4)
    made = program_of(card, plan).workload
    return profile_job(made, load_system(system), scalings=[Scaling.parse(scale)] if scale else [])


def heights(page: str, style: str) -> list[float]:
    """Where the dots of a class are above the axis, in percent of the chart."""
    return [100 - float(each) for each in re.findall(rf'<circle class="dot {style}" cx="[^"]+" cy="([0-9.]+)%', page)]


def top(page: str, style: str) -> float:
    """Where the flat part of a limit is."""
    (points,) = re.findall(rf'<polyline class="{style}" points="([^"]+)"', page)
    return 100 - float(points.split(",")[-1]) / 10


@pytest.mark.parametrize("words", [{}, {"seq_len": 131072, "tp": 8, "dp": 1, "sp": True}, {"cp": 2, "dp": 2}])
@pytest.mark.parametrize("system", ["h100", "a100-80gb", "b200"])
def test_no_operator_is_above_a_limit(system: str, words: dict[str, Any]) -> None:
    job = timed(system=system, **words)
    peak = float(job.system.accelerator.peak["bf16"])
    rows = [row for row in works(StepView.of(job)) if row.flops]
    assert any(row.masked > 1.5 for row in rows)
    for row in rows:
        assert row.rate <= peak
        assert row.bytes / row.ns <= float(job.system.accelerator.bandwidth)
        assert row.masked == 1 or row.kind.startswith("attention")
    page = roofline(StepView.of(job))
    assert max(heights(page, "tabled")) < top(page, "roof")
    assert max(heights(page, "ring")) < top(page, "roof pairs")
    assert "above a limit" not in page


def test_all_pairs_of_an_attention_would_be_above_the_peak() -> None:
    """So the report of an H100 had operators at 118 % of it."""
    job = timed()
    rows = [row for row in works(StepView.of(job)) if row.masked > 1]
    assert max(row.rate * row.masked for row in rows) > float(job.system.accelerator.peak["bf16"])
    assert {row.kind for row in rows} == {"attention"}


@pytest.mark.parametrize("seq_len", [64, 512, 1000])
def test_the_pairs_of_a_dot_are_those_below_the_diagonal(seq_len: int) -> None:
    seen = int(np.tri(seq_len, dtype=np.int64).sum())
    for row in works(StepView.of(timed(seq_len=seq_len))):
        if row.kind.startswith("attention"):
            assert Fraction(row.computed, row.flops) == Fraction(seen, seq_len**2)
        else:
            assert row.computed == row.flops


def test_a_window_leaves_the_pairs_of_its_band() -> None:
    job = timed("mistral-7b-window", seq_len=8192)
    found = {(row.flops, row.computed) for row in works(StepView.of(job)) if row.kind == "attention"}
    window = 4096
    band = int((np.tri(8192, dtype=np.int64) - np.tri(8192, k=-window, dtype=np.int64)).sum())
    assert {Fraction(computed, flops) for flops, computed in found} == {Fraction(band, 8192 * window)}


def test_only_durations_of_a_user_are_measured() -> None:
    view = StepView.of(timed())
    legend = roofline(view).partition('<div class="legend">')[2].partition("</div>")[0]
    assert "time from a table of kernels" in legend and "measured" not in legend
    lanes = tuple(
        replace(each, rule=tuple("measured" if rule == "table:attention" else rule for rule in each.rule))
        for each in view.durations.lanes
    )
    given = roofline(replace(view, durations=replace(view.durations, lanes=lanes)))
    legend = given.partition('<div class="legend">')[2].partition("</div>")[0]
    assert "</i>measured<" in legend and "time from a table of kernels" in legend
    without = roofline(StepView.of(timed(system="mi300x")))
    assert "bound by computing" in without and "table" not in without.partition('<div class="legend">')[2][:400]


def test_scaled_times_above_a_limit_are_named() -> None:
    assert " are above a limit, as their times were measured or scaled." in roofline(
        StepView.of(timed(scale="compute:matmul=0.25"))
    )
