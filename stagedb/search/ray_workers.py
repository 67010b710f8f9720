"""Workers on the machines of a Ray cluster: each gets a question and returns an answer, both as JSON.

They have the interface of copies of this process (`stagedb.copied_processes`), and need no store. The package
`ray` is imported when a cluster is asked for, and not before: few people have one.
"""

import hashlib
import json
import logging
import platform
import signal
import socket
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import stagedb
from stagedb.copied_processes import Answer
from stagedb.errors import StagedbError, UsageError
from stagedb.files import printable, shown
from stagedb.mentions import Word

PATIENCE: Final = 300.0
"""Seconds without any worker that runs, after which the cluster counts as lost: one that grows by itself starts a
machine first, and a busy one takes a minute to start a process."""

REACH: Final = 10.0
"""Seconds in which the head of a cluster accepts a connection."""

CONNECTIONS: Final = 4
"""Connections that are tried, of which the head of a cluster may lose some."""

LOSSES: Final = 3
"""Workers that one question may cost: it may be what ends them."""

FAILED_STARTS: Final = 10
"""Workers in a row that end before they run, after which no other one is asked for."""

LONGEST: Final = 400
"""Characters of an error of Ray, which may have the output of a worker."""

Make = Callable[..., Answer]
"""A function of a module: makes what answers questions, on the machine of the worker."""


def check_address(address: str) -> None:
    """Raise UsageError for what is no address of a Ray cluster, and where the package `ray` is missing."""
    _host_and_port(address)
    _ray()


def _host_and_port(address: str) -> tuple[str, int]:
    with suppress(ValueError):
        found = urlsplit(address)
        if (
            found.scheme == "ray"
            and found.hostname
            and found.port
            and not (found.path or found.query or found.fragment)
        ):
            return found.hostname, found.port
    raise UsageError(
        f"{shown(address)} is no address of a Ray cluster: {Word('on')} takes ray://HOST:PORT, with the port of Ray's "
        "client server (10001 unless the cluster was started with another)"
    )


