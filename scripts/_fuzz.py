"""Hostile inputs for every door of stagedb, behind scripts/fuzz.

Each input is damaged from a real file, or made with hostile values. The command line runs on it with limits, in a
fork of this process, some in a process of their own. A run is a finding if it ends with a traceback or a status that
stagedb does not have, takes too long, grows too much, or changes a file that it was not asked to. Inputs follow from
the seed, the door and the number alone.
"""

import argparse
import contextlib
import gc
import importlib
import io
import os
import pkgutil
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import stagedb
from scripts._fuzz_doors import DOORS
from scripts._fuzz_runs import Attempt, Outcome, Place, prepare, run, shrunk, spawnable
from scripts._fuzz_seeds import ROOT, Seeds, seeds
from stagedb.cli import main as main_of_stagedb

SPAWNED = 40
"""Every n-th input runs in a process of its own, with this n."""


@dataclass
class Tally:
    """What happened: outcomes by door, and findings with their attempts."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[tuple[int, Attempt, Outcome]] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0

    def add(self, number: int, attempt: Attempt, outcome: Outcome) -> None:
        word = "FINDING" if outcome.finding else outcome.word
        self.outcomes.setdefault(attempt.door, Counter())[word] += 1
        self.slowest = max(self.slowest, outcome.seconds)
        self.largest = max(self.largest, outcome.growth)
        if outcome.finding:
            self.findings.append((number, attempt, outcome))


def attempt_of(seed: int, door: str, number: int, found: Seeds) -> Attempt:
    """The input of a door with this number."""
    return DOORS[door](random.Random(f"{seed}/{door}/{number}"), found)


def fuzz(options: argparse.Namespace, place: Place, found: Seeds) -> Tally:
    """Run the inputs, the doors in turn."""
    tally, doors = Tally(), options.door or list(DOORS)
    end = time.monotonic() + options.budget if options.budget else float("inf")
    for number in range(options.first, options.first + options.count):
        if time.monotonic() > end:
            break
        attempt = attempt_of(options.seed, doors[number % len(doors)], number, found)
        outcome = _judged(attempt, place, forked=number % SPAWNED != SPAWNED - 1 or not spawnable(attempt))
        tally.add(number, attempt, outcome)
        if outcome.finding:
            print(f"{number} {attempt.door}: {outcome.finding}", flush=True)
        elif options.verbose:
            print(f"{number} {attempt.door}: {outcome.word} {outcome.seconds:.2f} s: {outcome.error.strip()}"[:300])
    return tally


def _judged(attempt: Attempt, place: Place, *, forked: bool) -> Outcome:
    """The outcome. What took too long is tried once more: the machine may have been busy."""
    outcome = run(attempt, place, forked=forked)
    return run(attempt, place, forked=forked) if outcome.finding == "did not end in time" else outcome


def show(tally: Tally, options: argparse.Namespace, place: Place) -> None:
    """Print the counts by door, and a reproduction of each finding."""
    words = sorted({word for counts in tally.outcomes.values() for word in counts})
    print(f"{'door':<16}" + "".join(f"{word:>13}" for word in words))
    for door, counts in tally.outcomes.items():
        print(f"{door:<16}" + "".join(f"{counts[word]:>13,}" for word in words))
    total = sum(sum(counts.values()) for counts in tally.outcomes.values())
    print(
        f"{total:,} inputs, {len(tally.findings)} findings; the slowest took {tally.slowest:.1f} s, the largest grew "
        f"by {tally.largest >> 20} MiB"
    )
    for number, attempt, outcome in tally.findings[: options.shown]:

        def same(smaller: Attempt, wanted: str = outcome.finding[:40]) -> bool:
            return run(smaller, place, forked=True).finding[:40] == wanted

        slow = outcome.finding == "did not end in time"
        smallest = attempt if slow or options.budget else shrunk(attempt, same)
        print(f"\n{attempt.door} {number}: {outcome.finding}\n  scripts/fuzz --seed {options.seed} "
              f"--door {shlex.quote(attempt.door)} --only {number}")  # fmt: skip
        print(f"  stagedb {' '.join(shlex.quote(ascii(each)[1:-1][:300]) for each in attempt.arguments)}")
        for name, content in smallest.files.items():
            known = content if isinstance(content, str) else f"{len(content)} bytes: {content[:200]!r}"
            if content != attempt.files.get(name) or len(smallest.files) < 4:
                print(f"  {name}: {known}")


def main() -> int:
    """Parse the options, run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=3000, help="inputs  [3000]")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other inputs  [1]")
    parser.add_argument("--door", action="append", choices=list(DOORS), help="only this door; may be repeated")
    parser.add_argument(
        "--only", type=int, metavar="N", help="with one --door: run the single input that has this number"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long one input may take  [10]")
    parser.add_argument("--budget", type=float, default=0.0, help="begin no more inputs after these seconds")
    parser.add_argument("--home", type=Path, help="directory of a running embedded store  [one of its own]")
    parser.add_argument("--shown", type=int, default=40, help="findings that are shown with a reproduction  [40]")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every input")
    options = parser.parse_args()
    options.first = 0
    if options.only is not None:
        options.first, options.count = options.only, 1
    with tempfile.TemporaryDirectory(prefix="stagedb-fuzz-") as name:
        scratch = Path(os.path.realpath(name))
        place = Place(scratch, options.home.absolute() if options.home else scratch / "home", options.seconds)
        prepare(place)
        try:
            _import_all()
            found = seeds(scratch / "seeds", place.environment())
            tally = fuzz(options, place, found)
            show(tally, options, place)
        finally:
            shutil.rmtree(place.own.parent, ignore_errors=True)
            if options.home is None:
                command = [sys.executable, "-m", "stagedb", "store", "down"]
                environment = {**place.environment(), "PYTHONPATH": str(ROOT)}
                subprocess.run(command, env=environment, capture_output=True, check=False)
    return 1 if tally.findings else 0


def _import_all() -> None:
    """Import what the commands need, so that forks have it, and keep the collector from copying it."""
    for module in pkgutil.walk_packages(stagedb.__path__, "stagedb."):
        if not module.name.endswith(("__main__", "_engine", "generate_chakra")):
            importlib.import_module(module.name)
    # Libraries import more when they are used.
    for arguments in (["models"], ["systems"], ["queries"], ["models", "--help"], ["models", "none"], ["none"]):
        sys.argv = ["stagedb", *arguments]
        silence = io.StringIO()
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), contextlib.suppress(SystemExit):
            main_of_stagedb()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
