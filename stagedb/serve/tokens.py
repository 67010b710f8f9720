"""The tokens of a server: that of readers from the environment, from a file, or made once and kept in a private file,
and that of writers from the environment or a file alone.

A token is never an argument of the program and in no log: other users of a machine can read both.
"""

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stagedb.errors import UsageError
from stagedb.files import read_text
from stagedb.places import embedded_home

VARIABLE: Final = "STAGEDB_SERVE_TOKEN"
WRITER_VARIABLE: Final = "STAGEDB_SERVE_WRITER_TOKEN"
SHORTEST = 16
"""Characters of the shortest token: shorter ones can be guessed."""

WRITER_OPTION: Final = "--writer-token-file"

_LONGEST = 512
_FORM = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class FoundToken:
    """A token, and the place that it was read from, in words for a person who looks for it."""

    token: str = field(repr=False)
    source: str


def find_token(file: Path | None, environment: Mapping[str, str] | None = None) -> FoundToken:
    """The token of a file, of the environment, or of the file that is made for it, in this order.

    Raises UsageError for a token that is too short, or has characters that an address cannot have.
    """
    env = os.environ if environment is None else environment
    if file is not None:
        return FoundToken(_checked(_read(file), f"--token-file {file}"), str(file))
    if env.get(VARIABLE):
        return FoundToken(_checked(env[VARIABLE].strip(), VARIABLE), VARIABLE)
    kept = embedded_home(env) / "serve-token"
    if not kept.exists():
        _make(kept)
    return FoundToken(_checked(_read(kept), str(kept)), str(kept))


def find_writer_token(file: Path | None, environment: Mapping[str, str] | None = None) -> FoundToken | None:
    """The token of those who may write: of a file, or of the environment. None is made: without one nobody writes.

    Raises UsageError for a token that cannot be used, as that of readers.
    """
    env = os.environ if environment is None else environment
    if file is not None:
        return FoundToken(_checked(_read(file, WRITER_OPTION), f"{WRITER_OPTION} {file}"), str(file))
    if env.get(WRITER_VARIABLE):
        return FoundToken(_checked(env[WRITER_VARIABLE].strip(), WRITER_VARIABLE), WRITER_VARIABLE)
    return None


def _read(file: Path, option: str = "--token-file") -> str:
    return read_text(file, "token", option=option).strip()


def _make(file: Path) -> None:
    """Write a new token that only its owner can read. Another process may do so at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written ({error.strerror}): name a file that has a token with --token-file, or set "
            f"{VARIABLE}"
        ) from None
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(secrets.token_urlsafe(32) + "\n")


def _checked(token: str, where: str) -> str:
    if not SHORTEST <= len(token) <= _LONGEST or not _FORM.fullmatch(token):
        raise UsageError(
            f"the token of {where} cannot be used: it needs {SHORTEST} to {_LONGEST} characters without spaces or "
            "accents (`openssl rand -hex 24` makes one)"
        )
    return token
