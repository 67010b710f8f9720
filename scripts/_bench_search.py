"""The benchmark behind `scripts/bench search`: how many plans a second a search settles, next to Calculon's search.

The search runs as a user runs it, without a store, on all cores. With `--calculon DIR`, a checkout of
https://github.com/calculon-ai/calculon, Calculon's own search follows, for a model of the same sizes on its own H100
system. It tries every execution, so that it gets a limited time for parts of its space in a drawn order, and the time
for the whole space is what its rate makes of its number of executions.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts._bench import ROOT, machine

MEBI = 1 << 20

SEARCH = """
import json, sys
from stagedb import api
asked = json.loads(sys.argv[1])
found = api.search(asked["model"], [asked["ranks"]], allow=asked["allow"], words=asked["words"]).result
print(json.dumps({"plans": found.size, "covered": found.covered, "step": found.best.step}))
"""

CALCULON = """
import json, logging, multiprocessing, random, sys, time
from calculon.llm import Llm, System
from calculon.llm.optimal_execution import OptimalExecution, pick
import calculon
logging.disable(logging.CRITICAL)
application, system, ranks, batch, seconds, processes = sys.argv[1:]
ranks, batch, seconds, processes = int(ranks), int(batch), float(seconds), int(processes)
app = Llm.Application(calculon.io.read_json_file(application))
on = System(calculon.io.read_json_file(system))
spaces = []
for tp in Llm.get_all_tensor_parallelisms(ranks, app.hidden, app.attn_heads):
    for pp in Llm.get_all_pipeline_parallelisms(ranks, tp, app.num_blocks):
        dp = Llm.get_data_parallelism(ranks, tp, pp)
        for chunks in Llm.get_valid_pipeline_interleavings(app.num_blocks, pp):
            size = OptimalExecution.get_batch_size(dp, batch)
            if size is not None:
                for again in ("full", "attn_only", "none"):
                    for sharded in pick(dp > 1, [True, False], [False]):
                        for kind in ("ar", "p2p_rs_ag", "rs_ag"):
                            spaces.append((1, False, ranks, batch, "float16", app, on, tp, pp, dp, chunks, size, again,
                                           sharded, kind, [True], False, True, True))
count = lambda space, debug: OptimalExecution.search(debug, *space)[1]
whole = sum(count(space, True) for space in spaces)
random.Random(0).shuffle(spaces)
def run(part):
    began, done, good = time.monotonic(), 0, 0
    cpu = time.process_time()
    for space in spaces[part::processes]:
        _, executions, fits, *_ = OptimalExecution.search(False, *space)
        done, good = done + executions, good + fits
        if time.monotonic() - began > seconds:
            break
    return done, good, time.process_time() - cpu, time.monotonic() - began
with multiprocessing.get_context("fork").Pool(processes) as pool:
    found = pool.map(run, range(processes))
print(json.dumps({"whole": whole, "done": sum(f[0] for f in found), "good": sum(f[1] for f in found),
                  "cpu": sum(f[2] for f in found), "wall": max(f[3] for f in found)}))
"""


@dataclass(frozen=True)
class Ran:
    """A process and those that it started: its output, seconds, and the most bytes that all had together."""

    output: str
    wall: float
    cpu: float
    peak: int


def main() -> None:
    """Run the benchmark and print a table."""
    asked = _arguments()
    print(machine())
    ours = _measured([sys.executable, "-c", SEARCH, json.dumps(_search(asked))], _environment(ROOT))
    result = json.loads(ours.output)
    plans = result["plans"]
    state = "covered" if result["covered"] else "not covered"
    print(f"stagedb: {plans:,} plans, {state}; the best takes {result['step'] / 1e6:,.1f} ms")
    print(f"  {ours.wall:8.1f} s   {ours.cpu:8.1f} CPU s   {ours.peak / MEBI:,.0f} MiB of all processes together")
    print(f"  {plans / ours.wall:8,.0f} plans a second   {plans / ours.cpu:8,.0f} plans a CPU second")
    if asked.calculon is None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model.json"
        model.write_text(json.dumps(_sizes(asked)))
        system = asked.calculon / "systems" / "h100_80g_nvl8.json"
        values = map(str, (model, system, asked.ranks, asked.global_batch_size, asked.seconds, os.cpu_count() or 1))
        theirs = _measured([sys.executable, "-c", CALCULON, *values], _environment(asked.calculon))
    found = json.loads(theirs.output)
    rate = found["done"] / found["cpu"]
    print(f"Calculon: {found['whole']:,} executions, of which {found['done']:,} were tried; {found['good']:,} fit")
    print(f"  {found['wall']:8.1f} s   {found['cpu']:8.1f} CPU s   {theirs.peak / MEBI:,.0f} MiB")
    print(f"  {found['done'] / found['wall']:8,.0f} executions a second   {rate:8,.0f} a CPU second")
    print(f"  {found['whole'] / rate:8,.0f} CPU s for the whole space: {found['whole'] / rate / ours.cpu:,.0f} of ours")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench search", description=__doc__)
    parser.add_argument("--model", default="llama3-70b")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--global-batch-size", type=int, default=1024)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--allow", default="zero,recompute,schedule")
    parser.add_argument("--fix", default="recipe=megatron")
    parser.add_argument("--calculon", type=Path, help="a checkout of Calculon")
    parser.add_argument("--seconds", type=int, default=60, help="of Calculon's search")
    return parser.parse_args()


def _search(asked: argparse.Namespace) -> dict[str, object]:
    """The arguments of the search."""
    words = {"global_batch_size": asked.global_batch_size, "seq_len": asked.seq_len}
    words |= dict(pair.split("=") for pair in asked.fix.split(",") if pair)
    return {"model": asked.model, "ranks": asked.ranks, "allow": asked.allow.split(","), "words": words}


def _sizes(asked: argparse.Namespace) -> dict[str, int]:
    """The sizes of the model, as a file of Calculon has them. It knows no grouped keys and no gated layers."""
    from stagedb.api.model_names import card
    from stagedb.frameworks import find_framework
    from stagedb.graphs.graph_identity import model_sizes

    sizes = model_sizes(card(asked.model), find_framework("megatron"))
    return {
        "hidden": sizes["H"],
        "feedforward": sizes["F"],
        "seq_size": asked.seq_len,
        "attn_heads": sizes["A"],
        "attn_size": sizes["D"],
        "num_blocks": sizes["L"],
    }


def _environment(path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(path)}


def _measured(command: list[str], environment: dict[str, str]) -> Ran:
    """Run a command to its end. Ends the benchmark if it fails."""
    before, began = os.times(), time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    most = [0]
    watcher = threading.Thread(target=_watch, args=(process.pid, lambda size: most.append(size)), daemon=True)
    watcher.start()
    output, _ = process.communicate()
    wall, after = time.perf_counter() - began, os.times()
    if process.returncode:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Ran(output, wall, cpu, max(most))


def _watch(process: int, seen: Callable[[int], None]) -> None:
    """Look at the memory of a process and its children twice a second, what they share counted once."""
    with suppress(psutil.Error):
        parent = psutil.Process(process)
        while True:
            family = [parent, *parent.children(recursive=True)]
            total = 0
            for each in family:
                with suppress(psutil.Error):
                    total += each.memory_full_info().pss
            seen(total)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