@dataclass
class RayWorkers:
    """Workers of a Ray cluster that answer questions, one on each of its CPUs.

    The question of a worker that is lost goes to another one. address: of the cluster. answer: a function that answers
    a question in this process, for one that a worker cannot answer. make, arguments: what makes the same function on a
    worker. name: of a question, for errors. lost: what an error adds if all workers are lost. patience: seconds to wait
    for a first worker.
    """

    ray: Any
    address: str
    answer: Answer
    make: Make
    arguments: Sequence[Any]
    name: Callable[[Any], str]
    lost: str
    patience: float = PATIENCE
    _ready: list[Any] = field(default_factory=list)
    _starting: dict[Future[Any], Any] = field(default_factory=dict)
    _asked: dict[Future[Any], tuple[Any, Any]] = field(default_factory=dict)
    _again: deque[Any] = field(default_factory=deque)
    _losses: Counter[str] = field(default_factory=Counter)
    _failed_starts: int = 0
    _why: str = ""

    @property
    def idle(self) -> int:
        """Number of questions that can be asked now without waiting."""
        return max(0, len(self._ready) - len(self._again))

    @property
    def busy(self) -> int:
        """Number of questions without an answer."""
        return len(self._asked) + len(self._again)

    def start_all(self) -> None:
        """Ask the cluster for a worker on each of its CPUs; for one if it has none yet, because it grows by itself."""
        with self._connection():
            count = int(self.ray.cluster_resources().get("CPU", 0))
        self._start(max(1, count))

    def _start(self, count: int) -> None:
        """Ask for `count` more workers. They answer questions as soon as they run."""
        with self._connection():
            kind = self.ray.remote(num_cpus=1, max_restarts=0)(_Worker)
            for _ in range(count):
                worker = kind.remote()
                self._starting[worker.begin.remote(_code(), self.make, *self.arguments).future()] = worker

    def wait_for_one(self) -> None:
        """Return as soon as a worker runs. Raises StagedbError if none does in time."""
        until = time.monotonic() + self.patience
        while not self._ready:
            if not self._starting or time.monotonic() >= until:
                raise self._none_left()
            done, _ = wait(self._starting, max(0.0, until - time.monotonic()), FIRST_COMPLETED)
            for future in done:
                self._begun(future)

    def ask(self, question: Any) -> None:
        """Give a question to an idle worker."""
        worker = self._ready.pop()
        with self._connection():
            self._asked[worker.answer.remote(json.dumps(question)).future()] = worker, question

    def answers(self, until: float | None = None) -> Iterator[tuple[Any, Any]]:
        """Questions with their answers, as soon as there is one; nothing if only a worker has come or gone, and at the
        time `until` (`time.monotonic`).

        Raises StagedbError if all workers are lost, and if one question has cost several. What fails there fails here
        again, with its own error.
        """
        if self._again and not self._asked:
            self.wait_for_one()
        while self._again and self._ready:
            self.ask(self._again.popleft())
        timeout = None if until is None else max(0.0, until - time.monotonic())
        done, _ = wait([*self._asked, *self._starting], timeout, FIRST_COMPLETED)
        for future in done:
            if future in self._starting:
                self._begun(future)
                continue
            worker, question = self._asked.pop(future)
            found = self._found(future)
            if found is None:
                self._lose(question)
                continue
            self._ready.append(worker)
            yield question, self.answer(question) if "failed" in found else found["answer"]

    def given_up(self) -> list[Any]:
        """The questions without an answer, which are no longer asked. No others are, after that."""
        left = [*(question for _, question in self._asked.values()), *self._again]
        self._asked.clear()
        self._again.clear()
        return left

    def _begun(self, future: Future[Any]) -> None:
        """A worker that runs; another one is asked for in the place of one that has ended before."""
        worker = self._starting.pop(future)
        found = self._found(future)
        if found is not None and "refused" in found:
            raise UsageError(found["refused"])
        if found is not None:
            self._failed_starts = 0
            self._ready.append(worker)
            return
        self._failed_starts += 1
        if self._failed_starts < FAILED_STARTS:
            self._start(1)

    def _found(self, future: Future[Any]) -> dict[str, Any] | None:
        """What a worker returned; None if it is lost. Raises StagedbError if the whole cluster is."""
        with self._connection():
            try:
                return dict(json.loads(future.result()))
            except self.ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ImportError | AttributeError):
                    raise self._other_stagedb("a worker", error.cause) from None
                raise StagedbError(f"a worker of {self.address} failed: {_line(error.cause or error)}") from None
            except self.ray.exceptions.RayError as error:
                self._why = _line(error)
                return None

    @contextmanager
    def _connection(self) -> Iterator[None]:
        """What Ray's client raises once the cluster does not answer any more becomes an error for people."""
        try:
            yield
        except StagedbError:
            raise
        except (ImportError, AttributeError) as error:
            raise self._other_stagedb("the head", error) from None
        except Exception as error:  # noqa: BLE001 - errors of gRPC, and others of its own
            raise StagedbError(
                f"the connection to {self.address} is lost, {self.lost}. See on its head whether it runs "
                f"(`ray status`), and ask again: {_line(error)}"
            ) from None

    def _lose(self, question: Any) -> None:
        """Ask a question again, with a new worker in the place of the one that is lost."""
        key = json.dumps(question, sort_keys=True)
        self._losses[key] += 1
        if self._losses[key] == LOSSES:
            raise StagedbError(
                f"{LOSSES} workers of {self.address} ended, each while it tried {self.name(question)}, {self.lost}. "
                f"If their machines are short of memory, start Ray with fewer CPUs on each. The last: {self._why}"
            )
        self._again.append(question)
        self._start(1)

    def _other_stagedb(self, where: str, error: BaseException) -> UsageError:
        return UsageError(
            f"{where} of {self.address} has no stagedb, or another one ({_line(error)}): install the one that is here "
            "on all machines of the cluster, and start Ray again there"
        )

    def _none_left(self) -> StagedbError:
        why = f" The last worker that ended: {self._why}" if self._why else ""
        return StagedbError(
            f"no worker of {self.address} runs, {self.lost}. Give the cluster machines with free CPUs (`ray status` "
            f"shows them) and with this stagedb, and ask again; or leave out {Word('on')} to use this machine.{why}"
        )


