"""Runs of PyTorch on CPUs with gloo, each rank a process, recorded: `scripts/record_runs fsdp --ranks 4 -o traces`.

Writes `rankR.json.gz` (PyTorch's profiler) and `rankR.et.json.gz` (its execution trace) for each rank, and
`expected.jsonl`, with what each rank communicated in a step, which the processes listed without a profiler.
`scripts/recording` has the programs; only they need torch. docs/recording.md describes it.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.recording.configurations import DEFAULTS
from scripts.recording.run_requests import FAULTS, PROGRAMS, RunRequest, Sleep, SlowLink
from scripts.recording.run_trimming import saved_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Record what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="scripts/record_runs", description="runs of PyTorch on CPUs, with gloo")
    parser.add_argument("program", choices=tuple(PROGRAMS), help="what trains, and on which axes")
    parser.add_argument("--ranks", type=int, default=4, help="how many processes (4)")
    parser.add_argument("--steps", type=int, default=1, help="how many steps are recorded (1)")
    parser.add_argument("--sleep", metavar="RANK:LAYER:SECONDS", help="a rank that sleeps before a layer")
    parser.add_argument("--slow-link", metavar="FROM:TO:RATE", help="a link with so many bytes per second")
    parser.add_argument("--fault", choices=tuple(FAULTS), help="what is wrong with the program")
    parser.add_argument(
        "--set", metavar="WORD=NUMBER", action="append", default=[], help="a number of its configuration, such as seq"
    )
    parser.add_argument("--shapes", action="store_true", help="record the shapes of matmuls and attentions")
    parser.add_argument("--memory", action="store_true", help="record every allocation and release, too")
    parser.add_argument("--first", action="store_true", help="run before all other programs (as root)")
    parser.add_argument("--whole", action="store_true", help="leave traces as the profiler wrote them")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write")
    given = parser.parse_args(arguments)
    try:
        request = requested(given)
    except ValueError as error:
        parser.error(str(error))
    # One thread a process, so that ranks do not compete for cores more than they have to.
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        spawn = importlib.import_module("torch.multiprocessing").spawn
        work = importlib.import_module("scripts.recording.under_torch.run_worker").work
    except ModuleNotFoundError as missing:
        print(f"scripts/record_runs: {missing.name} is not installed: pip install 'torch==2.13.*'", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (request, Path(folder)), nprocs=request.ranks)
        written = saved_run(Path(folder), request, given.output, given.whole)
    print(json.dumps({"files": len(written), "bytes": sum(path.stat().st_size for path in written)}))
    return 0


def requested(given: argparse.Namespace) -> RunRequest:
    """The run that the arguments ask for. Raises ValueError."""
    sleep = slow = None
    if given.sleep is not None:
        rank, layer, seconds = given.sleep.split(":")
        sleep = Sleep(int(rank), int(layer), float(seconds))
    if given.slow_link is not None:
        source, target, rate = (int(word) for word in given.slow_link.split(":"))
        slow = SlowLink(source, target, rate)
    config = {}
    for word, _, number in (each.partition("=") for each in given.set):
        if type(DEFAULTS.get(word)) is not int:
            raise ValueError(f"a configuration has no number {word}")
        config[word] = int(number)
    request = RunRequest(
        program=given.program,
        ranks=given.ranks,
        steps=given.steps,
        sleep=sleep,
        slow_link=slow,
        first=given.first,
        fault=given.fault,
        shapes=given.shapes,
        memory=given.memory,
        config=config,
    )
    request.completed()
    return request


if __name__ == "__main__":
    sys.exit(main())
