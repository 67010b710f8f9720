"""Files that are written completely or not at all."""

import os
from pathlib import Path

from stagedb.errors import StagedbError


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write a file, or replace it. A reader never sees a part of it, and a failure leaves the old file.

    option: the option of the command line that names the file. Raises StagedbError if it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StagedbError(f"cannot write {path}: {error.strerror} ({option})") from error
