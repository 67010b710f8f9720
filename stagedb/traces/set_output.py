"""Write a trace set to a directory on disk, complete or absent: the common part of `export` and `unpack`."""

import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from stagedb.cores import usable_cores
from stagedb.errors import StagedbError, UsageError
from stagedb.files import read_text, shown
from stagedb.lowering.issue_order import GRANULARITIES
from stagedb.mentions import Word
from stagedb.traces.bundle import (
    CHECKSUMS,
    SCRIPT,
    checksums_text,
    file_crc,
    manifest,
    read_checksums,
    set_crcs,
    write_texts,
)
from stagedb.traces.encoded_class import rank_files
from stagedb.traces.formats import DEFAULT as DEFAULT_FORMAT
from stagedb.traces.formats import PACKED, ClassFiles, OneFile, Option, RankFiles, TraceFormat, format_named
from stagedb.traces.output_places import (
    TakenError,
    abandoned,
    check_directory,
    check_file,
    is_trace_set,
    mended,
    staged,
)
from stagedb.traces.packed_file import Packed
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.rank_files import TraceTarget, WriteJob, Writers, explain, save_classes, write_ranks, writers
from stagedb.traces.rank_sets import format_ranks, parse_ranks
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import SimulatedJob, Simulator, simulator_named
from stagedb.traces.trace_set import MANIFEST, ClassTraces, TraceSet

# Files that a completed set lacks now: they were removed since, or cut short.


@dataclass(frozen=True)
class MissingFiles:
    """The files to write again: the traces of `ranks`, and `texts` by name. `names` are those of all these files."""

    ranks: Ints
    texts: Mapping[str, str]
    names: tuple[str, ...]


def lacking(
    directory: Path, traces: TraceSet, files: RankFiles, texts: Mapping[str, str], crcs: Mapping[str, int] | None
) -> MissingFiles:
    """Compare a directory with the files that a set should have there.

    Plain traces are compared by size and checksum, which are known (`crcs`, by name); others by their bytes. The
    manifest and the communicator groups must be unchanged. The rest, inputs of a simulator, may be edited by the user,
    so they only have to exist. texts: by name, the text of each other file. Raises OSError as the system does.
    """
    with os.scandir(directory) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    damaged = [_damaged(directory, of_class, traces.name, files, sizes, crcs or {}) for of_class in traces.classes]
    ranks = np.sort(np.concatenate(damaged))
    exact = (traces.groups_file, MANIFEST)
    lacks = {
        name: text
        for name, text in texts.items()
        if not sizes.get(name) or (name in exact and (directory / name).read_bytes() != text.encode())
    }
    return MissingFiles(ranks, lacks, (*(files.file(traces.name, rank) for rank in ranks.tolist()), *lacks))


def _damaged(
    directory: Path,
    each: ClassTraces,
    name: str,
    files: RankFiles,
    sizes: Mapping[str, int],
    crcs: Mapping[str, int],
) -> Ints:
    """The ranks of a class whose traces are missing or damaged."""
    ranks = each.ranks.ranks
    if files.plain:
        wrong = [
            sizes.get(file := files.file(name, rank)) != each.encoded.size or file_crc(directory / file) != crcs[file]
            for rank in ranks.tolist()
        ]
    else:
        wrong = [
            (file := files.file(name, rank)) not in sizes
            or (directory / file).read_bytes() != files.coded(data.tobytes())
            for rank, data in rank_files(each.encoded, each.ranks)
        ]
    damaged: Ints = ranks[np.array(wrong, bool)]
    return damaged


# The room on a disk that traces need: bytes, and names of files.

BLOCK = 4096
"""A file's size on disk is a multiple of this."""

LEAST_NODE, MOST_NODE = 64, 1024
"""Bytes of a node in a plain trace: fewer than any has, and more than most have."""


def check_counts(request: "Request", ranks: int, nodes: int) -> None:
    """Raise UsageError if the traces of all ranks have no room on the disk, from their number alone.

    ranks, nodes: of the whole set. It is for large sets: encoding one that cannot be written takes long.
    """
    check_files(request.out, ranks)
    existing, free = free_space(request.out)
    files = request.rank_files
    node_bytes = 0 if files is None or files.compress else LEAST_NODE
    need = max(ranks * BLOCK, nodes * node_bytes)
    if need > free:
        raise UsageError(
            f"the traces of {ranks:,} ranks take at least {need:,} bytes and {existing} has {free:,} free: name "
            f"another directory with {Word('out')}, free some, or write less: {Word('packed', True)} makes one small "
            f"file, {Word('only')} takes some ranks"
        )


