"""One file, whole or not at all."""

import os
from pathlib import Path

from stagedb.errors import StagedbError


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write a file, or replace it: a reader never meets half of it, and a failure leaves what was there.

    option: of the command line, which names the file. Raises StagedbError where it cannot be written.
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
