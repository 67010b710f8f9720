"""Export a made-up workload from a process of its own, which a test may kill or starve: see test_failures."""

import argparse
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from stagedb.errors import StagedbError
from tests.faults.injected import at
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, pack_workload

ROOT = Path(__file__).parents[2]


def started(out: Path, *words: str, fault: str = "") -> "subprocess.Popen[str]":
    """The process, with all that it prints in one pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.traces.exporter", str(out), *words],
        env={**os.environ, **at(fault)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--file-size", type=int)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--compress", action="store_true")
    parser.add_argument("--format", default="et")
    parser.add_argument("--packed", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if arguments.file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_size, arguments.file_size))
    try:
        if arguments.packed:
            pack_workload(workload(), arguments.out)
            return 0
        done = export_workload(
            workload(),
            arguments.out,
            processes=arguments.processes,
            force=arguments.force,
            resume=arguments.resume,
            compress=arguments.compress,
            format=arguments.format,
        )
        if done.there:
            print("mended" if done.mended else "complete already")  # noqa: T201
    except StagedbError as error:
        print(error)  # noqa: T201
        return error.exit_status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
