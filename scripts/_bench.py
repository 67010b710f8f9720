"""The benchmark behind scripts/bench: whole commands on either engine, medians of several runs, with machine facts.

Every figure is a command run as a user runs it, Python's start included, except `instantiate, Cypher alone`: the time
that the store's calls take inside it. Memory is the largest resident set of one process, sampled while it runs.
"""

import argparse
import json
import os
import platform
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = 0.02
"""Seconds between two checks of memory."""


@dataclass(frozen=True)
class Case:
    """A model under a plan."""

    model: str
    plan: tuple[str, ...]
    ranks: int

    @property
    def title(self) -> str:
        words = " ".join(self.plan).replace("--", "")
        return f"{self.model} {words}, {self.ranks:,} ranks"

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.plan, "--ranks", str(self.ranks))


CASES = (
    Case("llama3-8b", ("--tp", "2", "--pp", "2"), 8),
    Case("llama3-70b", ("--tp", "8", "--pp", "4"), 1024),
    Case("mixtral-8x22b", ("--tp", "4", "--pp", "4", "--ep", "8", "--zero", "1"), 1024),
)
DENSE = CASES[1]
"""The case that the next ones are compared with: the same number of ranks, without experts."""


@dataclass(frozen=True)
class Engine:
    """A store to measure. `start` and `stop` make it ready and end it; None if somebody else runs it."""

    name: str
    environment: Mapping[str, str]
    start: Callable[[], None] | None
    stop: Callable[[], None] | None
    process: Callable[[], psutil.Process | None]


