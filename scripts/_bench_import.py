"""The benchmark behind `scripts/bench import`: a large trace of PyTorch's profiler, read in how much time and memory.

A trace is repeated with shifted times until it is as large as asked for: the one that `--trace` names, or one that is
made up, with as many other events for each kernel as a trace with stacks has (`--dense`: none of these, so that all its
events are used). Then a process decodes its events and does nothing else, and others do what an import does before the
store writes: they read the trace into a rank, first with one process and then with one on each core, and the last one
makes the run, and its rows with their digest. `--store` adds a whole import into an embedded store of its own.

`CPU s` has the seconds of the processor that all processes need together: other work on the machine hardly changes
them. `s` has how long each part takes. Memory is the largest resident set so far, of the process and of one that it
started, which Linux counts. The file and the store are removed afterwards.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from scripts._bench import ROOT, machine

MEBI = 1 << 20

PARSER = """
from pathlib import Path
from stagedb.runs.event_stream import EventStream
from stagedb.runs.kineto_events import FloatEvent
done("start", 0)
done("parser alone", sum(len(piece) for piece in EventStream(Path(sys.argv[1]), FloatEvent).pieces()))
"""

ONE_PROCESS = """
from pathlib import Path
from stagedb.runs import read_kineto
done("start", 0)
done("reading, one process", len(read_kineto(Path(sys.argv[1]), "0" * 64, processes=1).ops))
"""

WHOLE = """
from pathlib import Path
from stagedb.runs import measured_run, read_trace, run_digest, run_rows
done("start", 0)
traces = read_trace(Path(sys.argv[1]), "0" * 64)
done("reading", sum(len(trace.ops) for trace in traces))
run = measured_run(traces)
done("run", len(run.path))
rows = run_rows(run, {})
run_digest(rows.own, {label: (row for _, row in of) for label, of in rows.nodes.items()}, rows.edges)
done("rows", sum(map(len, (*rows.nodes.values(), *rows.edges.values()))))
"""

STORED = """
import stagedb
done("start", 0)
with stagedb.connect() as db:
    done("import", db.import_run(Path(sys.argv[1])).ops)
"""

STAGES = """
import json, os, resource, sys, time
from pathlib import Path
def used():
    return [sum(os.times()[:4]), time.perf_counter()]
last = used()
def done(stage, count):
    now = used()
    # What getrusage returns of this process counts the one that started it, too.
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
    copies = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(json.dumps([stage, now[0] - last[0], now[1] - last[1], peak, copies, count]), flush=True)
    last[:] = used()
