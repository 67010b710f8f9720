"""One run of the command line on hostile inputs, in a process with limits, watched for what it may not do."""

import contextlib
import errno
import functools
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

GROWTH = 500 << 20
"""Bytes by which a run may grow."""

_ADDRESSES = 6 << 30
"""Bytes of addresses that a run may add: a limit for the machine's sake."""

_START = 10.0
"""Seconds that the interpreter may take to start, with its imports."""

_STATUSES = {0: "done", 1: "failed", 2: "refused", 130: "interrupted", 141: "closed"}
_LONGEST = 6000
"""Characters of the longest error. Names of columns and options make some of them long."""

_OPENING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGING = {
    **dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime"), (0,)),
    **dict.fromkeys(("os.rename", "os.link"), (0, 1)),
    "os.symlink": (1,),
}
"""Events of Python's audit that change files, and the places of the paths in their arguments."""


@dataclass(frozen=True)
class Attempt:
    """A command with hostile inputs.

    files: what is in its directory, by name: content, or a kind (`fifo`, `directory`, `link:TARGET`). changes: names
    that it may make or change there, with all that is in them.
    """

    door: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    changes: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `finding` is empty if nothing is wrong."""

    word: str
    seconds: float
    growth: int
    finding: str = ""
    error: str = ""


@dataclass(frozen=True)
class Place:
    """The directories of the runs. `sentinel` has files that no run may touch."""

    scratch: Path
    home: Path
    seconds: float

    @property
    def sentinel(self) -> Path:
        return self.scratch / "sentinel"

    @property
    def own(self) -> Path:
        """The current directory of a run, two levels deep, so that `../../up` is in `scratch`."""
        return self.scratch / "run" / "here"

    def environment(self) -> dict[str, str]:
        return {
            **{name: text for name, text in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))},
            "STAGEDB_HOME": str(self.home),
            "STAGEDB_CONFIG": str(self.scratch / "none.toml"),
            "TMPDIR": str(self.scratch / "tmp"),
            "HOME": str(self.scratch / "user"),
            "COLUMNS": "80",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def prepare(place: Place) -> None:
    """Make the directories."""
    for path in (place.scratch / "tmp", place.scratch / "user", place.sentinel / "inner"):
        path.mkdir(parents=True, exist_ok=True)
    for path in (place.sentinel / "notes.txt", place.sentinel / "inner" / "notes.txt", place.scratch / "up"):
        path.write_text("not to be touched\n", encoding="utf-8")


def run(attempt: Attempt, place: Place, *, forked: bool) -> Outcome:
    """Run an attempt in its own directory, which is made anew, and judge it."""
    shutil.rmtree(place.own.parent, ignore_errors=True)
    place.own.mkdir(parents=True)
    with _made(attempt, place.own):
        output, errors, watched = (place.scratch / name for name in ("stdout", "stderr", "watched"))
        for path in (output, errors, watched):
            path.write_bytes(b"")
        before, around = _state(place.own), _around(place)
        base, launch = (_resident(), _fork) if forked else (110 << 20, _spawn)
        began = time.monotonic()
        process = launch(attempt, place, output, errors, watched)
        status, peak, timely = _await(process, place.seconds + (0 if forked else _START))
        seconds = time.monotonic() - began
        error = errors.read_text(encoding="utf-8", errors="backslashreplace")
        growth = max(0, peak - base)
        finding = _finding(status, error, growth, timely)
        outside = watched.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
        if outside or (not finding and _around(place) != around):
            finding = f"wrote outside: {outside[0] if outside else 'files around its directory changed'}"
        wrong = sorted(_changed(before, _state(place.own)) - attempt.changes)
        if not finding and wrong:
            finding = f"changed {wrong[0]!r}, which it was not asked to"
    return Outcome(_STATUSES.get(status, f"status {status}"), seconds, growth, finding, error[:2000])


def _finding(status: int, error: str, growth: int, timely: bool) -> str:
    if not timely:
        return "did not end in time"
    if growth > GROWTH:
        return f"grew by {growth >> 20} MiB"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    if "Traceback (most recent call last)" in error or status not in _STATUSES:
        return f"ended with status {status}: {error.strip()[-300:]}"
    if any(not each.isprintable() and each not in "\n\t" for each in error):
        return "printed control characters"
    if "Value error," in error:
        return f"shows an error of its libraries: {error.strip()[-300:]}"
    if len(error) > _LONGEST:
        return f"printed an error of {len(error)} characters"
    return ""


def _fork(attempt: Attempt, place: Place, output: Path, errors: Path, watched: Path) -> int:
    """Run the program in a fork of this process, which has imported it, under limits and watched."""

    def confined() -> None:
        _confine()
        _watch(place, watched)

    environment = {**place.environment(), **attempt.environment}
    return forked_program(attempt.arguments, place.own, environment, (output, errors), confined)


@functools.cache
def _make_the_tree() -> None:
    """Make the tree of commands, which takes longer than most runs, once, so that every fork has it."""
    import typer.main

    from stagedb.cli import application

    whole, made = functools.cache(application.application), functools.cache(typer.main.get_command)
    made(whole())
    application.application = lambda modules=(): whole()
    typer.main.get_command = made


def forked_program(
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    outputs: tuple[Path, Path],
    prepared: Callable[[], None] = lambda: None,
) -> int:
    """Run the program in a fork of this process. Its process id.

    outputs: the files of its standard output and errors. prepared: called in the fork before the program.
    """
    _make_the_tree()
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        os.setsid()
        for path, number in zip(outputs, (1, 2), strict=True):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        sys.argv, tempfile.tempdir = ["stagedb", *arguments], None
        prepared()
        status = _main()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _main() -> int:
    """The program's own entry. Its exit status."""
    from stagedb.cli import main

    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  # the interpreter prints it and exits with 1
        import traceback

        traceback.print_exc()
        return 1
    return 0


