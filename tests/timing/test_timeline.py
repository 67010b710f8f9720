"""Timelines: as a replay of the traces, and as published for pipelines."""

import dataclasses
import zlib
from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.lowering.columns import COMPUTE, Ints, Tasks, Workload
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.schedules import replay, splits, unit_cost
from stagedb.store import Store
from stagedb.store.contents.stored_programs import read_workload
from stagedb.systems.system import COMPUTE_MODES
from stagedb.timing.node_graph import COMPUTE_STREAM, STREAMS, NodeGraph, node_graph_of
from stagedb.timing.time_spent import Cover, step_times
from stagedb.timing.timeline import Timeline, run_step, step_length
from tests import lowered
from tests.ir.tiny import card
from tests.sampling import examples
from tests.timing.replayed import Run, Traces
from tests.timing.stepping import by_lane, run_classes
from tests.timing.test_critical import with_twins
from tests.traces.synthetic import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, workload
from tests.traces.written import export_workload


def cost(name: str, seed: int = 0) -> int:
    """Nanoseconds of what has this name: any, and no two alike; of an odd seed few, so that many ends come together."""
    number = zlib.crc32(f"{seed} {name}".encode())
    return number % 3 if seed % 2 else 1_000 + number % 100_000


def durations(made: Workload, seed: int = 0) -> dict[int, Ints]:
    return {each.number: np.array([cost(name, seed) for name in each.ops.name], np.int64) for each in made.classes}


def exported(made: Workload, out: Path) -> Traces:
    export_workload(made, out)
    return Traces(out, made.model)


def check_replay(
    made: Workload, traces: Traces, seed: int = 0, compute: str = "out-of-order", blocking: Collection[str] = ()
) -> None:
    """Every node of every rank begins when its lane's does in a replay of the traces."""
    found = run_classes(node_graph_of(made), durations(made, seed), compute, blocking=blocking)
    ops = [each.ops for each in made.classes]
    waited = {name for each in ops for name, axis in zip(each.name, each.axis, strict=True) if axis in blocking}
    in_order = compute == "in-order"
    replayed = Run(traces, lambda name: cost(name, seed), in_order, lambda name: name in waited)
    assert replayed.run() == found.step
    for lane, starts in zip(found.network.lanes, began(found.network, found), strict=True):
        rank = replayed.ranks[lane.rank]
        assert [rank.started[node] for node in rank.trace.ids] == starts


def began(net: NodeGraph, found: Timeline) -> list[list[int]]:
    start = found.start[net.event]
    return [start[net.firsts[lane.number] : net.firsts[lane.number + 1]].tolist() for lane in net.lanes]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("tp", "dp", "pp"), [(1, 1, 1), (2, 1, 1), (2, 2, 2), (1, 2, 4), (2, 1, 3)])
@pytest.mark.parametrize("microbatches", [1, 5])
def test_a_step_is_a_replay_of_its_traces(
    tmp_path: Path, schedule: str, tp: int, dp: int, pp: int, microbatches: int
) -> None:
    made = workload(tp=tp, dp=dp, pp=pp, schedule=schedule, microbatches=microbatches)
    traces = exported(made, tmp_path / "out")
    for seed in range(3):
        check_replay(made, traces, seed)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 2), (1, 2, 4), (2, 1, 3)]),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    microbatches=st.integers(1, 5),
    seed=st.integers(0, 9),
    blocking=st.sets(st.sampled_from(["tp", "dp", "pp"])),
)
def test_what_blocks_is_waited_for_in_a_replay_too(
    shape: tuple[int, int, int], schedule: str, microbatches: int, seed: int, blocking: set[str]
) -> None:
    tp, dp, pp = shape
    made = workload(tp=tp, dp=dp, pp=pp, schedule=schedule, microbatches=microbatches)
    with TemporaryDirectory() as scratch:
        check_replay(made, exported(made, Path(scratch) / "out"), seed, "in-order", blocking)


