"""Texts that should be paths: those that none can be are refused, and all are shown whole only if they are short."""

from pathlib import Path

from stagedb.errors import UsageError
from stagedb.outputs.printable_text import printable

_LONGEST = 1024
"""Characters of the longest path that an error shows whole."""

_END = 28
"""Characters of both ends of a longer one."""


def check_path(path: Path, option: str) -> None:
    """Raise UsageError for a text that no path can be: too long, with the character NUL, not Unicode, a loop of links.

    option: the option of the command line that gives it. A path that has nothing yet is fine.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except OSError as error:
        raise UsageError(f"{path_text(path)} cannot be a path: {error.strerror} ({option})") from None
    except ValueError:
        raise UsageError(f"{path_text(path)} cannot be a path: {not_a_path(path)} ({option})") from None


def make_directory(path: Path, option: str) -> None:
    """Make a directory for files, with those above it. UsageError, which names the option, where that cannot be."""
    check_path(path, option)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {path_text(path)}: {error.strerror} ({option})") from None


def path_text(path: Path) -> str:
    """A path as an error prints it: without control characters and line breaks, and with its ends if it is long."""
    text = str(path)
    if len(text) > _LONGEST:
        text = f"{text[:_END]}...{text[-_END:]}"
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def not_a_path(path: Path) -> str:
    """Why the system cannot take a text as a path, if it raised ValueError."""
    return "a path cannot have the character NUL" if "\0" in str(path) else "a path must be Unicode"
