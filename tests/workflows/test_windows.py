"""Windows of steps of serving: the traces of the steps one behind another, which take as long as the steps together."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.api import Stagedb, unpack
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.windows import handed_tokens, window
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.plans.request_batches import batch_of
from stagedb.store import Store
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import validate_traces
from stagedb.traces.node_durations import window_timing
from tests import lowered
from tests.ir.tiny import card
from tests.runs.replayed_run import replay_step
from tests.semantics.test_serving import Serving
from tests.semantics.test_serving import model as numpy_model
from tests.timing.replayed import Run, Traces
from tests.traces.plain import parse
from tests.traces.simulated import timing_of
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


STAGED: dict[str, dict[str, Any]] = {
    "two stages and tp": {"pp": 2, "tp": 2, "global_batch_size": 4, "micro_batch_size": 2},
    "three stages, dp and experts": {"pp": 3, "dp": 2, "ep": 2, "global_batch_size": 12, "micro_batch_size": 2},
    "two stages and shared caches": {"pp": 2, "cp": 2, "global_batch_size": 64, "micro_batch_size": 32},
    "two chunks a stage": {
        "pp": 2,
        "virtual_stages": 2,
        "schedule": "interleaved",
        "global_batch_size": 4,
        "micro_batch_size": 1,
    },
    "the first stage makes the tokens": {
        "pp": 2,
        "virtual_stages": 2,
        "schedule": "interleaved",
        "chunk_placement": "v",
        "global_batch_size": 4,
        "micro_batch_size": 1,
    },
}


def staged(words: dict[str, Any]) -> tuple[Card, dict[str, Any], dict[str, Any]]:
    """A model, and a prefill and a decode over stages."""
    model = dataclasses.replace(card("deepseek" if "ep" in words else "llama", layers=12), max_positions=64)
    return model, {"workflow": "prefill", "seq_len": 16, **words}, {"workflow": "decode", "cache_len": 16, **words}


class OneStream(Run):
    """Traces with durations, run with one stream for compute and one for communication."""

    def cost_of(self, number: int, node: int) -> int:
        return self.ranks[number].value(node, "duration_ns")


@pytest.mark.parametrize("name", STAGED)
def test_a_window_over_stages_takes_as_long_as_its_traces(tmp_path: Path, name: str) -> None:
    """A micro-batch begins its next step with its tokens; others are still in the step before then."""
    system = load_system("h100")
    system = dataclasses.replace(system, overlap=dataclasses.replace(system.overlap, streams="one"))
    model, prompt, token = staged(STAGED[name])
    steps = [lowered.workload(model, **each) for each in (prompt, token, {**token, "cache_len": 17})]
    jobs = [profile_job(each, system) for each in steps]
    times = window_timing([timing_of(each) for each in jobs], steps, window(steps))
    export_workload(window(steps), tmp_path / "out", system=system, times=times)
    assert validate_traces(tmp_path / "out").faults == ()
    assert OneStream(Traces(tmp_path / "out", steps[0].model), len, as_issued=True).run() == times.step
    together = sum(each.step for each in jobs)
    if steps[0].plan["chunk_placement"] == "v":
        assert times.step == together, "a step begins where the one before ends"
    else:
        assert max(each.step for each in jobs) < times.step < together, "stages work on several steps"


def test_a_store_has_windows_over_stages_too(embedded_store: Store, tmp_path: Path) -> None:
    db, (model, prompt, token) = Stagedb(embedded_store), staged(STAGED["two stages and tp"])
    prefill, decode = db.instantiate(model, **prompt), db.instantiate(model, **token)
    made = db.export(prefill.id, then=[decode.id], steps=3, durations_in_traces=True, out=tmp_path / "window")
    assert validate_traces(tmp_path / "window").faults == ()
    step = json.loads((tmp_path / "window" / "manifest.json").read_text())["profile"]["step"]
    assert step < sum(db.profile(each.id).merit.step for each in (prefill, *made.following))


def test_ops_of_a_window_have_the_layers_that_they_have_in_their_steps() -> None:
    model, prompt, token = staged(STAGED["two stages and tp"])
    steps = [lowered.workload(model, **each) for each in (prompt, token)]
    made = window(steps)
    for rank in range(len(made.ranks.number)):
        joined, *alone = (each.classes[int(each.ranks.number[rank])] for each in (made, *steps))
        (stage,) = joined.stages
        layers = [[each.layer_in_model(op, stage) for op in range(len(each.ops))] for each in alone]
        of_window = [joined.layer_in_model(op, stage) for op in range(len(joined.ops))]
        known = [layer for each in layers for layer in each]
        assert of_window[: len(known)] == known and len({*known}) > 2


def test_stages_hand_over_the_tokens_of_each_micro_batch(tmp_path: Path) -> None:
    model, prompt, token = staged(STAGED["three stages, dp and experts"])
    steps = [lowered.workload(model, **each) for each in (prompt, token, {**token, "cache_len": 17})]
    made = window(steps)
    export_workload(made, tmp_path / "out", times=None)
    for rank in range(6):
        stage, dp = divmod(rank, 2)
        nodes = nodes_of(tmp_path / "out", rank)
        handed = [each for each in nodes if each.name.startswith("tokens.")]
        assert len(handed) == {0: 2 * 3, 1: 0, 2: 2 * 3}[stage], "two tokens of each of three micro-batches"
        for each in handed:
            values = {one.name: one for one in each.attr}
            assert values["comm_size"].int64_val == 2 * 8, "requests, and bytes of a token"
            end = values["comm_dst"] if stage else values["comm_src"]
            assert end.int32_val == (0 if stage else 4) + dp
    sent, received = (
        [next(one.int32_val for one in each.attr if one.name == "comm_tag") for each in found]
        for found in (
            [each for each in nodes_of(tmp_path / "out", rank) if each.name.startswith("tokens.")] for rank in (4, 0)
        )
    )
    assert sent == received
    assert len(set(sent)) == 6


def test_tokens_of_drafts_and_of_some_requests_are_handed_over() -> None:
    def sizes(*words: dict[str, Any]) -> tuple[int, ...]:
        return handed_tokens([lowered.plan_of(model, **each) for each in words]).sizes

    model, prompt, token = staged(STAGED["two stages and tp"])
    draft = {**token, "workflow": "speculative", "seq_len": 3}
    assert sizes(prompt, token, draft, token) == (16, 48, 16)
    assert sizes(prompt, {**prompt, "cache_len": 16}, token) == (0, 16)
    listed = {**token, "cache_len": None, "micro_batch_size": None, "global_batch_size": 2}
    some = {**listed, "workflow": "mixed", "requests": ["1x8+0", "3x1+16"]}
    more = {**listed, "requests": ["5x1+16"]}
    assert sizes(prompt, some, more) == (16, 32), "of two requests that the prefill has, then of four"


@pytest.mark.parametrize("name", ["grouped", "latent", "window", "short convolution"])
def test_tokens_that_a_last_stage_sends_back_are_those_of_one_forward(name: str) -> None:
    """In numpy, greedily: a prefill, then tokens that each step takes from the step before, over three stages."""
    graph = build_graph(numpy_model(name), GraphOptions(workflow="prefill"))
    over_stages, alone = Serving(graph, begins=(1, 2)), Serving(graph)
    written = over_stages.tokens.copy()
    for serving in (over_stages, alone):
        serving.tokens = written.copy()
    for start, end in ((0, 6), *((at, at + 1) for at in range(6, 11))):
        logits, following = over_stages.step(start, end)
        expected, chosen = Serving.step(fresh(alone), 0, end)
        np.testing.assert_allclose(logits[:, -1:], expected[:, -1:], rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(following[:, -1:], chosen[:, -1:])
        over_stages.tokens[:, end : end + 1], alone.tokens[:, end : end + 1] = following[:, -1:], chosen[:, -1:]
    assert (over_stages.tokens[:, 6:] != written[:, 6:]).any(), "the tokens are the model's own"


def fresh(serving: Serving) -> Serving:
    """The same without a cache."""
    serving.caches = {}
    return serving


def test_lists_of_requests_go_on_with_a_token_each(embedded_store: Store, tmp_path: Path) -> None:
    db, (model, _, token) = Stagedb(embedded_store), staged(STAGED["two stages and tp"])
    listed = {**token, "cache_len": None, "micro_batch_size": None, "global_batch_size": 2}
    decode = db.instantiate(model, **listed, requests=["2x1+16/8", "1x1+5"])
    made = db.export(decode.id, steps=3, out=tmp_path / "window")
    assert [each.plan["requests"] for each in made.following] == [
        ["1x1+6", "2x1+17/8"],
        ["1x1+7", "2x1+18/8"],
    ]
    sums = batch_of(("decode n=2 q=2 k=35 qq=2 qk=35 s=3",)).later(4)
    assert sums.texts == ("decode n=2 q=2 k=43 qq=2 qk=43 s=3",)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"global_batch_size": 8}, "has 2 micro-batches and .* 3: over stages each micro-batch goes on"),
        ({"layers_per_stage": [3, 3, 6]}, r"has layers_per_stage .* over stages all steps of a window need the same"),
    ],
)
def test_steps_over_stages_with_other_micro_batches_or_layers_are_refused(words: dict[str, Any], reason: str) -> None:
    model, prompt, token = staged(STAGED["three stages, dp and experts"])
    steps = [lowered.workload(model, **each) for each in (prompt, {**token, **words})]
    with pytest.raises(UsageError, match=reason):
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
    with pytest.raises(UsageError, match=r"steps is 4,097: a window has 1 to 4,096"):
        db.export(decode.id, steps=4_097, out=tmp_path / "a")
    assert len(db.instances()) == made, "nothing is made for what is refused"
    db.export(decode.id, steps=2, out=tmp_path / "window")
    with pytest.raises(UsageError, match=r"a window of 2 steps, and `simulate` puts one step next"):
        db.simulate(tmp_path / "window")
    assert not (tmp_path / "a").exists()
