"""Where a view may be written: a place where it replaces nothing that is not its like."""

import os
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.traces.output_places import TakenError

SIGN = "stagedb"
"""What the beginning of every view has, so that it is known again."""

_HEAD = 512


def check(path: Path, head: bytes, force: bool) -> None:
    """Raise TakenError where a file cannot get this name: with `force` one of stagedb is replaced, and no other.

    head: bytes that a file of the same kind begins with.
    """
    if not os.path.lexists(path):
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no directory: make it, or name another file with --out")
        return
    if path.is_symlink() or not path.is_file():
        raise TakenError(f"{path} exists and is no regular file: name another file with --out")
    if not force:
        raise TakenError(f"{path} exists: name another file with --out, or replace it with --force")
    try:
        with path.open("rb") as file:
            found = file.read(_HEAD)
    except OSError as error:
        raise TakenError(f"{path} exists and cannot be read ({error.strerror}): name another file with --out") from None
    if not found.startswith(head) or SIGN.encode() not in found:
        raise TakenError(
            f"{path} exists and was not written by this command, so --force does not replace it: name another file "
            "with --out"
        )
