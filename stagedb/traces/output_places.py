"""Places of traces on disk: free names, files that are a set's own, and places that are complete or absent."""

import ctypes
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stagedb.errors import Interrupted, StagedbError, UnfinishedError, UsageError
from stagedb.files import check_path, path_text, read_document
from stagedb.mentions import Word
from stagedb.traces.bundle import CHECKSUMS, read_checksums
from stagedb.traces.formats import FORMATS, RankFiles
from stagedb.traces.packed_file import is_packed
from stagedb.traces.simulators import SIMULATORS
from stagedb.traces.trace_set import MANIFEST

# The files of a directory that are a trace set's own: stagedb wrote them, and may remove them.

LARGEST = 64 << 20
"""Bytes of the largest manifest."""

_WHAT = "Chakra execution traces"
_ENDINGS = "|".join(each.files.ending for each in FORMATS.values() if isinstance(each.files, RankFiles))
_TRACES = rf"\.([0-9]{{1,9}}\.({_ENDINGS})|class-[0-9.]+\.parquet|ranks\.parquet)"
"""What follows a set's name in the names of its traces."""


@dataclass(frozen=True)
class OwnFiles:
    """names: those that the set's manifest and checksums have. prefix: the set's name; empty if it is not known."""

    names: frozenset[str]
    prefix: str

    def has(self, name: str) -> bool:
        """Whether a file of this name is one of the set's."""
        own = rf"{re.escape(self.prefix)}{_TRACES}"
        return name in self.names or bool(self.prefix and re.fullmatch(own, name))


def own_files(directory: Path) -> OwnFiles | None:
    """The files of a set that stagedb completed: the manifest and the checksums are written last.

    One of both may be damaged. None for a directory that has no such set.
    """
    described, sums = _manifest(directory / MANIFEST), _checksums(directory / CHECKSUMS)
    if described is None and MANIFEST not in sums:
        return None
    names = {MANIFEST, CHECKSUMS, *sums}
    if described is None:
        # The inputs of a simulator have no checksums: they may be edited.
        return OwnFiles(frozenset(names.union(*(simulator.files for simulator in SIMULATORS.values()))), "")
    return OwnFiles(frozenset({*names, *described["files"]}), described["name"])


def others(directory: Path, own: OwnFiles) -> list[str]:
    """The names in a set's directory that are not its own, in alphabetical order. Raises OSError as the system does."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False) or not own.has(entry.name))


def _manifest(path: Path) -> dict[str, Any] | None:
    """A set's manifest; None if it cannot be read, or has not what every manifest has."""
    try:
        manifest = read_document(path, "manifest", most=LARGEST)
        is_one = (
            str(manifest["what"]).startswith(_WHAT)
            and "stagedb" in manifest["versions"]
            and isinstance(manifest["name"], str)
            and type(manifest["world"]) is int
            and isinstance(manifest["classes"], list)
            and isinstance(manifest["files"], dict)
            and all(map(is_part, (manifest["name"], *manifest["files"])))
        )
    except (LookupError, TypeError, UsageError):
        return None
    return manifest if is_one else None


def is_part(name: str) -> bool:
    """Whether a name is one part of a path: the name of a file in a directory."""
    return name not in ("", ".", "..") and "/" not in name and os.sep not in name


def _checksums(path: Path) -> dict[str, int]:
    try:
        return read_checksums(path)
    except UsageError:
        return {}


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


# A directory or file that is complete or absent: it is filled under another name in the same place, then renamed.

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