PLANS: dict[str, dict[str, Any]] = {
    "tp-dp": {"tp": 2, "dp": 2},
    "sp-pp": {"tp": 2, "sp": True, "pp": 2, "global_batch_size": 4},
    "gpipe": {"pp": 4, "schedule": "gpipe", "global_batch_size": 3},
    "one-micro-batch": {"pp": 4, "tp": 2},
    "tied": {"pp": 2, "dp": 2, "global_batch_size": 8, "tied": True},
    "interleaved": {"pp": 2, "virtual_stages": 2, "dp": 2, "zero": 1, "recipe": "megatron", "global_batch_size": 8},
    "zb-h1": {"pp": 4, "schedule": "zb-h1", "tp": 2, "global_batch_size": 6},
    "breadth-first": {
        "pp": 2,
        "virtual_stages": 2,
        "schedule": "breadth-first",
        "tp": 2,
        "dp": 2,
        "zero": 2,
        "global_batch_size": 6,
    },
    "fsdp": {"dp": 4, "zero": 3, "global_batch_size": 8},
    "hsdp": {"dp": 4, "zero": 3, "hsdp": 2, "tp": 2, "recompute": "full"},
    "zero-2": {"dp": 2, "zero": 2, "pp": 2, "global_batch_size": 6},
    "megatron": {"recipe": "megatron", "tp": 4, "sp": True, "pp": 2, "dp": 2, "zero": 1, "global_batch_size": 4},
    "scattered": {
        "recipe": "megatron",
        "scatter_gather": True,
        "tp": 2,
        "pp": 2,
        "virtual_stages": 2,
        "dp": 2,
        "global_batch_size": 8,
    },
    "experts": {"style": "moe", "dp": 4, "ep": 2, "pp": 2, "global_batch_size": 8},
    "ring": {"cp": 4, "cp_kind": "ring-alltoall", "pp": 2, "dp": 2, "zero": 2, "global_batch_size": 4},
    "ulysses": {"cp": 2, "cp_kind": "ulysses", "tp": 2, "sp": True, "pp": 2, "global_batch_size": 2},
    "sends": {"recipe": "megatron", "cp": 4, "pp": 2, "tp": 2, "sp": True, "zero": 1, "global_batch_size": 4},
    "parts": {"cp": 4, "cp_kind": "ring-p2p", "cp_chunks": "contiguous", "pp": 2, "global_batch_size": 2},
    "both": {"recipe": "megatron", "cp": 6, "ulysses": 2, "pp": 2, "dp": 2, "recompute": "full", "seq_len": 384},
    "overlapped": {
        "style": "moe",
        "recipe": "megatron",
        "dp": 2,
        "ep": 2,
        "tp": 2,
        "pp": 2,
        "virtual_stages": 2,
        "zero": 1,
        "overlap_experts": True,
        "global_batch_size": 8,
    },
    "overlapped-halves": {
        "style": "moe",
        "dp": 2,
        "ep": 2,
        "pp": 2,
        "virtual_stages": 2,
        "schedule": "dualpipev",
        "zero": 2,
        "overlap_experts": True,
        "global_batch_size": 10,
    },
    "order": {"tp": 2, "dp": 2, "pp": 2, "rank_order": "pp,dp,cp,tp", "global_batch_size": 4},
}


def model_and_words(words: Mapping[str, Any]) -> tuple[Card, dict[str, Any]]:
    """A tiny model of eight layers, and the words of its plan."""
    style, tied = words.get("style", "llama"), words.get("tied", False)
    model = dataclasses.replace(card(style, layers=8, kv_heads=4, tied=tied), max_positions=512)
    return model, {"seq_len": 512, **{word: words[word] for word in words.keys() - {"style", "tied"}}}


def instance(**words: Any) -> Workload:
    """A plan of a tiny model of eight layers."""
    model, words = model_and_words(words)
    return lowered.workload(model, **words)


def check_instance(rows: Workload, traces: Traces) -> None:
    """Its step is a replay of its traces, for several durations, with any axes that block."""
    for seed in range(4):
        check_replay(rows, traces, seed)
    axes = sorted({axis for each in rows.classes for axis in each.ops.axis if axis})
    for seed, waits in enumerate(((), *((axis,) for axis in axes), axes), start=4):
        check_replay(rows, traces, seed, "in-order", waits)


@pytest.mark.parametrize("plan", list(PLANS))
def test_an_instances_step_is_a_replay_of_its_traces(tmp_path: Path, plan: str) -> None:
    rows = instance(**PLANS[plan])
    check_instance(rows, exported(rows, tmp_path / "out"))


def test_a_stored_instances_step_is_a_replay_of_its_exported_traces(store: Store, tmp_path: Path) -> None:
    model, words = model_and_words(PLANS["sends"])
    db = Stagedb(store)
    made = db.instantiate(model, **words)
    db.export(made.id, out=tmp_path / "out")
    check_instance(read_workload(store, made.id), Traces(tmp_path / "out", model.name))


