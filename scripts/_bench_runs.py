"""The benchmark behind `scripts/bench runs`: what stagedb, HolisticTraceAnalysis and TraceLens find in the same traces.

    scripts/bench runs --python .venv-tools/bin/python trace.json.gz another.json.gz
    scripts/bench runs --python .venv-tools/bin/python --job rank0.json.gz rank1.json.gz

`--python` is an interpreter with packages `hta` (HolisticTraceAnalysis), `TraceLens`, or both: what it does not have is
left out. Each tool runs in a process of its own, after the ones before it have ended, and reads the files, computes how
each rank spends its time, and sums the kernels of each name. Ours also joins the ranks and finds the critical path.

Times of ranks are added up. Rows with three dots are by the rules of TraceLens, for which fills compute and copies hide
no communication. HolisticTraceAnalysis rounds times to us, and leaves out the last step; TraceLens leaves out kernels
that it joins to no call. `--defaults` leaves this as it is; without it they are asked for everything.

Seconds are those after the imports, of the process and of those that it starts. Memory is the largest resident set of
all of them together, sampled, and of the process itself as Linux counts it.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts._bench import ROOT, SAMPLE, machine

MEBI = 1 << 20
SHOWN = 10
"""Kernels with most time that are shown."""

APART = 1.0
"""Percent by which a number of another tool is different without a mark."""

PARTS = """
WINDOW, COMPUTE, NEITHER, EXPOSED, COPIES, IDLE = PARTS = (
    "first begin to last end", "a kernel computes", "only communication or copies", "only communication",
    "copies, and no kernel computes", "idle",
)
FILLING, NOT_COPIES, LEFT = OTHER_PARTS = "... or fills", "... communication, or with copies", "... only copies"
"""

BEGIN = """
import json, os, resource, sys, time
files, defaults = sys.argv[2:], sys.argv[1] == "defaults"
def used():
    both = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)
def begin():
    global cpu, wall
    cpu, wall = used(), time.perf_counter()
def end(times, shares, kernels):
    if shares:
        times["communication below kernels %"] = 100 * sum(shares) / len(shares)
    with open("/proc/self/status") as status:
        peak = int(status.read().partition("VmHWM:")[2].split()[0]) << 10
    took = {"cpu": used() - cpu, "wall": time.perf_counter() - wall, "peak": peak}
    print("\\n" + json.dumps({"times": times, "kernels": kernels, **took}))
"""

OURS = """
from collections import Counter
from pathlib import Path
import numpy as np
from stagedb.runs import measured_run, read_trace
from stagedb.runs.rank_trace import CATEGORIES, rows_of
from stagedb.runs.measured_run import covered, length, union
begin()
run = measured_run([each for n, file in enumerate(files) for each in read_trace(Path(file), f"{n:064}")])
times, kernels, shares = Counter(), Counter(), []
for rank, ops in run.ops.items():
    spent, timed, trace = ops.spent, ops.timed, run.ranks[rank]
    window = int(timed.end.max() - timed.start.min())
    kinds = np.where(np.array(ops.types) == "copy", ops.kinds, ops.types)
    def of(*chosen):
        which = np.isin(kinds, chosen)
        return union(timed.start[which], timed.end[which])
    talks = "collective", "send", "recv"
    exchange, computing, filling = of(*talks), of("compute"), of("compute", "fill")
    busy, kernels_or_fills = spent.busy + spent.exposed + spent.bubble, length(of("compute", "fill", *talks))
    times += Counter({
        WINDOW: window, COMPUTE: spent.busy - spent.copying, EXPOSED: spent.exposed + spent.bubble,
        COPIES: spent.copying, NEITHER: spent.exposed + spent.bubble + spent.copying, IDLE: window - busy,
        FILLING: length(filling), NOT_COPIES: kernels_or_fills - length(filling), LEFT: busy - kernels_or_fills,
    })
    if spent.communication:
        shares.append(int(covered(*exchange, computing).sum()) / spent.communication)
    for name, category, start, finish in rows_of(trace.ops.name, trace.ops.category, timed.start, timed.end):
        if CATEGORIES[category] == "kernel":
            kernels[trace.names[name]] += finish - start