def free_space(out: Path) -> tuple[Path, int]:
    """The directory above a new one that exists, and the free bytes of its disk."""
    out = out.absolute()
    existing = next(place for place in (*out.parents, out) if place.exists())
    return existing, shutil.disk_usage(existing).free


def check_files(out: Path, files: int) -> None:
    """Raise UsageError if the disk takes fewer new files than this, however small they are.

    Many file systems have a fixed number of files (inodes), and systems with quotas give each user some of them. A disk
    that states no number, as Btrfs, has no such limit.
    """
    if not hasattr(os, "statvfs"):
        return
    existing, _ = free_space(out)
    disk = os.statvfs(existing)
    if disk.f_files and files > disk.f_favail:
        raise UsageError(
            f"the traces are {files:,} files and the disk of {existing} takes {disk.f_favail:,} more (`df -i`): name "
            f"a directory on another disk with {Word('out')}, remove some files, or write less: "
            f"{Word('packed', True)} makes one file, {Word('only')} takes some ranks"
        )


def sizes_on_disk(traces: "TraceSet", files: "RankFiles") -> list[int]:
    """Bytes that a rank of each class takes on disk.

    Compressed and converted traces are estimated by the trace of the first rank of their class.
    """
    sizes = [of_class.encoded.size if files.plain else _first_size(of_class, files) for of_class in traces.classes]
    return [-(-size // BLOCK) * BLOCK for size in sizes]


def _first_size(each: "ClassTraces", files: "RankFiles") -> int:
    (_, first), *_ = islice(rank_files(each.encoded, each.ranks), 1)
    return len(files.coded(first.tobytes()))


Progress = Callable[[int, int, int], None]
"""Called with the number of written ranks, the number of all ranks, and the number of written bytes."""

REPLAYED_NODES = 100_000
"""A set with at most this many nodes in all ranks is replayed by default."""

SHARED_FILES, SHARED_BYTES = 1000, 100_000_000
"""From this many files or bytes on, processes share the writing: starting one takes as long as some hundred files."""

_CLASSES = ".classes"
_LARGEST_TEXT = 64 << 20


@dataclass(frozen=True)
class Request:
    """How a trace set is written: the options of `export` with these names (`Stagedb.export` explains each).

    processes: those that write files; None: chosen by the size.
    """

    out: Path
    force: bool = False
    format: str = DEFAULT_FORMAT.name
    compress: bool = False
    replay: bool | None = None
    processes: int | None = None
    resume: bool = False
    granularity: str = "op"
    packed: bool = False
    simulator: str | None = None

    @property
    def written(self) -> TraceFormat:
        """The format of the files. UsageError for an unknown name."""
        return PACKED if self.packed else format_named(self.format)

    @property
    def rank_files(self) -> RankFiles | None:
        """The files of ranks, for a format that has a file a rank."""
        return self.written.rank_files(self.compress)

    def target(self, world: int) -> Simulator | None:
        """The simulator whose inputs are next to the traces of `world` ranks.

        None for a format that no simulator reads, and for one rank, which no network of a simulator takes.
        """
        return simulator_named(self.simulator) if self.written.simulated and world > 1 else None

    def inputs(self, traces: TraceSet) -> dict[str, str]:
        """The files next to the traces: groups, and a simulator's inputs. A script only for traces that it can run."""
        files, plain = traces.files(self.target(traces.world)), self.rank_files is not None and self.rank_files.plain
        return {name: text for name, text in files.items() if plain or not name.endswith(SCRIPT)}

    def check(self, world: int, only: str | None) -> None:
        """Raise UsageError for an impossible request, before any work is done for it.

        world: ranks of the job. only: the ranks to write; None: all.
        """
        format = self.written
        if isinstance(format.files, OneFile):
            check_file(self.out, self.force)
        else:
            self._check_directory()
        given: dict[Option, bool] = {
            "resume": self.resume,
            "compress": self.compress,
            "replay": bool(self.replay),
            "format": self.format != DEFAULT_FORMAT.name,
            "simulator": self.simulator is not None,
        }
        simulator_named(self.simulator)
        format.check(given)
        if world < 2 and self.simulator is not None:
            raise UsageError(
                f"a simulator takes 2 or more ranks: leave out {Word('simulator')}, or export with more {Word('ranks')}"
            )
        if only is not None:
            parse_ranks(only, world)
        if self.granularity not in GRANULARITIES:
            raise UsageError(
                f"unknown granularity {shown(self.granularity)}: {Word('granularity')} is {' or '.join(GRANULARITIES)}"
            )

    def check_job(self, job: SimulatedJob) -> None:
        """Raise UsageError for a job that has no place in the system, or that the simulator cannot run."""
        (self.target(job.world) or DEFAULT_SIMULATOR).inputs(job)

    def _check_directory(self) -> None:
        try:
            check_directory(self.out, self.force)
        except TakenError:
            if not (self.resume and is_trace_set(self.out)):
                raise


@dataclass(frozen=True)
class Summary:
    """A trace set on disk.

    world: ranks of the job. files, nodes: how many were written. bytes: the traces as plain files. replayed: a replay
    as in a simulator has checked them. seconds: the time of each stage of the work. packed: bytes of the packed file or
    of the tables; None for traces. there: the set existed already, and was checked. mended: the files that were written
    again, empty if the set was complete. differences: those of the `Simulator`.
    """

    directory: Path
    world: int
    files: int
    nodes: int
    bytes: int
    replayed: bool
    seconds: Mapping[str, float]
    packed: int | None = None
    there: bool = False
    mended: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


@dataclass
class WriteClock:
    """A clock of an export: the seconds of each stage of its work, by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time that the block of `with` takes under a name."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Counter:
    """Counts the ranks whose files are written, in all processes, and reports the sum to a progress bar."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.done, self.of, self.each = 0, 0, 0.0

    def begin(self, traces: TraceSet) -> None:
        """Begin to count the files of a set. traces: the set."""
        self.of, self.each = traces.count, traces.bytes / traces.count

    def more(self, count: int) -> None:
        """Report that more files are written. count: how many since the last call."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.of, round(self.done * self.each))


@contextmanager
def writers_for(files: int, total: int, processes: int | None, counter: Counter) -> Iterator[Writers | None]:
    """Processes that share the writing of a set, if that is worth it; None if this process writes alone.

    files: how many. total: their bytes; 0: not known yet, and the processes start while the set is made. processes:
    None: one for each core if the set is large, else none. counter: counts what is written.
    """
    if processes is None:
        processes = min(usable_cores(), files) if files >= SHARED_FILES or total >= SHARED_BYTES else 1
    if processes < 2:
        yield None
        return
    with writers(processes, counter.more) as pool:
        yield pool


def write_set(
    traces: TraceSet,
    request: Request,
    *,
    counter: Counter,
    clock: WriteClock,
    pool: Writers | None = None,
    smaller: Callable[[int], list[str]] = lambda free: [],
) -> Summary:
    """Write a set to its directory.

    pool: the processes that write, if they are running. smaller: alternatives for the given number of free bytes.
    """
    replayable = traces.count == traces.world and "replay" in request.written.takes
    if request.replay and not replayable:
        raise UsageError(f"a replay needs all ranks: leave out {Word('replay', True)} or {Word('only')}")
    replayed = request.replay if request.replay is not None else replayable and traces.nodes <= REPLAYED_NODES
    extra = request.inputs(traces)
    files = {**extra, MANIFEST: manifest(traces, request.written, request.target(traces.world), extra)}
    work = _Work(request, traces, files, replayed, counter, clock, pool)
    try:
        if request.resume and is_trace_set(request.out):
            return work.complete()
        _check_space(request, traces, sum(map(len, files.values())), smaller)
        try:
            return work.make()
        except TakenError:
            # Two processes resumed at once, and the other one finished first.
            if not (request.resume and is_trace_set(request.out)):
                raise
            return replace(work, pool=None).complete()  # the processes of the pool have ended
    except OSError as error:
        raise StagedbError(explain(error, request.out)) from error


@dataclass(frozen=True)
class _Work:
    """A set, with all that is needed to write it. `files` are the files other than traces."""

    request: Request
    traces: TraceSet
    files: Mapping[str, str]
    replayed: bool
    counter: Counter
    clock: WriteClock
    pool: Writers | None

    def make(self) -> Summary:
        """Write the whole set to a new directory."""
        request, traces = self.request, self.traces
        self.counter.begin(traces)
        with staged(request.out, force=request.force, resume=request.resume) as partial:
            with self.clock.stage("write"):
                self._write(traces, partial, keep=request.resume)
            with self.clock.stage("bundle"):
                write_texts(partial, self.files)
                files = request.rank_files
                crcs = None if files is None else set_crcs(traces, files)
                write_texts(partial, {CHECKSUMS: self._checksums(partial, crcs)})
            if self.replayed:
                with self.clock.stage("replay"):
                    _validate(partial, f"so {request.out} was not made")
        return self._summary(self.replayed)

    def complete(self) -> Summary:
        """Write the missing files of a directory that was complete before. UsageError if it is of another export."""
        out = self.request.out
        if _text(out / MANIFEST) != self.files[MANIFEST] and not self._is_damaged(out):
            raise UsageError(
                f"{out} is another export: name another directory with {Word('out')}, or leave out "
                f"{Word('resume', True)}"
            )
        with self.clock.stage("check"):
            files = self._rank_files()
            crcs = set_crcs(self.traces, files)
            lack = lacking(out, self.traces, files, self.files, crcs)
        if lack.names:
            with mended(out) as partial:
                with self.clock.stage("write"):
                    if len(lack.ranks):
                        traces = self.traces.only(lack.ranks)
                        self.counter.begin(traces)
                        self._write(traces, partial, keep=False)
                with self.clock.stage("bundle"):
                    write_texts(partial, lack.texts)
        checksums = self._checksums(out, crcs)
        if _text(out / CHECKSUMS) != checksums:
            with mended(out) as partial:
                write_texts(partial, {CHECKSUMS: checksums})
            lack = replace(lack, names=(*lack.names, CHECKSUMS))
        # The set was checked when it was made. It is replayed again on request, or if files are new.
        replayed = self.replayed and bool(lack.names or self.request.replay)
        if replayed:
            with self.clock.stage("replay"):
                _validate(
                    out,
                    f"and {out} has all of them: write them anew with {Word('force', True)}, without "
                    f"{Word('resume', True)}",
                )
        return replace(self._summary(replayed), there=True, mended=lack.names)

    def _is_damaged(self, out: Path) -> bool:
        """Whether only the manifest of a set differs from this export's: the checksum in the set is still that of this
        manifest.
        """
        try:
            return read_checksums(out / CHECKSUMS).get(MANIFEST) == zlib.crc32(self.files[MANIFEST].encode())
        except UsageError:
            return False

    def _checksums(self, directory: Path, crcs: Mapping[str, int] | None) -> str:
        """The text of the file of checksums: of traces, groups and manifest. A simulator's inputs may be edited."""
        if crcs is None:
            others = {*self.files, CHECKSUMS}
            crcs = {path.name: file_crc(path) for path in sorted(directory.iterdir()) if path.name not in others}
        own = {name: zlib.crc32(self.files[name].encode()) for name in (self.traces.groups_file, MANIFEST)}
        return checksums_text({**crcs, **own})

    def _rank_files(self) -> RankFiles:
        files = self.request.rank_files
        if files is None:
            raise StagedbError(f"{self.request.format} has no file a rank to go on with")
        return files

    def _summary(self, replayed: bool) -> Summary:
        traces, out = self.traces, self.request.out
        done = Summary(out, traces.world, traces.count, traces.nodes, traces.bytes, replayed, self.clock.seconds)
        if isinstance(self.request.written.files, ClassFiles):
            others = (*self.files, CHECKSUMS)
            return replace(done, packed=sum(each.stat().st_size for each in out.iterdir() if each.name not in others))
        target = self.request.target(traces.world)
        return done if target is None else replace(done, differences=target.differences(traces.job))

    def _write(self, traces: TraceSet, directory: Path, *, keep: bool) -> None:
        files = self.request.written.files
        if isinstance(files, ClassFiles):
            files.write(traces, directory, self.counter.more)
            return
        _clear(directory, traces, self._rank_files())
        target = TraceTarget(directory, traces.name, self.request.format, self.request.compress, keep)
        own = writers_for(traces.count, traces.bytes, self.request.processes, self.counter)
        with nullcontext(self.pool) if self.pool is not None else own as sharing:
            _write(traces, target, sharing, self.counter)


def _text(path: Path) -> str | None:
    try:
        return read_text(path, "file", _LARGEST_TEXT)
    except UsageError:
        return None


def _clear(partial: Path, traces: TraceSet, files: RankFiles) -> None:
    """Remove files of an interrupted export that are no traces of this one."""
    left = {path.name: path for path in partial.iterdir()}
    if left:
        wanted = {files.file(traces.name, rank) for rank in traces.ranks.tolist()}
        for name in left.keys() - wanted:
            left[name].unlink()


def _write(traces: TraceSet, target: TraceTarget, pool: Writers | None, counter: Counter) -> None:
    if pool is None:
        for each in traces.classes:
            write_ranks(each.encoded, each.ranks, target, counter.more)
        return
    saved = target.directory / _CLASSES
    save_classes(saved, ((each.key, each.encoded, each.ranks) for each in traces.classes))
    pool.aim(target)
    for each in traces.classes:
        pool.give(WriteJob(str(saved), each.key, 0, len(each.ranks.ranks)))
    pool.finish()
    saved.unlink()


def _check_space(request: Request, traces: TraceSet, extra: int, smaller: Callable[[int], list[str]]) -> None:
    """Compare the size of the files with the free space, before the first of them is written."""
    existing, free = free_space(request.out)
    left = abandoned(request.out)[-1:] if request.resume else []
    there = [file.stat().st_size for directory in left for file in directory.iterdir()]
    free += sum(there)
    need = extra
    files = request.rank_files
    if files is not None:
        check_files(request.out, traces.count - len(there))
        need += sum(
            size * len(each.ranks.ranks)
            for size, each in zip(sizes_on_disk(traces, files), traces.classes, strict=True)
        )
    elif isinstance(request.written.files, ClassFiles):
        need += request.written.files.size(traces)
    if need <= free:
        return
    fit = 0 if files is None else int((free - extra) // max(sizes_on_disk(traces, files)))
    ranks = [str(Word("only", format_ranks(traces.ranks[:fit])))] if fit > 0 else []
    fits = " or ".join([*smaller(free), *ranks]) or "nothing less"
    raise UsageError(
        f"the traces take {need:,} bytes and {existing} has {free:,} free: name another directory with {Word('out')}, "
        f"or free some; what would fit is {fits}"
    )


def _validate(directory: Path, so: str) -> None:
    # Reading traces needs protobuf, writing them does not.
    from stagedb.traces.set_validation import validate_traces

    # The inputs of simulators are left out: people may have edited them.
    report = validate_traces(directory, inputs=False, own=True)
    if report.faults:
        faults = "; ".join(
            f"rank {each.rank}, node {each.node}: {each.rule}: {each.message}" for each in report.faults[:5]
        )
        raise StagedbError(f"the traces do not run, {so}: {faults}")


# `unpack`: from a packed file to a trace set on disk, without a store.


def unpack_traces(
    path: Path, request: Request, *, only: str | None = None, progress: Progress | None = None
) -> Summary:
    """Write the traces of a packed file to a directory, the same files that `export` writes.

    only: ranks such as `0-7,16`; all ranks in the file if not given. Raises UsageError for requests that are refused
    and StagedbError for failures, a damaged file included; then no file remains under the name.
    """
    clock = WriteClock()
    with Packed(path) as packed, clock.stage("read"):
        request.check(packed.world, only)
        traces = _wanted(packed, only)
    return write_set(traces, request, counter=Counter(progress), clock=clock)


def _wanted(packed: Packed, only: str | None) -> TraceSet:
    if only is None:
        return packed.traces()
    ranks = parse_ranks(only, packed.world)
    traces = packed.traces(packed.classes_of(ranks)).only(ranks)
    if traces.count < len(ranks):
        raise UsageError(f"{packed.path} holds {traces.count} of the {len(ranks)} ranks of {Word('only', shown(only))}")
    return traces