def test_what_blocks_has_its_place_among_what_computes() -> None:
    rows = instance(**PLANS["megatron"])
    net = node_graph_of(rows, "axis")
    took = by_lane(net, durations(rows))

    def step(*axes: str) -> Timeline:
        return run_step(net, took, "in-order", blocking=axes)

    free, messages = step(), step("pp")
    assert free.step < messages.step < step("tp", "pp").step
    # Nothing computes while a message is sent. Collectives go on in parallel with both.
    blocked = (net.stream == COMPUTE_STREAM) | (net.stream == net.streams.index("pp"))
    tp = net.stream == net.streams.index("tp")
    for lane in net.lanes:
        for run, alone in ((free, False), (messages, True)):
            mine = net.event[(net.lane == lane.number) & blocked]
            order = np.lexsort((run.finish[mine], run.start[mine]))
            assert bool((run.start[mine][order][1:] >= run.finish[mine][order][:-1]).all()) is alone
        computing = Cover.of(messages.start[mine], messages.finish[mine])
        parallel = net.event[(net.lane == lane.number) & tp]
        assert (computing.before(messages.finish[parallel]) > computing.before(messages.start[parallel])).any()
    # With all in its way it is what `exclusive` is.
    assert step(*net.streams[1:]).step == run_step(net, took, "exclusive").step
    with pytest.raises(UsageError, match="runs in-order"):
        run_step(net, took, blocking=("pp",))


DELAYED = ["interleaved", "tied", "experts", "overlapped", "zb-h1", "fsdp", "ring", "sends", "parts"]


@pytest.mark.parametrize("plan", DELAYED)
@pytest.mark.parametrize("streams", STREAMS)
def test_the_cost_of_a_delay_follows_from_path_and_slack(plan: str, streams: str) -> None:
    rows = instance(**PLANS[plan])
    net = node_graph_of(rows, streams)
    for seed in range(4):
        took = durations(rows, seed)
        found = step_times(run_classes(net, took))
        random = np.random.default_rng(seed)
        cases = [(node, 7, 7) for node in random.choice(found.path.node, examples(20)).tolist()]
        for node in random.integers(0, len(net), examples(40)).tolist():
            cases += [(node, int(found.slack[node]), 0), (node, int(found.slack[node]) + 5, 5)]
        for node, delay, later in cases:
            assert run_classes(net, took, delays={node: delay}).step == found.step + later


UNIT = 1_000
CHAIN = {
    FORWARD: (".attn_norm",),
    INPUT_GRADIENT: (".attn_norm.input_gradient",),
    WEIGHT_GRADIENT: (".wq.weight_gradient", ".wqkv.weight_gradient"),
}
"""By template, the ends of the name of one operator of a layer."""


def units(rows: Workload, split: bool) -> dict[int, Ints]:
    """A forward takes one unit and a backward two, shared by the layers of a chunk; all else takes no time."""
    cost = {FORWARD: UNIT, INPUT_GRADIENT: UNIT if split else 2 * UNIT, WEIGHT_GRADIENT: UNIT if split else 0}
    found = {}
    for each in rows.classes:
        took = np.zeros(len(each.ops), np.int64)
        for template, names in CHAIN.items():
            ends = np.array([op.endswith(names) for op in each.ops.name]) & (each.ops.template == template)
            for chunk in range(1 + int(each.ops.chunk.max())):
                chosen = np.flatnonzero(ends & (each.ops.chunk == chunk))
                took[chosen] = cost[template] // len(chosen)
        found[each.number] = took
    return found


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ({"pp": 4, "schedule": "gpipe", "global_batch_size": 6}, Fraction(3, 6 + 3)),
        ({"pp": 8, "schedule": "gpipe", "global_batch_size": 2}, Fraction(7, 2 + 7)),
        ({"pp": 4, "global_batch_size": 1}, Fraction(3, 1 + 3)),
        ({"pp": 4, "global_batch_size": 7}, Fraction(3, 7 + 3)),
        ({"pp": 2, "global_batch_size": 4, "dp": 2, "tp": 2}, Fraction(1, 2 + 1)),
        ({"pp": 2, "virtual_stages": 2, "global_batch_size": 4}, Fraction(1, 2 * 4 + 1)),
        ({"pp": 4, "virtual_stages": 2, "global_batch_size": 8}, Fraction(3, 2 * 8 + 3)),
        ({"pp": 2, "virtual_stages": 4, "global_batch_size": 6}, Fraction(1, 4 * 6 + 1)),
        (
            {"pp": 4, "virtual_stages": 2, "schedule": "breadth-first", "global_batch_size": 5},
            Fraction(3, 2 * 5 + 3),
        ),
    ],
)
def test_bubbles_are_as_published(words: dict[str, Any], share: Fraction) -> None:
    """(p - 1) / (m + p - 1) (Huang et al. 2019), (p - 1) / (v m + p - 1) with chunks (Narayanan et al. 2021)."""
    rows = instance(**words)
    for streams in ("one", "axis"):
        for compute in ("out-of-order", "in-order"):
            found = step_times(run_classes(node_graph_of(rows, streams), units(rows, split=False), compute))
            for spent in found.lanes:
                assert Fraction(spent.bubble, found.step) == share
                assert (spent.exposed, spent.idle) == (0, 0)


