"""Profiles in the store: whole or not seen, written twice one, gone with their instance."""

import dataclasses
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.plans import Plan
from stagedb.store import Store, building, delete, sweep, write_graph
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.profiles import profile_id, record_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.systems import Durations, Measured
from stagedb.timing import JobProfile, Scaling, profile_job
from stagedb.timing.step_profile import path_rows
from tests.faults.injected import at
from tests.instances.small_graph import small_graph
from tests.ir.tiny import card
from tests.timing.plain import PLAIN

ROOT = Path(__file__).parents[2]
PLAN = Plan(tp=2, dp=2, pp=2, seq_len=16, global_batch_size=8)
POINTS = ("lane_times", "op_times", "task_times", "segments", "legs")
WRITE = """
from stagedb.store.contents.stored_programs import read_workload
from stagedb.store.contents.profiles import record_profile
from stagedb.timing import profile_job
from stagedb.store import connect
from tests.timing.plain import PLAIN
import sys
with connect() as store:
    record_profile(store, profile_job(read_workload(store, sys.argv[1]), PLAIN))
"""


def made(store: Store) -> str:
    write_graph(store, small_graph())
    return instantiate(store, small_graph().key, PLAN)


def profiled(store: Store, *scalings: str) -> JobProfile:
    job = read_workload(store, made(store))
    return profile_job(job, PLAIN, scalings=[Scaling.parse(each) for each in scalings])


def seen(store: Store) -> list[str]:
    return [row["id"] for row in store.read("catalog/profiles")]


def left(store: Store) -> int:
    return sum(
        int(store.query(f"MATCH (n:{label}) RETURN count(n) AS n").rows[0][0])
        for label in ("Profile", "LaneTime", "OpTime", "TaskTime", "Leg", "Segment")
    )


def whole(job: JobProfile) -> int:
    """The nodes of a profile."""
    path = path_rows("", job, [{"lane": lane.number} for lane in job.times.network.lanes])
    lanes = sum(1 + len(columns.ops) + len(columns.tasks) for columns in job.times.network.columns)
    return 1 + lanes + len(path.legs) + len(path.segments)


def test_what_is_written_is_the_step(store: Store) -> None:
    job = profiled(store)
    profile, new = record_profile(store, job)
    assert new
    assert seen(store) == [profile]
    node = store.query("MATCH (p:Profile) RETURN properties(p) AS p").rows[0][0]
    assert (node["step"], node["unscaled"], node["mfu"]) == (job.step, job.step, job.merit.mfu)
    lanes = store.query(
        "MATCH (l:LaneTime {profile: $p}) RETURN l.busy AS b, l.exposed AS e, l.bubble AS u, l.idle AS i "
        "ORDER BY l.lane",
        {"p": profile},
    ).rows
    assert lanes == tuple((each.busy, each.exposed, each.bubble, each.idle) for each in job.times.lanes)
    ops = store.query(
        "MATCH (t:OpTime {profile: $p})-[:OF]->(o:Op) RETURN t.lane AS lane, o.name AS name, t.name AS timed, "
        "t.total AS total, t.critical AS critical, t.slack AS slack, t.count AS count ORDER BY t.id",
        {"p": profile},
    ).rows
    wanted = [
        (
            lane.number,
            name,
            name,
            *(int(column[op]) for column in (spent.time, spent.critical, spent.slack, spent.runs)),
        )
        for lane, columns, times in zip(
            job.times.network.lanes, job.times.network.columns, job.times.lanes, strict=True
        )
        for spent in (times.ops,)
        for op, name in enumerate(columns.ops.name)
    ]
    assert sorted(ops) == sorted(wanted)


