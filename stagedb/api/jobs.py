"""How far the jobs of commands are: written to the store now and then, where pages of other machines read it.

A thread writes, so that the job waits for no write. A job that is over within a second leaves nothing, and a store or
an account that only reads gets nothing. A write that fails otherwise is logged once, and the job goes on.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stagedb.api import catalog
from stagedb.errors import StagedbError
from stagedb.files import printable
from stagedb.models import Card
from stagedb.store import Store, current_user
from stagedb.store.events import dead_owner, new_claim
from stagedb.store.failures import ReadOnlyError

PATIENCE = 1.0
"""Seconds that a job takes before it is written."""
PAUSE = 2.0
"""Seconds between two writes."""
LAST_WRITE = 3.0
"""Seconds for which the end of a command waits for what it writes last."""
LOST = 60_000
"""Milliseconds after which a job without a sign of life counts as lost."""
KEPT = 200
"""Jobs that a store keeps."""
LONGEST = 80
"""Characters of a text."""

JobKind = Literal["export", "import", "search", "profile"]

_log = logging.getLogger("stagedb.jobs")


@dataclass(frozen=True)
class JobInfo:
    """A job that a command runs or ran.

    kind: export, import, search or profile. what: the model or target as the user named it. about: kind and id of what
    it works on; None before that is known. host, user: where it runs, and for whom. started, updated: its begin and its
    last report, UTC. seconds: between these two. done, of: progress in `unit`; None before the first report. detail:
    what it does at the moment. state: running, done, failed, or lost: its process was killed on this machine, or gave
    no sign of life for a minute.
    """

    id: str
    kind: str
    what: str
    about: tuple[str, str] | None
    host: str
    user: str
    started: str
    updated: str
    seconds: float
    done: int | None
    of: int | None
    unit: str
    detail: str | None
    state: str

    @property
    def share(self) -> float | None:
        """The part that is done, from 0 to 1; None if it is not known."""
        return None if self.done is None or not self.of else min(1.0, max(0.0, self.done / self.of))


class RunningJob:
    """A job of this process. `note` remembers how far it is, and costs nothing."""

    def __init__(self, store: Store, kind: JobKind, what: str, unit: str) -> None:
        self._store, self._id, self._began = store, secrets.token_hex(8), time.monotonic()
        self._fixed = {
            "kind": kind,
            "what": _short(what),
            "host": _short(socket.gethostname()),
            "user": current_user(),
            "owner": new_claim(),
        }
        self._now: dict[str, Any] = {"done": None, "of": None, "unit": unit, "detail": None, "state": "running"}
        self._about: dict[str, str] = {}
        self._written = self._refused = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"progress of {kind}", daemon=True)

    def note(self, done: int, of: int, detail: str = "", unit: str = "") -> None:
        """Remember how far the job is: `done` of `of`, in its unit.

        detail, unit: new ones; empty keeps those before.
        """
        now = {**self._now, "done": int(done), "of": int(of)}
        now |= {name: _short(text) for name, text in (("detail", detail), ("unit", unit)) if text}
        self._now = now

    def about(self, kind: Literal["instance", "profile", "search", "run"], id: str) -> None:
        """Set the page of the job: the thing that the job made or read. kind, id: of the thing."""
        self._about[kind] = id

    def start(self) -> None:
        """Begin to show it, once it has taken a while."""
        self._thread.start()

    def end(self, state: Literal["done", "failed"]) -> None:
        """Show that it ended. A store that does not answer gets a moment, and then nothing. state: the last one."""
        self._now = {**self._now, "state": state}
        self._ended.set()
        self._thread.join(LAST_WRITE)

    def _keep(self) -> None:
        if self._ended.wait(PATIENCE):
            return
        self._write()
        while not self._refused:
            over = self._ended.wait(PAUSE)
            self._write()
            if over:
                return

    def _write(self) -> None:
        ago = round(1_000 * (time.monotonic() - self._began))
        links = {kind: self._about.get(kind) for kind in ("instance", "profile", "search", "run")}
        try:
            self._store.write("jobs/write", id=self._id, properties={**self._fixed, **self._now}, ago=ago, **links)
            if not self._written:
                self._written = True
                self._store.write("jobs/forget_old", kept=KEPT)
        except ReadOnlyError:
            self._refused = True
        except StagedbError as error:
            self._refused = True
            _log.warning("the store does not show the progress of this %s: %s", self._fixed["kind"], error)


@contextmanager
def shown(store: Store, kind: JobKind, what: object, unit: str) -> Iterator[RunningJob]:
    """A job that the store shows while the block of `with` runs.

    kind: such as a search or an export. what: the name that the user gave; of a path only the file's name is shown.
    unit: what its progress counts.
    """
    job = RunningJob(store, kind, _named(what), unit)
    job.start()
    state: Literal["done", "failed"] = "failed"
    try:
        yield job
        state = "done"
    finally:
        job.end(state)


def watched(
    job: RunningJob, progress: Callable[..., None] | None, units: Mapping[str, str] | None = None
) -> Callable[..., None]:
    """The function that a verb calls with its progress: it writes the progress to the job, then calls `progress`.

    The function takes how much is done, of how much, and then a text that describes the progress; other values, such as
    bytes, are not written. units: by such a text, the unit of the two numbers.
    """

    def report(done: int, of: int, *more: Any) -> None:
        detail = next((text for text in more if isinstance(text, str)), "")
        job.note(done, of, detail, (units or {}).get(detail, ""))
        if progress is not None:
            progress(done, of, *more)

    return report


def jobs(store: Store, most: int = KEPT) -> list[JobInfo]:
    """The newest jobs of a store, those that run first. most: how many are returned."""
    found = [_info(row) for row in store.read_sound("jobs/newest", most=most)]
    return sorted(found, key=lambda each: each.state != "running")


def _info(row: Any) -> JobInfo:
    lost = row["state"] == "running" and (row["silent"] > LOST or dead_owner(row) is not None)
    return JobInfo(
        id=row["id"],
        kind=row["kind"],
        what=_short(row["what"]),
        about=None if row["label"] is None or row["thing"] is None else (row["label"].lower(), row["thing"]),
        host=_short(row["host"]),
        user=_short(row["user"]),
        started=catalog.time_of(row["started"]),
        updated=catalog.time_of(row["updated"]),
        seconds=max(0, row["updated"] - row["started"]) / 1_000,
        done=row["done"],
        of=row["of"],
        unit=_short(row["unit"]),
        detail=None if row["detail"] is None else _short(row["detail"]),
        state="lost" if lost else row["state"],
    )


def _named(what: object) -> str:
    """A model or a target in short: of a file only its name, because its path may have the name of a user."""
    if isinstance(what, Card):
        return what.name
    return "the newest instance" if what is None else Path(str(what)).name or str(what)


def _short(text: str) -> str:
    return printable(text, kept="")[:LONGEST]
