"""Writing the files of ranks, in this process or shared among processes.

A writer is `python -m stagedb.traces.rank_files`. Its standard input gives the target of the files, then one job a
line. It reports its progress on its standard output. It reads the classes from a file that the exporting process has
just written, so neither threads nor the memory of that process matter.
"""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.errors import StagedbError, UnfinishedError
from stagedb.files import path_text
from stagedb.mentions import Word
from stagedb.traces.encoded_class import EncodedClass, RankBytes, rank_files
from stagedb.traces.formats import DEFAULT, RankFiles, format_named

Progress = Callable[[int], None]
"""Called with the number of files written since the last call."""

REPORT_EVERY = 0.2
"""Seconds between two reports of a writer."""


@dataclass(frozen=True)
class TraceTarget:
    """Where and how the files of ranks are written.

    prefix: of their names. format: name of one with a file a rank. compress: with gzip. keep: files that hold the right
    bytes remain as they are.
    """

    directory: Path
    prefix: str
    format: str = DEFAULT.name
    compress: bool = False
    keep: bool = False

    @property
    def files(self) -> RankFiles:
        """How the files of ranks are named and coded, by the format."""
        files = format_named(self.format).rank_files(self.compress)
        if files is None:
            raise ValueError(f"{self.format} has no file a rank")
        return files


def write_ranks(encoded: EncodedClass, ranks: RankBytes, target: TraceTarget, written: Progress) -> None:
    """Write the files of some ranks of a class.

    written: called with how many more are written. Raises OSError as the system does.
    """
    files = target.files
    folder = os.open(target.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        reported, since = time.monotonic(), 0
        for rank, buffer in rank_files(encoded, ranks):
            data = buffer.data if files.plain else memoryview(files.coded(buffer.tobytes()))
            name = files.file(target.prefix, rank)
            if not (target.keep and _holds(folder, name, data)):
                _write_whole(folder, name, data)
            since += 1
            if time.monotonic() - reported > REPORT_EVERY:
                written(since)
                reported, since = time.monotonic(), 0
        written(since)
    finally:
        os.close(folder)


def _holds(folder: int, name: str, data: memoryview) -> bool:
    """Whether a file exists and has these bytes."""
    try:
        file = os.open(name, os.O_RDONLY, dir_fd=folder)
    except FileNotFoundError:
        return False
    with os.fdopen(file, "rb") as there:
        return os.fstat(file).st_size == len(data) and there.read() == data


def _write_whole(folder: int, name: str, view: memoryview) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666, dir_fd=folder)
    try:
        done = os.write(file, view)
        while done < len(view):
            count = os.write(file, view[done:])
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            done += count
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error
    finally:
        os.close(file)


@dataclass(frozen=True)
class WriteJob:
    """Write rows `first` to `end - 1` of the ranks of class `key` in a file of `save_classes`."""

    classes: str
    key: str
    first: int
    end: int


def save_classes(path: Path, classes: Iterable[tuple[str, EncodedClass, RankBytes]]) -> None:
    """Write classes to a file for writers: plain columns, as these trust the process that starts them.

    A packed file is for people, and describes the job: reading one takes as long as writing some thousand traces.
    classes: each with its key and its ranks. Raises OSError as the system does.
    """
    columns: dict[str, Any] = {
        f"{key}/{name}": column
        for key, encoded, ranks in classes
        for name, column in {**encoded.arrays(), "ranks": ranks.ranks, "values": ranks.values}.items()
    }
    with path.open("xb") as file:
        np.savez(file, **columns)


def _saved_class(path: Path, key: str) -> tuple[EncodedClass, RankBytes]:
    """A class of a file of `save_classes`."""
    with np.load(path, allow_pickle=False) as columns:
        of_class = {field.name: columns[f"{key}/{field.name}"] for field in fields(EncodedClass)}
        return EncodedClass(**of_class), RankBytes(columns[f"{key}/ranks"], columns[f"{key}/values"])


