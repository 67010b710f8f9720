"""Windows of steps of serving: the traces of the steps one behind another, which take as long as the steps together."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.api import Stagedb, unpack
from stagedb.errors import UsageError
from stagedb.models import Card
from stagedb.store import Store
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import validate_traces
from stagedb.traces.node_durations import window_timing
from stagedb.workload.windows import window
from tests import lowered
from tests.ir.tiny import card
from tests.runs.replayed_run import replay_step
from tests.traces.plain import parse
from tests.traces.written import export_workload, files_of, timing

MODEL: Card = dataclasses.replace(card("deepseek", layers=3), max_positions=64)
WORDS: dict[str, Any] = {"tp": 1, "dp": 2, "ep": 2, "micro_batch_size": 2}
PREFILL: dict[str, Any] = {"workflow": "prefill", "seq_len": 16, **WORDS}
DECODE: dict[str, Any] = {"workflow": "decode", "cache_len": 16, **WORDS}


def nodes_of(directory: Path, rank: int) -> list[pb.Node]:
    (path,) = directory.glob(f"*.{rank}.et")
    return parse(path.read_bytes())[1]


def shape(node: pb.Node, shift: int) -> tuple[Any, ...]:
    """All of a node but its own step's number of micro-batch and tag, with ids shifted."""
    values = tuple(
        (each.name, each.SerializeToString()) for each in node.attr if each.name not in ("comm_tag", "microbatch")
    )
    return node.id + shift, node.name, node.type, values


def test_a_window_has_the_nodes_of_its_steps_one_behind_another(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    prefill, decode = db.instantiate(MODEL, **PREFILL), db.instantiate(MODEL, **DECODE)
    made = db.export(prefill.id, then=[decode.id], steps=3, durations_in_traces=True, out=tmp_path / "window")
    assert [each.plan["cache_len"] for each in made.following] == [16, 17, 18]
    assert validate_traces(tmp_path / "window").faults == ()
    steps = [prefill, *made.following]
    for number, each in enumerate(steps):
        db.export(each.id, durations_in_traces=True, out=tmp_path / str(number))
    for rank in range(2):
        joined, alone = nodes_of(tmp_path / "window", rank), [nodes_of(tmp_path / str(at), rank) for at in range(4)]
        assert len(joined) == sum(map(len, alone))
        shift = 0
        for number, nodes in enumerate(alone):
            own = joined[shift : shift + len(nodes)]
            assert [shape(each, 0) for each in own] == [shape(each, shift) for each in nodes]
            inside = range(shift + 1, shift + len(nodes) + 1)
            waits = [min([*each.data_deps, *each.ctrl_deps], default=0) for each in own]
            assert all(each in inside for each in [*own[-1].data_deps, *own[-1].ctrl_deps])
            assert waits[0] == shift, f"the first node of step {number} waits for the last one before"
            shift += len(nodes)
    assert replay_step(tmp_path / "window") == sum(replay_step(tmp_path / str(number)) for number in range(4))
    total = sum(db.profile(each.id).merit.step for each in steps)
    manifest = json.loads((tmp_path / "window" / "manifest.json").read_text())
    assert [each["instance"] for each in manifest["steps"]] == [each.id for each in steps]
    assert [each.split(":")[0] for each in manifest["classes"][0]["tasks"]] == [f"forward {at}" for at in range(4)]
    assert manifest["profile"]["step"] == total
    assert manifest["what"].startswith("Chakra execution traces of 4 steps of serving, one after another, one a rank")
    db.export(prefill.id, then=[decode.id], steps=3, packed=True, durations_in_traces=True, out=tmp_path / "w.packed")
    unpack(tmp_path / "w.packed", out=tmp_path / "unpacked")
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "window")


def test_classes_of_a_window_are_ranks_that_are_alike_in_every_step(tmp_path: Path) -> None:
    words = {**WORDS, "dp": 4, "ep": 4}
    steps = [
        lowered.workload(MODEL, **{**PREFILL, **words}),
        lowered.workload(MODEL, **{**DECODE, **words}, expert_load=(2, 0, 0, 2)),
        lowered.workload(MODEL, **{**DECODE, **words}, expert_load=(2, 2, 0, 0)),
    ]
    assert [len(each.classes) for each in steps] == [1, 2, 2]
    made = window(steps)
    assert len(made.classes) == 4
    for rank in range(4):
        own = made.class_of(rank)
        parts = [each.class_of(rank) for each in steps]
        np.testing.assert_array_equal(own.ops.flops, np.concatenate([each.ops.flops for each in parts]))
        assert len(own.tasks) == 3
    times = window_timing([timing(each) for each in steps], steps, made)
    assert times.step == 3 * 4711
    ranks = sorted(rank for parts in times.parts.values() for part in parts for rank in part.ranks.tolist())
    assert ranks == [0, 1, 2, 3]
    export_workload(made, tmp_path / "out", times=times)
    assert validate_traces(tmp_path / "out").faults == ()


def test_one_step_is_no_window() -> None:
    step = lowered.workload(MODEL, **DECODE)
    assert window([step]) is step


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({**DECODE, "dp": 4, "ep": 4}, "has dp 4 and .* 2: the steps of a window run on the same ranks"),
        ({"seq_len": 16, **WORDS}, "is a step of training, and a window has steps of serving"),
    ],
)
def test_steps_that_cannot_follow_each_other_are_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        window([lowered.workload(MODEL, **DECODE), lowered.workload(MODEL, **words)])


def test_steps_over_stages_are_refused() -> None:
    steps = [lowered.workload(MODEL, **{**DECODE, "pp": 3, "global_batch_size": 12})] * 2
    with pytest.raises(UsageError, match="the last has the tokens that the first reads in the next step"):
        window(steps)


def test_what_no_window_has_is_refused(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    prefill, decode = db.instantiate(MODEL, **PREFILL), db.instantiate(MODEL, **DECODE)
    profile = db.profile(decode.id)
    with pytest.raises(UsageError, match="a profile has the durations of one step: durations_in_traces=True"):
        db.export(decode.id, profile=profile.info.id, steps=2, out=tmp_path / "a")
    with pytest.raises(UsageError, match="name the instances that follow with then"):
        db.export(prefill.id, steps=2, out=tmp_path / "a")
    with pytest.raises(UsageError, match="steps is 0: a window has 1 to 4,096"):
        db.export(decode.id, steps=0, out=tmp_path / "a")
    made = len(db.instances())
    staged = db.instantiate(MODEL, **{**DECODE, "pp": 3, "global_batch_size": 12})
    with pytest.raises(UsageError, match="the last has the tokens that the first reads in the next step"):
        db.export(staged.id, steps=2, out=tmp_path / "a")
    with pytest.raises(UsageError, match=r"steps is 4,097: a window has 1 to 4,096"):
        db.export(decode.id, steps=4_097, out=tmp_path / "a")
    assert len(db.instances()) == made + 1, "nothing is made for what is refused"
    db.export(decode.id, steps=2, out=tmp_path / "window")
    with pytest.raises(UsageError, match=r"a window of 2 steps, and `simulate` puts one step next"):
        db.simulate(tmp_path / "window")
    assert not (tmp_path / "a").exists()