def test_walking_from_the_profile_gives_the_legs_in_order(store: Store) -> None:
    """From the profile to its first leg, leg to leg: each begins when the one before ends, and together they are the
    step. Each is in its task, and its segment's ops fill it."""
    job = profiled(store)
    profile, _ = record_profile(store, job)
    walked = store.query(
        "MATCH (:Profile {id: $p})-[:FIRST_LEG]->(:Leg)-[:NEXT_LEG*0..]->(g:Leg)-[:IN_TASK]->(t:TaskTime) "
        "MATCH (g)-[:FILLED_BY]->(s:Segment)-[c:CONTAINS]->(o:OpTime) "
        "WITH g, t, s, c, o ORDER BY g.number, c.number "
        "RETURN g.number AS n, t.lane AS lane, t.index AS task, g.start AS start, g.finish AS finish, g.ns AS ns, "
        "s.ns AS filled, collect(c.ns) AS ops, collect(o.index) AS at, collect(DISTINCT o.lane) AS lanes ORDER BY n",
        {"p": profile},
    ).rows
    path, legs = job.times.path, job.times.path.legs()
    wanted = zip(legs.lane.tolist(), legs.task.tolist(), legs.start.tolist(), legs.finish.tolist(), strict=True)
    assert [tuple(row[1:5]) for row in walked] == list(wanted)
    assert [row[0] for row in walked] == list(range(len(legs.lane)))
    assert sum(row[5] for row in walked) == job.step
    for row in walked:
        assert (row[5], row[6], sum(row[7]), row[9]) == (row[4] - row[3],) * 3 + ([row[1]],)
    assert [op for row in walked for op in row[8]] == path.op.tolist()
    # A steady pipeline repeats itself: legs share segments.
    (segments,) = store.query("MATCH (s:Segment) RETURN count(s) AS n").rows[0]
    assert 0 < segments < len(walked)


def test_the_same_twice_is_one_and_the_newest_again(store: Store) -> None:
    job = profiled(store)
    first, _ = record_profile(store, job, "mine")
    other, _ = record_profile(store, profiled(store, "compute=0.5"))
    count = left(store)
    assert record_profile(store, job) == (first, False)
    assert left(store) == count
    assert [(each.id, each.name) for each in Stagedb(store).profiles()] == [(first, "mine"), (other, None)]


def test_two_that_write_the_same_at_once_write_one(store: Store) -> None:
    job = profiled(store)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda turn: record_profile(store, job), range(2)))
    assert sorted(new for _, new in found) == [False, True]
    assert len(seen(store)) == 1
    assert left(store) == whole(job)


def test_what_another_clock_wrote_is_replaced(store: Store) -> None:
    job = profiled(store)
    profile, _ = record_profile(store, dataclasses.replace(job, unscaled=job.unscaled + 1))
    count = left(store)
    reported: list[tuple[int, int]] = []
    assert record_profile(store, job, progress=lambda done, of: reported.append((done, of))) == (profile, True)
    assert left(store) == count
    assert store.read("catalog/profiles")[0]["unscaled"] == job.unscaled
    assert reported[-1][0] == reported[-1][1] >= count - 1


def test_one_that_does_not_hold_what_is_sent_is_replaced_and_keeps_its_name(store: Store) -> None:
    job = profiled(store)
    figures = {"instance": job.workload.instance, "step": job.step, "unscaled": job.unscaled, "mfu": job.merit.mfu}
    with building(store, "Profile", profile_id(job), {**figures, "name": "mine"}):
        pass
    assert record_profile(store, job) == (profile_id(job), True)
    assert record_profile(store, job) == (profile_id(job), False)
    node = store.query("MATCH (p:Profile) RETURN p.name AS n, p.dimensions AS d, p.dimension_bandwidths AS b").rows
    assert node == (("mine", ["inner", "outer"], [1e9, 1e9]),)
    ops = store.query("MATCH (t:OpTime) RETURN t.type AS type, t.wires AS w, t.wire_bytes AS b").rows
    assert all((wires is None) == (type_ not in ("collective", "send")) for type_, wires, _ in ops)
    assert all(len(sent) == len(wires) for _, wires, sent in ops if wires is not None)
    found = {tuple(wires or ()) for _, wires, _ in ops}
    assert {("inner",), ("outer",)} <= found


