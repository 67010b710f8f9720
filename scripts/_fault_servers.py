"""Stores that scripts/faults breaks: started, killed, started again, on a small disk, behind a line that is cut."""

import json
import os
import resource
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from scripts._bench import ROOT, embedded
from stagedb.store import embedded as engine


@dataclass(frozen=True)
class Server:
    """A store of one's own. `environment` leads clients to it.

    start: starts it, with settings of neo4j.conf, and keeps what it has. process: the number of its process.
    """

    environment: Mapping[str, str]
    start: Callable[..., None]
    stop: Callable[[], None]
    process: Callable[[], int]
    files: Path

    def kill(self) -> None:
        """End it as kill -9 does."""
        number = self.process()
        os.kill(number, signal.SIGKILL)
        while engine_lives(number):
            time.sleep(0.01)


def engine_lives(number: int) -> bool:
    """Whether a process has not ended yet."""
    with suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    return False


def neo4j_server(home: Path, *always: str) -> Server:
    """A Neo4j that scripts/neo4j runs. always: settings of neo4j.conf."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    account = {"NEO4J_USERNAME": "neo4j", "NEO4J_PASSWORD": secrets.token_urlsafe(18)}

    def command(*words: str) -> None:
        line = [sys.executable, "-m", "scripts._neo4j", "--home", str(home), *words]
        done = subprocess.run(
            line, cwd=ROOT, env={**os.environ, **account}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def start(*settings: str) -> None:
        command("start", "--port", port, *(f"--setting={each}" for each in (*always, *settings)))

    environment = {"NEO4J_URI": f"bolt://127.0.0.1:{port}", **account, "STAGEDB_CONFIG": os.devnull}
    return Server(
        environment,
        start,
        lambda: command("stop"),
        lambda: int(json.loads((home / "state.json").read_text(encoding="utf-8"))["pid"]),
        home / "home" / "data",
    )


def embedded_server(home: Path) -> Server:
    """The embedded engine. Its clients start it again."""
    made = embedded(home)

    def process() -> int:
        found = engine.running(home)
        if found is None:
            raise RuntimeError(f"no engine runs in {home}")
        return found.pid

    return Server(made.environment, made.start or unsupported, made.stop or unsupported, process, home)


def unsupported(*_: object) -> NoReturn:
    """For a server that somebody else runs."""
    raise RuntimeError("this server is not to be started or stopped")


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[None]:
    """A directory with a disk of its own, of so many bytes. Needs the right to mount."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def may_mount(scratch: Path) -> bool:
    """Whether this user may mount a file system."""
    try:
        with small_disk(scratch / "try", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def fill(directory: Path, left: int) -> Path:
    """A file that leaves only so many bytes of the disk. Deleting it makes room again."""
    path = directory / "filler"
    with path.open("wb") as file, suppress(OSError):
        while (free := shutil.disk_usage(directory).free) > left:
            file.write(bytes(min(1 << 20, free - left)))
            file.flush()
    return path


def limit_files(process: int, largest: int | None) -> None:
    """Let a process write no file beyond a size, as a quota does; None lifts the limit."""
    hard = resource.prlimit(process, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(process, resource.RLIMIT_FSIZE, (hard if largest is None else largest, hard))


@dataclass
class Line:
    """A TCP proxy on a free port of this machine. `cut` resets all connections, `stall` leaves them open and silent."""

    to: int
    port: int = 0
    _pairs: list[tuple[socket.socket, socket.socket, threading.Event]] = field(default_factory=list)
    _listener: socket.socket | None = None

    def open(self) -> None:
        """Begin to listen."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until `open`."""
        self._close_listener()
        for client, server, _ in self._taken():
            for each in (client, server):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def stall(self) -> None:
        """Pass nothing on any more between those that are connected. New connections work."""
        for _, _, silent in self._taken():
            silent.set()

    def close(self) -> None:
        """End it."""
        self._close_listener()
        self.cut()

    def _taken(self) -> list[tuple[socket.socket, socket.socket, threading.Event]]:
        taken, self._pairs = self._pairs, []
        return taken

    def _close_listener(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self.to))
                silent = threading.Event()
                self._pairs.append((client, server, silent))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, target, silent), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
    with suppress(OSError):
        while content := source.recv(1 << 16):
            if silent.is_set():
                continue
            target.sendall(content)
        if not silent.is_set():
            target.shutdown(socket.SHUT_WR)