@pytest.mark.parametrize(
    "words",
    [
        # In the torch recipe the first stage runs whole backwards, which the replay of units does not know.
        {"pp": 4, "schedule": "zb-h1", "global_batch_size": 6, "recipe": "megatron"},
        {"pp": 4, "schedule": "gpipe", "global_batch_size": 5},
        {"pp": 4, "virtual_stages": 2, "global_batch_size": 12},
        {"pp": 4, "virtual_stages": 2, "schedule": "breadth-first", "global_batch_size": 3},
        {"pp": 8, "global_batch_size": 3},
    ],
)
def test_tasks_run_when_the_schedule_has_them(words: dict[str, Any]) -> None:
    """With unit costs and free messages tasks end when the replay of the schedule alone ends them."""
    rows = instance(**words)
    plan = Plan.from_mapping(rows.plan)
    spans = replay(plan.orders(), unit_cost, plan.placement)
    found = step_times(run_classes(node_graph_of(rows), units(rows, split=any(map(splits, plan.orders())))))
    assert found.step == UNIT * max(stage[-1].end for stage in spans)
    for lane, spent in zip(found.network.lanes, found.lanes, strict=True):
        assert [end / UNIT for end in spent.tasks.finish.tolist()] == [span.end for span in spans[lane.stage]]


@pytest.mark.parametrize("plan", ["hsdp", "megatron", "experts", "fsdp"])
def test_a_free_network_exposes_nothing(plan: str) -> None:
    rows = instance(**PLANS[plan])
    free = {each.number: np.where(each.ops.type == COMPUTE, durations(rows)[each.number], 0) for each in rows.classes}
    found = step_times(run_classes(node_graph_of(rows, "axis"), free))
    assert [(spent.exposed, spent.communication) for spent in found.lanes] == [(0, 0)] * len(found.lanes)
    assert set(found.path.parts("axis")) == {"compute"}


def test_waiting_for_a_ring_is_no_bubble() -> None:
    """Ranks of a ring wait for each other's messages inside a stage: a bubble is what waits for other stages."""
    words: dict[str, Any] = {"cp": 4, "cp_kind": "ring-p2p", "cp_chunks": "contiguous", "global_batch_size": 2}
    rows = instance(**words)
    alone = step_times(run_classes(node_graph_of(rows), durations(rows)))
    assert max(spent.idle for spent in alone.lanes) > 0
    assert [spent.bubble for spent in alone.lanes] == [0] * 4
    rows = instance(**words, pp=2)
    staged = step_times(run_classes(node_graph_of(rows), durations(rows)))
    assert all(spent.bubble > 0 for spent in staged.lanes)


def test_lanes_are_few_however_many_ranks_there_are() -> None:
    small, large = (instance(pp=4, tp=2, dp=dp, global_batch_size=3 * dp) for dp in (2, 16))
    both = [node_graph_of(each) for each in (small, large)]
    assert [len(each.lanes) for each in both] == [4, 4]
    assert len(both[0]) == len(both[1])
    assert [sum(lane.ranks for lane in each.lanes) for each in both] == [16, 128]
    assert [lane.stage for lane in both[1].lanes] == [0, 1, 2, 3]
    ring = node_graph_of(instance(**PLANS["ring"]))
    assert [len(lane.members["cp"]) for lane in ring.lanes] == [4] * 8
    sends = node_graph_of(instance(**PLANS["both"]))
    assert [(lane.ring_next, lane.ring_previous) for lane in sends.lanes] == [
        (first + (place + 1) % 3, first + (place - 1) % 3) for first in (0, 3) for place in range(3)
    ]
    # Stages of one class keep other times.
    gpipe = instance(pp=4, schedule="gpipe", global_batch_size=3)
    assert (len(gpipe.classes), len(node_graph_of(gpipe).lanes)) == (3, 4)


