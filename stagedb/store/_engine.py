"""The embedded engine's process. Run as a file, it serves the store in one directory until nobody uses it.

It imports nothing of stagedb, so that it starts quickly. Its settings, which include the password, arrive as JSON on
standard input: others could read a command line or an environment.
"""

import base64
import hashlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import filelock
import psutil

POLL = 1.0
"""Seconds between two checks of who is connected."""

ABANDONED = 5.0
"""Seconds for which the engine lets work go on after its client has gone."""

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
}
"""Settings that the engine reads from the properties of the virtual machine."""

LOCK_TIMEOUT = 90.0

STRETCH = 1000
"""Rounds of password hashing: few, as the passwords are random and long."""


def main() -> int:
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
    os.environ["ARCADEDB_JVM_ARGS"] = f"{settings['jvm']} {properties}"

    import arcadedb_embedded

    port, http_port = _free_ports(2)
    server = arcadedb_embedded.create_server(
        str(root),
        None,
        {**OPTIONS, "bolt_port": port, "http_port": http_port},
    )
    server.start()
    try:
        server.create_database(settings["database"])
        _publish(Path(settings["endpoint"]), port, settings)
        _serve(port, settings["idle"], stopping)
    finally:
        _withdraw(Path(settings["endpoint"]), settings["nonce"])
        server.stop()
        lock.release()
    return 0


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
    (config / "server-users.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (config / "server-groups.json").write_text(
        json.dumps({"databases": {"*": {"groups": groups}}, "version": 2}), encoding="utf-8"
    )


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


def _publish(endpoint: Path, port: int, settings: dict[str, Any]) -> None:
    """Write the endpoint file, readable by its owner alone, in one step."""
    row = {
        "port": port,
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "nonce": settings["nonce"],
        **{key: settings[key] for key in ("username", "password", "reader", "reader_password", "database")},
    }
    new = endpoint.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(row, file)
    new.replace(endpoint)


def _withdraw(endpoint: Path, nonce: str) -> None:
    """Remove the endpoint file if it is still this process's."""
    try:
        if json.loads(endpoint.read_text(encoding="utf-8"))["nonce"] == nonce:
            endpoint.unlink()
    except (OSError, ValueError, KeyError):
        return


def _serve(port: int, idle: float, stopping: _Stopping) -> None:
    """Return when a signal asks for it, or when no client has been connected for `idle` seconds.

    A query goes on after its client has gone, and only the end of the process ends it. If nobody else is connected
    either, this ends the process at once. The files survive that as they survive a power cut.
    """
    me = psutil.Process()
    used = abandoned = time.monotonic()
    while not stopping.asked:
        time.sleep(POLL)
        now = time.monotonic()
        states = {one.status for one in me.net_connections("tcp") if one.laddr.port == port}
        if psutil.CONN_ESTABLISHED in states:
            used = abandoned = now
        elif psutil.CONN_CLOSE_WAIT not in states:
            abandoned = now
        if now - abandoned > ABANDONED:
            os.kill(os.getpid(), signal.SIGKILL)
        if now - used > idle:
            return


if __name__ == "__main__":
    sys.exit(main())
