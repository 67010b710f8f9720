"""The last resort: an error that no code expects becomes one line, and a file with what a report needs."""

import errno
import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from stagedb.cli.shared_options import print_line
from stagedb.files import shown

EXIT_UNEXPECTED = 70
EXIT_FAILED = 1

_ACCOUNT = re.compile(r"//\S*@")


def report(error: Exception, arguments: Sequence[str]) -> int:
    """Print one line for an error, write its details to a file, and return the exit status."""
    if isinstance(error, MemoryError):
        _print("the memory of this machine is full: take fewer ranks, or a machine with more memory")
        return EXIT_FAILED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        _print(f"the disk is full{where}: free some space, then run the command again")
        return EXIT_FAILED
    hidden = hiding(arguments)
    place = _write(error, arguments, hidden)
    details = "" if place is None else f". Details are in {place}: please attach it to a report (CONTRIBUTING.md)"
    _print(f"stagedb itself failed: {type(error).__name__}: {shown(hidden(str(error)))}{details}")
    return EXIT_UNEXPECTED


def _print(text: str) -> None:
    print_line(f"Error: {text}", err=True)


def hiding(arguments: Sequence[str]) -> Callable[[str], str]:
    """A function that replaces accounts in addresses, and each password that this command has."""
    try:
        from stagedb.store.store_settings import config_file, known_secrets, without_secrets

        secrets = known_secrets(arguments, os.environ, config_file(os.environ))
    except Exception:  # noqa: BLE001  # what is reported may be the failure of such an import
        return lambda text: _ACCOUNT.sub("//***@", text)
    return lambda text: _ACCOUNT.sub("//***@", without_secrets(text, secrets))


def _write(error: Exception, arguments: Sequence[str], hidden: Callable[[str], str]) -> str | None:
    """The path of a new file with versions, arguments and the traceback, all without secrets; None without a place."""
    lines = [
        f"stagedb {_version('stagedb')}, Python {platform.python_version()}, {platform.platform()}",
        *(f"{name} {_version(name)}" for name in ("neo4j", "arcadedb-embedded", "typer", "protobuf")),
        "arguments: " + " ".join(shown(hidden(argument)) for argument in arguments[1:]),
        "".join(traceback.format_exception(error)),
    ]
    text = hidden("\n".join(lines))
    try:
        descriptor, path = tempfile.mkstemp(prefix="stagedb-error-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        sys.stderr.write(text)
        return None
    return path


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