"""


@dataclass(frozen=True)
class Stage:
    """A part of the work. cpu, wall: its seconds. peak, copies: bytes of the process, and of the largest that it
    started, until its end. count: what it found."""

    name: str
    cpu: float
    wall: float
    peak: int
    copies: int
    count: int


def main() -> None:
    """Run the benchmark and print a table."""
    asked = _arguments()
    print(machine())
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        path = Path(scratch) / ("trace.json.gz" if asked.gzip else "trace.json")
        times = write_repeated(_events(asked), path, int(asked.gigabytes * 1e9))
        print(f"a trace of {asked.trace or 'a made-up step'}, {times:,} times: {path.stat().st_size / 1e9:.2f} GB")
        alone, one, *rest = (*_stages(PARSER, path), *_stages(ONE_PROCESS, path), *_stages(WHOLE, path))
        print("                        CPU s   of the parser       s   of the parser   peak MiB   of a copy")
        for each in (alone, one, *rest, _sum(rest)):
            print(
                f"{each.name:20} {each.cpu:8.1f}   {each.cpu / alone.cpu:13.2f} {each.wall:7.1f}   "
                f"{each.wall / alone.wall:13.2f}   {each.peak / MEBI:8,.0f}   {each.copies / MEBI:9,.0f}"
            )
        found = {stage.name: stage.count for stage in (alone, *rest)}
        print(f"{found['parser alone']:,} events, {found['reading']:,} ops, {found['rows']:,} rows")
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        print(f"{os.cpu_count()} cores, load of the last 1, 5 and 15 minutes {load}")
        if asked.store:
            _print_stored(path, Path(scratch) / "store")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench import", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the file, before it is compressed")
    parser.add_argument("--trace", type=Path, help="a trace of PyTorch's profiler that is repeated")
    parser.add_argument("--dense", action="store_true", help="make up a trace without stacks, shapes and flows")
    parser.add_argument("--gzip", action="store_true", help="compress the file")
    parser.add_argument("--store", action="store_true", help="import it into an embedded store, too")
    parser.add_argument("--scratch", type=Path, help="a directory with enough space")
    return parser.parse_args()


def _events(asked: argparse.Namespace) -> dict[str, Any]:
    """The document of the trace that is repeated."""
    if asked.trace is None:
        return made_up(asked.dense)
    text = asked.trace.read_bytes()
    document = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
    return document if isinstance(document, dict) else {"traceEvents": document}


def made_up(dense: bool = False) -> dict[str, Any]:
    """A step of training, with functions of Python and with flows around what was launched. dense: without these."""
    from tests.runs.recordings import training_step

    document: dict[str, Any] = json.loads(training_step(0).text())
    if dense:
        return document
    more: list[dict[str, Any]] = []
    for event in document["traceEvents"]:
        if event["ph"] != "X":
            continue
        same = {name: event[name] for name in ("pid", "tid", "ts")}
        more += [{"ph": phase, "id": len(more), "cat": "ac2g", "name": "ac2g", **same} for phase in "sf"]
        if event["cat"] == "cpu_op":
            event["args"] |= {"Input Dims": [[8192, 4096], [4096, 4096], []], "Input type": ["c10::BFloat16"] * 3}
            stack = [{**same, "ph": "X", "cat": "python_function", "dur": event["dur"]} for _ in range(20)]
            for depth, each in enumerate(stack):
                each |= {"name": f"torch/nn/modules/module.py({depth}): _call_impl", "args": {"Python id": depth}}
            more += stack
    return {**document, "traceEvents": document["traceEvents"] + more}


def write_repeated(document: dict[str, Any], path: Path, size: int) -> int:
    """Write a trace again and again until it has this many bytes. Returns how often.

    Each time its events begin after those of the time before, and its launches have other numbers.
    """
    events = document["traceEvents"]
    timed = [event for event in events if isinstance(event.get("ts"), int | float) and event.get("ph") == "X"]
    begin = min(event["ts"] for event in timed)
    period = int(max(event["ts"] + event.get("dur", 0) for event in timed) - begin) + 1_000
    numbers = [event["args"] for event in events if isinstance(event.get("args", {}).get("correlation"), int)]
    most = max((each["correlation"] for each in numbers), default=0) + 1
    top = {name: value for name, value in document.items() if name != "traceEvents"}
    times, done = 0, 0
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(msgspec.json.encode(top)[:-1] + (b"," if top else b"") + b'"traceEvents":[')
        while done < size:
            text = msgspec.json.encode(events)[1:-1].replace(b'},{"', b'},\n{"')
            file.write((b",\n" if times else b"") + text)
            done, times = done + len(text), times + 1
            for event in events:
                if "ts" in event:
                    event["ts"] = round(event["ts"] + period, 3)
            for each in numbers:
                each["correlation"] += most
        file.write(b"]}")
    return times


def _stages(program: str, path: Path, **environment: str) -> Iterator[Stage]:
    """What a program in a process of its own reports, but for its start. Ends the benchmark if it fails."""
    for line in _ran(program, path, environment):
        stage = Stage(*json.loads(line))
        if stage.name != "start":
            yield stage


def _ran(program: str, path: Path, environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", STAGES + program, str(path)]
    words = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    process = subprocess.run(command, env=words, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        sys.exit(f"a part of the benchmark ended with {process.returncode}")
    return process.stdout.splitlines()


def _sum(stages: list[Stage]) -> Stage:
    return Stage(
        "together",
        sum(each.cpu for each in stages),
        sum(each.wall for each in stages),
        max(each.peak for each in stages),
        max(each.copies for each in stages),
        stages[-1].count,
    )


def _print_stored(path: Path, home: Path) -> None:
    """Import a file into an embedded store, and print what it takes."""
    engine = [0]
    ended = threading.Event()
    threading.Thread(target=_watch, args=(home, engine, ended), daemon=True).start()
    # The engine ends soon after its last client.
    (stage,) = _stages(STORED, path, STAGEDB_HOME=str(home), STAGEDB_IDLE="5")
    ended.set()
    print(f"import into the embedded store: {stage.wall:,.0f} s, {stage.cpu:,.0f} CPU s of the command")
    print(f"  at most {stage.peak / MEBI:,.0f} MiB of the command, {engine[0] / MEBI:,.0f} MiB of the engine")
    size = sum(each.stat().st_size for each in home.rglob("*") if each.is_file())
    print(f"  {size / 1e9:.2f} GB in the store")


def _watch(home: Path, most: list[int], ended: threading.Event) -> None:
    """Look at the memory of the engine of a store twice a second."""
    from stagedb.errors import StagedbError
    from stagedb.store import embedded

    while not ended.is_set():
        with suppress(psutil.Error, StagedbError, OSError):
            endpoint = embedded.running(home)
            if endpoint is not None:
                most[0] = max(most[0], psutil.Process(endpoint.pid).memory_info().rss)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
