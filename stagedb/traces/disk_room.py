"""The room on a disk that traces need: bytes, and names of files."""

import os
import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.traces.encoded_class import rank_files

if TYPE_CHECKING:
    from stagedb.traces.formats import RankFiles
    from stagedb.traces.set_output import Request
    from stagedb.traces.trace_set import ClassTraces, TraceSet

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
