"""Files that are written completely or not at all, and texts as their names and paths."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stagedb.errors import StagedbError, UsageError
from stagedb.files.texts import printable
from stagedb.mentions import Word

# Names of files made from texts of a store, such as a model's name: one part of a path, and nothing else.

_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100


def file_name(text: str) -> str:
    """A file's name for a text: its letters, digits, `.`, `_` and `-`, with `_` for everything else.

    It has no separator of paths, does not begin with a dot or a hyphen, and is short. A text of none gives `unnamed`.
    """
    return _OTHERS.sub("_", text)[:_LONGEST_NAME].strip("._-") or "unnamed"


# Texts that should be paths: those that none can be are refused, and all are shown whole only if they are short.

_LONGEST_PATH = 1024
"""Characters of the longest path that an error shows whole."""

_END = 28
"""Characters of both ends of a longer one."""


def check_path(path: Path, option: str) -> None:
    """Raise UsageError for a text that no path can be: too long, with the character NUL, not Unicode, a loop of links.

    option: the option of the command line that gives it. A path that has nothing yet is fine.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except OSError as error:
        raise UsageError(f"{path_text(path)} cannot be a path: {error.strerror} ({option})") from None
    except ValueError:
        raise UsageError(f"{path_text(path)} cannot be a path: {not_a_path(path)} ({option})") from None


def make_directory(path: Path, option: str) -> None:
    """Make a directory for files, with those above it. UsageError, which names the option, where that cannot be."""
    check_path(path, option)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {path_text(path)}: {error.strerror} ({option})") from None


def path_text(path: Path) -> str:
    """A path as an error prints it: without control characters and line breaks, and with its ends if it is long."""
    text = str(path)
    if len(text) > _LONGEST_PATH:
        text = f"{text[:_END]}...{text[-_END:]}"
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def not_a_path(path: Path) -> str:
    """Why the system cannot take a text as a path, if it raised ValueError."""
    return "a path cannot have the character NUL" if "\0" in str(path) else "a path must be Unicode"


# Files that are written completely or not at all.


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write a file, or replace it. A reader never sees a part of it, and a failure leaves the old file.

    A replaced file keeps its permissions. A symbolic link remains, and the file that it leads to is written. A device
    or a pipe is written to, and never replaced. option: the option of the command line that names the file. content:
    all of the file's bytes. Raises UsageError for a directory or a socket, StagedbError if the file cannot be written.
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
            raise UsageError(f"cannot write {path_text(path)}: it is {what} ({option})")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StagedbError(f"cannot write {path_text(path)}: {reason} ({option})") from error


@contextmanager
def whole_file(path: Path, option: str, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write in parts. It gets its path when it is complete; a failure leaves what was there.

    replace: whether a file of this path is replaced. If not, one that somebody made meanwhile stays, too. option: of
    the command line, for errors. Raises UsageError for a path that is no regular file or must not be replaced,
    StagedbError if the file cannot be written.
    """
    check_path(path, option)
    try:
        mode = _mode(path)
        if mode is not None and not stat.S_ISREG(mode):
            raise UsageError(f"cannot write {path_text(path)}: it is no regular file ({option})")
        if mode is not None and not replace:
            raise _there(path)
        with _partial(path, mode, replace) as file:
            yield file
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StagedbError(f"cannot write {path_text(path)}: {reason} ({option})") from error


def _there(path: Path) -> UsageError:
    return UsageError(f"{path_text(path)} is there already: {Word('force', True)} replaces it")


def _mode(path: Path) -> int | None:
    """The kind and permissions of what has this path; None for nothing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    with _partial(path, mode) as file:
        file.write(content)


@contextmanager
def _partial(path: Path, mode: int | None, replace: bool = True) -> Iterator[BinaryIO]:
    partial = path.with_name(f".{path.name[:100]}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            partial.replace(path)
        else:
            _link(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _link(partial: Path, path: Path) -> None:
    """Give a file its path if nothing has it, in one step."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        raise _there(path) from None
    partial.unlink()


def _write_through(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
