"""What people ask about steps and runs (traffic, breakdowns, the critical path, the topology), asked by an agent."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Profile, Stagedb
from stagedb.store import Store
from stagedb.store.contents.runs import record_run
from tests.agents.asking import Agent, agent_of, rows_of
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.runs.execution_traces import linear_step
from tests.runs.recordings import small_run

TOKENS, HIDDEN, VOCABULARY, BYTES = 8, 16, 512, 2
"""Tokens of a sequence, sizes of the tiny model, bytes of a value."""


def stock(store: Store) -> Profile:
    """A step of two stages of two ranks: a copy of the model on two ranks of tensor parallelism each."""
    db = Stagedb(store)
    db.instantiate(card("llama"), name="wide", tp=2, pp=2, global_batch_size=2)
    record_run(store, small_run())
    return db.profile("wide", name="first")


@pytest.fixture
def reading(fill: Fill) -> Store:
    return fill(stock).store


@pytest.fixture
def timed(fill: Fill) -> Profile:
    return fill(stock).made


@pytest.fixture
def agent(reading: Store) -> Agent:
    return agent_of(reading)


def test_the_total_traffic_and_that_of_each_link(reading: Store, timed: Profile, agent: Agent) -> None:
    links = agent.call("query", name="traffic_by_link", profile="first").rows
    whole = agent.call("query", name="traffic-by-dimension").content
    assert whole["units"]["wire_bytes"] == "B"
    assert any("newest profile" in note for note in whole["notes"])
    own = Stagedb(reading).query("traffic_by_link", profile="first")
    assert links == [dict(row) for row in own]
    # A message between the stages is the state of a sequence, one for each rank, micro-batch and direction.
    sent = agent.call(
        "cypher",
        query="MATCH (:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime {type: 'send'}) "
        "UNWIND t.wire_bytes AS bytes RETURN bytes, sum(t.count * l.ranks) AS messages",
    ).rows
    assert {row["bytes"] for row in sent} == {TOKENS * HIDDEN * BYTES}
    assert sum(row["messages"] for row in sent) == 2 * 2 * 2
    for dimension in {row["dimension"] for row in links}:
        there = [row for row in rows_of(whole) if row["dimension"] == dimension]
        of_links = sum(row["wire_bytes"] * row["ranks"] for row in links if row["dimension"] == dimension)
        assert sum(row["wire_bytes"] for row in there) == of_links


def test_a_breakdown_adds_up_to_the_step(timed: Profile, agent: Agent) -> None:
    found = agent.call("report", word="first").content
    assert found["properties"]["step"] == timed.step
    whole = agent.call("profile", instance="wide", table="lanes").content
    for lane in rows_of(whole):
        parts = ("busy", "exposed", "bubble", "idle")
        assert sum(lane[part] for part in parts) == timed.step
    path = agent.call("query", name="critical_breakdown", rows=1_000).rows
    assert sum(row["ns"] for row in path) == timed.step


def test_the_critical_path_over_all_ranks_has_the_flops_of_each_op(timed: Profile, agent: Agent) -> None:
    path = agent.call("query", name="critical_path", rows=1_000).rows
    assert {row["stage"] for row in path} == {0, 1}
    ops = agent.call(
        "cypher",
        query="MATCH (:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)-[:OF]->(o:Op) "
        "WHERE t.critical > 0 AND o.kind = 'matmul' AND t.name CONTAINS 'head' AND t.phase = 'forward' "
        "RETURN t.name AS name, o.flops AS flops, t.duration AS ns",
    ).rows
    # Two FLOPs for each token, value of its state and word of this rank's half of the vocabulary.
    assert [row["flops"] for row in ops] == [2 * TOKENS * HIDDEN * VOCABULARY // 2]


def test_results_react_to_the_topology(timed: Profile, agent: Agent) -> None:
    path = "system.network.nvlink.bandwidth"
    rows = agent.call("sweep", instance="wide", vary={path: [450, 225], "tp": [2]}).rows
    assert [row[path] for row in rows] == [450, 225]
    assert rows[0]["step"] == timed.step < rows[1]["step"]
    other = agent.call("profile", instance="wide", system="a100-80gb").content
    assert other["merit"]["step"] != timed.step
    assert other["instance"] == timed.instance.id


def test_two_steps_are_compared(store: Store) -> None:
    stock(store)
    agent = agent_of(store)
    Stagedb(store).profile("wide", system="a100-80gb", name="second")
    found = agent.call("diff", first="first", second="second", rows=5).content
    assert found["verdict"] == Stagedb(store).diff("first", "second").verdict
    assert len(found["rows"]) == 5
    assert found["rows_of"]["plan"] == 0
    assert any("the same call with skip 5" in note for note in found["notes"])
    assert rows_of(agent.call("find", plan={"tp": 2}, model="tiny-llama").content)[0]["system"] == "h100"


def test_a_run_is_explained(agent: Agent) -> None:
    (late,) = agent.call("query", name="late_ranks").rows
    assert (late["rank"], late["waited"]) == (1, 4_000)
    (run,) = agent.call("ls", kind="runs").rows
    members = agent.call("run_collectives", run=run["id"]).rows
    assert [(each["rank"], each["waits"], each["last"]) for each in members] == [(0, 4_000, 1), (1, 0, 1)]
    ops = agent.call("run_ops", run=run["id"], rank=1, order="duration", rows=1).content
    assert rows_of(ops)[0]["rank"] == 1
    assert ops["units"]["duration"] == "ns"
    assert "its ranks are 0, 1" in agent.call("run_ops", run=run["id"], rank=7).error
    report = agent.call("report", word=run["id"]).content
    assert rows_of(report["late_ranks"]) == [late]
    assert "a rank computes or copies" in report["spent"]
    faster = agent.call("replay", run=run["id"], scale=["rank:1=0.5"]).content
    assert faster["step"] < faster["base"]


def test_a_run_without_times_is_counted(store: Store, tmp_path: Path) -> None:
    files = [linear_step(rank).write(tmp_path / f"rank{rank}.json") for rank in range(2)]
    run = Stagedb(store).import_run(*files)
    agent = agent_of(store)
    report = agent.call("report", word=run.id).content
    assert "spent" not in report and report["extent"] == "2 ranks, 1 step, 16 ops"
    assert [row["bytes"] for row in rows_of(report["collectives_by_group"])] == [384]
    (op,) = agent.call("run_ops", run=run.id, rank=1, kind="all_reduce").rows
    assert (op["message"], op["start"], op["duration"]) == (192, None, None)
    for asked in (("run_ops", {"order": "duration"}), ("replay", {})):
        assert "has no times" in agent.call(asked[0], run=run.id, **asked[1]).error


def test_plans_are_tried_and_nothing_is_kept(reading: Store, agent: Agent) -> None:
    before = [each.id for each in Stagedb(reading).profiles()]
    advice = agent.call("advise", instance="wide").content
    assert "is bound by" in advice["verdict"]
    assert all(row["step"] > 0 for row in rows_of(advice))
    found = agent.call(
        "search", model="gpt2", ranks=[2], words={"global_batch_size": 4, "tp": 1}, seconds=20, fate="timed", rows=3
    ).content
    steps = [row["step"] for row in rows_of(found)]
    assert steps == sorted(steps) and steps
    memory = agent.call("memory", instance="wide").content
    assert max(row["peak"] for row in rows_of(memory)) == Stagedb(reading).profile("wide", keep=False).memory[0].bytes
    assert [each.id for each in Stagedb(reading).profiles()] == before
    assert Stagedb(reading).searches() == []


def test_the_store_describes_itself(agent: Agent) -> None:
    listed = {row["name"]: row for row in agent.call("queries").rows}
    assert "hotspots" in listed
    fields = agent.call("queries", name="hotspots").rows
    assert [row["name"] for row in fields if row["how"] == "takes"] == ["profile"]
    assert {row["label"] for row in agent.call("schema").rows} >= {"Instance", "Profile", "Run"}
    step = next(row for row in agent.call("schema", label="Profile").rows if row["property"] == "step")
    assert step["unit"] == "ns"
    assert agent.call("models", like="gpt2").rows[0]["name"] == "gpt2"
    keys: dict[str, Any] = {row["key"]: row["value"] for row in agent.call("systems", name="h100").rows}
    assert keys["name"] == "h100"
    shown = agent.call("show", word="wide").content
    assert shown["properties"]["tp"] == 2
