"""`export`: an instance of a store to a trace set on disk, complete or absent."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.export.bundle import MANIFEST, groups_json, manifest, simulator_inputs, write_texts
from stagedb.export.checks import check_workload
from stagedb.export.columns import ClassColumns, Workload
from stagedb.export.encode import RankFields, encode, rank_bytes
from stagedb.export.encoded import EncodedClass, save
from stagedb.export.ranks import parse_ranks
from stagedb.export.sequence import Sequence, sequence
from stagedb.export.source import read_workload
from stagedb.export.staging import check_absent, staged
from stagedb.export.validation import validate_traces
from stagedb.export.wire import Ints
from stagedb.export.writing import Format, Job, explain, write_ranks, writers
from stagedb.store import Store, fault_point

Progress = Callable[[int, int], None]
"""Called with how many ranks are written, and of how many."""

REPLAYED_NODES = 100_000
"""Up to so many nodes in all ranks, an export is replayed without being asked."""

SHARED_FILES, SHARED_BYTES = 1000, 100_000_000
"""From so many files or bytes on, processes share the writing: starting one takes as long as some hundred files."""

BLOCK = 4096
"""What a file's size is rounded up to on disk."""


@dataclass(frozen=True)
class Summary:
    """A trace set on disk. `bytes` counts the traces; `seconds` has the time of each stage of the work."""

    directory: Path
    world: int
    files: int
    nodes: int
    bytes: int
    classes: int
    replayed: bool
    seconds: Mapping[str, float]


@dataclass
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        fault_point(f"export.{name}")


@dataclass(frozen=True)
class Encoded:
    """A class ready to be written, with those of its ranks that are wanted."""

    columns: ClassColumns
    nodes: Sequence
    encoded: EncodedClass
    ranks: Ints


def check_request(out: Path, world: int, *, only: str | None = None, force: bool = False) -> None:
    """Raise UsageError for what `export` would refuse about its arguments, before anything is made for it."""
    check_absent(out, force)
    if only is not None:
        parse_ranks(only, world)


