"""Published step times are predicted within their bounds, and not without the settings behind them."""

import dataclasses
from functools import lru_cache

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.lowering.columns import Workload
from stagedb.plans import Plan
from stagedb.store import Store
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.validation import PublishedStep, StepTime, check_steps, errors, published_steps
from stagedb.validation.rank_counts import lowered, stored

QUICK = ("megatron-22b", "megatron-7.5b", "megatron-39.1b")

LARGE = ("megatron-310.1b", "megatron-530b", "megatron-1t", "llama3.1-405b")
"""Models of whose steps each takes seconds to minutes."""


def rows(model: str) -> list[PublishedStep]:
    return [row for row in published_steps() if row.card.name == model]


def test_steps_are_within_their_bounds() -> None:
    chosen = [row for row in published_steps() if row.card.name in QUICK]
    done: list[tuple[int, int]] = []
    found = list(check_steps(chosen, progress=lambda *progress: done.append(progress)))
    assert [each.published.title for each in found if not each.agrees] == []
    assert done == [(number, len(chosen)) for number in range(len(chosen) + 1)]
    by_set = {(each.source[6:16], each.calibrated): each for each in errors(found)}
    assert by_set["2205.05198", True].worst <= 0.02
    assert by_set["2104.04473", False].mean <= 0.03


def titled(row: PublishedStep) -> str:
    return f"{row.source[6:16]} {row.title}"


@pytest.mark.parametrize("row", [row for row in published_steps() if row.card.name not in LARGE], ids=titled)
def test_a_step_is_within_its_bound(row: PublishedStep) -> None:
    (found,) = check_steps([row])
    assert found.agrees


@pytest.mark.parametrize("row", [row for row in published_steps() if row.card.name in LARGE], ids=titled)
def test_a_large_step_is_within_its_bound(row: PublishedStep) -> None:
    (found,) = check_steps([row])
    assert found.agrees


def test_a_step_of_a_store_is_within_its_bound(store: Store) -> None:
    db = Stagedb(store)
    row = rows("megatron-22b")[0]
    with stored(db) as program_of:
        assert list(check_steps([row], program_of)) == list(check_steps([row]))
    assert db.graphs() == []


@lru_cache(maxsize=2)
def pipelined(**words: bool) -> Workload:
    row = rows("megatron-76.1b")[0]
    return lowered(row.card, {**row.words, **words}).workload


def test_a_step_is_not_predicted_without_its_bubble_or_what_blocks() -> None:
    row = rows("megatron-76.1b")[0]
    system, made = load_system(row.system), pipelined()
    found = profile_job(made, system, blocking=row.blocking)
    assert StepTime(row, found.step / 1e9).agrees
    # Less what the stages wait for each other it is too short.
    waits = min(lane.bubble for lane in found.times.lanes)
    assert not StepTime(row, (found.step - waits) / 1e9).agrees
    # The same holds for collectives and messages in parallel with compute.
    assert not StepTime(row, profile_job(made, system).step / 1e9).agrees
    # Messages that every rank of tp sends whole take longer.
    whole = pipelined(scatter_gather=False)
    assert profile_job(whole, system, blocking=row.blocking).step > found.step


def test_messages_are_scattered_where_ranks_of_tp_hold_the_same() -> None:
    for row in published_steps():
        scattered = row.words.get("scatter_gather", False)
        several = row.words["tp"] > 1 and row.words.get("pp", 1) > 1
        assert scattered is (row.words["recipe"] == "megatron" and several and not row.words.get("sp", False))


def test_published_rows_are_what_the_papers_print() -> None:
    found = published_steps()
    assert len(found) == 8 + 10 + 3
    assert sum(row.calibrated for row in found) == 7
    assert {row.system for row in found} == {"a100-80gb", "h100"}
    worlds = [Plan.from_mapping(row.words).world for row in found]
    assert worlds[:8] == [8, 8, 64, 64, 280, 280, 512, 512]
    assert worlds[8:18] == [32, 64, 128, 256, 512, 1024, 1536, 1920, 2520, 3072]
    assert worlds[18:] == [8192, 16384, 16384]
    # 16 million tokens a step.
    assert all(row.words["global_batch_size"] * row.words["seq_len"] == 1 << 24 for row in found[18:])
    assert [round(row.seconds, 2) for row in found[8:10]] == [3.53, 3.70]


def test_errors_are_signed_and_absolute_in_the_mean() -> None:
    one, other = rows("megatron-22b")
    low, high = StepTime(one, one.seconds * 0.98), StepTime(other, other.seconds * 1.05)
    assert low.error == pytest.approx(-0.02)
    assert low.agrees
    assert not high.agrees
    (found,) = errors([low, high])
    assert found.rows == 2
    assert found.mean == pytest.approx(0.035)
    assert found.worst == pytest.approx(0.05)


def test_a_title_has_what_distinguishes_a_plan() -> None:
    assert [row.title for row in rows("megatron-22b")] == [
        "megatron-22b tp 8 micro-batch 4 batch 4 recompute full",
        "megatron-22b tp 8 micro-batch 4 batch 4 sp recompute core",
    ]


def test_a_system_too_small_for_a_row_is_refused() -> None:
    row = rows("megatron-76.1b")[0]
    system = load_system(row.system)
    node = dataclasses.replace(system, dimensions=system.dimensions[:1])
    with pytest.raises(UsageError, match="places"):
        profile_job(pipelined(), node, blocking=row.blocking)
