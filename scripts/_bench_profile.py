"""The benchmark behind `scripts/bench profile`: times large jobs, writes the profiles, and queries them.

A profile is a command as a user runs it, Python's start included. It is removed before it is made again, and its
instance stays. One Python process for each run asks all queries, the first one included: `stagedb query` takes Python's
start in addition.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts._bench import ROOT, Engine, machine
from scripts._bench_scale import LLAMA, MICROBATCHES, PALM, Bench, Ran, engines, human, note, profiles

QUERIES = (
    *("critical_path", "hotspots", "hotspots_by_layer", "critical_breakdown", "exposed_communication"),
    "traffic_by_dimension",
    "traffic_by_link",
    *("bubble_by_stage", "stragglers", "longest_operators", "arithmetic_intensity", "recompute_cost"),
)
NAME = "benchmark"


def cases(ranks: int) -> dict[str, tuple[str, ...]]:
    """Jobs by name: the words of their plans."""
    palm = (*PALM, "--ranks", str(ranks))
    batch = str(MICROBATCHES * 4 * ranks // 128)
    return {
        f"palm-540b, {ranks:,} ranks": palm,
        f"palm-540b, {ranks:,} ranks, {MICROBATCHES} micro-batches": (*palm, "--global-batch-size", batch),
        "llama3-70b, 32 ranks, 128 micro-batches": LLAMA,
    }


def measure(bench: Bench, engine: Engine, title: str, words: tuple[str, ...]) -> None:
    """One job: its profile, made anew each time, then every query about it."""
    note(f"  {title}: made")
    profile = ("profile", *words, "--name", NAME)
    bench.stagedb(engine, *profile)
    ran: list[Ran] = []
    for turn in range(bench.runs):
        note(f"  {title}: run {turn + 1} of {bench.runs}")
        bench.stagedb(engine, "rm", NAME)
        ran.append(bench.stagedb(engine, *profile))
    bench.add(f"{title}: profiled and written", ran)
    note(f"  {title}: asked")
    asked = [ask(engine) for _ in range(bench.runs)]
    for query in QUERIES:
        bench.add(f"{title}: {query}", [Ran(each[query], {}, {}) for each in asked])
    bench.stagedb(engine, "rm", NAME)


def ask(engine: Engine) -> dict[str, float]:
    """The seconds of each query about the profile."""
    code = (
        "import json, time, stagedb\n"
        "seconds = {}\n"
        "with stagedb.connect() as db:\n"
        f"    for name in {QUERIES!r}:\n"
        "        began = time.perf_counter()\n"
        f"        db.query(name, profile={NAME!r})\n"
        "        seconds[name] = time.perf_counter() - began\n"
        "print(json.dumps(seconds))\n"
    )
    environment = {**os.environ, **engine.environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(result: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    facts = result["machine"]
    lines = [
        f"Medians of {result['runs']} runs by `scripts/bench profile` on {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, {facts['system']}, Python {facts['python']}, {facts['date']}.",
        "",
        "| | seconds | largest process | engine |",
        "|---|---:|---:|---:|",
    ]
    for engine, rows in result["engines"].items():
        lines.append(f"| **{engine}** | | | |")
        for row in rows:
            memory = [human(row["memory"][what]) if what in row["memory"] else "" for what in ("command", "engine")]
            lines.append(f"| {row['case']} | {row['seconds']:.2f} | {' | '.join(memory)} |")
    return "\n".join(lines) + "\n"


def page(result: Mapping[str, Any]) -> str:
    """The page of the documentation."""
    return (
        f"# Benchmark of profiles\n\n{table(result)}\n## Where the time goes\n\n"
        "Seconds by stage of each `stagedb profile`, as `-v` prints them; the run in the middle. `start` is Python, "
        f"its imports and the connection to the store.\n\n{profiles(result)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench profile", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each case (default 3)")
    parser.add_argument("--ranks", type=int, default=32768, help="ranks of the PaLM job, a multiple of 512 (32768)")
    parser.add_argument("--engine", choices=("embedded", "both"), default="both", help="what to measure (both)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="directory for bench-profile.json (docs)")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "runs": arguments.runs, "engines": {}}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for engine, _ in engines(scratch):
            note(f"{engine.name}:")
            bench = Bench(scratch, arguments.runs)
            try:
                for title, words in cases(arguments.ranks).items():
                    measure(bench, engine, title, words)
            finally:
                if engine.stop is not None:
                    engine.stop()
            result["engines"][engine.name] = bench.rows
            if arguments.engine == "embedded":
                break
        shutil.rmtree(scratch / "home", ignore_errors=True)
    (arguments.out / "bench-profile.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (arguments.out / "bench-profile.md").write_text(page(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
