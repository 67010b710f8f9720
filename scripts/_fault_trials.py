"""The trials of scripts/faults: what is broken, and what must hold afterwards.

After each fault: what the store acknowledged is there, what it removed is not, what can be seen is whole and exports
as it did when nobody disturbed it, the next command works, and then `store check` finds nothing.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from scripts._bench import ROOT
from scripts._bench_team import REFUSALS
from scripts._fault_servers import Line, Server, fill, limit_files
from scripts._fault_worker import STEPS, Job, digest, request, state_of
from stagedb.api import Stagedb
from stagedb.errors import StagedbError
from stagedb.store import connect

PATIENCE = 180.0
"""Seconds after which a client that has done nothing counts as a fault."""

DOCUMENTED: Mapping[str, tuple[str, ...]] = {
    **REFUSALS,
    "the connection was lost": ("was lost during",),
    "no store answers": ("no store answers at",),
    "the disk is full": ("its disk is full", "check whether its disk is full"),
    "it took too long": ("which took too long",),
    "the store cannot write": ("cannot write any more",),
}
"""Kinds of documented errors, by a part of their text."""


@dataclass
class Outcome:
    """What a trial did: counts by words, seconds until the next command had worked, and faults."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass
class Trial:
    """A store with clients, in the order in which they began. A job belongs to one of them at a time."""

    server: Server
    jobs: Sequence[Job]
    random: random.Random
    scratch: Path
    outcome: Outcome = field(default_factory=Outcome)
    clients: list["Client"] = field(default_factory=list)

    @property
    def journals(self) -> list[list[dict[str, Any]]]:
        """What the clients wrote."""
        return [client.journal for client in self.clients]

    def client(self, steps: Sequence[tuple[str, int]], environment: Mapping[str, str] | None = None) -> "Client":
        """A client that has begun its steps."""
        found = Client(self, steps, environment or self.server.environment)
        self.clients.append(found)
        return found

    def steps(self, job: int) -> list[tuple[str, int]]:
        """Very many steps."""
        return [(name, job) for name in self.random.choices([*STEPS], weights=(1, 2, 2, 1, 1, 3), k=2_000)]

    def examine(self, jobs: Iterable[int]) -> None:
        """Note all that is wrong with what these jobs left. No client of theirs may be at work."""
        chosen = [self.jobs[number] for number in jobs]
        there = state_of(self.journals, self.jobs)
        with self.opened() as db:
            seen = {
                *(each.id for each in db.graphs()),
                *(each.id for each in db.instances()),
                *(each.id for each in db.profiles()),
            }
            for job in chosen:
                for kind, id in job.things.items():
                    if there[id] is True and id not in seen:
                        self.fault(f"{kind.lower()} {id} was acknowledged and is lost")
                    elif there[id] is False and id in seen:
                        self.fault(f"{kind.lower()} {id} was removed and is there")
                if job.things["Instance"] in seen:
                    self._compare(db, job)
            for each in seen - {id for job in self.jobs for id in job.things.values()}:
                self.fault(f"{each} is nobody's")
            for problem in db.check():
                if not problem.dead:
                    self.fault(f"{problem.label} {problem.id}: {problem.problem}")
        for client in self.clients:
            if client.process.poll() is not None:
                self._look_at_files(client.scratch)

    def _look_at_files(self, scratch: Path) -> None:
        for path in scratch.glob("*/traces"):
            if digest(path) not in {job.traces for job in self.jobs}:
                self.fault(f"{path} has its name and is not whole")
        shutil.rmtree(scratch, ignore_errors=True)

    def _compare(self, db: Stagedb, job: Job) -> None:
        out = self.scratch / "compared"
        try:
            if digest(db.export(job.things["Instance"], out=out).path) != job.traces:
                self.fault(f"the export of {job.things['Instance']} differs from the one that was made alone")
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def clean(self) -> None:
        """Note what `store check` finds after the next command."""
        with self.opened() as db:
            for problem in db.check():
                self.fault(f"after the next command: {problem.label} {problem.id}: {problem.problem}")

    def opened(self) -> Stagedb:
        """A connection of one's own."""
        return Stagedb(connect(environment=self.server.environment, home=self.server.files))

    def fault(self, text: str) -> None:
        """Note a fault."""
        self.outcome.faults.append(text)

    def count(self, client: "Client") -> None:
        """Count what a client did, and note what it should not have seen."""
        for line in client.journal:
            if line["event"] == "done":
                self.outcome.counts["steps done"] += 1
            elif line["event"] == "failed":
                self.outcome.counts[f"refused: {self._kind(line)}"] += 1
            elif line["event"] == "fault":
                self.fault(f"{line['step']}: {line['text']}")

    def _kind(self, line: Mapping[str, Any]) -> str:
        for kind, parts in DOCUMENTED.items():
            if any(part in line["text"] for part in parts):
                return kind
        self.fault(f"{line['step']}: {line['text']}")
        return "not documented"


