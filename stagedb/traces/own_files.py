"""The files of a directory that are a trace set's own: stagedb wrote them, and may remove them."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import read_document
from stagedb.traces.checksums import CHECKSUMS, read_checksums
from stagedb.traces.formats import FORMATS, RankFiles
from stagedb.traces.simulators import SIMULATORS
from stagedb.traces.trace_set import MANIFEST

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
