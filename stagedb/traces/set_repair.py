"""Files that a completed set lacks now: they were removed since, or cut short."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stagedb.traces.checksums import file_crc
from stagedb.traces.encoded_class import rank_files
from stagedb.traces.formats import RankFiles
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.trace_set import MANIFEST, ClassTraces, TraceSet


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
