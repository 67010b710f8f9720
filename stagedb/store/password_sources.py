"""Where the password of a named store is: a variable of the environment, a file, or the keyring of the system.

The keyring keeps it by the whole address of the server and the user, so a name or a project's file that leads to
another server finds no password.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stagedb.errors import UsageError
from stagedb.files import open_regular
from stagedb.mentions import Word, call

LONGEST: Final = 4_096
"""Bytes of the longest password."""


@dataclass(frozen=True)
class InVariable:
    """The password is in a variable of the environment."""

    name: str

    def __str__(self) -> str:
        return f"variable {self.name}"


@dataclass(frozen=True)
class InFile:
    """The password is the first line of a file that only its owner can read."""

    path: Path

    def __str__(self) -> str:
        return f"file {self.path}"


@dataclass(frozen=True)
class InKeyring:
    """The keyring of the system has the password."""

    def __str__(self) -> str:
        return "keyring"


@dataclass(frozen=True)
class Written:
    """The configuration file itself has the password. `stagedb store add` never writes it so."""

    password: str = field(repr=False)

    def __str__(self) -> str:
        return "configuration file"


PasswordSource = InVariable | InFile | InKeyring | Written

_READ: set[str] = set()
"""What this process read from files and the keyring. Only this can be in what it prints; a keyring may ask a person
before it gives anything, so it is not read again for that."""


def read_so_far() -> frozenset[str]:
    """The passwords that this process has read from files and from the keyring."""
    return frozenset(_READ)


def password_of(
    source: PasswordSource, uri: str, username: str | None, where: str, environment: Mapping[str, str]
) -> str:
    """The password. where: what names the source, for errors.

    username: of the account in the keyring. uri: of the server. environment: variables by name. Raises UsageError if it
    is not there.
    """
    match source:
        case InVariable(name):
            if name not in environment:
                raise UsageError(f"{where} takes its password from the environment variable {name}, which is not set")
            return environment[name]
        case InFile(path):
            found = _from_file(path, where)
        case InKeyring():
            found = _from_keyring(uri, username, where)
        case Written(password):
            return password
    _READ.add(found)
    return found


def _from_file(path: Path, where: str) -> str:
    place = f"the password file {path} of {where}"
    try:
        with open_regular(path) as file:
            if hasattr(os, "geteuid"):
                _check_own(os.fstat(file.fileno()), place)
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror}") from None
    return one_line(data, place)


def _check_own(found: os.stat_result, place: str) -> None:
    if found.st_uid != os.geteuid():
        raise UsageError(f"{place} belongs to another user, who knows it then: copy it into a file of your own")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UsageError(f"others can open {place}: run `chmod 600` on it, and change the password if they may have it")


def one_line(data: bytes, place: str) -> str:
    """The only line of a text that has a password.

    data: the text. place: where it comes from, for errors. Raises UsageError, without the text, for anything else.
    """
    if len(data) > LONGEST:
        raise UsageError(f"{place} is longer than {LONGEST} bytes: a password is one line")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{place} is not UTF-8 text: a password is one line of text") from None
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0]:
        raise UsageError(f"{place} has {len(lines)} lines: a password is one line that is not empty")
    return lines[0]


def _service(uri: str) -> str:
    return f"stagedb {uri}"


def _from_keyring(uri: str, username: str | None, where: str) -> str:
    keyring = _keyring()
    try:
        found = keyring.get_password(_service(uri), username or "")
    except keyring.errors.KeyringError as error:
        raise _unusable(error) from None
    if not found:
        raise UsageError(
            f"the keyring has no password of {username} for {uri} ({where}): "
            f"{call('store add', 'NAME', uri, username=username, keyring=True, force=True)} asks for it"
        )
    return str(found)


def check_keyring() -> None:
    """Raise UsageError if the package that reads the system's keyring is not installed."""
    _keyring()


def keep(uri: str, username: str, password: str) -> None:
    """Put a password into the system's keyring, for a server and a user.

    uri: of the server. username: of the account there. Raises UsageError if that fails.
    """
    keyring = _keyring()
    _READ.add(password)
    try:
        keyring.set_password(_service(uri), username, password)
        kept = keyring.get_password(_service(uri), username) == password
    except keyring.errors.KeyringError as error:
        raise _unusable(error) from None
    if not kept:
        raise UsageError(
            f"the keyring did not keep the password: use {Word('password_env')} or {Word('password_file')}"
        )


def forget(uri: str, username: str) -> bool:
    """Remove a password from the keyring. False if it has none. uri: of the server. username: of the account there."""
    keyring = _keyring()
    try:
        keyring.delete_password(_service(uri), username)
    except keyring.errors.PasswordDeleteError:
        return False
    except keyring.errors.KeyringError as error:
        raise _unusable(error) from None
    return True


def _keyring() -> Any:
    """The package, which is optional."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise UsageError(
            f"the keyring needs the package keyring: pip install keyring, or use {Word('password_env')} or "
            f"{Word('password_file')}"
        ) from None
    return keyring


def _unusable(error: Exception) -> UsageError:
    kind = type(error).__name__
    return UsageError(
        f"this machine's keyring cannot be used ({kind}): start or unlock it, or use {Word('password_env')} or "
        f"{Word('password_file')}"
    )
