"""A store that is broken, its clients, and what must hold after each fault.

What the store acknowledged is there, what it removed is not, what can be seen is whole and exports as it did when
nobody disturbed it, and nothing belongs to nobody.
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from scripts._bench import ROOT
from scripts._bench_team import REFUSALS
from scripts._fault_servers import Server
from scripts._fault_worker import STEPS, Job, digest, request, state_of
from stagedb.api import Stagedb, StoreProblem
from stagedb.errors import StagedbError
from stagedb.store import connect

PATIENCE = 600.0
"""Seconds after which a client that has done nothing counts as a fault."""

DOCUMENTED: Mapping[str, tuple[str, ...]] = {
    **REFUSALS,
    "the connection was lost": ("was lost during",),
    "no store answers": ("no store answers at",),
    "the disk is full": ("its disk is full", "check whether its disk is full"),
    "it took too long": ("which took too long",),
    "the store cannot write": ("cannot write any more",),
    "the server must be restarted": ("restart the server",),
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
    began: float = field(default_factory=time.monotonic)

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
                    self.compare(db, job)
            for each in seen - {id for job in self.jobs for id in job.things.values()}:
                self.fault(f"{each} is nobody's")
            for problem in db.check():
                if not problem.dead:
                    self.fault(f"{problem.label} {problem.id}: {problem.problem}")
        for client in self.clients:
            if client.process.poll() is not None:
                self._look_at_files(client.scratch)

    def examine_what_is_there(self) -> None:
        """Note all that is wrong with a store in which several clients worked on the first job. None may be at work."""
        with self.opened() as db:
            if any(each.id == self.jobs[0].things["Instance"] for each in db.instances()):
                self.compare(db, self.jobs[0])
            for problem in db.check():
                self.fault(f"{problem.label} {problem.id}: {problem.problem}")
        for client in self.clients:
            self._look_at_files(client.scratch)

    def _look_at_files(self, scratch: Path) -> None:
        for path in scratch.glob("*/traces"):
            if digest(path) not in {job.traces for job in self.jobs}:
                self.fault(f"{path} has its name and is not whole")
        shutil.rmtree(scratch, ignore_errors=True)

    def compare(self, db: Stagedb, job: Job) -> None:
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
                self.fault(
                    f"after the next command: {problem.label} {problem.id}: {problem.problem}{_why(db, problem)}"
                )

    def opened(self) -> Stagedb:
        """A connection of one's own."""
        return Stagedb(connect(environment=self.server.environment, home=self.server.files))

    def fault(self, text: str) -> None:
        """Note a fault."""
        self.outcome.faults.append(text)
        self.show(f"FAULT {text}")

    def show(self, text: str) -> None:
        """Show how far the trial is."""
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", file=sys.stderr, flush=True)

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
        kind = self.kind_of(line["text"])
        if kind is None:
            self.fault(f"{line['step']}: {line['text']}")
        return kind or "not documented"

    @staticmethod
    def kind_of(text: str) -> str | None:
        """The kind of a documented error; None for any other text."""
        return next((kind for kind, parts in DOCUMENTED.items() if any(part in text for part in parts)), None)


def _why(db: Stagedb, problem: StoreProblem) -> str:
    """The error that prevents the removal of dead work, if that is the problem."""
    try:
        if problem.dead:
            db.rm(problem.id, force=True)
    except StagedbError as error:
        return f" ({error})"
    return ""


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
        printed = self._ended()
        if self.process.returncode:
            return f"a client ended with status {self.process.returncode}: {printed[-400:]}"
        return ""

    def _ended(self) -> str:
        """Wait for its end. Returns what it printed as errors."""
        self.process.wait()
        self._reader.join()
        with self._errors as errors:
            errors.seek(0)
            return errors.read()


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}