class Memory:
    """The largest resident sets seen: of the command's processes, and of the engine."""

    def __init__(self) -> None:
        self.largest: dict[str, int] = defaultdict(int)

    @contextmanager
    def watched(self, command: psutil.Process, find_engine: Callable[[], psutil.Process | None]) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            # An engine that the command starts is found after it has started.
            engine = find_engine()
            while not done.wait(SAMPLE):
                engine = engine or find_engine()
                self._look("command", [command, *self._children(command)])
                self._look("engine", [engine] if engine else [])

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _children(self, process: psutil.Process) -> list[psutil.Process]:
        with suppress(psutil.Error):
            # The embedded engine is detached, but a child until its starter ends: it counts as the engine.
            return [child for child in process.children(recursive=True) if "_engine" not in " ".join(child.cmdline())]
        return []

    def _look(self, what: str, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            with suppress(psutil.Error):
                self.largest[what] = max(self.largest[what], process.memory_info().rss)


def run(engine: Engine, memory: Memory, *arguments: str) -> float:
    """The seconds of a command. Ends the benchmark if it fails."""
    return ran(engine, memory, ROOT, *arguments)[0]


def ran(engine: Engine, memory: Memory, directory: Path, *arguments: str) -> tuple[float, str]:
    """The seconds and the output of a command in a directory. Ends the benchmark if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "stagedb", *arguments],
        cwd=directory,
        env={**os.environ, **engine.environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with memory.watched(psutil.Process(process.pid), engine.process):
        output, _ = process.communicate()
    seconds = time.perf_counter() - began
    if process.returncode:
        sys.exit(f"stagedb {' '.join(arguments)} failed on {engine.name}:\n{output}")
    return seconds, output


def cypher_seconds(engine: Engine, case: Case) -> float:
    """The seconds of the store's calls in one instantiation, in a process of its own."""
    script = (
        "import sys, time\n"
        "from stagedb.store import Store\n"
        "spent = 0.0\n"
        "def timed(call):\n"
        "    def run(*args, **kwargs):\n"
        "        global spent\n"
        "        began = time.perf_counter()\n"
        "        try:\n"
        "            return call(*args, **kwargs)\n"
        "        finally:\n"
        "            spent += time.perf_counter() - began\n"
        "    return run\n"
        "import stagedb\n"
        "with stagedb.connect() as db:\n"
        "    db.build(sys.argv[1])\n"
        "    for name in ('read', 'write', 'write_rows'):\n"
        "        setattr(Store, name, timed(getattr(Store, name)))\n"
        "    words = {key: int(value) for key, value in (pair.split('=') for pair in sys.argv[2:])}\n"
        "    db.instantiate(sys.argv[1], **words)\n"
        "print(spent)\n"
    )
    pairs = [f"{key.removeprefix('--')}={value}" for key, value in zip(case.words[::2], case.words[1::2], strict=True)]
    result = subprocess.run(
        [sys.executable, "-c", script, case.model, *pairs],
        cwd=ROOT,
        env={**os.environ, **engine.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout)


def clear(engine: Engine, memory: Memory) -> None:
    """Remove every graph of the store, with its instances."""
    environment = {**os.environ, **engine.environment}
    listed = subprocess.run(
        [sys.executable, "-m", "stagedb", "ls", "graphs", "-f", "json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    for row in json.loads(listed.stdout):
        run(engine, memory, "rm", row["id"], "--force")


def measure(engine: Engine, case: Case, runs: int, scratch: Path) -> dict[str, Any]:
    """Medians of all steps of a case on an engine. Each run begins with a store without the model."""
    seconds: dict[str, list[float]] = defaultdict(list)
    memory = Memory()
    for turn in range(runs):
        print(f"  {case.title}: run {turn + 1} of {runs}", file=sys.stderr)
        clear(engine, Memory())
        seconds["build"].append(run(engine, memory, "build", case.model))
        seconds["instantiate, whole command"].append(run(engine, memory, "instantiate", case.model, *case.words))
        out = scratch / "traces"
        seconds["export"].append(run(engine, memory, "export", "--out", str(out)))
        size = sum(file.stat().st_size for file in out.iterdir())
        files = len(list(out.glob("*.et")))
        shutil.rmtree(out)
        clear(engine, Memory())
        seconds["instantiate, Cypher alone"].append(cypher_seconds(engine, case))
        clear(engine, Memory())
        seconds["export from an empty store"].append(
            run(engine, memory, "export", "--model", case.model, *case.words, "--out", str(out))
        )
        shutil.rmtree(out)
    return {
        "case": case.title,
        "seconds": {step: statistics.median(times) for step, times in seconds.items()},
        "largest_process": dict(memory.largest),
        "files": files,
        "bytes": size,
    }


def measure_start(engine: Engine, runs: int) -> float | None:
    """Median of the time from the start of the store to its first answer."""
    if engine.start is None or engine.stop is None:
        return None
    times = []
    for _ in range(runs):
        engine.stop()
        began = time.perf_counter()
        engine.start()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def embedded(home: Path, checkout: Path = ROOT) -> Engine:
    """The embedded engine with a home of its own. checkout: the checkout whose package starts and ends it."""
    environment = {"STAGEDB_HOME": str(home), "NEO4J_URI": "", "STAGEDB_CONFIG": str(home / "none.toml")}

    def command(verb: str) -> Callable[[], None]:
        line = [sys.executable, "-m", "stagedb", "store", verb, "--quiet"]
        return lambda: void(subprocess.run(line, cwd=checkout, env={**os.environ, **environment}, check=True))

    def process() -> psutil.Process | None:
        with suppress(OSError, ValueError, psutil.Error):
            return psutil.Process(json.loads((home / "endpoint.json").read_text(encoding="utf-8"))["pid"])
        return None

    return Engine("embedded", environment, command("up"), command("down"), process)


def neo4j(home: Path) -> Engine:
    """The Neo4j of STAGEDB_TEST_NEO4J, else one that scripts/neo4j runs."""
    given = os.environ.get("STAGEDB_TEST_NEO4J")
    if given:
        return Engine("Neo4j", {"NEO4J_URI": given}, None, None, lambda: listener(given))
    return own_neo4j(home)


def own_neo4j(home: Path) -> Engine:
    """A Neo4j that scripts/neo4j runs."""
    script = str(ROOT / "scripts" / "neo4j")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])

    account = {"NEO4J_USERNAME": "neo4j", "NEO4J_PASSWORD": secrets.token_urlsafe(18)}

    def command(*words: str) -> Callable[[], None]:
        words = (script, "--home", str(home), *words)
        return lambda: void(subprocess.run(words, check=True, stdout=sys.stderr, env={**os.environ, **account}))

    uri = f"bolt://127.0.0.1:{port}"
    return Engine(
        "Neo4j", {"NEO4J_URI": uri, **account}, command("start", "--port", port), command("stop"), lambda: listener(uri)
    )


def listener(uri: str) -> psutil.Process | None:
    """The process of this machine that listens on the address, if it is visible."""
    port = int(uri.rsplit(":", 1)[-1].rstrip("/"))
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.pid and list(connection.laddr)[1:] == [port]:
                return psutil.Process(connection.pid)
    return None


def void(_: object) -> None:
    """For calls whose result is not used."""


def machine() -> dict[str, Any]:
    """Facts of the machine that the figures depend on."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "neo4j driver": version("neo4j"),
        "embedded engine": version("arcadedb-embedded"),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(result: Mapping[str, Any]) -> str:
    """The result as Markdown: one row a step, one column an engine."""
    facts, engines = result["machine"], list(result["engines"])
    lines = [
        "# Benchmark",
        "",
        f"Medians of {result['runs']} runs by `scripts/bench`, in seconds, on {facts['processor']}, "
        f"{facts['cores']} cores, {facts['memory_bytes'] / 2**30:.0f} GiB, {facts['system']}, "
        f"Python {facts['python']}, {facts['date']}. "
        "Every row but `Cypher alone` is a whole command, Python's start included.",
        "",
        f"| | {' | '.join(engines)} |",
        f"|---|{'---:|' * len(engines)}",
    ]
    starts = [result["engines"][engine]["start"] for engine in engines]
    lines.append(f"| store start | {' | '.join('' if s is None else f'{s:.1f}' for s in starts)} |")
    for at, first in enumerate(result["engines"][engines[0]]["cases"]):
        cases = [result["engines"][engine]["cases"][at] for engine in engines]
        lines.append(
            f"| **{first['case']}** ({first['files']:,} files, {first['bytes'] / 1e6:,.1f} MB) |{' |' * len(engines)}"
        )
        for step in first["seconds"]:
            cells = [f"{case['seconds'][step]:.2f}" for case in cases]
            lines.append(f"| {step} | {' | '.join(cells)} |")
        if at > CASES.index(DENSE):
            dense = [result["engines"][engine]["cases"][CASES.index(DENSE)] for engine in engines]
            cells = [f"{_made(case) / _made(other):.2f} x" for case, other in zip(cases, dense, strict=True)]
            lines.append(f"| build + instantiate, against {DENSE.model} | {' | '.join(cells)} |")
        for what in ("command", "engine"):
            cells = [f"{case['largest_process'].get(what, 0) / 1e6:,.0f} MB" for case in cases]
            lines.append(f"| largest process, {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _made(case: Mapping[str, Any]) -> float:
    """Seconds from a model's name to an instance."""
    return float(case["seconds"]["build"] + case["seconds"]["instantiate, whole command"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each step (default 3)")
    parser.add_argument("--engine", choices=("embedded", "neo4j"), help="measure only this one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="directory for bench.json and bench.md (docs)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": machine(), "runs": arguments.runs, "engines": {}}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        makers: dict[str, Callable[[], Engine]] = {
            "embedded": lambda: embedded(scratch / "home"),
            "neo4j": lambda: neo4j(scratch / "neo4j"),
        }
        for key, make in makers.items():
            if arguments.engine in (None, key):
                engine = make()
                print(f"{engine.name}:", file=sys.stderr)
                try:
                    started = measure_start(engine, arguments.runs)
                    cases = [measure(engine, case, arguments.runs, scratch) for case in CASES]
                finally:
                    if engine.stop is not None:
                        engine.stop()
                result["engines"][engine.name] = {"start": started, "cases": cases}
    (arguments.out / "bench.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (arguments.out / "bench.md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