found = {name: times[name] / 1e6 for name in (*PARTS, *OTHER_PARTS)}
end(found, shares, {name: ns / 1e6 for name, ns in kernels.items()})
"""

HTA = """
import logging
if not defaults:
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
begin()
paths = {number: os.path.abspath(file) for number, file in enumerate(files)}
analysis = TraceAnalysis(trace_files=paths, include_last_profiler_step=not defaults)
ranks = analysis.get_temporal_breakdown(visualize=False)
shares = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].dropna() / 100
kinds, kernels = analysis.get_gpu_kernel_breakdown(
    visualize=False, duration_ratio=1.0, num_kernels=1_000_000, include_memory_kernels=True
)
kinds = dict(zip(kinds["kernel_type"], kinds["sum"]))
found = {
    WINDOW: sum(ranks["kernel_time(us)"]),
    COMPUTE: sum(ranks["compute_time(us)"]),
    NEITHER: sum(ranks["non_compute_time(us)"]),
    EXPOSED: kinds.get("COMMUNICATION", 0),
    COPIES: sum(kinds.get(each, 0) for each in ("MEMORY", "COMMUNICATION overlapping MEMORY")),
    IDLE: sum(ranks["idle_time(us)"]),
}
kernels = kernels[kernels["kernel_type"] != "MEMORY"].groupby("name")["sum (us)"].sum()
end(
    {name: float(us) / 1e3 for name, us in found.items()},
    shares.tolist(),
    {name: float(us) / 1e3 for name, us in kernels.items()},
)
"""

TRACELENS = """
import logging
from collections import Counter
from TraceLens import TreePerfAnalyzer
logging.disable(logging.CRITICAL)
begin()
times, kernels, shares = Counter(), Counter(), []
for file in files:
    analysis = TreePerfAnalyzer.from_file(file, include_unlinked_kernels=not defaults)
    spent = analysis.get_df_gpu_timeline()
    spent = dict(zip(spent["type"], spent["time ms"]))
    times += Counter(spent)
    if spent["total_comm_time"]:
        shares.append(float(1 - spent["exposed_comm_time"] / spent["total_comm_time"]))
    table = analysis.get_df_kernels()
    kernels += Counter(table.groupby("Kernel name")["Kernel duration (\u00b5s)"].sum().to_dict())
    del analysis, table
