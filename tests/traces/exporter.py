"""Export a made-up workload from a process of its own, which a test may kill or starve: see test_failures."""

import argparse
import resource
import signal
from pathlib import Path

from stagedb.errors import StagedbError
from tests.traces.synthetic import workload
from tests.traces.written import export_workload


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--file-size", type=int)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if arguments.file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_size, arguments.file_size))
    try:
        done = export_workload(
            workload(), arguments.out, processes=arguments.processes, force=arguments.force, resume=arguments.resume
        )
        if done.there:
            print("mended" if done.mended else "complete already")  # noqa: T201
    except StagedbError as error:
        print(error)  # noqa: T201
        return error.exit_status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
