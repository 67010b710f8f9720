"""A search on a Ray cluster finds what it finds here, also when workers end; what cannot work is an error.

The cluster is a real one of this machine, with a token. What connects to it is a process of its own: threads of Ray's
client stay in a process, and other tests copy this one.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from stagedb import api
from stagedb.copied_processes import Answer
from stagedb.errors import UsageError
from stagedb.search import ray_workers
from tests.search.test_searching import LLAMA, asked, run

ROOT = Path(__file__).parents[2]
REQUEST = asked(LLAMA, 4, ("zero", "recompute"), words={"micro_batch_size": 1})

WORKER = "ray::_Worker"
"""How the process of a worker begins."""

PATIENCE = 600
"""Seconds for a search: a busy machine takes a minute to start a worker, and three follow each other."""


@dataclass(frozen=True)
class Cluster:
    """A cluster of this machine. environment: of its processes, and of those that connect to it."""

    address: str
    process: subprocess.Popen[bytes]
    environment: dict[str, str]

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """What a process prints that connects to the cluster, whose `address` it knows."""
        text = f"address = {self.address!r}\nfrom tests.search.test_ray import *\n{code}"
        return subprocess.run(
            [sys.executable, "-c", text],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )


def free_ports(count: int) -> list[int]:
    with_them = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in with_them]
    for each in with_them:
        each.close()
    return found


def answers_at(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two CPUs, each of which runs a worker."""
    pytest.importorskip("ray", reason="Ray has no wheel for this system")
    home = tempfile.mkdtemp(prefix="ray")  # a short path: that of a socket has at most 107 characters
    port, client, *others = free_ports(7)
    named = ("node-manager", "object-manager", "dashboard-agent-grpc", "dashboard-agent-listen", "metrics-export")
    options: dict[str, object] = {f"{name}-port": each for name, each in zip(named, others, strict=True)}
    options |= {"port": port, "ray-client-server-port": client, "node-ip-address": "127.0.0.1", "num-cpus": 2}
    options |= {"object-store-memory": 80_000_000, "include-dashboard": "false", "temp-dir": home}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": home, "PYTHONPATH": str(ROOT), "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "3"}
    environment |= {"RAY_TMPDIR": f"{home}/own", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    command = ["--head", "--block", "--disable-usage-stats", *(f"--{name}={each}" for name, each in options.items())]
    with (Path(home) / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *command],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + PATIENCE
        while not answers_at(client):
            assert process.poll() is None and time.monotonic() < until, (Path(home) / "out").read_text()
            time.sleep(0.2)
        yield Cluster(f"ray://127.0.0.1:{client}", process, environment)
    finally:
        if process.poll() is None:
            kill_all(process.pid)
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def kill_all(pid: int) -> None:
    """End a process at once, with all that it has started."""
    process = psutil.Process(pid)
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.kill()


def workers() -> list[psutil.Process]:
    """The processes of workers, which have the token of this process's cluster."""
    token, found = os.environ["RAY_AUTH_TOKEN"], []
    for each in psutil.process_iter():
        try:
            if each.name().startswith(WORKER) and each.environ().get("RAY_AUTH_TOKEN") == token:
                found.append(each)
        except psutil.Error:
            continue
    return found


def rows(**more: Any) -> list[Any]:
    """What a search finds: its best plans with all that is known of them, and how many plans have an answer."""
    found = run(REQUEST, LLAMA, **more)
    return [[asdict(each) for each in found.winners], found.covered, sum(each.plans for each in found.candidates)]


def ended(_: Any) -> Any:
    """A question that ends its worker."""
    os.kill(os.getpid(), signal.SIGKILL)


def ending() -> Answer:
    return ended


KILLED = """
killed = []
def kill(candidate):
    if candidate.fate == "timed" and not killed:
        killed.append(workers()[0].pid)
        os.kill(killed[0], signal.SIGKILL)
found = rows(on=address, settled=kill)
print(json.dumps([found, len(killed)]))
"""


def test_a_search_finds_the_same_when_a_worker_is_killed(cluster: Cluster) -> None:
    ran = cluster.run(KILLED)
    assert ran.returncode == 0, ran.stderr
    found, killed = json.loads(ran.stdout)
    assert killed == 1
    assert found == json.loads(json.dumps(rows()))


def test_workers_of_another_stagedb_are_refused(cluster: Cluster) -> None:
    ran = cluster.run("ray_workers._code = lambda: 'other'\nrows(on=address)")
    assert "UsageError: the worker on " in ran.stderr and "here it is other): install the same there" in ran.stderr


def test_a_question_that_ends_workers_is_named(cluster: Cluster) -> None:
    ran = cluster.run(
        "with ray_workers.ray_workers(address, ended, ending, (), '«{}»'.format, 'so that all ends') as found:\n"
        "    found.ask(7)\n"
        "    while found.busy:\n"
        "        list(found.answers())\n"
    )
    assert "3 workers of ray://127.0.0.1" in ran.stderr and "while it tried «7», so that all ends" in ran.stderr


def test_a_cluster_that_ends_is_an_error(cluster: Cluster) -> None:
    """The last test that has this cluster."""
    ran = cluster.run(f"rows(on=address, settled=lambda _: kill_all({cluster.process.pid}))")
    assert "StagedbError: the connection to ray://127.0.0.1" in ran.stderr and "so that the search ended" in ran.stderr
    # Ray's client, asked for anything more, starts a cluster of its own here.
    assert not Path(cluster.environment["RAY_TMPDIR"]).exists()


def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    (port,) = free_ports(1)
    pytest.importorskip("ray", reason="Ray has no wheel for this system")
    with pytest.raises(UsageError, match=rf"ray://127\.0\.0\.1:{port} cannot be reached \(Connection refused\)"):
        rows(on=f"ray://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "address", ["ray://", "ray://head", "ray://head:port", "http://head:10001", "head:10001", "auto"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="on takes ray://HOST:PORT"):
        api.search("llama3.2-1b", [4], on=address, words={"global_batch_size": 8})


def test_a_connection_that_the_head_loses_is_tried_again() -> None:
    lost = [ConnectionAbortedError("the head")] * 3

    def init(*_: Any, **__: Any) -> str:
        if lost:
            raise lost.pop()
        return "context"

    assert ray_workers._connect(SimpleNamespace(init=init), "ray://head:10001") == "context"
    lost.extend([ConnectionAbortedError("the head")] * 4)
    with pytest.raises(ConnectionAbortedError):
        ray_workers._connect(SimpleNamespace(init=init), "ray://head:10001")


def test_without_the_package_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'pip install "stagedb\[ray\]"'):
        api.search("llama3.2-1b", [4], on="ray://head:10001", words={"global_batch_size": 8})


def test_a_search_on_this_machine_imports_no_ray() -> None:
    code = "import sys, stagedb.cli.search, stagedb.search.searching; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
