"""The embedded engine for its clients: they find it through its endpoint file, and start it if there is none.

One detached process on loopback serves one directory to all stagedb processes of the user. It ends by itself after
some time without a client.
"""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import psutil

from stagedb.errors import StagedbError, UsageError
from stagedb.files import parse_document, read_text, shown
from stagedb.mentions import Word
from stagedb.store.failures import check_disk
from stagedb.store.private_directory import check_private

if TYPE_CHECKING:
    import filelock

DATABASE = "stagedb"
START_TIMEOUT = 120.0
STOP_TIMEOUT = 60.0
IDLE = 600.0
"""Seconds without a client after which the engine ends; STAGEDB_IDLE overrides it."""

HEAP = "1g"
"""The engine's largest heap; STAGEDB_HEAP overrides it."""

READER_SECONDS = tuple(2**power for power in range(17))
"""The engine limits the time of queries by account and not by query: it has one reader account for each of these."""

LEAST_HEAP = 96 << 20
"""Bytes with which the engine starts and answers."""

_TRACE = re.compile(r"\s|Traceback|Caused by|\.\.\. [0-9]+ more")
"""The beginning of a line in a stack trace."""

# A garbage collector with one thread suits a machine that has other work. After a full collection it keeps a quarter of
# the heap free and gives the rest back.
_JVM = "-Xms64m -Xmx{heap} -XX:+UseSerialGC -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=25"


@dataclass(frozen=True)
class Endpoint:
    """A running embedded engine, as its endpoint file describes it.

    port: on loopback. pid, started: of its process. nonce: a random text that identifies this run. username, password:
    of the account that may write. reader, reader_password: of accounts that only read (`reader_account`). database: its
    name.
    """

    port: int
    pid: int
    started: float
    nonce: str
    username: str
    reader: str
    database: str
    password: str = field(repr=False)
    reader_password: str = field(repr=False)

    @property
    def uri(self) -> str:
        """The address of the engine on this machine."""
        return f"bolt://127.0.0.1:{self.port}"

    def reader_account(self, timeout: float) -> tuple[str, str]:
        """An account that cannot write. The engine ends its queries after `timeout` seconds or soon after that."""
        seconds = next((step for step in READER_SECONDS if step >= timeout), READER_SECONDS[-1])
        return f"{self.reader}{seconds}", self.reader_password


def running(home: Path) -> Endpoint | None:
    """The engine that serves this directory, or None. It starts and changes nothing.

    Raises UsageError for a directory that others own or can write to: they could name an engine of theirs.
    """
    check_private(home)
    endpoint = _endpoint(home / "endpoint.json")
    if endpoint is None or _process(endpoint) is None:
        return None
    return endpoint if _listens(endpoint.port) else None


def ran_out(home: Path) -> int:
    """How many queries have run out of memory since the engine of this directory started, as far as it is known."""
    try:
        return int(read_text(home / "out_of_memory", "count of queries"))
    except (UsageError, ValueError):
        return 0


def _endpoint(file: Path) -> Endpoint | None:
    """What an endpoint file contains; None if there is none, or if it is damaged."""
    try:
        row = parse_document(read_text(file, "endpoint file"), "JSON", str(file))
        endpoint = Endpoint(**row)
    except (UsageError, TypeError):
        return None
    texts = (endpoint.nonce, endpoint.username, endpoint.reader, endpoint.database, endpoint.password)
    whole = all(type(text) is str for text in (*texts, endpoint.reader_password))
    numbers = type(endpoint.port) is type(endpoint.pid) is int and type(endpoint.started) is float
    return endpoint if whole and numbers and 0 < endpoint.port < 1 << 16 and 0 < endpoint.pid < 1 << 31 else None


def ensure(home: Path, environment: Mapping[str, str] | None = None) -> Endpoint:
    """The engine that serves this directory. It is started if it does not run.

    home: the directory. environment: variables of the engine's process; None: those of this process. Raises
    StagedbError if that fails.
    """
    endpoint = running(home)
    if endpoint is not None:
        return endpoint
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(home):
            return running(home) or _start(home, os.environ if environment is None else environment)
    except OSError as error:
        raise StagedbError(
            f"cannot use {error.filename or home} for the embedded store: {error.strerror or error}. Set STAGEDB_HOME "
            f"to a directory that can be written, or name a server with {Word('store')}"
        ) from error


