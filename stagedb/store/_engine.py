"""The embedded engine's process. Run as a file, it serves the store in one directory until nobody uses it.

It imports nothing of stagedb, so that it starts quickly. Its settings, which include the password, arrive as JSON on
standard input: others could read a command line or an environment.
"""

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import filelock
import psutil

POLL = 1.0
"""Seconds between two checks of who is connected."""

ABANDONED = 5.0
"""Seconds for which the engine lets work go on after its client has gone."""

QUIET = 2.0
"""Seconds without a client after which the archive of classes is made."""

FULL = 1 << 20
"""Free bytes of a disk that is full."""

OPTIONS: dict[str, Any] = {
    "server_plugins": "Bolt:com.arcadedb.bolt.BoltProtocolPlugin",
    "host": "127.0.0.1",
    # In production mode the engine would not send the text of errors.
    "mode": "development",
}

PROPERTIES = {
    "polyglotEngineEnabled": "false",
    "opencypher.loadCsv.allowFileUrls": "false",
    "opencypher.loadCsv.allowRemoteUrls": "false",
    # Batches and columns of large instances are messages above its default sizes.
    "bolt.maxMessageSize": str(1 << 28),
    "bolt.packstream.maxValueLength": str(1 << 28),
    "bolt.packstream.maxElements": str(1 << 24),
    "queryMaxHeapElementsAllowedPerOp": "10000000",
    # The engine's default limit of concurrent queries is low: a few long ones would keep out all others.
    "queryMaxConcurrent": "-1",
}
"""Settings that the engine reads from the properties of the virtual machine."""

LOCK_TIMEOUT = 90.0

STRETCH = 1000
"""Rounds of password hashing: few, as the passwords are random and long."""


def main() -> int:
    """Run the engine until nobody uses it: the process that `stagedb.store.embedded` starts. Returns its exit code."""
    settings = json.loads(sys.stdin.readline())
    sys.stdin.close()
    root = Path(settings["root"])
    os.chdir(root)
    stopping = _Stopping()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopping.ask)
    # An engine that is still ending locks the files until it has ended.
    lock = filelock.FileLock(root / "engine.lock", timeout=LOCK_TIMEOUT)
    lock.acquire()
    _write_accounts(root / "config", settings)
    properties = " ".join(f"-Darcadedb.{name}={value}" for name, value in PROPERTIES.items())
    archive = _neighbour("_engine_archive").ClassArchive.of(settings["archives"], settings["jvm"])
    shared = "" if archive is None else archive.arguments()
    os.environ["ARCADEDB_JVM_ARGS"] = f"{settings['jvm']} {properties} {shared}"

    import arcadedb_embedded

    port, http_port = _free_ports(2)
    server = arcadedb_embedded.create_server(
        str(root),
        None,
        {**OPTIONS, "bolt_port": port, "http_port": http_port},
    )
    server.start()
    # The engine does not start without its web server, which has a page for everybody. Clients use Bolt alone.
    server._java_server.getHttpServer().stopService()
    endpoint = _EndpointFile(Path(settings["endpoint"]), _endpoint(port, settings), Path().stat())
    try:
        server.create_database(settings["database"])
        _watch(server, port, settings)
        endpoint.write()
        _serve(port, settings["idle"], stopping, endpoint, archive)
    finally:
        endpoint.withdraw()
        if archive is not None:
            archive.forget()
        server.stop()
        lock.release()
    return 0


def _watch(server: Any, port: int, settings: dict[str, Any]) -> None:
    """End queries of readers that take too much time or memory, from now on."""
    counted = Path(settings["endpoint"]).with_name("out_of_memory")
    queries = server._java_server.getRunningQueries()
    stopping = _neighbour("_thread_stop")
    with suppress(stopping.Unavailable):  # then the process ends if a query does not
        stopping.prepare()
    watch = _neighbour("_query_watch").QueryWatch
    watch(queries, port, settings["reader"], counted, stopping.stop_thread).start()


