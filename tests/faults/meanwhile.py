"""A command that is stopped at a statement, while a test does something else to the store."""

import os
import signal
import subprocess
import sys
import time

import psutil

from tests.faults.injected import at


def settings(environment: dict[str, str]) -> dict[str, str]:
    """The variables of a command that uses the store of this environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}
    return {**kept, **environment}


def stagedb(environment: dict[str, str], *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of stagedb to its end. fault: what happens to it meanwhile, as in `at`; empty: nothing."""
    return subprocess.run(
        [sys.executable, "-m", "stagedb", *arguments],
        env={**settings(environment), **at(fault)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def stopped_at(point: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command of stagedb, and wait until it has suspended itself at a point such as `read.workload/edges`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stagedb", *arguments],
        env={**settings(environment), **at(f"{point}:pause" if ":" not in point else point)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the command did not come to its point"
        time.sleep(0.05)
    return process


def resumed(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Let a stopped command go on. Its exit status, and all that it printed."""
    process.send_signal(signal.SIGCONT)
    out, errors = process.communicate(timeout=180)
    return process.returncode, out + errors