class Writers:
    """Processes that share the writing. They start at once, and wait for jobs."""

    def __init__(self, count: int, written: Progress) -> None:
        self._written = written
        self._failure: str | None = None
        self._lock = threading.Lock()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "stagedb.traces.rank_files"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                # An interrupt from the keyboard is for the exporting process, which ends these.
                start_new_session=True,
            )
            for _ in range(count)
        ]
        self._readers = [threading.Thread(target=self._listen, args=(each,), daemon=True) for each in self._processes]
        for reader in self._readers:
            reader.start()

    def aim(self, target: TraceTarget) -> None:
        """Send the target of the files of all jobs."""
        for process in self._processes:
            self._send(process, {**asdict(target), "directory": str(target.directory)})

    def give(self, job: WriteJob) -> None:
        """Share a job among the processes."""
        count = len(self._processes)
        bounds = np.linspace(job.first, job.end, count + 1).astype(int).tolist()
        for process, first, end in zip(self._processes, bounds, bounds[1:], strict=False):
            if first < end:
                self._send(process, {**asdict(job), "first": first, "end": end})

    def _send(self, process: "subprocess.Popen[str]", message: dict[str, object]) -> None:
        if process.stdin is None:
            return
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.finish()

    def finish(self) -> None:
        """Wait until everything is written. Raises StagedbError with the error of the first process that failed."""
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                try:
                    process.stdin.close()
                except BrokenPipeError:
                    continue
        statuses = [process.wait() for process in self._processes]
        for reader in self._readers:
            reader.join()
        if self._failure:
            raise StagedbError(self._failure)
        if any(statuses):
            raise UnfinishedError(f"a process that wrote traces ended with status {min(statuses)}")

    def stop(self) -> None:
        """End the writing processes at once, in any state."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process, reader in zip(self._processes, self._readers, strict=True):
            process.wait()
            reader.join()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            message = json.loads(line)
            with self._lock:
                if "error" in message:
                    self._failure = self._failure or message["error"]
                else:
                    self._written(message["written"])


@contextmanager
def writers(count: int, written: Progress) -> Iterator[Writers]:
    """Processes that write files of ranks, which end when the block is left, also by an error.

    count: how many processes. written: called with how many more files are written.
    """
    made = Writers(count, written)
    try:
        yield made
    finally:
        made.stop()


def explain(error: OSError, directory: Path) -> str:
    """The meaning of a failed write, and what to do. error: the system's. directory: that is written."""
    from stagedb.traces.output_places import finished  # it knows all formats, which writers run without

    # An absolute name replaces the directory.
    what = path_text(finished(directory / str(error.filename)) if error.filename else finished(directory))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left while writing {what}: nothing was kept; free some there, name a directory on another disk "
            f"with {Word('out')}, or write fewer ranks with {Word('only')}"
        )
    if error.errno == errno.EFBIG:
        return f"{what} is larger than this shell lets a file be: nothing was kept; raise it with `ulimit -f unlimited`"
    return f"cannot write {what}: {error.strerror}; nothing was kept"


def main(lines: Sequence[str] | None = None) -> int:
    """The loop of a writer: read jobs, write ranks, report how many."""

    def send(**message: object) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    message = iter(sys.stdin if lines is None else lines)
    first = next(message, None)
    if first is None:
        return 0
    aim = json.loads(first)
    target = TraceTarget(**{**aim, "directory": Path(aim["directory"])})
    for line in message:
        job = WriteJob(**json.loads(line))
        try:
            encoded, every = _saved_class(Path(job.classes), job.key)
            rows = slice(job.first, job.end)
            ranks = RankBytes(every.ranks[rows], every.values[rows])
            write_ranks(encoded, ranks, target, lambda count: send(written=count))
        except BrokenPipeError:
            return 1
        except StagedbError as error:
            send(error=error.message)
            return 1
        except OSError as error:
            send(error=explain(error, target.directory))
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
