"""A directory that is complete or absent: filled beside its place under another name, renamed when it is whole."""

import ctypes
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from stagedb.errors import StagedbError, UsageError

_EXCHANGE = 2
_HERE = -100


def check_absent(out: Path, force: bool) -> None:
    """Raise UsageError where something stands under the name already, unless `force` says to replace it."""
    if not os.path.lexists(out):
        return
    if not out.is_dir() or out.is_symlink():
        raise UsageError(f"{out} exists and is no directory: name another one with --out")
    if not force:
        raise UsageError(f"{out} exists: name another directory with --out, or replace it with --force")


@contextmanager
def staged(out: Path, *, force: bool) -> Iterator[Path]:
    """A directory to fill. It gets its name when the block ends well, and goes away when it does not."""
    check_absent(out, force)
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StagedbError(f"cannot make {out.parent}: {error.strerror}; name another directory with --out") from error
    sweep(out)
    token = secrets.token_hex(4)
    partial = out.with_name(f"{_beginning(out)}{os.getpid()}.{token}.partial")
    try:
        partial.mkdir()
    except OSError as error:
        raise StagedbError(f"cannot write to {out.parent}: {error.strerror}; name another with --out") from error
    try:
        yield partial
        _name(partial, out, force)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sweep(out: Path) -> None:
    """Remove what processes that died on this machine left beside a directory."""
    beginning = _beginning(out)
    for path in out.parent.iterdir():
        if path.name.startswith(beginning) and path.name.endswith(".partial"):
            pid = path.name.removeprefix(beginning).split(".")[0]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def _beginning(out: Path) -> str:
    """How the names of a directory's unfinished versions begin, made on this machine."""
    return f".{out.name}.{socket.gethostname()}."


def _name(partial: Path, out: Path, force: bool) -> None:
    check_absent(out, force)
    try:
        if os.path.lexists(out):
            _exchange(partial, out)
        else:
            partial.rename(out)
    except OSError as error:
        raise StagedbError(f"cannot give {out} its name: {error.strerror}; nothing was kept") from error


def _exchange(partial: Path, out: Path) -> None:
    """Swap two directories at once, where the system can; else in two steps."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None and rename(_HERE, os.fsencode(partial), _HERE, os.fsencode(out), _EXCHANGE) == 0:
        return
    old = partial.with_name(f"{partial.name}.old")
    out.rename(old)
    partial.rename(out)
    shutil.rmtree(old, ignore_errors=True)