def _neighbour(name: str) -> ModuleType:
    """A module of this directory. Its package, which takes long to import, is left out."""
    found = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    if found is None or found.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _write_accounts(config: Path, settings: dict[str, Any]) -> None:
    """Replace the accounts of the last run: one with all rights, and readers, one for each longest time of a query."""
    config.mkdir(mode=0o700, exist_ok=True)
    accounts = [(settings["username"], settings["password"], "admin")]
    groups = {
        "admin": _group(
            -1, ["updateSecurity", "updateSchema", "updateDatabaseSettings"], ["create", "update", "delete"]
        ),
        "*": {**_group(-1, [], []), "types": {"*": {"access": []}}},
    }
    for seconds in settings["reader_seconds"]:
        name = f"{settings['reader']}{seconds}"
        accounts.append((name, settings["reader_password"], name))
        groups[name] = _group(1000 * seconds, [], [])
    lines = [
        json.dumps({"name": name, "databases": {"*": [group]}, "password": _hashed(password)})
        for name, password, group in accounts
    ]
    _write(config / "server-users.jsonl", "\n".join(lines) + "\n")
    _write(config / "server-groups.json", json.dumps({"databases": {"*": {"groups": groups}}, "version": 2}))


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read. A link in its place is removed and not followed."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _group(timeout: int, access: list[str], writes: list[str]) -> dict[str, Any]:
    records = [f"{verb}Record" for verb in ("read", *writes)]
    return {"resultSetLimit": -1, "readTimeout": timeout, "access": access, "types": {"*": {"access": records}}}


def _hashed(password: str) -> str:
    salt = base64.b64encode(os.urandom(32)).decode()  # its text is the salt
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), STRETCH)
    return f"PBKDF2WithHmacSHA256${STRETCH}${salt}${base64.b64encode(digest).decode()}"


class _Stopping:
    """Set by a signal; read by the loop."""

    asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _endpoint(port: int, settings: dict[str, Any]) -> str:
    """The content of the endpoint file."""
    row = {
        "port": port,
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "nonce": settings["nonce"],
        **{key: settings[key] for key in ("username", "password", "reader", "reader_password", "database")},
    }
    return json.dumps(row)


@dataclass(frozen=True)
class _EndpointFile:
    """The file by which clients find this engine. `home`: the directory of the data, as it was at the start."""

    path: Path
    text: str
    home: os.stat_result

    def write(self) -> None:
        _write(self.path, self.text)

    def repair(self) -> None:
        """Write the file again if it is damaged or gone. A directory that was deleted or replaced is left alone."""
        # A file that cannot be written now is written by the next call, which comes soon.
        with suppress(OSError):
            if not self._is_whole() and os.path.samestat((self.path.parent / "data").stat(), self.home):
                self.write()

    def withdraw(self) -> None:
        """Remove the file if it is still this process's."""
        with suppress(OSError):
            if self._is_whole():
                self.path.unlink()

    def _is_whole(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as file:
            return file.read(len(self.text) + 1) == self.text.encode()


def _serve(port: int, idle: float, stopping: _Stopping, endpoint: _EndpointFile, archive: Any) -> None:
    """Return when a signal asks for it, or when no client has been connected for `idle` seconds.

    archive: of the engine's classes (None: without), which is made once nobody is connected.

    A query goes on after its client has gone, and only the end of the process ends it. If nobody else is connected
    either, this ends the process at once. The files survive that as they survive a power cut.

    So do they if the disk is full: pages that could not be written later are in the log of transactions, which the next
    engine applies. This one would forget them.
    """
    me = psutil.Process()
    used = abandoned = time.monotonic()
    collected = 0.0
    while not stopping.asked:
        time.sleep(POLL)
        endpoint.repair()
        if shutil.disk_usage(Path()).free < FULL:
            os.kill(os.getpid(), signal.SIGKILL)
        now = time.monotonic()
        states = {one.status for one in me.net_connections("tcp") if one.laddr.port == port}
        if psutil.CONN_ESTABLISHED in states:
            used = abandoned = now
        elif psutil.CONN_CLOSE_WAIT not in states:
            abandoned = now
        if now - abandoned > ABANDONED:
            os.kill(os.getpid(), signal.SIGKILL)
        # Memory is collected only after a time without clients: a short command may connect and leave between two
        # polls.
        if now - used > QUIET:
            if collected < used:
                # The virtual machine gives memory back only after a full collection.
                collected = now
                _collect()
            if archive is not None:
                archive.make()
        if now - used > idle:
            return


def _collect() -> None:
    import jpype

    jpype.JClass("java.lang.System").gc()


if __name__ == "__main__":
    # A query whose client has gone goes on in a thread, and the ordinary end of the virtual machine waits for it.
    os._exit(main())
