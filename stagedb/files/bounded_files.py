"""Files of people, opened with care: a regular file of a bounded size, and nothing that could block or never end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from stagedb.errors import UsageError
from stagedb.files.whole_files import not_a_path, path_text

LARGEST = 1 << 20
"""Bytes of the largest file that is read whole, if its reader names no other limit."""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def is_directory(path: Path) -> bool:
    """Whether a directory has this path. False too for a text that cannot be a path."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Whether something has this path. A text that cannot be a path (too long, with the character NUL) has nothing."""
    try:
        path.stat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def read_bytes(path: Path, what: str, most: int = LARGEST, option: str = "") -> bytes:
    """The content of a regular file.

    what: the thing in the file, such as `plan`; option: the option of the command line that names the file. UsageError,
    which names both and the path, if the file cannot be read, is no regular file, or has more than `most` bytes.
    """
    place = f"cannot read the {what} {path_text(path)}"
    hint = f" ({option})" if option else ""
    try:
        with open_regular(path) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror}{hint}") from None
    if len(data) > most:
        raise UsageError(f"{place}: it is larger than {_size(most)}, the limit for a {what}{hint}")
    return data


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open to be read. OSError, with the reason as its `strerror`, for everything else."""
    try:
        # Opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:
        raise OSError(errno.EINVAL, not_a_path(path)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, and only a file is read")
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, what: str, most: int = LARGEST, option: str = "") -> str:
    """The text of a regular file in UTF-8, without a byte order mark.

    what: what the file is, for errors. most: the largest size [bytes]. option: of the command line, for errors. Raises
    UsageError as `read_bytes` does.
    """
    try:
        return read_bytes(path, what, most, option).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = f" ({option})" if option else ""
        raise UsageError(f"the {what} {path_text(path)} is not UTF-8 text: byte {error.start}{hint}") from None


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} bytes"
