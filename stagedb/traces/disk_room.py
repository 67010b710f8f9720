"""The room on a disk that traces need, from their number alone."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from stagedb.errors import UsageError

if TYPE_CHECKING:
    from stagedb.traces.set_output import Request

BLOCK = 4096
"""A file's size on disk is a multiple of this."""

LEAST_NODE, MOST_NODE = 64, 1024
"""Bytes of a node in a plain trace: fewer than any has, and more than most have."""


def check_counts(request: "Request", ranks: int, nodes: int) -> None:
    """Raise UsageError if the traces of all ranks have no room on the disk, from their number alone.

    ranks, nodes: of the whole set. It is for large sets: encoding one that cannot be written takes long.
    """
    existing, free = free_space(request.out)
    files = request.rank_files
    each = 0 if files is None or files.compress else LEAST_NODE
    need = max(ranks * BLOCK, nodes * each)
    if need > free:
        raise UsageError(
            f"the traces of {ranks:,} ranks take at least {need:,} bytes and {existing} has {free:,} free: name "
            "another directory with --out, free some, or write less: --packed makes one small file, --only takes some "
            "ranks"
        )


def free_space(out: Path) -> tuple[Path, int]:
    """The directory above a new one that exists, and the free bytes of its disk."""
    out = out.absolute()
    existing = next(place for place in (*out.parents, out) if place.exists())
    return existing, shutil.disk_usage(existing).free
