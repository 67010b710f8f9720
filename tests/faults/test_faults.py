"""The short form of `scripts/faults`, and what it counts as a fault."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scripts._fault_clients import Client, Trial
from scripts._fault_servers import Server, unsupported
from scripts._fault_trials import killed_clients
from scripts._fault_worker import Job, prepared, state_of
from stagedb.api import Stagedb
from stagedb.store import Store
from tests.sampling import SEED

JOB = Job("card", {"Graph": "g", "Instance": "i", "Profile": "p"}, "digest", "dump")


def trial_on(store: Store, environment: dict[str, str], home: Path, scratch: Path, jobs: int) -> Trial:
    """A trial with jobs on the store of the test, which is not stopped."""
    alone = [prepared(Stagedb(store), scratch, f"tiny{number}") for number in range(jobs)]
    server = Server({"STAGEDB_CONFIG": "none", **environment}, unsupported, unsupported, unsupported, home)
    return Trial(server, alone, random.Random(SEED), scratch)


def test_killed_clients_do_no_harm(
    store: Store, store_environment: dict[str, str], stagedb_home: Path, tmp_path: Path
) -> None:
    trial = trial_on(store, store_environment, stagedb_home, tmp_path, 2)
    killed_clients(trial, 1)
    assert trial.outcome.faults == []
    assert sum(count for what, count in trial.outcome.counts.items() if what.startswith("killed in")) == 1
    assert trial.outcome.counts["steps done"] > 0


def line(event: str, step: str) -> dict[str, Any]:
    return {"event": event, "step": step, "job": 0, "time": 0.0}


@pytest.mark.parametrize(
    ("journal", "there"),
    [
        ([], {"g": False, "i": False, "p": False}),
        ([line("begin", "build")], {"g": None, "i": False, "p": False}),
        ([line("begin", "instantiate"), line("done", "instantiate")], {"g": True, "i": True, "p": False}),
        ([line("begin", "load"), line("done", "load"), line("begin", "rm")], {"g": None, "i": None, "p": None}),
        ([line("begin", "load"), line("done", "load"), line("begin", "build")], {"g": True, "i": True, "p": True}),
        ([line("begin", "load"), line("failed", "load")], {"g": None, "i": None, "p": None}),
    ],
)
def test_what_must_be_there_follows_from_what_was_acknowledged(
    journal: list[dict[str, Any]], there: dict[str, bool | None]
) -> None:
    assert state_of([journal], [JOB]) == there


def test_each_fault_is_found(
    store: Store, store_environment: dict[str, str], stagedb_home: Path, tmp_path: Path
) -> None:
    trial = trial_on(store, store_environment, stagedb_home, tmp_path, 1)

    def faults(*journal: dict[str, Any]) -> str:
        process = SimpleNamespace(poll=lambda: None)
        trial.clients = [cast(Client, SimpleNamespace(journal=journal, process=process, scratch=tmp_path))]
        trial.outcome.faults.clear()
        trial.examine([0])
        return "; ".join(trial.outcome.faults)

    db, job = Stagedb(store), trial.jobs[0]
    loaded = line("begin", "load"), line("done", "load")
    assert faults(*loaded).count("was acknowledged and is lost") == 3
    db.load(Path(job.dump))
    assert faults(*loaded) == ""
    assert faults().count("was removed and is there") == 3
    trial.jobs = [Job(job.card, job.things, "another digest", job.dump)]
    assert "differs from the one that was made alone" in faults(*loaded)
    trial.jobs = [job]
    with store._session("WRITE") as session:
        session.run("MATCH (o:Op)-[r:COPY_OF]->() WITH r LIMIT 1 DELETE r").consume()
    assert job.things["Instance"] in faults(*loaded)
    db.rm(job.things["Graph"], force=True)
    db.build("gpt2")
    assert "is nobody's" in faults()
