"""Names of traces on disk: which names are free for new ones, and what may be replaced."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.files import check_path, path_text
from stagedb.mentions import Word
from stagedb.traces.own_files import others, own_files
from stagedb.traces.packed_file import is_packed
from stagedb.traces.trace_set import MANIFEST

SEPARATOR = "~"
"""Separates the parts of an unfinished set's name: neither hosts' names nor numbers contain it."""

_SHOWN = 4
"""Names of files that an error has."""

_UNFINISHED = re.compile(
    rf"\.(?P<name>.+){SEPARATOR}[^{SEPARATOR}]+(?:{SEPARATOR}[0-9]+){{2}}{SEPARATOR}[0-9a-f]+\.partial"
)


class TakenError(UsageError):
    """The name of an output is taken by something that must not be replaced."""


def check_directory(out: Path, force: bool) -> None:
    """Raise TakenError if the name of a set is taken by something that must not be replaced.

    With `force` a trace set or an empty directory is replaced, and nothing else. The option means the files of an
    earlier export: a directory that has other files too is kept as it is.
    """
    _check(out, force, "directory", _kept_directory)


def check_file(out: Path, force: bool) -> None:
    """`check_directory` for a packed set: with `force` a packed set is replaced, and no other file."""
    _check(out, force, "file", _kept_file)


def unfinished(out: Path, host: str, process: int, began: int, word: str) -> Path:
    """The name of an unfinished set, in the directory of its final place.

    out: the final place. host, process, began: of the process that writes. word: chosen at random.
    """
    owner = SEPARATOR.join((host, str(process), str(began), word))
    return out.with_name(f".{out.name}{SEPARATOR}{owner}.partial")


def finished(path: Path) -> Path:
    """A path with the final name of an unfinished set in it: the name that users know."""
    parts = (_UNFINISHED.fullmatch(part) for part in path.parts)
    return Path(*(found["name"] if found else part for found, part in zip(parts, path.parts, strict=True)))


def is_trace_set(directory: Path) -> bool:
    """Whether a directory holds a set that stagedb completed. Its manifest or its checksums may be damaged."""
    return own_files(directory) is not None


def _check(out: Path, force: bool, noun: str, kept: Callable[[Path, bool], str | None]) -> None:
    check_path(out, str(Word("out")))
    if os.path.lexists(out):
        # A directory without a name, such as `.`, cannot be replaced: the check below refuses it.
        reason = kept(out, force and not _is_nameless(out))
        if reason is not None:
            even = f", which {Word('force', True)} does not replace" if force else ""
            raise TakenError(f"{path_text(out)} {reason}{even}: name another {noun} with {Word('out')}")
        if not force:
            raise TakenError(
                f"{out} exists: name another {noun} with {Word('out')}, or replace it with {Word('force', True)}"
            )
    if _is_nameless(out):
        raise UsageError(f"{out} is no name that can be given: name another one with {Word('out')}")


def _is_nameless(out: Path) -> bool:
    """For `new/..` there is no name to rename to, and no name for an unfinished set."""
    return out.name in ("", "..")


def _kept_directory(out: Path, force: bool) -> str | None:
    """Why the existing path is never replaced by a directory of traces, or None."""
    if out.is_symlink():
        return "is a symbolic link"
    if not out.is_dir():
        return "exists and is no directory"
    place = out.resolve()
    if place == Path(place.anchor):
        return "is the root of all files"
    working = _here()
    if working is not None and place == working:
        return "is the current directory"
    if working is not None and place in working.parents:
        return "holds the current directory"
    if os.path.ismount(place):
        return "is a mount point"
    try:
        empty = next(place.iterdir(), None) is None
    except OSError as error:
        return f"exists and cannot be read ({error.strerror})"
    if empty:
        return None
    own = own_files(place)
    if own is None:
        return f"exists and is not a trace set of stagedb (it has no {MANIFEST} of one)"
    foreign = others(place, own) if force else []
    if foreign:
        more = f" and {len(foreign) - _SHOWN:,} more" if len(foreign) > _SHOWN else ""
        names = ", ".join(map(_shown_name, foreign[:_SHOWN]))
        return f"is a trace set with other files in it ({names}{more}; move them first)"
    return None


def _shown_name(name: str) -> str:
    return path_text(Path(name))


def _kept_file(out: Path, force: bool) -> str | None:
    """Why the existing path is never replaced by a packed set, or None."""
    del force
    mode = os.lstat(out).st_mode
    if stat.S_ISLNK(mode):
        return "is a symbolic link"
    if stat.S_ISDIR(mode):
        return f"is a directory, and {Word('packed', True)} writes a file"
    if not stat.S_ISREG(mode):
        return "exists and is no regular file"
    if not is_packed(out):
        return "exists and is not a packed trace set of stagedb"
    return None


def _here() -> Path | None:
    try:
        return Path.cwd().resolve()
    except OSError:
        # The working directory was removed, so there is nothing to replace in it.
        return None