def test_streams_of_their_own_overlap_axes() -> None:
    rows = instance(tp=2, dp=2, zero=3, sp=True)
    one, axis = (run_classes(node_graph_of(rows, streams), durations(rows)) for streams in ("one", "axis"))
    assert axis.network.streams == ("compute", "dp", "tp")
    assert axis.step < one.step


def test_what_waits_for_ever_is_named() -> None:
    """The first stage's first backward comes before the forward that it needs."""
    made = workload(tp=1, dp=1, pp=2, microbatches=2)
    tasks = made.classes[0].tasks
    turned = Tasks(*(getattr(tasks, field.name)[[2, 0, 1, 3, 4]] for field in dataclasses.fields(tasks)))
    broken = dataclasses.replace(made, classes=(dataclasses.replace(made.classes[0], tasks=turned), made.classes[1]))
    with pytest.raises(StagedbError, match=r"never ends: .* in backward of micro-batch 0 on stage 0 .* waits for "):
        run_classes(node_graph_of(broken), durations(broken))
    net = node_graph_of(broken)
    for compute in COMPUTE_MODES:
        with pytest.raises(StagedbError, match=r"never ends: .* on stage 0 .* waits for "):
            step_length(net, by_lane(net, durations(broken)), compute)


@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize("compute", COMPUTE_MODES)
def test_the_step_alone_is_that_of_its_timeline(plan: str, compute: str) -> None:
    made = instance(**PLANS[plan])
    for streams in STREAMS:
        net = node_graph_of(made, streams)
        run_classes(net, durations(made), compute)  # compares both


def test_a_run_of_events_longer_than_numbers_are_is_refused() -> None:
    made = workload(tp=1, dp=1, pp=1)
    net = node_graph_of(made)
    longest = [np.full(len(each.ops), (1 << 63) - 1) for each in net.columns]
    with pytest.raises(UsageError, match="longer than stagedb counts"):
        step_length(net, longest, "in-order")


def test_classes_that_do_not_fit_together_are_refused() -> None:
    made = workload(tp=1, dp=2, pp=2)
    one, other = made.classes
    for broken, reason in (
        (dataclasses.replace(other.ops, size=other.ops.size * 2), "stage 0 .* sends is not what stage 1 .* receives"),
        (
            dataclasses.replace(other.ops, axis=tuple("tp" if axis == "dp" else axis for axis in other.ops.axis)),
            "no gr",
        ),
    ):
        classes = (one, dataclasses.replace(other, ops=broken))
        with pytest.raises(StagedbError, match=reason):
            node_graph_of(dataclasses.replace(made, classes=classes))
    with pytest.raises(UsageError, match="one or axis"):
        node_graph_of(made, "many")
    with pytest.raises(UsageError, match="in-order or out-of-order"):
        run_classes(node_graph_of(made), durations(made), "any")


def test_members_in_several_lanes_wait_for_each_other(tmp_path: Path) -> None:
    """Two classes share a stage and its groups of axis dp: the slower one's compute decides when both go on."""
    made = with_twins(workload(tp=2, dp=2, pp=2, microbatches=3))
    traces = exported(made, tmp_path / "out")
    for seed in range(4):
        check_replay(made, traces, seed)
    took = durations(made)
    for twin in made.classes[2:]:
        took[twin.number] = took[twin.number] + np.where(twin.ops.type == COMPUTE, 500_000, 0)
    found = step_times(run_classes(node_graph_of(made), took))
    net = found.network
    assert [(lane.rank_class, lane.stage) for lane in net.lanes] == [(0, 0), (2, 0), (1, 1), (3, 1)]
    assert net.lanes[0].members["dp"] == (0, 1)
    assert net.events < len(net)
    assert [spent.idle > 0 for spent in found.lanes] == [True, False, True, False]