def stop(home: Path) -> bool:
    """End the engine gracefully. False if none ran. Raises StagedbError if it has not ended after a minute."""
    if not home.is_dir():
        return False
    check_private(home)
    with _lock(home):
        endpoint = running(home)
        process = _process(endpoint) if endpoint is not None else None
        if process is None:
            return False
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except psutil.TimeoutExpired:
            raise StagedbError(
                f"the embedded engine (process {process.pid}) did not end within {STOP_TIMEOUT:.0f} s of a request; "
                f"its log is {home / 'engine.log'}"
            ) from None
        return True


def _lock(home: Path) -> "filelock.BaseFileLock":
    import filelock  # most clients find an engine that runs

    return filelock.FileLock(home / "start.lock", timeout=START_TIMEOUT + 10)


def _process(endpoint: Endpoint) -> psutil.Process | None:
    """The engine's process, unless it has ended: another process may have its number now."""
    try:
        process = psutil.Process(endpoint.pid)
        same = abs(process.create_time() - endpoint.started) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


def _start(home: Path, environment: Mapping[str, str]) -> Endpoint:
    endpoint, log = home / "endpoint.json", home / "engine.log"
    endpoint.unlink(missing_ok=True)
    (home / "data").mkdir(mode=0o700, exist_ok=True)
    check_private(home / "data")
    settings = {
        "root": str(home / "data"),
        "endpoint": str(endpoint),
        "database": DATABASE,
        "nonce": secrets.token_hex(16),
        "username": "root",
        "password": secrets.token_urlsafe(24),
        "reader": "reader",
        "reader_password": secrets.token_urlsafe(24),
        "reader_seconds": READER_SECONDS,
        "idle": _idle(environment),
        "jvm": _JVM.format(heap=_heap(environment)),
        "archives": _archives(),
    }
    # A link in the place of the log must not redirect what is written.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(log, flags, 0o600), "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("_engine.py"))],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home / "data",
            start_new_session=True,
            umask=0o077,
        )
    if process.stdin is not None:
        # If the process has ended already, its log has the reason.
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(settings).encode() + b"\n")
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        found = running(home)
        if found is not None and found.nonce == settings["nonce"]:
            # The engine outlives this process. If it ends earlier, this thread waits for its exit status, so that it is
            # no zombie.
            threading.Thread(target=process.wait, name="embedded engine", daemon=True).start()
            return found
        if found is not None:
            # An engine with a damaged endpoint file ran already, and has written the file again. The new engine waits
            # for its lock.
            process.kill()
            process.wait()
            return found
        time.sleep(0.05)
    why = f"ended with status {process.returncode}" if process.returncode is not None else "did not become ready"
    process.kill()
    process.wait()
    failed = StagedbError(
        f"the embedded engine {why} while starting in {home}: {_last_words(log)} (its log is {log}). Run the command "
        f"again; `{Word('store')} bolt://…` uses a Neo4j server instead"
    )
    check_disk(home, failed)
    raise failed


def _archives() -> str:
    """The directory of the archive of the engine's classes; empty where others could change what is in it."""
    directory = platformdirs.user_cache_path("stagedb") / "engine"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(directory)
    except (OSError, UsageError):
        return ""
    return str(directory)


def _heap(environment: Mapping[str, str]) -> str:
    text = environment.get("STAGEDB_HEAP", HEAP)
    found = re.fullmatch(r"([0-9]{1,12})([kmgt]?)", text, re.IGNORECASE | re.ASCII)
    if found is None or int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ") < LEAST_HEAP:
        raise UsageError(
            f"STAGEDB_HEAP must be the size of the embedded engine's memory, such as 512m or 2g, at least "
            f"{LEAST_HEAP >> 20}m, not {shown(text)}"
        )
    return text


def _idle(environment: Mapping[str, str]) -> float:
    text = environment.get("STAGEDB_IDLE", str(IDLE))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(f"STAGEDB_IDLE must be a number of seconds, not {shown(text)}")
    return seconds


def _last_words(log: Path) -> str:
    """The last line of a log that is no part of a stack trace."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "its log cannot be read"
    whole = [line.strip() for line in lines if line.strip() and not _TRACE.match(line)]
    return shown(whole[-1]) if whole else "it wrote nothing"
