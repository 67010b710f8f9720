"""Changes of a settings file: one writer at a time, whole or not at all, with comments and order as they were."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from stagedb.errors import StagedbError, UsageError
from stagedb.files import is_there, parse_document, path_text, read_text

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

WAIT = 10.0
"""Seconds for which a writer waits for another one."""


def edit(path: Path, what: str, change: "Callable[[TOMLDocument], None]", check: Callable[[Path], Any]) -> None:
    """Change a TOML file, which need not exist. Only its owner can read the new one.

    check: reads the new file, before it replaces the old one, and raises UsageError if it cannot be used. what: the
    file's name in errors. UsageError too if the file is none that can be changed, StagedbError if the disk does not
    take it. change: changes the document in place.
    """
    import tomlkit

    if str(path) == os.devnull:
        raise UsageError(f"the {what} is {os.devnull}, which keeps nothing: name another one with STAGEDB_CONFIG")
    place = path.resolve()  # a link stays a link
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Readers need no lock: they find the old file or the new one.
        with filelock.FileLock(place.with_name(f"{place.name}.lock"), timeout=WAIT, mode=0o600):
            text = read_text(path, what) if is_there(path) else ""
            parse_document(text, "TOML", f"the {what} {path_text(path)}")
            document = tomlkit.parse(text)
            change(document)
            _replace(place, tomlkit.dumps(document), check)
    except filelock.Timeout:
        raise UsageError(
            f"another process has been changing the {what} {path_text(path)} for {WAIT:g} s: run the command again"
        ) from None
    except OSError as error:
        raise StagedbError(f"cannot write the {what} {path_text(path)}: {error.strerror}") from None


def _replace(place: Path, text: str, check: Callable[[Path], Any]) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f"{place.name}.", suffix=".new", dir=place.parent)
    made = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        check(made)
        made.replace(place)
    except BaseException:
        with suppress(OSError):
            made.unlink()
        raise
