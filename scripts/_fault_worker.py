"""A client of scripts/faults. It works on things of its own, and writes down what it begins and what it has done.

What a journal's line calls done was acknowledged by the store. What began and was not done may be there or not, but
never in half.
"""

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stagedb.api import Stagedb, connect, model
from stagedb.errors import StagedbError, UsageError
from stagedb.store.failures import ConnectionLost

KINDS = ("Graph", "Instance", "Profile")
STEPS: Mapping[str, tuple[str, ...]] = {
    "build": ("Graph",),
    "instantiate": ("Graph", "Instance"),
    "profile": ("Graph", "Instance", "Profile"),
    "export": ("Graph", "Instance"),
    "load": ("Graph", "Instance", "Profile"),
    "rm": ("Graph", "Instance", "Profile"),
}
"""By step the kinds of things that it makes; `rm` removes them."""

TOGETHER = ("rm", "gc", "dump", "load", "tag", "export")
"""Steps of clients that work on the same things at once. Any of them may find that a thing has just been removed."""

PLAN: Mapping[str, Any] = {"tp": 2, "pp": 2, "ranks": 8, "seq_len": 256, "global_batch_size": 4}


@dataclass(frozen=True)
class Job:
    """A model of one client, and what the store must have of it when it is complete.

    things: ids by kind. traces: digest of its export, when nobody disturbs it. dump: file with all of it.
    """

    card: str
    things: Mapping[str, str]
    traces: str
    dump: str


def prepared(db: Stagedb, scratch: Path, name: str) -> Job:
    """A job, made in a store that nobody disturbs, and removed from it."""
    path = scratch / f"{name}.json"
    path.write_text(json.dumps({**model("gpt2"), "name": name, "layers": 2, "parameters": 0}), encoding="utf-8")
    profile = db.profile(model=str(path), system="h100", **PLAN)
    things = {"Graph": db.graphs()[0].id, "Instance": profile.info.instance, "Profile": profile.info.id}
    out = db.export(things["Instance"], out=scratch / f"{name}.alone").path
    dump = scratch / f"{name}.dump"
    db.dump(dump, things["Profile"])
    db.rm(things["Graph"], force=True)
    return Job(str(path), things, digest(out), str(dump))


def digest(directory: Path) -> str:
    """sha256 of all traces of a set."""
    found = hashlib.sha256()
    for path in sorted(directory.glob("*.et"), key=lambda path: int(path.name.split(".")[-2])):
        found.update(path.name.split(".")[-2].encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def step(db: Stagedb, name: str, job: Job, scratch: Path) -> None:
    """One step, to its end. Raises StagedbError, and ValueError for a result that is not as it must be."""
    if name == "build":
        db.build(job.card)
    elif name == "instantiate":
        db.instantiate(job.card, name="mine", **PLAN)
    elif name == "profile":
        db.profile(model=job.card, system="h100", **PLAN)
    elif name == "load":
        db.load(Path(job.dump))
    elif name == "export":
        _export(db, job, scratch)
    elif name == "gc":
        db.gc(dead=True)
    elif name == "dump":
        _if_there(lambda: db.dump(scratch / "kept.dump", job.things["Profile"], force=True))
    elif name == "tag":
        _if_there(lambda: db.tag(job.things["Instance"], "kept"))
    else:
        _if_there(lambda: db.rm(job.things["Graph"], force=True))


def _if_there(act: Callable[[], object]) -> None:
    """Do something with a thing that may not be there."""
    try:
        act()
    except UsageError as error:
        if "in the store" not in str(error):
            raise


def _export(db: Stagedb, job: Job, scratch: Path) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        made = db.export(model=job.card, out=Path(name) / "traces", **PLAN)
        if (made.instance.id, digest(made.path)) != (job.things["Instance"], job.traces):
            raise ValueError(f"the export of {made.instance.id} differs from the one that was made alone")


def work(request: Mapping[str, Any]) -> None:
    """Run the request's steps until there are no more, or until its file `stop` is there; prints the journal."""
    jobs = [Job(**job) for job in request["jobs"]]
    scratch, stop = Path(request["scratch"]), Path(request["stop"])
    steps = iter(request["steps"])
    again = True
    while again:
        try:
            with connect() as db:
                _line(event="connected")
                again = _work(db, jobs, steps, scratch, stop)
        except StagedbError as error:
            _line(event="failed", step="connect", job=0, text=str(error))
            time.sleep(0.2)
            again = not stop.exists()


def _work(db: Stagedb, jobs: Sequence[Job], steps: Iterator[tuple[str, int]], scratch: Path, stop: Path) -> bool:
    """Run steps on one connection. True if it is of no use any more: an embedded engine has another address next."""
    for name, number in steps:
        if stop.exists():
            return False
        about = {"step": name, "job": number}
        _line(event="begin", **about)
        try:
            step(db, name, jobs[number], scratch)
        except StagedbError as error:
            _line(event="failed", **about, text=str(error))
            if isinstance(error, ConnectionLost) and db.store.engine == "embedded":
                return True
            time.sleep(0.2)
        except Exception as error:  # noqa: BLE001 - any other error is what is looked for
            _line(event="fault", **about, text=f"{type(error).__name__}: {error}")
        else:
            _line(event="done", **about)
    return False


def _line(**fields: Any) -> None:
    print(json.dumps({"time": time.monotonic(), **fields}), flush=True)


def state_of(journals: Iterable[Sequence[Mapping[str, Any]]], jobs: Sequence[Job]) -> dict[str, bool | None]:
    """By id of a thing whether it must be there: None for one that was in work. All begin absent."""
    there: dict[str, bool | None] = {id: False for job in jobs for id in job.things.values()}
    for journal in journals:
        for line in journal:
            if line["event"] not in ("begin", "done"):
                continue
            for kind in STEPS.get(line["step"], ()):
                id, result = jobs[line["job"]].things[kind], line["step"] != "rm"
                if line["event"] == "done":
                    there[id] = result
                elif there[id] is not result:
                    there[id] = None
    return there


def request(jobs: Sequence[Job], steps: Sequence[tuple[str, int]], scratch: Path, stop: Path) -> str:
    """The text with which a client is started."""
    about = {"jobs": [asdict(job) for job in jobs], "steps": list(steps), "scratch": str(scratch), "stop": str(stop)}
    return json.dumps(about)


if __name__ == "__main__":
    work(json.load(sys.stdin))
