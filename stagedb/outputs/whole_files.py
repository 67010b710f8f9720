"""Files that are written completely or not at all."""

import os
import stat
from pathlib import Path

from stagedb.errors import StagedbError, UsageError
from stagedb.outputs.path_texts import check_path


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write a file, or replace it. A reader never sees a part of it, and a failure leaves the old file.

    A replaced file keeps its permissions. A symbolic link remains, and the file that it leads to is written. A device
    or a pipe is written to, and never replaced. option: the option of the command line that names the file. Raises
    UsageError for a directory or a socket, StagedbError if the file cannot be written.
    """
    check_path(path, option)
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISLNK(mode):
            path = Path(os.path.realpath(path))
            mode = _mode(path)
        if mode is None or stat.S_ISREG(mode):
            _replace(path, content, mode)
        elif stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
            _write_through(path, content)
        else:
            what = "a directory" if stat.S_ISDIR(mode) else "no file"
            raise UsageError(f"cannot write {path}: it is {what} ({option})")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StagedbError(f"cannot write {path}: {reason} ({option})") from error


def _mode(path: Path) -> int | None:
    """The kind and permissions of what has this path; None for nothing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    partial = path.with_name(f".{path.name[:100]}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_through(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