def test_the_id_is_of_all_that_a_profile_is_made_from(store: Store) -> None:
    job = profiled(store)
    rows = [
        Measured("a", job.step * PLAIN.accelerator.launch + 5, kind="matmul"),
        Measured("b", 1 + PLAIN.accelerator.launch, kind="norm"),
    ]
    measured = [profile_job(job.workload, PLAIN, Durations(order)) for order in (rows, rows[::-1])]
    named = profile_job(job.workload, dataclasses.replace(PLAIN, name="other"))
    scaled = [profile_job(job.workload, PLAIN, scalings=[Scaling.parse(each) for each in words]) for words in (
        ("compute=0.5", "collective=2"), ("collective=2", "compute=1/2"), ("compute=0.5",)
    )]  # fmt: skip
    waiting = [profile_job(job.workload, PLAIN, blocking=axes) for axes in ("tp,pp", ("pp", "tp"), "pp", "")]
    ids = [profile_id(each) for each in (job, *measured, named, *scaled, *waiting)]
    assert ids[1] == ids[2]
    assert ids[4] == ids[5]
    assert ids[7] == ids[8]
    assert ids[10] == ids[0]
    assert len(set(ids)) == 7


def test_a_profile_names_the_axes_that_block(store: Store) -> None:
    job = profiled(store)
    plain, _ = record_profile(store, job)
    waiting, _ = record_profile(store, profile_job(job.workload, PLAIN, blocking="pp,tp"))
    found = store.query("MATCH (p:Profile) RETURN p.id AS id, p.blocking AS blocking").rows
    assert {row[0]: row[1] for row in found} == {plain: None, waiting: ["tp", "pp"]}
    assert {row["id"]: row["blocking"] for row in store.read("catalog/profiles")} == {
        plain: [],
        waiting: ["tp", "pp"],
    }


def test_an_instance_takes_its_profiles_along(store: Store) -> None:
    job = profiled(store)
    record_profile(store, job)
    record_profile(store, profiled(store, "compute=0.5"))
    assert delete(store, "Instance", job.workload.instance)
    assert left(store) == 0
    with pytest.raises(StagedbError, match="its instance is gone"):
        record_profile(store, job)
    assert left(store) == 0


def test_an_instance_is_kept_while_a_profile_of_it_is_written(store: Store) -> None:
    instance = made(store)
    refused = pytest.raises(StagedbError, match=f"profile p of instance {instance} is being built")
    with building(store, "Profile", "p", {"instance": instance}), refused:
        delete(store, "Instance", instance)
    assert [row["id"] for row in store.read("catalog/instances")] == [instance]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_writer_leaves_nothing_to_see_and_is_swept(
    store: Store, store_environment: dict[str, str], point: str
) -> None:
    instance = made(store)
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}
    killed = subprocess.run(
        [sys.executable, "-c", WRITE, instance],
        cwd=ROOT,
        env={**settings, **store_environment, **at(f"wrote.profile/{point}:kill")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert seen(store) == []
    assert left(store) > 1
    if point == POINTS[0]:
        # The next one completes it.
        job = profile_job(read_workload(store, instance), PLAIN)
        assert record_profile(store, job)[1]
        assert left(store) == whole(job)
    else:
        assert [each.kind for each in sweep(store)] == ["Profile"]
        assert left(store) == 0


def test_layers_are_numbers_of_the_model(embedded_store: Store) -> None:
    record_profile(embedded_store, profiled(embedded_store))
    rows = embedded_store.query(
        "MATCH (t:OpTime) WHERE t.layer IS NOT NULL RETURN DISTINCT t.stage AS stage, t.layer AS layer ORDER BY layer"
    ).rows
    stages = np.array_split(np.arange(small_graph().sizes["L"]), PLAN.pp)
    assert rows == tuple((stage, layer) for stage, layers in enumerate(stages) for layer in layers.tolist())


def test_a_name_that_is_no_text_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="--name is not Unicode"):
        record_profile(store, profiled(store), "a\ud800")
    with pytest.raises(UsageError, match="--name is not Unicode"):
        instantiate(store, small_graph().key, PLAN, name="a\ud800")


def test_a_path_through_thousands_of_ops_of_one_task_is_written(store: Store) -> None:
    deep = dataclasses.replace(card("llama"), layers=170)
    Stagedb(store).profile(model=deep, system=PLAIN, recompute="full", seq_len=8, global_batch_size=2)
    rows = store.query(
        "MATCH (s:Segment)-[c:CONTAINS]->() RETURN s.ops AS ops, s.ns AS ns, count(c) AS n, sum(c.ns) AS sum"
    )
    assert max(row[2] for row in rows.rows) > 3500
    assert all(row[:2] == row[2:] for row in rows.rows)
