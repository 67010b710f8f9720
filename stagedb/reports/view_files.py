"""Where a view may be written: a file replaces only a file of its own kind."""

import os
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.files import check_path
from stagedb.mentions import Word
from stagedb.traces.output_places import TakenError

SIGN = "stagedb"
"""Text at the beginning of every view, by which it is recognised."""

_HEAD = 512


def check(path: Path, head: bytes, force: bool) -> None:
    """Raise TakenError if a file cannot have this name. `force` allows it to replace a file of stagedb.

    head: the first bytes of a file of the same kind.
    """
    check_path(path, str(Word("out")))
    if not os.path.lexists(path):
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no directory: make it, or name another file with {Word('out')}")
        return
    if path.is_symlink() or not path.is_file():
        raise TakenError(f"{path} exists and is no regular file: name another file with {Word('out')}")
    if not force:
        raise TakenError(
            f"{path} exists: name another file with {Word('out')}, or replace it with {Word('force', True)}"
        )
    try:
        with path.open("rb") as file:
            found = file.read(_HEAD)
    except OSError as error:
        raise TakenError(
            f"{path} exists and cannot be read ({error.strerror}): name another file with {Word('out')}"
        ) from None
    if not found.startswith(head) or SIGN.encode() not in found:
        raise TakenError(
            f"{path} exists and was not written by this command, so {Word('force', True)} does not replace it: name "
            f"another file with {Word('out')}"
        )
