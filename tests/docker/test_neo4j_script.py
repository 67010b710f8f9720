"""`scripts/neo4j`: a server goes on with its data, alone or under systemd, and deletes them on request only."""

import configparser
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import neo4j
import neo4j.exceptions
import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docker" / "stagedb-neo4j.service"
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(neo4j_environment: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """A directory for a server, which ends with the test."""
    del neo4j_environment  # what a server needs is there
    home = tmp_path / "home"
    yield home
    script(home, "stop")


def script(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `scripts/neo4j`."""
    line = [sys.executable, "-m", "scripts._neo4j", "--home", str(home), *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEO4J_")}
    return subprocess.run(line, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)


def nodes(home: Path, text: str = "MATCH (n:Kept) RETURN count(n) AS n") -> int:
    """A number of a running server."""
    port = json.loads((home / "state.json").read_text(encoding="utf-8"))["port"]
    account = ("neo4j", (home / "password").read_text(encoding="utf-8"))
    with neo4j.GraphDatabase.driver(f"bolt://127.0.0.1:{port}", auth=account) as driver:
        return int(driver.execute_query(text).records[0]["n"])


def test_a_server_loses_its_data_only_if_it_is_started_empty(home: Path) -> None:
    """That it keeps them otherwise is shown below, where a server starts twice."""
    assert script(home, "start").returncode == 0
    assert nodes(home, "CREATE (n:Kept) RETURN count(n) AS n") == 1
    refused = script(home, "start", "--empty")
    assert refused.returncode == 1
    assert "stop it before --empty" in refused.stderr
    assert nodes(home) == 1
    script(home, "stop")
    (home / "release").write_text("9999.1.0", encoding="utf-8")
    newer = script(home, "start", "--version", "5.26")
    assert newer.returncode == 1
    assert "are of Neo4j 9999.1.0, and 5.26" in newer.stderr
    assert "--empty" in newer.stderr
    assert script(home, "start", "--empty").returncode == 0
    assert nodes(home) == 0


def test_the_unit_of_systemd_runs_a_server_that_keeps_its_data(home: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT, encoding="utf-8")
    service = unit["Service"]
    assert (service["Type"], service["Restart"], unit["Install"]["WantedBy"]) == (
        "exec",
        "on-failure",
        "default.target",
    )
    words = service["ExecStart"].split()
    assert words[0] == "%h/stagedb/scripts/neo4j"
    line = [str(ROOT / "scripts" / "neo4j"), *words[1:]]
    line[line.index("%h/stagedb-neo4j")] = str(home)
    line[line.index("7687")] = "0"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEO4J_")}
    for expected in (0, 1):
        with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert any("Started." in text for text in server.stdout)
            # The process that systemd watches is the server itself.
            assert json.loads((home / "state.json").read_text(encoding="utf-8"))["pid"] == server.pid
            assert "runs at bolt://127.0.0.1" in script(home, "status").stdout
            assert nodes(home) == expected
            nodes(home, "CREATE (n:Kept) RETURN count(n) AS n")
            server.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 300
            while server.poll() is None and time.monotonic() < deadline:
                server.stdout.readline()
        assert server.returncode in (0, int(service["SuccessExitStatus"]), -signal.SIGTERM)
