"""kill -9 of the command line, or of the engine under it, in the middle of its work: nothing half-made is visible, the
store still works, and the next run completes. Faults are at its seams (`tests.faults.injected`)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from stagedb.store import Store, embedded
from stagedb.traces.set_validation import validate_traces
from tests.faults.injected import at
from tests.ir.tiny import card
from tests.traces.written import files_of

ROOT = Path(__file__).parents[2]
POINTS = [
    "wrote.build/tensors",
    "wrote.instantiate/carried",
    "wrote.lifecycle/set_instance",
    "export.file",
    "export.write",
    "export.rename",
]
FILES = 8


@dataclass(frozen=True)
class Engine:
    """An engine of the test's own: how another process reaches it, how it is killed, and started again."""

    environment: dict[str, str]
    kill: Callable[[], None]
    restart: Callable[[], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**card("llama", layers=4).to_dict(), "max_positions": 32}))
    return path


def command(model: Path, out: Path) -> list[str]:
    words = ["--tp", "2", "--pp", "2", "--ranks", str(FILES), "--global-batch-size", "8", "--sp"]
    return [sys.executable, "-m", "stagedb", "export", "--model", str(model), *words, "--out", str(out)]


def run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, env={**os.environ, **environment}, capture_output=True, text=True, timeout=180, check=False
    )


def listed(environment: dict[str, str]) -> list[dict[str, object]]:
    """What `stagedb ls` shows: whole instances alone."""
    shown = run([sys.executable, "-m", "stagedb", "ls", "-f", "json"], environment)
    assert shown.returncode == 0, shown.stderr
    rows: list[dict[str, object]] = json.loads(shown.stdout or "[]")
    return rows


IN_ONE_GO: dict[str, object] = {}
"""The files that an export without an interruption writes; the first test makes them."""


def assert_completes(model: Path, out: Path, environment: dict[str, str]) -> None:
    """With --resume it does, and what comes out is what an export in one go gives."""
    done = run([*command(model, out), "--resume"], environment)
    assert done.returncode == 0, done.stderr
    report = validate_traces(out)
    assert (report.faults, report.files, report.replayed) == ((), FILES, True)
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")] == []
    if not IN_ONE_GO:
        plain = out.with_name("in-one-go")
        done = run(command(model, plain), environment)
        assert done.returncode == 0, done.stderr
        IN_ONE_GO.update(files_of(plain))
    assert files_of(out) == IN_ONE_GO


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_command_leaves_nothing_half_made(
    store: Store, store_environment: dict[str, str], model: Path, tmp_path: Path, point: str
) -> None:
    out = tmp_path / "traces"
    killed = run(command(model, out), {**store_environment, **at(f"{point}:kill")})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not out.exists()
    made = [row for row in listed(store_environment) if row.get("ranks") is not None]
    assert len(made) == (1 if point.startswith("export") else 0)
    assert_completes(model, out, store_environment)
    assert len([row for row in listed(store_environment) if row.get("ranks") is not None]) == 1


def stopped_at(arguments: list[str], environment: dict[str, str], point: str) -> subprocess.Popen[str]:
    """Start a command and wait until it has suspended itself at a point."""
    process = subprocess.Popen(
        arguments,
        env={**os.environ, **environment, **at(f"{point}:pause")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.fixture
def embedded_engine_of_its_own(tmp_path: Path) -> Iterator[Engine]:
    home = tmp_path / "home"
    environment = {"STAGEDB_HOME": str(home), "STAGEDB_CONFIG": os.devnull}

    def kill() -> None:
        endpoint = json.loads(next(home.rglob("endpoint.json")).read_text())
        os.kill(endpoint["pid"], signal.SIGKILL)

    # The next command finds the endpoint stale and starts the engine itself.
    yield Engine(environment, kill, lambda: None)
    embedded.stop(home)


@pytest.fixture
def neo4j_of_its_own(tmp_path: Path, neo4j_environment: dict[str, str]) -> Iterator[Engine]:
    """`neo4j_environment` decides whether Neo4j is tested; its server is shared, so it keeps running."""
    home = tmp_path / "neo4j"
    script = [str(ROOT / "scripts" / "neo4j"), "--home", str(home)]

    def start(*more: str) -> dict[str, str]:
        done = run([*script, "start", *more], {})
        assert done.returncode == 0, done.stdout + done.stderr
        setting = run([*script, "env"], {}).stdout.strip().removeprefix("export STAGEDB_TEST_NEO4J=")
        return {"NEO4J_URI": setting, "STAGEDB_CONFIG": os.devnull}

    environment = start()
    port = environment["NEO4J_URI"].rsplit(":", 1)[1]

    def kill() -> None:
        os.kill(json.loads((home / "state.json").read_text())["pid"], signal.SIGKILL)

    yield Engine(environment, kill, lambda: start("--port", port))
    run([*script, "stop"], {})


OF_ITS_OWN = [
    (engine, point)
    for point in ("wrote.build/tensors", "wrote.instantiate/carried")
    for engine in ("embedded_engine_of_its_own", "neo4j_of_its_own")
]


@pytest.mark.parametrize(("engine", "point"), OF_ITS_OWN)
def test_a_killed_engine_leaves_nothing_half_made(
    request: pytest.FixtureRequest, engine: str, model: Path, tmp_path: Path, point: str
) -> None:
    own: Engine = request.getfixturevalue(engine)
    out = tmp_path / "traces"
    waiting = stopped_at(command(model, out), own.environment, point)
    own.kill()
    os.kill(waiting.pid, signal.SIGCONT)
    _, printed = waiting.communicate(timeout=180)
    assert waiting.returncode == 1, printed
    assert "Traceback" not in printed
    assert not out.exists()
    own.restart()
    assert [row for row in listed(own.environment) if row.get("ranks") is not None] == []
    assert_completes(model, out, own.environment)
