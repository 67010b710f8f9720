"""Files that a plan's words name: their text, with a clear error if there is none."""

from pathlib import Path

from stagedb.errors import UsageError


def read_text(path: Path, what: str, option: str) -> str:
    """The text of a file. UsageError, which names `what` it contains and the option, if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror} ({option})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} {path} is not UTF-8 text ({option})") from error
