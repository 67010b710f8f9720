"""Iterations of engines that serve: found in annotations, kept, and next to plans of their requests."""

from pathlib import Path

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.runs.joined_ops import engine_iterations, step_numbers
from stagedb.runs.rank_trace import Annotation
from stagedb.store import Store

SERVED = Path(__file__).parent / "served"
SGLANG, VLLM = SERVED / "sglang-qwen3-8b-decode.json.gz", SERVED / "vllm-gpt-oss-20b-decode.json.gz"
DECODE = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)"


def annotation(name: str, start: int, end: int, thread: int = 0) -> Annotation:
    return Annotation(name, start, end, thread)


def test_iterations_are_the_outer_annotations_with_sums() -> None:
    found = engine_iterations(
        [
            annotation("forward", 0, 90),
            annotation("step[DECODE bs=32]", 10, 20),
            annotation(DECODE, 11, 19),
            annotation(DECODE, 11, 19, thread=1),
            annotation("execute_2_context_1(sq2sk9sqsq4sqsk18)_generation_0(sq0sk0sqsq0sqsk0)", 30, 40),
        ]
    )
    assert [(each.number, each.place, each.workflow) for each in found] == [(0, 2, "decode"), (1, 4, "prefill")]
    (alone,) = engine_iterations([annotation("step[DECODE bs=32]", 10, 20)])
    assert (alone.batch, alone.workflow) == (None, None)
    assert engine_iterations([annotation("prefill", 0, 1), annotation("decode step", 2, 3)]) == ()


@pytest.mark.parametrize(
    ("name", "workflow"),
    [
        ("execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq8sk99sqsq32sqsk396)", "speculative"),
        ("execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq8sk99sqsq34sqsk396)", None),
        ("execute_1_context_1(sq6sk6sqsq36sqsk36)_generation_2(sq8sk99sqsq32sqsk396)", None),
        ("execute_1_context_1(sq6sk6sqsq36sqsk36)_generation_2(sq2sk99sqsq2sqsk99)", "mixed"),
    ],
)
def test_drafts_are_checked_in_steps_of_their_own(name: str, workflow: str | None) -> None:
    (found,) = engine_iterations([annotation(name, 0, 9)])
    assert found.batch is not None and found.workflow == workflow


def test_steps_of_the_profiler_count_before_those_of_an_engine() -> None:
    steps = [annotation("ProfilerStep#7", 0, 50), annotation(DECODE, 1, 9), annotation("ProfilerStep#8", 50, 90)]
    assert step_numbers(steps) == {0: 7, 2: 8}
    assert step_numbers(steps[1:2]) == {0: 0}


def test_a_run_keeps_its_iterations_and_their_requests(store: Store) -> None:
    db = Stagedb(store)
    run = db.import_run(SGLANG, name="sglang")
    rows = store.query(
        "MATCH (:Run {name: 'sglang'})-[:HAS_RANK]->(r:RunRank)-[:HAS_ITERATION]->(i:RunIteration) "
        "RETURN r.rank, i.number, i.workflow, i.requests, i.prefills, i.decodes, i.tokens, i.keys, i.ops"
    ).rows
    assert rows == ((0, 0, "decode", ["decode n=32 q=32 k=32785 qq=32 qk=32785"], 0, 32, 32, 32785, 558),)
    found = db.iterations(run.id)
    (row,) = (dict(zip(found.rows.columns, values, strict=True)) for values in found.rows.rows)
    assert (row["workflow"], row["decodes"], row["keys"], row["expected"]) == ("decode", 32, 32785, None)
    assert 9e6 < row["busy"] < 10e6 < row["seen"], "the engine's host waited before its graph"
    with pytest.raises(UsageError, match="has no iterations of an engine on rank 3"):
        db.iterations(run.id, rank=3)
    with pytest.raises(UsageError, match="leave seq_len out"):
        db.iterations(run.id, model="qwen3-8b", seq_len=3)
    with pytest.raises(UsageError, match="need a model"):
        db.iterations(run.id, tp=2)


def test_an_iteration_is_planned_with_its_requests(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    run = db.import_run(SGLANG)
    found = db.iterations(run.id, model="qwen3-8b", system="mi300x")
    assert db.iterations(run.id, model="qwen3-8b").rows == found.rows, "its trace names the accelerator"
    (row,) = (dict(zip(found.rows.columns, values, strict=True)) for values in found.rows.rows)
    profile = db.profile(model="qwen3-8b", workflow="decode", requests=[DECODE], system="mi300x")
    assert row["expected"] == profile.merit.step
    assert row["ratio"] == pytest.approx(row["expected"] / row["busy"])


def test_every_planned_operator_is_in_an_iteration_that_ran(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    run = db.import_run(SGLANG)
    made = db.instantiate("qwen3-8b", recipe="megatron", workflow="decode", requests=[DECODE])
    found = db.match(run.id, made.id)
    assert (found.planned, found.matched, found.missing, found.changed, found.extra) == (181, 181, 0, 0, 0)
    assert db.match(run.id, made.id).findings.rows == ()


def test_windows_need_requests_that_are_taken_as_alike(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    run = db.import_run(VLLM)
    with pytest.raises(UsageError, match=r"sums are not enough.*as if all had the mean length, with alike"):
        db.iterations(run.id, model="gpt-oss-20b", system="mi300x")
    (row,) = db.iterations(run.id, model="gpt-oss-20b", system="mi300x", alike=True).rows.rows
    same = db.profile(model="gpt-oss-20b", workflow="decode", requests=["32x1+1720"], system="mi300x")
    assert row[-2] == same.merit.step
