"""The benchmark behind `scripts/bench hybrids`: large hybrids over 1,024 ranks, next to a dense model.

Each run begins with an empty store on an engine that is started, and has four whole commands, Python's start included:
`memory` and `profile` from the model, `export` (which builds and instantiates it), and `validate` of what was exported,
by every rule and by a replay. Times are divided by the nodes of all traces.
"""

import argparse
import json
import re
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts._bench import ROOT, Case, Memory, embedded, machine, ran
from scripts._bench_scale import human, note

RANKS = 1024
CASES = (
    Case("llama3-70b", ("--tp", "8", "--pp", "4"), RANKS),
    Case("qwen3.5-397b-a17b", ("--tp", "2", "--pp", "4", "--ep", "16", "--zero", "1"), RANKS),
    Case("nemotron-3-super-120b-a12b", ("--tp", "2", "--pp", "4", "--ep", "16", "--zero", "1"), RANKS),
    Case("jamba-1.5-large", ("--tp", "8", "--pp", "4", "--ep", "16", "--zero", "1"), RANKS),
    Case("kimi-linear-48b-a3b", ("--tp", "4", "--ep", "16", "--zero", "1"), RANKS),
)
"""The first one is the model that the others are compared with."""

STEPS = ("memory", "profile", "export", "validate")
SOUND = re.compile(rf"sound: {RANKS} ranks, ([\d,]+) nodes, every rule and a replay")


def measure(case: Case, runs: int) -> dict[str, Any]:
    """Medians of the four commands of a case. SystemExit if one fails, or if the traces are not sound."""
    seconds: dict[str, list[float]] = defaultdict(list)
    memory, nodes, size = Memory(), 0, 0
    for turn in range(runs):
        note(f"  {case.title}: run {turn + 1} of {runs}")
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            engine, out = embedded(scratch / "home"), scratch / "traces"
            model = ("--model", case.model, *case.words)
            commands = {
                "memory": ("memory", *model, "--no-keep"),
                "profile": ("profile", *model, "--no-keep"),
                "export": ("export", *model, "--out", str(out)),
                "validate": ("validate", str(out)),
            }
            start, stop = engine.start or _nothing, engine.stop or _nothing
            start()
            try:
                for step, words in commands.items():
                    spent, output = ran(engine, memory, scratch, *words)
                    seconds[step].append(spent)
                    found = SOUND.search(output)
                    nodes = int(found[1].replace(",", "")) if found else nodes
                size = sum(each.stat().st_size for each in out.glob("*.et"))
            finally:
                stop()
                shutil.rmtree(scratch / "home", ignore_errors=True)
    if not nodes:
        raise SystemExit(f"the traces of {case.title} are not sound")
    middle = {step: statistics.median(times) for step, times in seconds.items()}
    return {"case": case.title, "nodes": nodes, "bytes": size, "seconds": middle, "memory": dict(memory.largest)}


def _nothing() -> None:
    """What starts and ends an engine that somebody else runs."""


def table(result: Mapping[str, Any]) -> str:
    """The results as Markdown: seconds of each command, and microseconds a node, next to the dense model's."""
    facts, rows = result["machine"], result["cases"]
    first = _each(rows[0])
    lines = [
        f"Medians of {result['runs']} runs by `scripts/bench hybrids` on {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, {facts['system']}, Python {facts['python']}, {facts['date']}. All "
        "traces are sound by every rule and by a replay.",
        "",
        f"| | nodes | traces | {' | '.join(STEPS)} | µs a node | × {CASES[0].model} | largest process |",
        f"|---|---:|---:|{'---:|' * len(STEPS)}---:|---:|---:|",
    ]
    for row in rows:
        seconds = " | ".join(f"{row['seconds'][step]:.1f}" for step in STEPS)
        lines.append(
            f"| {row['case']} | {row['nodes']:,} | {human(row['bytes'])} | {seconds} | {_each(row):.1f} | "
            f"{_each(row) / first:.2f} | {human(row['memory']['command'])} |"
        )
    return "\n".join(lines) + "\n"


def _each(row: Mapping[str, Any]) -> float:
    """Microseconds of all commands for a node."""
    return float(sum(row["seconds"].values()) / row["nodes"] * 1e6)


def main() -> None:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="scripts/bench hybrids", description=about)
    parser.add_argument("--runs", type=int, default=3, help="runs of each model (default 3)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="directory for bench-hybrids.json (docs)")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "runs": arguments.runs}
    result["cases"] = [measure(case, arguments.runs) for case in CASES]
    (arguments.out / "bench-hybrids.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    page = f"# Benchmark of hybrids\n\n{table(result)}\n{ABOUT}"
    (arguments.out / "bench-hybrids.md").write_text(page, encoding="utf-8")
    print(table(result))


ABOUT = """Seconds are of whole commands from an empty store. `memory` and `profile` compute without it.
`export` builds the graph, instantiates it in the store and writes a trace for each rank.
"""


if __name__ == "__main__":
    main()
