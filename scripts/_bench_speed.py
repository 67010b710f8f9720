"""The benchmark behind `scripts/bench speed`: what users wait for, in this checkout and another one, in one run.

Every figure is the best of several runs, wall time and processor time (user and system), which alternate between the
checkouts: other work on the machine lengthens both alike, and the processor time little. A command is a process of its
own, Python's start included, with the interpreter of its checkout's `.venv`. Its processor time is its own and that of
the processes that it waits for: an engine's is not in it, but in `engine-start`. Written ranks are compared with the
plain writing of as many bytes by as many processes.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts._bench import ROOT, Engine, embedded, machine
from scripts._bench_scale import PROCESSES, files_of, note
from scripts._freeze import commit

PALM = ("palm-540b", "--tp", "8", "--pp", "16")
LLAMA = ("llama3-70b", "--tp", "8", "--pp", "8", "--dp", "8", "--sp", "--seq-len", "8192", "--global-batch-size", "128")
QUERY = "MATCH (i:Instance) RETURN count(i) AS instances"
TRIED = re.compile(r"^cpu ([0-9.]+) wall ([0-9.]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Took:
    """Seconds: wall time, and processor time."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Side:
    """A checkout with a store of its own, in which `llama` is an instance."""

    checkout: Path
    engine: Engine
    scratch: Path

    def process(self, *words: str) -> tuple[Took, str]:
        """Run Python in the checkout. Ends the benchmark if it fails."""
        own = self.checkout / ".venv" / "bin" / "python"
        environment = {**os.environ, **self.engine.environment, "PYTHONPATH": str(self.checkout)}
        before, began = _children(), time.perf_counter()
        ran = subprocess.run(
            [str(own) if own.exists() else sys.executable, "-P", *words],
            cwd=self.scratch,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        took = Took(time.perf_counter() - began, _children() - before)
        if ran.returncode:
            sys.exit(f"scripts/bench: {' '.join(words)} failed in {self.checkout}:\n{ran.stdout}{ran.stderr}")
        return took, ran.stdout

    def stagedb(self, *words: str) -> Took:
        return self.process("-m", "stagedb", *words)[0]

    def stop(self) -> None:
        self.stagedb("store", "down", "--quiet")

    def start(self) -> Took:
        """Start the engine, which was stopped. The processor time is the engine's."""
        self.stop()
        took = self.stagedb("store", "up", "--quiet")
        process = self.engine.process()
        spent = process.cpu_times() if process else None
        return Took(took.wall, spent.user + spent.system if spent else 0.0)

    def instantiated(self) -> Took:
        self.stagedb("rm", "llama", "--force", "--quiet")
        return self.stagedb("instantiate", *LLAMA, "--name", "llama")

    def profiled(self) -> Took:
        self.instantiated()
        return self.stagedb("profile", "llama")

    def tried(self) -> Took:
        """lower, memory and step of a plan in one process, after a first time."""
        cpu, wall = TRIED.findall(self.process(str(Path(__file__).with_name("_bench_trial.py")))[1])[0]
        return Took(float(wall), float(cpu))

    def packed(self, ranks: int) -> Took:
        out = str(self.scratch / "palm.packed")
        return self.stagedb("export", "--model", *PALM, "--ranks", str(ranks), "--packed", "--out", out, "--force")

    def written(self, ranks: int) -> tuple[Took, Took]:
        """Write ranks of an instance that is there, and as many bytes from plain buffers."""
        out, floor = self.scratch / "traces", self.scratch / "floor"
        took = self.stagedb("export", "--model", *PALM, "--ranks", str(ranks), "--out", str(out))
        classes = [f"{each['files']}:{each['bytes']}" for each in files_of(out)]
        shutil.rmtree(out)
        plain = self.process(str(ROOT / "scripts" / "_floor.py"), str(floor), str(PROCESSES), *classes)[0]
        shutil.rmtree(floor)
        return took, plain


def _children() -> float:
    """Processor seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


STEPS: Mapping[str, Callable[[Side], Took]] = {
    "models": lambda side: side.stagedb("models"),
    "ls": lambda side: side.stagedb("ls"),
    "query": lambda side: side.stagedb("query", QUERY),
    "show": lambda side: side.stagedb("show", "llama"),
    "engine-start": Side.start,
    "instantiate": Side.instantiated,
    "profile": Side.profiled,
    "profile-no-keep": lambda side: side.stagedb("profile", "llama", "--no-keep"),
    "memory": lambda side: side.stagedb("memory", "llama"),
    "trial": Side.tried,
    "packed-1048576": lambda side: side.packed(1 << 20),
}
"""What is measured in order, by name."""

WRITTEN: Mapping[str, int] = {"write-1024": 1024, "write-32768": 32768}
"""Numbers of ranks that are written, by name."""


def best(took: Sequence[Took]) -> Took:
    """The best wall time and the best processor time, which may be of two runs."""
    return Took(min(each.wall for each in took), min(each.cpu for each in took))


def measure(sides: Sequence[Side], name: str, runs: int) -> dict[str, Any]:
    """A row: for either side the best of its runs, and for written ranks the best of the plain writes too."""
    own: list[list[Took]] = [[], []]
    plain: list[Took] = []
    for turn in range(runs):
        note(f"  {name}: run {turn + 1} of {runs}")
        for at in (0, 1) if turn % 2 else (1, 0):
            if name in WRITTEN:
                took, floor = sides[at].written(WRITTEN[name])
                plain.append(floor)
            else:
                took = STEPS[name](sides[at])
            own[at].append(took)
    row = {side: vars(best(took)) for side, took in zip(("against", "this"), own, strict=True)}
    return {"step": name, **row, **({"plain": vars(best(plain))} if plain else {})}


def table(result: Mapping[str, Any]) -> str:
    """The result as text."""
    facts = result["machine"]
    lines = [
        f"best of {result['runs']} runs, seconds; {facts['processor']}, {facts['cores']} cores, {facts['date']}",
        f"against {result['commits']['against'] or 'unknown'}, this {result['commits']['this'] or 'unknown'}",
        "",
        f"{'':<18} {'wall':>8} {'this':>8} {'ratio':>6}   {'CPU':>8} {'this':>8} {'ratio':>6}   CPU / plain writes",
    ]
    for row in result["rows"]:
        line = f"{row['step']:<18}"
        for kind in ("wall", "cpu"):
            before, after = row["against"][kind], row["this"][kind]
            line += f" {before:8.3f} {after:8.3f} {after / before if before else 0.0:6.2f}  "
        if "plain" in row:
            times = (row[side]["cpu"] / row["plain"]["cpu"] for side in ("against", "this"))
            line += " {:.2f}, this {:.2f}".format(*times)
        lines.append(line.rstrip())
    return "\n".join(lines)


def main() -> None:
    names = (*STEPS, *WRITTEN)
    parser = argparse.ArgumentParser(prog="scripts/bench speed", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--against", type=Path, required=True, help="the checkout that is compared with")
    parser.add_argument("--runs", type=int, default=3, help="runs of each step on each side (default 3)")
    parser.add_argument("--only", help=f"measure these: {','.join(names)} (all)")
    parser.add_argument("--dir", type=Path, help="where stores and traces are written (a temporary directory)")
    parser.add_argument("-f", "--format", choices=("table", "json"), default="table", help="what is printed (table)")
    options = parser.parse_args()
    if not (options.against / "stagedb").is_dir():
        parser.error(f"{options.against} is no checkout: it has no stagedb/")
    wanted = options.only.split(",") if options.only else names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"no step {unknown[0]!r}: there are {', '.join(names)}")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    places = {"against": options.against.resolve(), "this": ROOT}
    with tempfile.TemporaryDirectory(dir=options.dir) as name, ExitStack() as stack:
        sides = []
        for side, checkout in places.items():
            scratch = Path(name) / side
            scratch.mkdir()
            made = Side(checkout, embedded(scratch / "store", checkout), scratch)
            stack.callback(made.stop)
            made.stagedb("instantiate", *LLAMA, "--name", "llama")
            sides.append(made)
        rows = [measure(sides, each, options.runs) for each in names if each in wanted]
    commits = {side: commit(checkout) for side, checkout in places.items()}
    result = {"machine": machine(), "runs": options.runs, "commits": commits, "rows": rows}
    print(json.dumps(result, indent=2) if options.format == "json" else table(result))


if __name__ == "__main__":
    main()