def export(
    store: Store,
    instance: str,
    out: Path,
    *,
    only: str | None = None,
    force: bool = False,
    format: str = "et",
    compress: bool = False,
    replay: bool | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write the traces of an instance to a new directory, with communicator groups, simulator inputs and manifest.

    only: ranks such as `0-7,16`; all if not given. force: replace the directory. format: `et` or `json`.
    compress: gzip, which ASTRA-sim does not read. replay: run the traces as a simulator would before they get their
    name; by default up to 100,000 nodes. processes: how many write; by default one a core, for large sets.
    Raises UsageError for requests that are refused and StagedbError for failures; then nothing is left under the name.
    """
    clock = _Clock()
    check_absent(out, force)
    with clock.stage("read"):
        workload = read_workload(store, instance)
    return export_workload(
        workload,
        out,
        only=only,
        force=force,
        format=format,
        compress=compress,
        replay=replay,
        processes=processes,
        progress=progress,
        clock=clock,
    )


def export_workload(
    workload: Workload,
    out: Path,
    *,
    only: str | None = None,
    force: bool = False,
    format: str = "et",
    compress: bool = False,
    replay: bool | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    clock: _Clock | None = None,
) -> Summary:
    """`export` of columns that are at hand."""
    clock = clock or _Clock()
    world = len(workload.ranks)
    check_request(out, world, only=only, force=force)
    written = Format(_kind(format), compress)
    ranks = np.arange(world) if only is None else parse_ranks(only, world)
    fields = RankFields.of(workload)
    with clock.stage("encode"):
        classes = encode_classes(workload, fields, ranks)
        total = sum(each.encoded.size * len(each.ranks) for each in classes)
        nodes = sum(each.nodes.nodes * len(each.ranks) for each in classes)
    whole = len(ranks) == world and format == "et"
    if replay and not whole:
        raise UsageError("a replay needs all ranks as .et: leave out --replay, or --only and --format json")
    replayed = replay if replay is not None else whole and nodes <= REPLAYED_NODES
    name = workload.model.replace("/", "_")
    files = {f"{name}.json": groups_json(workload), **simulator_inputs(name, workload)}
    described = [(each.columns, each.nodes, each.encoded) for each in classes]
    files[MANIFEST] = manifest(name, workload, None if only is None else ranks, described, files, format)
    _check_space(out, classes, sum(map(len, files.values())))
    try:
        with staged(out, force=force) as partial:
            with clock.stage("write"):
                _write(
                    classes,
                    workload,
                    fields,
                    partial,
                    name,
                    written,
                    _processes(processes, len(ranks), total),
                    progress,
                )
            with clock.stage("bundle"):
                write_texts(partial, files)
            if replayed:
                with clock.stage("replay"):
                    _validate(partial, out)
            fault_point("export.rename")
    except OSError as error:
        raise StagedbError(explain(error, out)) from error
    return Summary(out, world, len(ranks), nodes, total, len(workload.classes), replayed, clock.seconds)


def encode_classes(workload: Workload, fields: RankFields, ranks: Ints) -> list[Encoded]:
    """Lay out and check every class, and encode those of which ranks are wanted."""
    nodes = {columns.number: sequence(columns) for columns in workload.classes}
    check_workload(workload, nodes)
    said: dict[str, str | int] = {"model": workload.model, "instance": workload.instance, "world": len(workload.ranks)}
    made = []
    for columns in workload.classes:
        wanted = ranks[workload.ranks.number[ranks] == columns.number]
        if len(wanted):
            number = columns.number
            encoded = encode(columns, nodes[number], fields, {**said, "class": number})
            made.append(Encoded(columns, nodes[number], encoded, wanted))
    return made


def _write(
    classes: list[Encoded],
    workload: Workload,
    fields: RankFields,
    directory: Path,
    name: str,
    format: Format,
    processes: int,
    progress: Progress | None,
) -> None:
    done, of = 0, sum(len(each.ranks) for each in classes)

    def written(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, of)

    if processes < 2:
        for each in classes:
            rows = range(len(each.ranks))
            write_ranks(each.encoded, rank_bytes(workload, fields, each.ranks), rows, directory, name, format, written)
        return
    saved = directory / ".classes"
    saved.mkdir()
    with writers(processes, written) as pool:
        for each in classes:
            path = saved / f"{each.columns.number}.npz"
            save(path, each.encoded, rank_bytes(workload, fields, each.ranks))
            pool.give(Job(str(path), str(directory), name, format.kind, format.compress, 0, len(each.ranks)))
        pool.finish()
    shutil.rmtree(saved)


def _processes(asked: int | None, files: int, total: int) -> int:
    if asked is not None:
        return asked
    if files < SHARED_FILES and total < SHARED_BYTES:
        return 1
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, files)


def _kind(format: str) -> str:
    if format not in ("et", "json"):
        raise UsageError(f"unknown format {format!r}: --format is et or json")
    return format


def _check_space(out: Path, classes: list[Encoded], beside: int) -> None:
    """Compare what the files will take with what is free. Compressed ones and JSON are taken to be as large."""
    need = beside + sum(-(-each.encoded.size // BLOCK) * BLOCK * len(each.ranks) for each in classes)
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if need > free:
        raise UsageError(
            f"the traces take {need:,} bytes and {existing} has {free:,} free: "
            "free some, name another directory with --out, or write fewer ranks with --only"
        )


def _validate(partial: Path, out: Path) -> None:
    report = validate_traces(partial)
    if report.faults:
        faults = "; ".join(
            f"rank {each.rank}, node {each.node}: {each.rule}: {each.message}" for each in report.faults[:5]
        )
        raise StagedbError(f"the traces do not run, so {out} was not made: {faults}")
