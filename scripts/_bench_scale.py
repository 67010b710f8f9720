"""The benchmark behind `scripts/bench scale`: large exports, compared with the floor of writing as many bytes.

The floor is measured in the same run on the same directory: as many files of the same sizes, from as many processes,
out of plain buffers. If the machine's disk gets slower, both change. Every figure is a command as a user runs it,
Python's start included. Memory is the largest resident set of one process, sampled while it runs.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts._bench import ROOT, Engine, Memory, embedded, machine, neo4j, ran

PALM = ("--model", "palm-540b", "--tp", "8", "--pp", "16", "--micro-batch-size", "4")
LLAMA = ("--model", "llama3-70b", "--dp", "2", "--tp", "8", "--pp", "2", "--global-batch-size", "256")
LARGE = ("megatron-1t", "--tp", "8", "--pp", "32", "--ranks", "2048")
MICROBATCHES = 64
PROCESSES = 2
"""Processes that write: one for each core of the machine. The floor uses as many."""

PAUSE = 4.0
"""Seconds before each measurement."""

STAGE = re.compile(r"^ *([0-9.]+) s +[0-9]+%  (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """A command: its seconds, the stages that `-v` printed, the largest process of it and of the engine."""

    seconds: float
    stages: Mapping[str, float]
    memory: Mapping[str, int]


@dataclass
class Bench:
    """The directory, the number of runs, and the results. `rows` are those of the table."""

    scratch: Path
    runs: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    def stagedb(self, engine: Engine, *words: str) -> Ran:
        """Run a command. Ends the benchmark if it fails."""
        memory = Memory()
        settle()
        seconds, output = ran(engine, memory, self.scratch, *words, "-v")
        return Ran(seconds, {name: float(value) for value, name in STAGE.findall(output)}, dict(memory.largest))

    def floor(self, classes: Sequence[Mapping[str, int]]) -> float:
        """The seconds for writing as many bytes."""
        out = self.scratch / "floor"
        words = [f"{each['files']}:{each['bytes']}" for each in classes]
        settle()
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "_floor.py"), str(out), str(PROCESSES), *words], check=True
        )
        seconds = time.perf_counter() - began
        shutil.rmtree(out)
        return seconds

    def against_floor(self, title: str, run: Callable[[], Ran], out: Path) -> None:
        """Runs of a command that writes a directory, with a run of the floor after each."""
        ran: list[Ran] = []
        floors: list[float] = []
        for turn in range(self.runs):
            note(f"  {title}: run {turn + 1} of {self.runs}")
            ran.append(run())
            classes = files_of(out)
            shutil.rmtree(out)
            floors.append(self.floor(classes))
        self.add(
            title,
            ran,
            files=sum(each["files"] for each in classes),
            bytes=sum(each["files"] * each["bytes"] for each in classes),
            floor=statistics.median(floors),
            floors=floors,
        )

    def add(self, title: str, ran: Sequence[Ran], **facts: Any) -> None:
        """One row. The stages are those of the median run."""
        middle = sorted(ran, key=lambda each: each.seconds)[len(ran) // 2]
        memory: dict[str, int] = {}
        for each in ran:
            for what, size in each.memory.items():
                memory[what] = max(memory.get(what, 0), size)
        seconds = [each.seconds for each in ran]
        row = {"case": title, "seconds": statistics.median(seconds), "runs": seconds, "memory": memory}
        self.rows.append({**row, "stages": dict(middle.stages), **facts})


def settle() -> None:
    """The same beginning for each measurement: no pending writes, and no memory that a previous run has just freed.

    A virtual machine returns freed memory to its host after some seconds, and getting it again is most of the time for
    writing gigabytes. Without the wait, a run right after the removal of the old files would get its memory for free.
    """
    os.sync()
    time.sleep(PAUSE)


def note(text: str) -> None:
    print(text, file=sys.stderr)


def files_of(directory: Path) -> list[dict[str, int]]:
    """The traces of a directory, by class, with their number and size from the manifest."""
    classes = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))["classes"]
    sizes: dict[int, int] = {int(each["bytes"]): 0 for each in classes}
    for file in directory.glob("*.et"):
        sizes[file.stat().st_size] += 1
    return [{"files": count, "bytes": size} for size, count in sizes.items()]


def whole(bench: Bench, engine: Engine, ranks: int, empty: Callable[[], None]) -> None:
    """The PaLM job as a directory, from nothing and from its instance."""
    out = bench.scratch / "traces"
    words = (*PALM, "--ranks", str(ranks), "--out", str(out))

    def fresh() -> Ran:
        empty()
        return bench.stagedb(engine, "export", *words)

    title = f"palm-540b, {ranks:,} ranks"
    bench.against_floor(f"{title}: from an empty store", fresh, out)
    bench.against_floor(title, lambda: bench.stagedb(engine, "export", *words), out)


def packed_and_sliced(bench: Bench, engine: Engine, ranks: int) -> None:
    """Cases that are the same on either engine."""
    out = bench.scratch / "traces"
    palm = (*PALM, "--ranks", str(ranks))
    title = f"palm-540b, {ranks:,} ranks"
    packed = bench.scratch / "set.packed"
    pack(bench, f"{title}: packed", engine, palm, packed)
    bench.against_floor(
        f"{title}: unpacked", lambda: bench.stagedb(engine, "unpack", str(packed), "--out", str(out)), out
    )
    one_rank(bench, f"{title}: one rank unpacked", engine, packed, ranks)

    micro = (*palm, "--global-batch-size", str(MICROBATCHES * 4 * ranks // 128))
    title = f"{title}, {MICROBATCHES} micro-batches"
    pack(bench, f"{title}: packed", engine, micro, packed)
    one_rank(bench, f"{title}: one rank unpacked", engine, packed, ranks)
    bench.stagedb(engine, "export", *LLAMA, "--out", str(out))  # makes the instance
    shutil.rmtree(out)
    bench.against_floor(
        "llama3-70b, 32 ranks, 128 micro-batches",
        lambda: bench.stagedb(engine, "export", *LLAMA, "--out", str(out)),
        out,
    )
    for world in (ranks, 4 * ranks):
        step = 4 * world // ranks
        words = (*PALM, "--ranks", str(world), "--only", f"0-{world - 1}:{step}", "--out", str(out))

        def sliced(words: tuple[str, ...] = words) -> Ran:
            return bench.stagedb(engine, "export", *words)

        note(f"  palm-540b, {world:,} ranks: made")
        made = bench.stagedb(engine, "export", *PALM, "--ranks", str(world), "--packed", "--out", f"{world}.packed")
        bench.add(f"palm-540b, {world:,} ranks: instantiated and packed", [made])
        bench.against_floor(f"palm-540b, {world:,} ranks: every {step}th", sliced, out)


def pack(bench: Bench, title: str, engine: Engine, words: Sequence[str], file: Path) -> None:
    ran = []
    bench.stagedb(engine, "export", *words, "--packed", "--force", "--out", str(file))  # makes the instance
    for turn in range(bench.runs):
        note(f"  {title}: run {turn + 1} of {bench.runs}")
        ran.append(bench.stagedb(engine, "export", *words, "--packed", "--force", "--out", str(file)))
    bench.add(title, ran, bytes=file.stat().st_size)


def one_rank(bench: Bench, title: str, engine: Engine, file: Path, ranks: int) -> None:
    out = bench.scratch / "one"
    ran = []
    for turn in range(bench.runs):
        note(f"  {title}: run {turn + 1} of {bench.runs}")
        rank = (turn + 1) * ranks // (bench.runs + 1)
        ran.append(bench.stagedb(engine, "unpack", str(file), "--only", str(rank), "--out", str(out)))
        size = sum(each["bytes"] for each in files_of(out) if each["files"])
        shutil.rmtree(out)
    bench.add(title, ran, files=1, bytes=size)


def large(bench: Bench, engine: Engine) -> None:
    """128 layers on 32 stages: the largest subgraph copies."""
    note(f"  {' '.join(LARGE)} on {engine.name}")
    bench.add(f"{LARGE[0]} pp 32, 2,048 ranks: instantiated", [bench.stagedb(engine, "instantiate", *LARGE)])


def engines(scratch: Path) -> Iterator[tuple[Engine, Callable[[], None]]]:
    """Each engine, and a function that empties it: the embedded one as on a machine without a store."""
    own = embedded(scratch / "home")

    def remove() -> None:
        if own.stop is not None:
            own.stop()
        shutil.rmtree(scratch / "home", ignore_errors=True)

    yield own, remove
    server = neo4j(scratch / "neo4j")
    if server.start is not None:
        server.start()
    yield server, lambda: clear(server)


def clear(engine: Engine) -> None:
    """Remove everything from the store."""
    environment = {**os.environ, **engine.environment}
    command = [sys.executable, "-m", "stagedb"]
    listed = subprocess.run(
        [*command, "ls", "graphs", "-f", "json"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    for row in json.loads(listed.stdout):
        subprocess.run([*command, "rm", row["id"], "--force", "-q"], cwd=ROOT, env=environment, check=True)


def table(result: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    facts = result["machine"]
    lines = [
        f"Medians of {result['runs']} runs by `scripts/bench scale` on {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, {facts['system']}, Python {facts['python']}, {facts['date']}. The "
        "floor is writing as many files of the same sizes out of plain buffers, measured in the same run.",
        "",
        "| | seconds | files | bytes | floor | × floor | largest process | engine |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for engine, rows in result["engines"].items():
        lines.append(f"| **{engine}** | | | | | | | |")
        for row in rows:
            files = f"{row['files']:,}" if "files" in row else ""
            size = human(row["bytes"]) if "bytes" in row else ""
            floor = f"{row['floor']:.1f}" if "floor" in row else ""
            times = f"{row['seconds'] / row['floor']:.2f}" if "floor" in row else ""
            memory = [human(row["memory"][what]) if what in row["memory"] else "" for what in ("command", "engine")]
            cells = [row["case"], f"{row['seconds']:.1f}", files, size, floor, times, *memory]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def profiles(result: Mapping[str, Any]) -> str:
    """The stages of each command, as `-v` prints them."""
    names: list[str] = []
    rows = [row for rows in result["engines"].values() for row in rows if row["stages"]]
    for row in rows:
        names += [name for name in row["stages"] if name not in names and name != "in all"]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for engine, rows in result["engines"].items():
        lines.append(f"| **{engine}** |{' |' * len(names)}")
        for row in rows:
            if row["stages"]:
                cells = [f"{row['stages'][name]:.2f}" if name in row["stages"] else "" for name in names]
                lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def human(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:,.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench scale", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each case (default 3)")
    parser.add_argument("--ranks", type=int, default=32768, help="ranks of the PaLM job, a multiple of 512 (32768)")
    parser.add_argument("--dir", type=Path, help="directory for traces (a temporary directory)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="directory for bench-scale.json (docs)")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "runs": arguments.runs, "engines": {}}
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        scratch = Path(name)
        for engine, empty in engines(scratch):
            note(f"{engine.name}:")
            bench = Bench(scratch, arguments.runs)
            try:
                whole(bench, engine, arguments.ranks, empty)
                if engine.name == "embedded":
                    packed_and_sliced(bench, engine, arguments.ranks)
                large(bench, engine)
            finally:
                if engine.stop is not None:
                    engine.stop()
            result["engines"][engine.name] = bench.rows
    (arguments.out / "bench-scale.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (arguments.out / "bench-scale.md").write_text(page(result), encoding="utf-8")
    print(table(result))


def page(result: Mapping[str, Any]) -> str:
    """The page of the documentation."""
    return (
        f"# Benchmark at scale\n\n{table(result)}\n## Where the time goes\n\n"
        "Seconds by stage of each command, as `-v` prints them; the run in the middle. `start` is Python, its imports "
        f"and the connection to the store; `write` is the part that the floor is.\n\n{profiles(result)}"
    )


if __name__ == "__main__":
    main()
