"""Two forwards that run together in serving: one computes while the other exchanges tokens."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.lowering import Program
from stagedb.lowering.overlapped_pairs import interleaved
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.schedules import pairs
from stagedb.store import Store
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.traces import validate_traces
from tests import lowered
from tests.ir.tiny import card

WORDS: dict[str, Any] = {
    "dp": 8,
    "ep": 8,
    "dispatch": "ranks",
    "micro_batch_size": 32,
    "global_batch_size": 512,
    "workflow": "decode",
    "cache_len": 2047,
}


def step(program: Program) -> int:
    return profile_job(program.workload, load_system("h100")).times.step


def test_every_second_forward_runs_with_the_one_before_it() -> None:
    plan = Plan.from_mapping({**WORDS, "global_batch_size": 1024, "overlap_experts": True})
    (order,) = plan.tasks()
    assert [task.microbatch for task in order] == [0, 1, 2, 3]
    assert [list(each) for each in pairs(order)] == [[0, 1], [2, 3]]


def in_turns(words: dict[str, Any], layers: tuple[int, ...]) -> tuple[Any, Any, list[tuple[int, Any]]]:
    """The columns of a plan, the ops of some layers, and the parts of two forwards that take turns in these."""
    model = dataclasses.replace(load_card("deepseek-v2-lite"))
    columns = lowered.program(model, **words, overlap_experts=True).workload.classes[0]
    rows = np.flatnonzero(np.isin(columns.origins.layer, layers))
    return columns, rows, interleaved(columns, [rows, rows])


def test_prefills_take_turns_at_the_exchanges_of_experts() -> None:
    prefill = {**WORDS, "workflow": "prefill", "seq_len": 256, "cache_len": 0}
    columns, rows, parts = in_turns(prefill, (5,))
    assert [number for number, _ in parts] == [0, 1, 0, 1, 0, 1]
    kinds = [[columns.ops.kind[row] for row in part.tolist()] for _, part in parts]
    assert [own.count("all_to_all") for own in kinds] == [1, 1, 1, 1, 0, 0]
    assert "attention" in kinds[0], "attention and dispatch first, then those of the other forward"
    for own in (0, 1):
        assert np.concatenate([part for number, part in parts if number == own]).tolist() == rows.tolist()


def test_a_decode_is_two_of_five_stages_behind_the_other() -> None:
    """The stages are those of SGLang, `_compute_moe_deepseek_blog_decode`, with `tbo_delta_stages` of 2."""
    columns, rows, parts = in_turns(WORDS, (5, 6))
    ops = columns.ops

    def stage(part: Any) -> str:
        """What a part has: letters of the stages, by an operator that only this stage has."""
        names = [".".join(ops.name[row].split(".")[2:]) for row in part.tolist()]
        letters = {"attn.wq": "p", "attn.core": "a", "ffn.dispatch": "d", "ffn.shared.w2": "s", "ffn.experts.w2": "e"}
        letters |= {"ffn.back": "c", "ffn.sum": "w", "ffn.add": "o"}
        return "".join(letters.get(name, "") for name in names)

    found = [(number, stage(part)) for number, part in parts]
    assert found == [
        (0, "pads"),  # the first of both begins alone
        (1, "p"),
        (0, "ec"),
        (1, "a"),
        (0, "w"),
        (1, "ds"),
        (0, "op"),  # the output of a layer, and the next layer before its attention
        (1, "ec"),
        (0, "a"),
        (1, "w"),
        (0, "ds"),
        (1, "op"),
        (0, "ec"),
        (1, "a"),
        (0, "w"),
        (1, "ds"),
        (0, "o"),
        (1, "ecwo"),
    ]
    for own in (0, 1):
        done = np.concatenate([part for number, part in parts if number == own])
        assert sorted(done.tolist()) == rows.tolist()


def test_a_check_of_drafts_takes_turns_as_a_decode_does() -> None:
    drafts = {**WORDS, "workflow": "speculative", "seq_len": 4, "draft": "other"}
    assert [number for number, _ in in_turns(drafts, (5, 6))[2]] == [number for number, _ in in_turns(WORDS, (5, 6))[2]]


def test_exchanges_hide_behind_the_other_forward() -> None:
    apart, together = (lowered.program("deepseek-v2-lite", **WORDS, overlap_experts=each) for each in (False, True))
    assert sum(map(len, (each.ops for each in apart.workload.classes))) == sum(
        map(len, (each.ops for each in together.workload.classes))
    )
    exposed = [step(each) - step(lowered.program("deepseek-v2-lite", **{**WORDS, "dp": 1, "ep": 1,
               "global_batch_size": 64, "dispatch": "copies"})) for each in (apart, together)]  # fmt: skip
    assert step(together) < step(apart)
    assert exposed[1] < exposed[0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"global_batch_size": 256}, "a step has 1 micro-batch.*--global-batch-size 512"),
        ({"global_batch_size": 768}, "a step has 3 micro-batches"),
        ({"zero": 3, "workflow": "prefill", "seq_len": 8, "cache_len": 0}, "frees them, which the other"),
        ({"ep": 1, "dispatch": "copies"}, "no tokens are exchanged"),
    ],
)
def test_what_cannot_run_two_by_two_is_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping({**WORDS, "overlap_experts": True, **words})


def test_traces_of_it_pass_the_rules_and_the_replay(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    model = dataclasses.replace(card("moe", layers=2), max_positions=64)
    words: dict[str, Any] = {"dp": 2, "ep": 2, "global_batch_size": 8, "micro_batch_size": 2}
    made = db.instantiate(model, workflow="decode", cache_len=31, overlap_experts=True, **words)
    db.export(made.id, out=tmp_path / "traces")
    assert validate_traces(tmp_path / "traces").faults == ()
    held = {row["bytes"] for row in db.memory(made.id).levels if row["category"] == "cache"}
    assert len(held) == 1