def _spawn(attempt: Attempt, place: Place, output: Path, errors: Path, watched: Path) -> int:
    """Run the program as people do."""
    del watched
    root = Path(__file__).resolve().parents[1]
    environment = {**place.environment(), "PYTHONPATH": str(root), **attempt.environment}
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "stagedb", *map(os.fsencode, attempt.arguments)],
            cwd=place.own, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # this module collects it
    return process.pid


_ARGUMENT = 128 << 10
"""Bytes of an argument that Linux does not pass on."""


def spawnable(attempt: Attempt) -> bool:
    """Whether the system can pass the arguments to another process."""
    try:
        raw = [os.fsencode(each) for each in attempt.arguments]
        return all(b"\0" not in each and len(each) < _ARGUMENT for each in raw)
    except UnicodeEncodeError:
        return False


def _confine() -> None:
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _ADDRESSES, size + _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


_DEVICES = frozenset({os.devnull, "/dev/zero", "/dev/stdin", "/proc/self/mem"})
"""What keeps nothing of what is written to it. A command may be asked to open it, never to replace it."""


def _watch(place: Place, watched: Path) -> None:
    """Record and refuse each path outside the run's directory that Python opens to write, or changes."""
    allowed = [os.path.realpath(each) for each in (place.own, place.home, place.scratch / "tmp")]
    log = os.open(watched, os.O_WRONLY | os.O_APPEND)

    def inside(path: str) -> bool:
        parent, name = os.path.split(os.path.abspath(path))  # noqa: PTH100  # the last part stays a link
        real = f"{os.path.realpath(parent)}/{name}"
        # Nothing can be made below the first two.
        return (
            real == os.devnull
            or real.startswith("/proc/")
            or any(real == each or real.startswith(f"{each}/") for each in allowed)
        )

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        places = _CHANGING.get(event, ())
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _OPENING:
            places = () if arguments[0] in _DEVICES else (0,)
        for at in places:
            path = arguments[at]
            if isinstance(path, str | bytes | os.PathLike) and not inside(os.fsdecode(path)):
                os.write(log, f"{event} {os.fsdecode(path)[:200]!r}\n".encode("utf-8", "backslashreplace"))
                raise PermissionError(errno.EPERM, "outside the directory of the run", os.fsdecode(path))

    sys.addaudithook(hook)


def _await(process: int, seconds: float) -> tuple[int, int, bool]:
    """A process's exit status, its largest resident size in bytes, and whether it ended in time."""
    waiting = os.pidfd_open(process)
    try:
        timely = bool(select.select([waiting], [], [], seconds)[0])
    finally:
        os.close(waiting)
    if not timely:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
    _, status, used = os.wait4(process, 0)
    return os.waitstatus_to_exitcode(status), used.ru_maxrss << 10, timely


@contextlib.contextmanager
def _made(attempt: Attempt, own: Path) -> Iterator[None]:
    """The attempt's files. A pipe has a reader, so that opening it does not wait."""
    readers = []
    for name, content in attempt.files.items():
        path = own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "fifo":
            os.mkfifo(path)
            readers.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        elif content == "directory":
            path.mkdir()
        else:
            path.symlink_to(content.removeprefix("link:"))
    try:
        yield
    finally:
        for reader in readers:
            os.close(reader)


def _state(directory: Path) -> dict[str, tuple[Any, ...]]:
    """The kind, mode, size, time and target of everything under a directory."""
    found: dict[str, tuple[Any, ...]] = {}
    for parent, folders, names in os.walk(directory):
        for name in (*folders, *names):
            path = f"{parent}/{name}"
            with contextlib.suppress(OSError):
                at = os.lstat(path)
                target = os.readlink(path) if stat.S_ISLNK(at.st_mode) else ""  # noqa: PTH115
                changed = 0 if stat.S_ISDIR(at.st_mode) or stat.S_ISFIFO(at.st_mode) else at.st_mtime_ns
                size = 0 if stat.S_ISDIR(at.st_mode) else at.st_size
                found[os.path.relpath(path, directory)] = (at.st_mode, size, changed, target)
    return found


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    """The first parts of the names of all that differs."""
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return {name.split(os.sep, 1)[0] for name in names}


def _around(place: Place) -> dict[str, Any]:
    names = ("sentinel", "up", "user")
    states = {name: _state(place.scratch / name) for name in names}
    # The engine of the store, which another process runs, keeps what starts it sooner.
    engine = {name: state for name, state in states["user"].items() if not name.startswith(".cache/stagedb/engine/")}
    return {
        **states,
        "user": engine,
        "names": sorted(each.name for each in place.scratch.iterdir()),
        "above": sorted(each.name for each in place.own.parent.iterdir()),
    }


def shrunk(attempt: Attempt, again: Callable[[Attempt], bool], most: int = 40) -> Attempt:
    """A smaller attempt that still does it: its files are cut in halves, quarters … while `again` holds."""
    tries = 0
    for name, content in attempt.files.items():
        step = len(content) // 2 if isinstance(content, bytes) else 0
        while isinstance(content, bytes) and step and tries < most:
            for at in range(0, len(content), step):
                tries += 1
                less = content[:at] + content[at + step :]
                smaller = replace(attempt, files={**attempt.files, name: less})
                if tries < most and again(smaller):
                    attempt, content = smaller, less
                    break
            else:
                step //= 2
    return attempt