class _Worker:
    """What runs on the cluster: all that a worker has read and built serves its next question."""

    def begin(self, code: str, make: Make, *arguments: Any) -> str:
        """Prepare for questions; refuse those of another stagedb. code: of the one that asks."""
        if code != _code():
            return json.dumps(
                {
                    "refused": f"the worker on {platform.node()} has another stagedb, whose answers may differ "
                    f"({_code()} in {Path(stagedb.__path__[0])}, and here it is {code}): install the same there"
                }
            )
        self._answer = make(*arguments)
        return json.dumps({"ready": True})

    def answer(self, question: str) -> str:
        """Answer a question."""
        try:
            return json.dumps({"answer": self._answer(json.loads(question))})
        except Exception:  # noqa: BLE001 - the process that asks runs into the same one, and raises it
            return json.dumps({"failed": True})


@contextmanager
def ray_workers(
    address: str, answer: Answer, make: Make, arguments: Sequence[Any], name: Callable[[Any], str], lost: str
) -> Iterator[RayWorkers]:
    """A worker on each CPU of a cluster. They end with the block, and with this process.

    address: as `ray.init` takes it, with `ray://`. answer, make, arguments, name, lost: as in `RayWorkers`. Raises
    UsageError for an address that cannot be reached, and for another stagedb, Python or Ray there.
    """
    check_address(address)
    ray = _ray()
    with _connected(ray, address):
        found = RayWorkers(ray, address, answer, make, arguments, name, lost)
        found.start_all()
        found.wait_for_one()
        yield found


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    _check_reachable(address)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        context = _connect(ray, address)
    except Exception as error:  # noqa: BLE001 - errors of gRPC, of versions that differ, of names: all end it here
        raise UsageError(
            f"{address} answers, and Ray's client cannot use it: {_line(error)}. The port is that of its client "
            "server (10001 unless the cluster was started with another), and a cluster with a token needs "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here"
        ) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, handler)
    # The cluster ends the workers of a connection with it. To end them one by one is not safe: without a connection,
    # Ray starts a cluster on this machine to do so.
    with context:
        yield


def _connect(ray: Any, address: str, tries: int = CONNECTIONS) -> Any:
    """Ray's context of a new connection; one of the caller's own remains as it is."""
    try:
        with warnings.catch_warnings():
            # Ray also warns of the cause that the error names.
            warnings.simplefilter("ignore")
            return ray.init(address, allow_multiple=True, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionAbortedError:
        # The process that a head starts for a connection dies now and then: github.com/ray-project/ray/issues/63202
        if tries == 1:
            raise
    return _connect(ray, address, tries - 1)


def _check_reachable(address: str) -> None:
    """Raise UsageError at once if nothing listens there: Ray's client would try for half a minute."""
    try:
        socket.create_connection(_host_and_port(address), REACH).close()
    except OSError as error:
        raise UsageError(
            f"{address} cannot be reached ({error.strerror or error}): is `ray start --head` there, with this port of "
            "its client server, and is the port open to this machine?"
        ) from None


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError(
            f'{Word("on")} needs the package `ray`: `pip install "stagedb[ray]"`, with the version of the cluster'
        ) from None
    return ray


@cache
def _code() -> str:
    """What this stagedb is: a digest of its program and its data. Its version alone stays as it is between releases."""
    root = Path(stagedb.__path__[0])
    found = hashlib.sha256(platform.python_version().rpartition(".")[0].encode())
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.yaml"))):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def _line(error: BaseException) -> str:
    """An error of Ray in one line, without its trace."""
    text = printable(" ".join(str(error).split()), kept="") or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
