"""Clients, servers, lines and disks that fail while a store is used, seeded, and what must hold afterwards.

Nothing that the store acknowledged may be lost, nothing half-done may be visible, the next command must work, and
`store check` must find nothing then. Exports must be equal to those that were made alone.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts._fault_clients import Outcome, Trial
from scripts._fault_servers import Server, embedded_server, may_mount, neo4j_server, small_disk
from scripts._fault_trials import (
    cut_lines,
    full_disk,
    killed_clients,
    killed_servers,
    only_reads,
    worked_together,
)
from scripts._fault_worker import Job, prepared
from stagedb.api import Stagedb
from stagedb.store import connect, embedded

TRIALS: Mapping[str, Sequence[str]] = {
    "clients": ("embedded", "neo4j"),
    "server": ("embedded", "neo4j"),
    "line": ("neo4j",),
    "disk": ("embedded", "neo4j"),
    "reads": ("neo4j",),
    "together": ("embedded", "neo4j"),
}
"""By trial the engines that it suits: the embedded engine listens on this machine alone, and always writes."""

SMALL = ("db.tx_log.rotation.size=32m", "db.tx_log.rotation.retention_policy=keep_none")
"""Settings of a Neo4j on a small disk. Its log of transactions has its room from the start, as it has by default:
without that, a Neo4j does not recover from a record that did not fit."""

DISK = 512 << 20
"""Bytes of a small disk. It has room for the log of writes of the embedded engine: two files of 64 MB."""

SILENCE = "server.bolt.connection_keep_alive=5s"
"""A setting of the Neo4j whose line is cut. Its clients notice silence after twice this time."""


def run(name: str, engine: str, jobs: Sequence[Job], scratch: Path, *, seed: int, count: int) -> Outcome:
    """One trial on a server of its own."""
    if name == "clients":
        jobs = jobs[:2]
    scratch = scratch / f"{engine}-{name}"
    scratch.mkdir()
    with server_for(name, engine, scratch) as (server, quota):
        trial = Trial(server, jobs, random.Random(f"{seed}/{engine}/{name}"), scratch)
        actions: Mapping[str, Callable[[], None]] = {
            "clients": lambda: killed_clients(trial, count),
            "server": lambda: killed_servers(trial, count),
            "line": lambda: cut_lines(trial, count),
            "disk": lambda: full_disk(trial, count, quota=quota),
            "reads": lambda: only_reads(trial),
            "together": lambda: worked_together(trial, count),
        }
        actions[name]()
        return trial.outcome


@contextmanager
def server_for(name: str, engine: str, scratch: Path) -> Iterator[tuple[Server, bool]]:
    """A running server, and whether a full disk is one by a limit of its files' size: it cannot be mounted."""
    home, quota = scratch / "server", False
    with ExitStack() as ends:
        if name == "disk":
            quota = not may_mount(scratch)
            if not quota:
                ends.enter_context(small_disk(home, DISK))
        settings = SMALL if name == "disk" else (SILENCE,) if name == "line" else ()
        inside = home / "data"
        server = embedded_server(inside) if engine == "embedded" else neo4j_server(inside, *settings)
        server.start()
        ends.callback(server.stop)
        yield server, quota


def make_jobs(scratch: Path, count: int) -> list[Job]:
    """Jobs with what they are when nobody disturbs them."""
    home = scratch / "alone"
    try:
        with Stagedb(connect(environment={}, home=home)) as db:
            return [prepared(db, scratch, f"tiny{number}") for number in range(count)]
    finally:
        embedded.stop(home)


def lines_of(name: str, outcome: Outcome) -> list[str]:
    """The outcome of a trial as text."""
    lines = [f"{name:<8} {what:<44} {count:>7,}" for what, count in sorted(outcome.counts.items())]
    if outcome.seconds:
        ordered = sorted(outcome.seconds)
        middle = ordered[len(ordered) // 2]
        lines.append(f"{name:<8} next command worked after {middle:.1f} s (median), {ordered[-1]:.1f} s (longest)")
    return [*lines, *(f"{name:<8} FAULT {each}" for each in outcome.faults)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--engine", choices=("embedded", "neo4j"), default="neo4j", help="of the store (neo4j)")
    parser.add_argument("--only", help=f"trials, of {','.join(TRIALS)} (all that suit the engine)")
    parser.add_argument("--clients", type=int, default=50, help="clients to kill (50)")
    parser.add_argument("--servers", type=int, default=10, help="times to kill the server (10)")
    parser.add_argument("--cuts", type=int, default=10, help="times to cut the line (10)")
    parser.add_argument("--disks", type=int, default=3, help="times to fill the disk (3)")
    parser.add_argument("--seconds", type=int, default=120, help="of clients that work on the same things (120)")
    parser.add_argument("--seed", type=int, default=1, help="of steps and moments (1)")
    options = parser.parse_args()
    suits = [name for name, engines in TRIALS.items() if options.engine in engines]
    wanted = suits if options.only is None else options.only.split(",")
    if not set(wanted) <= set(suits):
        parser.error(f"--only must be of {','.join(suits)}, which suit {options.engine}")
    counts = {"clients": options.clients, "server": options.servers, "line": options.cuts, "disk": options.disks}
    counts["together"] = options.seconds
    faults = 0
    with tempfile.TemporaryDirectory(prefix="stagedb-faults-") as name:
        scratch = Path(name)
        jobs = make_jobs(scratch, 3)
        for each in wanted:
            outcome = run(each, options.engine, jobs, scratch, seed=options.seed, count=counts.get(each, 1))
            print(*lines_of(each, outcome), sep="\n", flush=True)
            faults += len(outcome.faults)
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
