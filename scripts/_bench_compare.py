"""The benchmark behind `scripts/bench compare`: two checkouts side by side, step by step, in one run.

Each checkout has a warm process and a store of its own. Every step runs inside the Python API, in one checkout and
right after it in the other. The order alternates, so that a slow period of the machine affects both. The first run
warms up and is not counted.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from scripts._bench import ROOT, Engine, embedded, machine, own_neo4j
from scripts._bench_scale import note, settle
from scripts._freeze import commit

MODEL = "palm-540b"
WORDS: Mapping[str, Any] = {"tp": 8, "pp": 16, "micro_batch_size": 4}
SIDES = ("base", "new")
STEPS: Mapping[str, str] = {
    "build": "build",
    "instantiate": "instantiate",
    "memory": "memory",
    "profile": "profile on h100",
    "packed": "packed export",
    "export": "full export",
    "rm": "rm of the instance",
}
"""The measured steps in order, with their names in a table."""

NEEDED = ("build", "instantiate", "rm")
"""Steps that the others need."""

SETTLED = ("packed", "export")
"""Steps that write files. Before them all pending writes are completed."""


@dataclass(frozen=True)
class Worker:
    """A process that runs a checkout's steps."""

    checkout: Path
    requests: IO[str]
    answers: IO[str]

    def send(self, request: Mapping[str, Any]) -> None:
        """Write a line to a process that may have failed."""
        with suppress(BrokenPipeError):
            self.requests.write(json.dumps(request) + "\n")
            self.requests.flush()

    def ask(self, step: str) -> dict[str, Any]:
        """Run a step. Ends the benchmark if it fails."""
        self.send({"step": step})
        line = self.answers.readline()
        if not line:
            sys.exit(f"scripts/bench: {step} failed in {self.checkout} (see above)")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def worker(checkout: Path, engine: Engine, scratch: Path, ranks: int) -> Iterator[Worker]:
    """A checkout's process on a store. The store is started before it and stopped after it."""
    environment = {**os.environ, "STAGEDB_CONFIG": str(scratch / "none.toml"), **engine.environment}
    environment["PYTHONPATH"] = str(checkout)
    program = str(Path(__file__).with_name("_bench_steps.py"))
    about = {"checkout": str(checkout), "model": MODEL, "words": {**WORDS, "ranks": ranks}, "scratch": str(scratch)}
    try:
        if engine.start is not None:
            engine.start()
        process = subprocess.Popen(
            [sys.executable, "-P", program],
            cwd=scratch,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        made = Worker(checkout, cast("IO[str]", process.stdin), cast("IO[str]", process.stdout))
        try:
            made.send(about)
            yield made
        finally:
            # A process that has failed reads nothing more.
            with suppress(BrokenPipeError):
                made.requests.close()
            process.wait()
    finally:
        if engine.stop is not None:
            engine.stop()


def measure(workers: Sequence[Worker], steps: Sequence[str], runs: int, counting: bool) -> list[dict[str, Any]]:
    """A row for each step: the seconds of every counted run on either side, and other facts of the step."""
    seconds: dict[str, dict[str, list[float]]] = {step: {side: [] for side in SIDES} for step in steps}
    facts: dict[str, dict[str, set[Any]]] = {step: defaultdict(set) for step in steps}
    for turn in range(runs + 1):
        note(f"  {f'run {turn} of {runs}' if turn else 'warm-up'}")
        for step, side, answer in once(workers, steps, turn % 2 == 1):
            facts[step][side].add(answer["fact"])
            if turn:
                seconds[step][side].append(answer["seconds"])
    counts: dict[str, dict[str, Any]] = {step: {} for step in steps}
    if counting:
        note("  database hits")
        for each in workers:
            each.ask("count")
        for step, side, answer in once(workers, steps, False):
            counts[step][side] = {name: answer[name] for name in ("hits", "statements")}
    return [
        {
            "step": STEPS[step],
            **{side: statistics.median(seconds[step][side]) for side in SIDES},
            "runs": seconds[step],
            "counts": counts[step],
            "same": facts[step]["base"] == facts[step]["new"],
        }
        for step in steps
    ]


def once(workers: Sequence[Worker], steps: Sequence[str], turned: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every step on either side, from an empty store. turned: the new checkout comes first."""
    sides = list(zip(SIDES, workers, strict=True))
    for _, each in sides:
        each.ask("clear")
    for step in steps:
        for side, each in reversed(sides) if turned else sides:
            if step in SETTLED:
                settle()
            answer = each.ask(step)
            if step in SETTLED:
                each.ask("tidy")
            yield step, side, answer


def table(result: Mapping[str, Any]) -> str:
    """The result as text of at most 80 columns."""
    facts = result["machine"]
    lines = [
        f"{MODEL} tp 8 pp 16, {result['ranks']:,} ranks: seconds, medians of {result['runs']} runs",
        f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}, {facts['date']}",
        f"base {result['commits']['base'] or 'unknown'}, new {result['commits']['new'] or 'unknown'}",
        "ratio: new / base of the medians; fastest: of the fastest runs",
    ]
    for engine, rows in result["engines"].items():
        counted = any(row["counts"] for row in rows)
        lines += ["", f"{engine:<18} {'base':>8} {'new':>8} {'ratio':>6} {'fastest':>8}"]
        lines[-1] += f"  {'hits base':>11} {'hits new':>11}" if counted else ""
        for row in rows:
            ratio, fastest = row["new"] / row["base"], min(row["runs"]["new"]) / min(row["runs"]["base"])
            line = f"{row['step']:<18} {row['base']:8.3f} {row['new']:8.3f} {ratio:6.2f} {fastest:8.2f}"
            if counted:
                line += "  " + " ".join(f"{row['counts'][side]['hits']:11,}" for side in SIDES)
            lines.append(line if row["same"] else f"{line} !")
    if not all(row["same"] for rows in result["engines"].values() for row in rows):
        lines += ["", "!: the results of the two differ, see `scripts/freeze`"]
    return "\n".join(lines)


def run_engine(key: str, options: argparse.Namespace, scratch: Path, steps: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of one engine."""
    makers: dict[str, Callable[[Path, Path], Engine]] = {
        "embedded": embedded,
        "neo4j": lambda home, checkout: own_neo4j(home),
    }
    with ExitStack() as stack:
        workers = []
        for side, checkout in zip(SIDES, (options.base, options.new), strict=True):
            place = scratch / key / side
            place.mkdir(parents=True)
            engine = makers[key](place / "store", checkout)
            workers.append(stack.enter_context(worker(checkout, engine, place, options.ranks)))
        return measure(workers, steps, options.runs, options.hits and key == "neo4j")


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench compare", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--base", type=Path, required=True, help="the checkout that is compared with")
    parser.add_argument("--new", type=Path, default=ROOT, help="the checkout that is compared (this one)")
    parser.add_argument("--engine", choices=("embedded", "neo4j"), help="measure on this one only")
    parser.add_argument("--runs", type=int, default=3, help="runs of each step that are counted (default 3)")
    parser.add_argument("--ranks", type=int, default=32768, help="of the job, a multiple of 128 (default 32768)")
    parser.add_argument("--steps", help=f"measure these, and what they need: {','.join(STEPS)} (all)")
    parser.add_argument("--hits", action="store_true", help="on Neo4j, count the database hits of each step too")
    parser.add_argument("--dir", type=Path, help="where stores and traces are written (a temporary directory)")
    parser.add_argument("-f", "--format", choices=("table", "json"), default="table", help="what is printed (table)")
    options = parser.parse_args()
    options.base, options.new = options.base.resolve(), options.new.resolve()
    for checkout in (options.base, options.new):
        if not (checkout / "stagedb").is_dir():
            parser.error(f"{checkout} is no checkout: it has no stagedb/")
    chosen = set(options.steps.split(",")) if options.steps else set(STEPS)
    if chosen - set(STEPS):
        parser.error(f"no step {min(chosen - set(STEPS))!r}: there are {', '.join(STEPS)}")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    options.steps = [step for step in STEPS if step in chosen or step in NEEDED]
    return options


def main() -> None:
    options = options_of()
    # An interrupted benchmark leaves no server running.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    result: dict[str, Any] = {"machine": machine(), "runs": options.runs, "ranks": options.ranks, "engines": {}}
    result["commits"] = {
        side: commit(checkout) for side, checkout in zip(SIDES, (options.base, options.new), strict=True)
    }
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        for key in ("embedded", "neo4j"):
            if options.engine in (None, key):
                note(f"{key}:")
                result["engines"][key] = run_engine(key, options, Path(name), options.steps)
    print(json.dumps(result, indent=2) if options.format == "json" else table(result))


if __name__ == "__main__":
    main()