compute, exposed, copies = (times[name] for name in ("computation_time", "exposed_comm_time", "exposed_memcpy_time"))
found = {
    WINDOW: times["total_time"], COMPUTE: compute, NEITHER: exposed + copies, EXPOSED: exposed, COPIES: copies,
    IDLE: times["idle_time"], FILLING: compute, NOT_COPIES: exposed, LEFT: copies,
}
end(
    {name: float(ms) for name, ms in found.items()},
    shares,
    {name: float(us) / 1e3 for name, us in kernels.items()},
)
"""


@dataclass(frozen=True)
class Tool:
    """A tool. package: what has to be importable, None for stagedb. program: what runs in a process of its own."""

    name: str
    package: str | None
    program: str


TOOLS = (Tool("stagedb", None, OURS), Tool("HTA", "hta", HTA), Tool("TraceLens", "TraceLens", TRACELENS))


@dataclass(frozen=True)
class Answer:
    """What a tool found, in ms, by name, and what it took: seconds and bytes."""

    times: Mapping[str, float]
    kernels: Mapping[str, float]
    cpu: float
    wall: float
    peak: int


def main() -> None:
    """Run each tool on each set of files, and print a table of each set."""
    asked = _arguments()
    tools = [each for each in TOOLS if each.package is None or _has(asked.python, each.package)]
    print(machine())
    if len(tools) == 1:
        print(f"{asked.python} has neither package hta nor TraceLens: only stagedb runs")
    for files in [asked.traces] if asked.job else [[each] for each in asked.traces]:
        answers = {tool.name: answer_of(tool, asked.python, files, asked.defaults) for tool in tools}
        print(f"\n{', '.join(each.name for each in files)}")
        for line in table(answers):
            print(line)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="+", help="traces of PyTorch's profiler")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the interpreter of the other tools")
    parser.add_argument("--job", action="store_true", help="the files are ranks of one job, not a job each")
    parser.add_argument("--defaults", action="store_true", help="ask the other tools as they are")
    return parser.parse_args()


def _has(python: Path, package: str) -> bool:
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def answer_of(tool: Tool, python: Path, files: Sequence[Path], defaults: bool = False) -> Answer | str:
    """What a tool finds in files; the last line of its error if it fails.

    python: the interpreter of other tools. defaults: they are asked as they are.
    """
    python = Path(sys.executable) if tool.package is None else python
    words = [
        python,
        "-c",
        PARTS + BEGIN + tool.program,
        "defaults" if defaults else "all",
        *map(Path.absolute, files),
    ]
    environment = {**os.environ, **({"PYTHONPATH": str(ROOT)} if tool.package is None else {})}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    most = [0]
    threading.Thread(target=_watch, args=(process.pid, most), daemon=True).start()
    out, error = process.communicate()
    if process.returncode:
        return (error.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
    found = json.loads(out.strip().splitlines()[-1])
    return Answer(**{**found, "peak": max(found["peak"], most[0])})


def _watch(number: int, most: list[int]) -> None:
    """Sample the memory of a process with all that it starts, until it ends."""
    ended = threading.Event()
    try:
        process = psutil.Process(number)
        while not ended.wait(SAMPLE):
            every = [process, *process.children(recursive=True)]
            most[0] = max(most[0], sum(each.memory_info().rss for each in every))
    except psutil.Error:
        return


def table(answers: Mapping[str, Answer | str]) -> list[str]:
    """Lines with the numbers of all tools next to each other. The first tool is the one that others are compared with.

    A number that is different by more than `APART` percent has a mark.
    """
    found = {tool: answer for tool, answer in answers.items() if isinstance(answer, Answer)}
    failed = [f"  {tool} fails: {answer[:150]}" for tool, answer in answers.items() if isinstance(answer, str)]
    first = next(iter(found.values()), None)
    if first is None:
        return failed
    lines = ["  " + " " * 42 + "".join(f"{tool:>12}" + " " * (9 if place else 0) for place, tool in enumerate(found))]
    for name in dict.fromkeys(name for answer in found.values() for name in answer.times):
        title = name if name.endswith("%") else f"{name} ms"
        lines.append(_line(title, [each.times.get(name) for each in found.values()], "12,.3f"))
    for name in sorted(first.kernels, key=lambda each: -first.kernels[each])[:SHOWN]:
        lines.append(_line(name, [each.kernels.get(name) for each in found.values()], "12,.3f"))
    lines.append(_line("all kernels ms", [sum(each.kernels.values()) for each in found.values()], "12,.3f"))
    took: tuple[tuple[str, Callable[[Answer], float]], ...] = (
        ("seconds", lambda each: each.wall),
        ("CPU seconds", lambda each: each.cpu),
        ("peak MiB", lambda each: each.peak / MEBI),
    )
    for title, value in took:
        lines.append(_line(title, [value(each) for each in found.values()], "12,.2f", times=True))
    return lines + failed


def _line(title: str, values: Sequence[float | None], form: str, times: bool = False) -> str:
    """A row. times: others are shown as a multiple of the first value, and not as a difference in percent."""
    first, *others = values
    words = f"  {title[:40]:42}" + ("           -" if first is None else format(first, form))
    for value in others:
        words += "           -" if value is None else format(value, form)
        words += " " * 9 if value is None or not first else _compared(first, value, times)
    return words.rstrip()


def _compared(first: float, value: float, times: bool) -> str:
    if times:
        return f" {value / first:6.1f}x "
    percent = 100 * (value - first) / first
    return f" {percent:+6.1f}%" + ("!" if abs(percent) > APART else " ")


if __name__ == "__main__":
    main()
