"""The tasks of one job that export a part of an instance each, as processes, several at once: seconds and statements.

The store takes no writes while they run: a Neo4j is started again as a read-only server, and with the embedded engine
each task refuses its own writes. All parts together must have the files of the whole export, byte for byte.
"""

import argparse
import hashlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts._fault_servers import Server, embedded_server, neo4j_server
from stagedb.api import Stagedb, connect

NAME = "job"
READ_ONLY = "server.databases.default_to_read_only=true"


def task(request: Mapping[str, Any]) -> dict[str, Any]:
    """Export one part. Returns the seconds of all and of its stages, and its statements by mode and name."""
    began = time.perf_counter()
    with connect() as db:
        sent = counted(db)
        if request["refuses"]:
            db.store.only_read()
        done = db.export(NAME, shard=request["shard"], out=Path(request["out"]))
    whole = time.perf_counter() - began
    return {"files": done.files, "seconds": dict(done.seconds), "whole": whole, "sent": sent}


def counted(db: Stagedb) -> Counter[str]:
    """The statements that a connection sends from now on, by mode and name."""
    sent, prepared = Counter[str](), db.store._statement

    def noted(name: str, mode: str, params: Mapping[str, Any]) -> Any:
        sent[f"{mode} {name}"] += 1
        return prepared(name, mode, params)

    db.store._statement = noted  # type: ignore[method-assign]  # to count what is sent
    return sent


def run_tasks(scratch: Path, tasks: int, at_once: int, refuses: bool) -> dict[str, Any]:
    """Run the tasks on the store of the environment. refuses: each refuses its own writes.

    Each is a process of its own, which begins with stagedb loaded, and opens the store itself. Returns the seconds of
    all, those of each and of its stages, and the statements of all.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*LOADED])
    requests = [
        {"shard": f"{number}/{tasks}", "out": str(scratch / f"part-{number}"), "refuses": refuses}
        for number in range(tasks)
    ]
    with context.Pool(at_once, maxtasksperchild=1) as pool:
        began = time.perf_counter()
        answers = pool.map(task, requests, chunksize=1)
        seconds = time.perf_counter() - began
    sent = Counter[str]()
    for answer in answers:
        sent.update(answer["sent"])
    return {
        "seconds": seconds,
        "of_task": [answer["whole"] for answer in answers],
        "in_export": [sum(answer["seconds"].values()) for answer in answers],
        "in_store": [sum(answer["seconds"].get(stage, 0.0) for stage in STORE_STAGES) for answer in answers],
        "files": sum(answer["files"] for answer in answers),
        "sent": sent,
    }


LOADED = ("stagedb.api.client", "stagedb.traces", "stagedb.store.contents.instances")
"""What a command loads before its work."""

STORE_STAGES = ("look up", "instantiate", "read")
"""Stages of an export that ask the store."""


def traces(directories: Sequence[Path]) -> dict[str, str]:
    """sha256 of each trace, by its rank. Raises RuntimeError for a rank that is there twice."""
    found: dict[str, str] = {}
    for path in (path for directory in directories for path in directory.glob("*.et")):
        rank = path.name.split(".")[-2]
        if rank in found:
            raise RuntimeError(f"two tasks wrote rank {rank}")
        found[rank] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def faults(result: Mapping[str, Any], parts: Mapping[str, str], whole: Mapping[str, str], tasks: int) -> Iterator[str]:
    """What is wrong: writes, tasks that send different statements, and traces that differ."""
    for name, count in result["sent"].items():
        mode, _, statement = name.partition(" ")
        if mode != "reads":
            yield f"{statement} was sent {count} times, and writes"
        if count % tasks:
            yield f"{statement} was sent {count} times by {tasks} tasks"
    if parts.keys() != whole.keys():
        yield f"the parts have {len(parts)} traces, and the whole export {len(whole)}"
    for rank in sorted(parts.keys() & whole.keys(), key=int):
        if parts[rank] != whole[rank]:
            yield f"the trace of rank {rank} differs from that of the whole export"


@contextmanager
def running(server: Server) -> Iterator[None]:
    """A store that this process and those it starts use."""
    before = dict(os.environ)
    try:
        server.start()
        os.environ.update(server.environment)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.stop()


def table(result: Mapping[str, Any], tasks: int, at_once: int) -> str:
    """The result as text."""
    sent = result["sent"]
    lines = [
        f"{tasks} tasks, {at_once} at once: {result['seconds']:.1f} s, {result['files']:,} traces",
        *(
            f"{what:<28} median {statistics.median(result[key]):6.2f} s, longest {max(result[key]):6.2f} s"
            for what, key in (
                ("a task", "of_task"),
                ("  its export", "in_export"),
                ("  of which asks the store", "in_store"),
            )
        ),
        f"{'statements of a task':<28} {sent.total() / tasks:g}",
        *(f"  {name:<32} {count / tasks:g}" for name, count in sorted(sent.items())),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench shards", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--engine", choices=("embedded", "neo4j"), default="neo4j", help="of the store (neo4j)")
    parser.add_argument("--tasks", type=int, default=100, help="of the job (default 100)")
    parser.add_argument("--at-once", type=int, default=8, help="that run at the same time (default 8)")
    parser.add_argument("--model", default="llama3-70b", help="a model of the library (llama3-70b)")
    parser.add_argument("--ranks", type=int, default=1024, help="of the job, a multiple of 32 (default 1024)")
    options = parser.parse_args()
    if options.tasks < 1 or options.at_once < 1 or options.ranks < options.tasks or options.ranks % 32:
        parser.error("--tasks and --at-once are at least 1, and --ranks a multiple of 32 and at least --tasks")
    with tempfile.TemporaryDirectory(prefix="stagedb-shards-") as name:
        scratch = Path(name)
        server = (neo4j_server if options.engine == "neo4j" else embedded_server)(scratch / "store")
        with running(server):
            with connect() as db:
                words: dict[str, Any] = {"tp": 8, "pp": 4, "ranks": options.ranks}
                db.instantiate(options.model, name=NAME, **words)
                whole = traces([db.export(NAME, out=scratch / "whole").path])
            if options.engine == "neo4j":
                server.stop()
                server.start(READ_ONLY)
            refuses = options.engine == "embedded"
            result = run_tasks(scratch, options.tasks, options.at_once, refuses)
        wrong = [*faults(result, traces([*scratch.glob("part-*")]), whole, options.tasks)]
    print(table(result, options.tasks, options.at_once))
    print("\n".join([*(f"fault: {each}" for each in wrong), f"{len(wrong)} faults"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
