"""A directory or file that is complete or absent: it is filled under another name in the same place, then renamed."""

import ctypes
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from stagedb.errors import Interrupted, StagedbError, UnfinishedError
from stagedb.files import path_text
from stagedb.mentions import Word
from stagedb.traces.output_places import SEPARATOR, check_directory, check_file, unfinished

_EXCHANGE = 2
_HERE = -100

SAME = 5.0
"""Seconds by which two readings of a process's start may differ: the system's clock is adjusted meanwhile."""

QUIET = 60.0
"""Seconds without a new file after which another machine's unfinished directory counts as abandoned."""


@contextmanager
def staged(out: Path, *, force: bool, resume: bool = False) -> Iterator[Path]:
    """A directory to fill. It gets its name when the block ends without an error, and is removed when it fails.

    An interrupt or UnfinishedError leaves it, under its other name. A later call with `resume` continues with its
    files. force: replace a directory of that name.
    """
    check_directory(out, force)
    out = out.absolute()
    partial = _partial(out)
    left = abandoned(out)
    try:
        if not (resume and left and _adopt(left.pop(), partial)):
            partial.mkdir()
    except OSError as error:
        raise StagedbError(
            f"cannot write to {out.parent}: {error.strerror}; name another with {Word('out')}"
        ) from error
    for path in left:
        _remove(path)
    try:
        yield partial
        _name(partial, out, force)
    except (KeyboardInterrupt, UnfinishedError) as error:
        if not any(partial.iterdir()):
            partial.rmdir()
            raise
        kept = (
            f"what is written so far is kept in {partial}: the same command with {Word('resume', True)} goes on with "
            "it, and without it starts again"
        )
        if isinstance(error, UnfinishedError):
            raise UnfinishedError(f"{error}; {kept}") from None
        raise Interrupted(kept) from None
    except BaseException:
        _remove(partial)
        raise
    _remove(partial)


@contextmanager
def mended(out: Path) -> Iterator[Path]:
    """A directory to fill with the missing files of a complete one.

    When the block ends without an error, each file is moved to its place in one step. When it fails, the files are
    removed.
    """
    out = out.absolute()
    partial = _partial(out)
    for path in abandoned(out):
        _remove(path)
    try:
        partial.mkdir()
        yield partial
        for path in partial.iterdir():
            path.replace(out / path.name)
    finally:
        _remove(partial)


@contextmanager
def staged_file(out: Path, *, force: bool) -> Iterator[Path]:
    """A file to make. It gets its name when the block ends without an error, and is removed otherwise.

    force: replace a packed set that has the name.
    """
    check_file(out, force)
    out = out.absolute()
    partial = _partial(out)
    for path in abandoned(out):
        _remove(path)
    try:
        yield partial
        check_file(out, force)
        partial.replace(out)
    finally:
        _remove(partial)


def _partial(out: Path) -> Path:
    """The name under which a process makes it. Makes the directory that holds both."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StagedbError(
            f"cannot make {out.parent}: {error.strerror}; name another directory with {Word('out')}"
        ) from error
    me = psutil.Process()
    return unfinished(out, socket.gethostname(), me.pid, int(me.create_time()), secrets.token_hex(4))


def _adopt(left: Path, partial: Path) -> bool:
    """The process that renames it gets it. If two resume at once, the other one starts anew."""
    try:
        left.rename(partial)
    except FileNotFoundError:
        return False
    return True


def abandoned(out: Path) -> list[Path]:
    """Paths that dead processes left for a name, the last touched one at the end."""
    if not out.absolute().parent.is_dir():
        return []
    beginning = f".{out.name}{SEPARATOR}"
    directories = [
        path
        for path in out.absolute().parent.iterdir()
        if path.name.startswith(beginning) and path.name.endswith(".partial") and _is_abandoned(path, beginning)
    ]
    return sorted(directories, key=lambda path: path.lstat().st_mtime)


def _is_abandoned(path: Path, beginning: str) -> bool:
    parts = path.name.removeprefix(beginning).split(SEPARATOR)
    if len(parts) != 4 or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    if parts[0] != socket.gethostname():
        return time.time() - path.lstat().st_mtime > QUIET
    try:
        return abs(psutil.Process(int(parts[1])).create_time() - int(parts[2])) > SAME
    except psutil.NoSuchProcess:
        return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _name(partial: Path, out: Path, force: bool) -> None:
    check_directory(out, force)
    try:
        if os.path.lexists(out):
            _exchange(partial, out)
        else:
            partial.rename(out)
    except OSError as error:
        # Another process may have been quicker: then this raises.
        check_directory(out, force)
        raise StagedbError(f"cannot give {path_text(out)} its name: {error.strerror}; nothing was kept") from error


def _exchange(partial: Path, out: Path) -> None:
    """Swap two directories in one step if the system can, else in two."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None and rename(_HERE, os.fsencode(partial), _HERE, os.fsencode(out), _EXCHANGE) == 0:
        return
    old = partial.with_name(f"{partial.name}.old")
    out.rename(old)
    partial.rename(out)
    shutil.rmtree(old, ignore_errors=True)
