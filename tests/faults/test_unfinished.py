"""What a killed command leaves is shown, and can be removed; what a living one makes is left alone."""

import json
import signal
from pathlib import Path

import pytest
import yaml

from stagedb.api import Stagedb
from stagedb.errors import StagedbError
from stagedb.store import LABELS, Store, sweep
from tests.faults.meanwhile import resumed, stagedb, stopped_at
from tests.ir.tiny import card

PLAN = ["--tp", "2", "--pp", "2"]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """Path of a small model's card."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**card("llama", layers=2).to_dict(), "max_positions": 32}), encoding="utf-8")
    return str(path)


def nodes(store: Store) -> dict[str, int]:
    """Nodes by label, where there are any."""
    counts = {
        label.name: store.query(f"MATCH (n:{label.name}) RETURN count(n) AS n").rows[0][0]
        for label in LABELS
        if label.name not in ("Store", "Graph", "SymOp", "SymTensor", "User", "Event", "Input")
    }
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("way", ["gc", "rm"])
def test_what_a_killed_command_left_is_listed_and_removed(
    store: Store, store_environment: dict[str, str], tiny: str, way: str
) -> None:
    environment = {**store_environment, "STAGEDB_USER": "ada"}
    killed = stagedb(environment, "instantiate", tiny, *PLAN, "--name", "half", fault="wrote.instantiate/chains:kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert nodes(store)["Op"] > 0
    (row,) = json.loads(stagedb(environment, "ls", "unfinished", "-f", "json").stdout)
    assert (row["kind"], row["name"], row["made_by"]) == ("unfinished", "half", "ada")
    assert row["state"] == "instance building, by a process that has ended"
    assert "\nunfinished\n" in stagedb(environment, "ls").stdout
    done = stagedb(environment, "store", "gc", "--dead") if way == "gc" else stagedb(environment, "rm", "half")
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["removed", "instance"]), done.stderr
    assert nodes(store) == {}
    assert stagedb(environment, "store", "gc", "--dead").stdout == "nothing to remove\n"


def test_a_killed_removal_is_finished(store: Store, store_environment: dict[str, str]) -> None:
    db = Stagedb(store)
    db.instantiate(card("llama", layers=2), name="mine", tp=2)
    killed = stagedb(store_environment, "rm", "mine", fault="write.lifecycle/clear_task:kill")
    assert killed.returncode == -signal.SIGKILL
    assert db.instances() == []
    assert [(each.kind, each.name, each.state, each.dead) for each in sweep(store)] == [
        ("Instance", "mine", "deleting", True)
    ]
    assert nodes(store) == {}


def test_what_a_living_command_makes_is_listed_and_left_alone(
    store: Store, store_environment: dict[str, str], tiny: str
) -> None:
    command = ["instantiate", tiny, *PLAN, "--name", "half"]
    process = stopped_at("wrote.instantiate/chains", command, store_environment)
    db = Stagedb(store)
    (row,) = db.ls("unfinished")
    assert row["state"] == "instance building"
    assert db.gc(dead=True) == []
    with pytest.raises(StagedbError, match="being built or deleted by another process"):
        db.rm("half")
    status, printed = resumed(process)
    assert status == 0, printed
    assert [each.name for each in db.instances()] == ["half"]