class Client:
    """A process that works on a store. `journal` grows while it runs."""

    def __init__(self, trial: Trial, steps: Sequence[tuple[str, int]], environment: Mapping[str, str]) -> None:
        number = len(trial.clients)
        self.scratch = trial.scratch / f"client-{number}"
        self.scratch.mkdir()
        self.journal: list[dict[str, Any]] = []
        self._stop = trial.scratch / f"stop-{number}"
        self._errors = (trial.scratch / f"errors-{number}").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts._fault_worker"],
            cwd=ROOT,
            env={**_plain(), **environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        with cast("IO[str]", self.process.stdin) as requests:
            requests.write(request(trial.jobs, steps, self.scratch, self._stop))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with cast("IO[str]", self.process.stdout) as lines:
            for line in lines:
                if line.endswith("\n"):
                    self.journal.append(json.loads(line))

    def seen(self, event: str, after: float = 0.0) -> list[dict[str, Any]]:
        """Its lines of a kind since a time."""
        return [line for line in self.journal if line["event"] == event and line["time"] >= after]

    def wait(self, event: str, count: int = 1, after: float = 0.0, patience: float = PATIENCE) -> bool:
        """Wait until it has written so many lines of a kind since a time. False if it has ended, or takes too long."""
        end = time.monotonic() + patience
        while len(self.seen(event, after)) < count:
            if time.monotonic() > end or (self.process.poll() is not None and not self._reader.is_alive()):
                return len(self.seen(event, after)) >= count
            time.sleep(0.005)
        return True

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self._ended()

    def finish(self, patience: float = PATIENCE) -> str:
        """Let it end its step. Returns what is wrong with its end, if something is."""
        self._stop.touch()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"a client did not end its step within {patience:.0f} s"
        self._ended()
        if self.process.returncode:
            self._errors.seek(0)
            return f"a client ended with status {self.process.returncode}: {self._errors.read()[-400:]}"
        return ""

    def _ended(self) -> None:
        self.process.wait()
        self._reader.join()


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}


def killed_clients(trial: Trial, count: int) -> None:
    """Kill clients in the middle of a step, while another one works."""
    typical = _times(trial, 1)
    colleague = trial.client(trial.steps(0))
    names: list[str] = []
    killed = 0
    while killed < count:
        names = names or trial.random.sample([*STEPS], len(STEPS))
        name = names.pop()
        there = state_of(trial.journals, trial.jobs)[trial.jobs[1].things["Profile"]]
        first = [] if name == "rm" and there else [("profile", 1)] if name == "rm" else [("rm", 1)]
        if name == "export" and trial.random.random() < 0.5:
            first = [("instantiate", 1)]
        client = trial.client([*first, (name, 1)])
        if not client.wait("begin", len(first) + 1):
            trial.fault(f"{name} did not begin: {client.finish()}")
            return
        time.sleep(trial.random.random() * typical[name])
        client.kill()
        trial.count(client)
        if len(client.seen("done")) > len(first):
            trial.outcome.counts["ended before the kill"] += 1
            continue
        killed += 1
        trial.outcome.counts[f"killed in {name}"] += 1
        trial.examine([1])
        _next_command(trial, name, 1)
        trial.clean()
    _end(trial, [colleague])
    trial.examine(range(len(trial.jobs)))


def _times(trial: Trial, job: int) -> dict[str, float]:
    """Seconds of each step when nobody disturbs it."""
    client = trial.client([(name, job) for name in ("rm", "build", "instantiate", "profile", "export", "rm", "load")])
    client.wait("done", 7)
    _end(trial, [client])
    begun, done = client.seen("begin"), client.seen("done")
    found = {first["step"]: last["time"] - first["time"] for first, last in zip(begun, done, strict=False)}
    trial.outcome.counts.clear()
    return {name: found.get(name, 1.0) for name in STEPS}


def _next_command(trial: Trial, name: str, job: int) -> None:
    began = time.monotonic()
    client = trial.client([(name, job)])
    if not client.wait("done"):
        trial.fault(f"the next {name} did not work: {client.journal[-1:]}")
    trial.outcome.seconds.append(time.monotonic() - began)
    _end(trial, [client])


def _end(trial: Trial, clients: Sequence[Client]) -> None:
    for client in clients:
        wrong = client.finish()
        if wrong:
            trial.fault(wrong)
        trial.count(client)


def _under_load(
    trial: Trial, fault: Callable[[], None], environment: Mapping[str, str] | None = None, pause: float = 3.0
) -> None:
    """Break something while a client for each job works; then each client must do something again."""
    clients = [trial.client(trial.steps(number), environment) for number in range(len(trial.jobs))]
    for client in clients:
        if not client.wait("done"):
            trial.fault(f"a client did not begin: {client.journal[-1:]}")
    time.sleep(trial.random.random() * pause)
    fault()
    whole = time.monotonic()
    for client in clients:
        if client.wait("done", after=whole):
            trial.outcome.seconds.append(client.seen("done", whole)[0]["time"] - whole)
        else:
            trial.fault(f"the next command did not work: {client.journal[-1:]}")
    _end(trial, clients)
    trial.examine(range(len(trial.jobs)))
    with trial.opened() as db:
        db.gc(dead=True)
    trial.clean()


