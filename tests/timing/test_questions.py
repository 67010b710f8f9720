"""Named queries about profiles: a graph, a query, its rows, held against the step in memory, on both engines."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from stagedb.api.querying import find
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.columns import TASK_KINDS, TYPES
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store, write_graph
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.profiles import record_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.timing import JobProfile, profile_job
from stagedb.timing.node_graph import Reason
from tests.ir.tiny import card
from tests.timing.plain import PLAIN

OPTIONS = GraphOptions(sp=True, recompute="full")
PLAN = Plan(OPTIONS, dp=2, tp=2, pp=2, seq_len=16, global_batch_size=6)
QUERIES = (
    *("critical_path", "critical_breakdown", "critical_operators"),
    *("hotspots", "hotspots_by_layer", "exposed_communication", "exposed_collectives"),
    *("traffic_by_dimension", "traffic_by_link"),
    *("bubble_by_stage", "stragglers", "longest_operators", "arithmetic_intensity", "recompute_cost"),
)

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Run:
    """An op of a lane, as plain numbers."""

    stage: int
    rank_class: int
    rank: int
    ranks: int
    lane: int
    name: str
    sym: str
    type: str
    kind: str
    phase: str
    axis: str | None
    dtype: str | None
    flops: int
    bytes: int
    message: int
    duration: int
    count: int
    total: int
    exposed: int
    slack: int
    critical: int
    times_critical: int
    rule: str
    dimension: str | None
    wires: tuple[tuple[str, int], ...]

    @property
    def sent(self) -> int:
        """Into the network, all dimensions together."""
        return sum(sent for _, sent in self.wires)

    @property
    def block(self) -> str:
        return self.name.split(".")[0]

    @property
    def local(self) -> int | None:
        """The layer on its stage, which its name has."""
        return int(self.name.split(".")[1]) if self.block == "layer" else None

    @property
    def layer(self) -> int | None:
        """Its number in the model: two layers a stage."""
        return None if self.local is None else self.local + 2 * self.stage

    @property
    def operator(self) -> str:
        return self.name if self.local is None else self.name.replace(f"layer.{self.local}.", "layer.", 1)


def runs(job: JobProfile) -> Iterator[Run]:
    net = job.times.network
    for lane, columns, timed, times in zip(net.lanes, net.columns, job.durations.lanes, job.times.lanes, strict=True):
        ops, spent = columns.ops, times.ops
        for op, name in enumerate(ops.name):
            yield Run(
                lane.stage, lane.rank_class, lane.rank, lane.ranks, lane.number, name, columns.origins.sym[op],
                TYPES[ops.type[op]], ops.kind[op], ops.phase[op], ops.axis[op] or None, ops.dtype[op] or None,
                int(ops.flops[op]), int(ops.bytes[op]), int(ops.size[op]), int(timed.ns[op]), int(spent.runs[op]),
                int(spent.time[op]), int(spent.exposed[op]), int(spent.slack[op]), int(spent.critical[op]),
                int(spent.critical_runs[op]), timed.rule[op], timed.dimension[op], timed.wires[op],
            )  # fmt: skip


def grouped(found: list[Run], key: Callable[[Run], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Run]]:
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in found:
        groups[key(run)].append(run)
    return groups


def weighted(found: list[Run], name: str) -> int:
    return sum(getattr(run, name) * run.ranks for run in found)


def talks(found: list[Run]) -> list[Run]:
    return [run for run in found if run.type in ("collective", "send")]


def ranks_of(found: list[Run]) -> int:
    return sum({run.lane: run.ranks for run in found}.values())


def critical_path(job: JobProfile) -> Rows:
    legs, net, path = job.times.path.legs(), job.times.network, job.times.path
    rows = []
    for number, (lane, task, start, finish) in enumerate(
        zip(legs.lane, legs.task, legs.start, legs.finish, strict=True)
    ):
        at, tasks = net.lanes[lane], net.columns[lane].tasks
        kind = TASK_KINDS[tasks.kind[task]]
        first = next(
            i for i in range(len(path)) if path.start[i] >= start and (path.lane[i], path.task[i]) == (lane, task)
        )
        rows.append(
            (
                *(number, at.stage, at.rank_class, at.rank, kind),
                None if kind == "step" else int(tasks.microbatch[task]),
                *(int(tasks.chunk[task]), int(start), int(finish), int(finish - start)),
                Reason(path.reason[first]).name.lower(),
            )
        )
    return rows


def hotspots(job: JobProfile) -> Rows:
    found = grouped(talks(list(runs(job))), lambda run: (run.axis, run.kind, run.phase, run.block, run.dimension))
    layers = {key: len({run.layer for run in group if run.layer is not None}) for key, group in found.items()}
    return _hotspots(job, {(*key, layers[key]): group for key, group in found.items()})


def hotspots_by_layer(job: JobProfile) -> Rows:
    found = grouped(talks(list(runs(job))), lambda run: (run.axis, run.kind, run.block, run.layer, run.dimension))
    return _hotspots(job, found)


def _hotspots(job: JobProfile, groups: Mapping[tuple[Any, ...], list[Run]]) -> Rows:
    rows: Rows = []
    for key, group in groups.items():
        ranks = ranks_of(group)
        size = sum(run.ranks * run.count * run.message for run in group)
        exposed = weighted(group, "exposed")
        wire = sum(run.ranks * run.count * run.sent for run in group)
        sizes = (weighted(group, "count") // ranks, size // ranks, wire // ranks)
        times = (weighted(group, "total") // ranks, exposed // ranks)
        critical = sum(run.critical for run in group)
        rows.append((*key, ranks, *sizes, *times, critical, pytest.approx(exposed / ranks / job.step)))
    return rows


def critical_breakdown(job: JobProfile) -> Rows:
    on_path = [run for run in runs(job) if run.critical]
    return [
        (*key, sum(run.times_critical for run in group), ns, pytest.approx(ns / job.step))
        for key, group in grouped(on_path, lambda run: (run.stage, run.block, run.kind, run.axis)).items()
        for ns in [sum(run.critical for run in group)]
    ]


def critical_operators(job: JobProfile) -> Rows:
    path, spent = job.times.path, defaultdict[tuple[int, str], list[int]](list)
    for lane, op, ns in zip(path.lane.tolist(), path.op.tolist(), path.length.tolist(), strict=True):
        spent[lane, job.times.network.columns[lane].ops.name[op]].append(ns)
    on_path = [run for run in runs(job) if (run.lane, run.name) in spent]
    rows: Rows = []
    for key, group in grouped(on_path, lambda run: (run.sym, run.kind, run.phase, run.axis)).items():
        took = [ns for run in group for ns in spent[run.lane, run.name]]
        stages = sorted({run.stage for run in group})
        rows.append((*key, stages, len(group), len(took), sum(took), pytest.approx(sum(took) / job.step)))
    return rows


def exposed_collectives(job: JobProfile) -> Rows:
    ends = job.workload.groups.sizes.cumsum()
    members = {
        (axis, rank): (int(gid), ranks)
        for gid, axis, size, end in zip(
            job.workload.groups.gid, job.workload.groups.axis, job.workload.groups.sizes, ends, strict=True
        )
        for ranks in [job.workload.groups.ranks[end - size : end].tolist()]
        for rank in ranks
    }
    found = [run for run in runs(job) if run.type == "collective" and run.exposed]
    rows: Rows = []
    for (sym, kind, axis, *lane), group in grouped(
        found, lambda run: (run.sym, run.kind, run.axis, run.stage, run.rank, run.ranks)
    ).items():
        calls, time, exposed = (sum(getattr(run, name) for run in group) for name in ("count", "total", "exposed"))
        gid, ranks = members[axis, lane[1]]
        rows.append((sym, kind, axis, *lane, gid, ranks, calls, time, exposed, pytest.approx(exposed / job.step)))
    return rows


def exposed_communication(job: JobProfile) -> Rows:
    rows: Rows = []
    for key, group in grouped(talks(list(runs(job))), lambda run: (run.axis, run.kind, run.phase)).items():
        size = sum(run.ranks * run.count * run.message for run in group)
        wire = sum(run.ranks * run.count * run.sent for run in group)
        time, exposed = weighted(group, "total"), weighted(group, "exposed")
        rows.append(
            (
                *(*key, weighted(group, "count") / 8, size // 8, wire // 8, time // 8, exposed // 8),
                *(pytest.approx(1 - exposed / time), pytest.approx(exposed / 8 / job.step)),
            )
        )
    return rows


def traffic_by_dimension(job: JobProfile) -> Rows:
    crossed: dict[tuple[Any, ...], list[tuple[Run, int]]] = defaultdict(list)
    for run in talks(list(runs(job))):
        for dimension, sent in run.wires:
            crossed[dimension, run.axis].append((run, sent))
    rows: Rows = []
    for key, found in crossed.items():
        group = [run for run, _ in found]
        size = sum(run.ranks * run.count * run.message for run in group)
        wire = sum(run.ranks * run.count * sent for run, sent in found)
        time, exposed = weighted(group, "total"), weighted(group, "exposed")
        share = pytest.approx(time / 8 / job.step)
        rows.append((*key, weighted(group, "count"), size, wire, time // 8, exposed // 8, share))
    return rows


def traffic_by_link(job: JobProfile) -> Rows:
    # A byte a nanosecond into every dimension.
    rows: Rows = []
    for lane in job.times.network.lanes:
        mine = [run for run in talks(list(runs(job))) if run.lane == lane.number and run.count]
        for dimension in {name for run in mine for name, _ in run.wires}:
            there = [(run, sent) for run in mine for name, sent in run.wires if name == dimension]
            wire = sum(run.count * sent for run, sent in there)
            port = (dimension, lane.rank_class, lane.stage, lane.rank, lane.ranks)
            messages, time = sum(run.count for run, _ in there), sum(run.total for run, _ in there)
            rows.append((*port, messages, wire, 1e9, wire, pytest.approx(wire / job.step), time))
    return rows


def bubble_by_stage(job: JobProfile) -> Rows:
    rows: Rows = []
    for stage in range(PLAN.pp):
        lanes = [
            (lane.ranks, spent)
            for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True)
            if lane.stage == stage
        ]
        ranks = sum(count for count, _ in lanes)
        busy, exposed, bubble, idle = (
            sum(count * getattr(spent, name) for count, spent in lanes)
            for name in ("busy", "exposed", "bubble", "idle")
        )
        shares = (pytest.approx(each / ranks / job.step) for each in (bubble, busy))
        rows.append((stage, ranks, *(each // ranks for each in (busy, exposed, bubble, idle)), *shares))
    return rows


def stragglers(job: JobProfile) -> Rows:
    mean = (
        sum(lane.ranks * spent.busy for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True)) // 8
    )
    critical = job.times.path.parts("stage")
    rows: Rows = []
    for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True):
        here = critical[str(lane.stage)]  # a lane a stage
        waits = spent.bubble + spent.idle
        over = spent.busy - mean
        share = pytest.approx(here / job.step)
        rows.append((lane.stage, lane.rank_class, lane.rank, lane.ranks, spent.busy, over, waits, here, share))
    return rows


def longest_operators(job: JobProfile) -> Rows:
    def key(run: Run) -> tuple[Any, ...]:
        return (run.operator, run.kind, run.phase, run.axis, run.stage, run.duration, run.rule, run.dimension)

    rows: Rows = []
    for (*described, duration, rule, dimension), group in grouped(list(runs(job)), key).items():
        lanes = len({run.lane for run in group})
        assert lanes == 1
        sums = (sum(run.total for run in group), min(run.slack for run in group), sum(run.critical for run in group))
        rows.append((*described, len(group), duration, *sums, rule, dimension))
    return rows


def arithmetic_intensity(job: JobProfile) -> Rows:
    # 1 TFLOP/s over 1 GB/s.
    ridge = 1000.0
    rows: Rows = []
    computes = [run for run in runs(job) if run.type == "compute"]
    for key, group in grouped(
        computes, lambda run: (run.kind, run.block, run.phase, run.dtype if run.flops else None, run.rule)
    ).items():
        flops = sum(run.flops * run.count * run.ranks for run in group)
        size = sum(run.bytes * run.count * run.ranks for run in group)
        known = ridge if key[3] in (None, job.merit.dtype) else None
        intensity = flops / size if size else None
        bound = None if intensity is None or known is None else "memory" if intensity < known else "compute"
        time = weighted(group, "total")
        rows.append(
            (
                *(*key, len(group), float(flops), float(size), intensity and pytest.approx(intensity), known),
                *(bound, time // 8, pytest.approx(time / 8 / job.step)),
            )
        )
    return rows


def recompute_cost(job: JobProfile) -> Rows:
    again = [run for run in runs(job) if run.phase == "recompute"]
    rows: Rows = []
    for key, group in grouped(again, lambda run: (run.block, run.kind, run.type)).items():
        flops = sum(run.flops * run.count * run.ranks for run in group)
        time, critical = weighted(group, "total"), sum(run.critical for run in group)
        share = pytest.approx(time / 8 / job.step)
        rows.append((*key, weighted(group, "count") / 8, flops / 8, time // 8, share, critical))
    return rows


ORDER = {
    "hotspots": 11,
    "hotspots_by_layer": 10,
    "exposed_collectives": 10,
    "traffic_by_link": 9,
    "longest_operators": 6,
    "critical_breakdown": 5,
    "critical_operators": 7,
}
"""The column that orders the rows of a query, the largest first."""

WANTED: dict[str, Callable[[JobProfile], Rows]] = {
    name: globals()[name] for name in QUERIES
}  # each gives the rows of the query of its name


def test_every_question_has_the_answer_that_the_step_gives(store: Store) -> None:
    graph = build_graph(card("llama", layers=4), OPTIONS)
    write_graph(store, graph)
    instance = instantiate(store, graph.key, PLAN)
    job = profile_job(read_workload(store, instance), PLAIN)
    # A second profile, of which no answer may have a row.
    record_profile(store, profile_job(job.workload, dataclasses.replace(PLAIN, name="other")))
    profile, _ = record_profile(store, job)
    for name, wanted in WANTED.items():
        statement = find(name)
        answer = store.query(statement.text, {"profile": profile})
        assert answer.columns == tuple(column.name for column in statement.columns), name
        limit = {"longest_operators": 20}.get(name)
        rows, left = list(answer.rows), list(wanted(job))
        assert rows, name
        if limit is None or len(left) <= limit:
            assert len(rows) == len(left), name
        else:
            assert len(rows) == limit, name
        if name == "critical_path":
            assert rows == left
        for row in rows:
            match = next((each for each in left if row == each), None)
            assert match is not None, (name, row)
            left.remove(match)
        order = ORDER.get(name)
        if order is not None:
            values = [row[order] for row in rows]
            assert values == sorted(values, reverse=True), name
            # No row that was left out belongs before the last one.
            if name == "longest_operators":
                assert all(each[order] <= values[-1] for each in left)


def test_a_message_over_two_dimensions_is_traffic_of_both(store: Store) -> None:
    options = GraphOptions()
    graph = build_graph(card("llama", layers=2), options)
    write_graph(store, graph)
    instance = instantiate(store, graph.key, Plan(options, tp=4, seq_len=16))
    inner, outer = PLAIN.dimensions
    free = dataclasses.replace(PLAIN, dimensions=(dataclasses.replace(inner, bandwidth=math.inf), outer))
    answers = {}
    for name, system in (("plain", PLAIN), ("free", free)):
        profile, _ = record_profile(store, profile_job(read_workload(store, instance), system))
        for query in ("traffic_by_dimension", "traffic_by_link"):
            answers[name, query] = store.query(find(query).text, {"profile": profile}).rows
    # One of two steps of a ring over two nodes of two stays inside; each sends 3/4 of the buffer twice.
    rows = {row[0]: row for row in answers["plain", "traffic_by_dimension"] if row[1] == "tp"}
    (messages, put_in), *others = {row[2:4] for row in rows.values()}
    assert set(rows) == {"inner", "outer"}
    assert (messages > 0, others) == (True, [])
    assert [row[4] for row in rows.values()] == [put_in * 3 // 4] * 2
    sent: dict[str, tuple[int, int]] = {}
    for name, _, count, _, wire, *_ in answers["plain", "traffic_by_dimension"]:
        before = sent.get(name, (0, 0))
        sent[name] = (before[0] + count // 4, before[1] + wire // 4)
    links = [row[:8] for row in answers["plain", "traffic_by_link"]]
    assert links == [(name, 0, 0, 0, 4, *sent[name], 1e9) for name in ("inner", "outer")]
    # A port without a bound is never busy. There a ring inside, then one outside, is no slower, and sends less outside.
    links = [(row[0], *row[7:10]) for row in answers["free", "traffic_by_link"]]
    assert [row[0] for row in links] == ["outer", "inner"]
    assert links[1][1:] == (None, 0, 0.0)
    assert links[0][1] == 1e9
    assert links[0][2] > 0