def killed_servers(trial: Trial, count: int) -> None:
    """Kill the server, and start it again."""

    def fault() -> None:
        trial.server.kill()
        trial.outcome.counts["servers killed"] += 1
        time.sleep(trial.random.random())
        trial.server.start()

    for _ in range(count):
        _under_load(trial, fault)


def cut_lines(trial: Trial, count: int) -> None:
    """Reset the connections of all clients, or let them fall silent."""
    uri = trial.server.environment["NEO4J_URI"]
    line = Line(int(uri.rsplit(":", 1)[1]))
    line.open()
    environment = {**trial.server.environment, "NEO4J_URI": f"bolt://127.0.0.1:{line.port}", "STAGEDB_WRITE_TIME": "10"}

    def reset() -> None:
        line.cut()
        trial.outcome.counts["connections reset"] += 1
        time.sleep(trial.random.random() * 5)
        line.open()

    def silence() -> None:
        line.stall()
        trial.outcome.counts["connections silent"] += 1

    for number in range(count):
        _under_load(trial, silence if number % 2 else reset, environment)
    line.close()


def full_disk(trial: Trial, count: int, *, quota: bool) -> None:
    """Let the server have no room, until each client was refused; then make room.

    quota: limit the size of its files instead of filling its disk.
    """

    def fault() -> None:
        number = trial.server.process()
        began, filler = time.monotonic(), None
        if quota:
            limit_files(number, _largest(trial.server.files))
        else:
            filler = fill(trial.server.files, left=256 << 10)
        _until_refused(trial, began)
        if filler is None:
            limit_files(number, None)
        else:
            filler.unlink()
        trial.outcome.counts["disks full"] += 1

    for _ in range(count):
        _under_load(trial, fault)


def _largest(directory: Path) -> int:
    return max(path.stat().st_size for path in directory.rglob("*") if path.is_file()) + (64 << 10)


def _until_refused(trial: Trial, began: float) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        latest = [client.journal for client in trial.clients[-len(trial.jobs) :]]
        if all(any(line["event"] == "failed" and line["time"] > began for line in each) for each in latest):
            return
        time.sleep(0.05)
    trial.fault("a full disk refused nothing")


def only_reads(trial: Trial) -> None:
    """Start the server read-only: all that changes nothing works, the rest is refused, and nothing has changed."""
    client = trial.client([("load", number) for number in range(len(trial.jobs) - 1)])
    client.wait("done", len(trial.jobs) - 1)
    _end(trial, [client])
    trial.server.stop()
    trial.server.start("server.databases.default_to_read_only=true")
    job, missing = trial.jobs[0], trial.jobs[-1]
    reads: Mapping[str, Callable[[Stagedb], object]] = {
        "ls": lambda db: [db.graphs(), db.instances(), db.profiles()],
        "find": lambda db: db.find(system="h100"),
        "show": lambda db: db.show(job.things["Instance"]),
        "query": lambda db: db.query("bytes_by_axis", instance=job.things["Instance"]),
        "export": lambda db: trial._compare(db, job),
        "memory": lambda db: db.memory(job.things["Instance"], keep=False),
        "report": lambda db: db.report_page(job.things["Profile"]),
        "timeline": lambda db: db.timeline(profile=job.things["Profile"], out=trial.scratch / "timeline"),
        "profile": lambda db: db.profile(job.things["Instance"], system="tpu-v5p", keep=False),
        "check": lambda db: db.check(),
        "dump": lambda db: db.dump(trial.scratch / "only-reads", job.things["Profile"], force=True),
        "build what exists": lambda db: db.build(job.card),
        "load what exists": lambda db: db.load(Path(job.dump)),
        "log": lambda db: db.log(),
    }
    writes: Mapping[str, Callable[[Stagedb], object]] = {
        "build": lambda db: db.build(missing.card),
        "load": lambda db: db.load(Path(missing.dump)),
        "profile": lambda db: db.profile(job.things["Instance"], system="tpu-v5p"),
        "rm": lambda db: db.rm(job.things["Graph"], force=True),
        "name": lambda db: db.name(job.things["Instance"], "other"),
        "tag": lambda db: db.tag(job.things["Instance"], "word"),
        "note": lambda db: db.note(job.things["Instance"], "text"),
    }
    with trial.opened() as db:
        for name, read in reads.items():
            _tried(trial, name, read, db, refused=False)
        for name, write in writes.items():
            _tried(trial, name, write, db, refused=True)
    trial.examine(range(len(trial.jobs)))
    trial.server.stop()
    trial.server.start()
    _next_command(trial, "load", len(trial.jobs) - 1)
    trial.examine(range(len(trial.jobs)))
    trial.clean()


def _tried(trial: Trial, name: str, action: Callable[[Stagedb], object], db: Stagedb, *, refused: bool) -> None:
    try:
        action(db)
    except StagedbError as error:
        if not refused or "read-only" not in str(error):
            trial.fault(f"{name} on a read-only server: {error}")
            return
    else:
        if refused:
            trial.fault(f"{name} on a read-only server was not refused")
            return
    trial.outcome.counts["refused writes" if refused else "reads that work"] += 1
