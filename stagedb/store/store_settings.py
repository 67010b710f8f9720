"""What configuration files name: stores, their addresses, where their passwords are, the default one, a workspace.

Only the user's file has stores, with addresses and where their passwords are. A project's file, which may come from
somebody else with a checkout, chooses among them: it can name no server that the user has not added, so it can send no
password and no data elsewhere.
"""

import ipaddress
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import platformdirs

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, is_there, open_regular, parse_document, path_text, read_text, shown
from stagedb.mentions import Word, call
from stagedb.store.private_directory import is_private_group, user_text

# Addresses of servers: what a URI names without its account, and whether a password could be read on the way.

SCHEMES = ("bolt", "bolt+s", "bolt+ssc", "neo4j", "neo4j+s", "neo4j+ssc")

INSECURE = "STAGEDB_INSECURE"
"""Environment variable: 1 sends passwords unencrypted too, as `--insecure` does."""

_PLAIN = ("bolt", "neo4j")
"""Schemes that send everything as it is, the password included. `+s` encrypts, `+ssc` does so for a certificate that
the server signed itself."""


def split_uri(uri: str, source: str) -> tuple[str, str | None, str | None]:
    """The URI without its account, the user and the password.

    uri: with or without an account. source: where it comes from, for errors. Raises UsageError, without secrets, if it
    is invalid.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise UsageError(f"{source} is not the URI of a store: write it as bolt://host:7687") from None
    # With an unquoted # or ? in a password, the rest of the account would be taken for another part.
    odd = parts.path.strip("/") or parts.fragment or "@" in parts.query
    if parts.scheme not in SCHEMES or not parts.hostname or odd:
        raise UsageError(f"{source} is not the URI of a store: write it as bolt://host:7687 ({', '.join(SCHEMES)})")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = urlunsplit((parts.scheme, f"{host}:{port or 7687}", "", parts.query, ""))
    user = unquote(parts.username) if parts.username else None
    return address, user, unquote(parts.password) if parts.password else None


def check_encrypted(uri: str, source: str) -> None:
    """Raise UsageError if a password for this address would go to another machine unencrypted.

    uri: the address. source: where it comes from, for errors.
    """
    parts = urlsplit(uri)
    if parts.scheme not in _PLAIN or _is_loopback(parts.hostname or ""):
        return
    raise UsageError(
        f"{source} is {uri}, and the password would cross the network unencrypted: use "
        f"{parts.scheme}+s://{parts.netloc} ({parts.scheme}+ssc:// if the server signed its certificate itself), or "
        f"an SSH tunnel to localhost. For a private network there is {Word('insecure')}, {INSECURE}=1, or insecure = "
        "true in the configuration file"
    )


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its text alone: a name server may be someone else's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Where the password of a named store is: a variable of the environment, a file, or the keyring of the system.
#
# The keyring keeps it by the whole address of the server and the user, so a name or a project's file that leads to
# another server finds no password.

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
                _check_secret_file(os.fstat(file.fileno()), place)
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror}") from None
    return one_line(data, place)


def _check_secret_file(found: os.stat_result, place: str) -> None:
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


EMBEDDED: Final = "embedded"
"""The name of the store on this machine that needs no server; it is the default."""

PROJECT_NAME: Final = ".stagedb.toml"
PROJECT: Final = "STAGEDB_PROJECT"
"""Environment variable: the file of a project; empty for none. Without it, the nearest `.stagedb.toml` counts, upward
from the working directory."""

_TEXTS = ("uri", "username", "password", "password_env", "password_file", "database", "workspace")
_SWITCHES = ("insecure", "keyring")
_OF_PROJECT = ("store", "uri", "username", "database", "workspace")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATABASE = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class SettingsFile:
    """A TOML file of settings. text: as it is written, to find lines. content: parsed; empty if there is no file."""

    path: Path
    text: str = field(repr=False)
    content: Mapping[str, Any] = field(repr=False)

    def place(self, key: str, table: str = "") -> str:
        """The file, with the line of a key, or of its table, where it can be found."""
        line = _line(self.text, key, table)
        return f"{path_text(self.path)}, line {line}" if line else path_text(self.path)


@dataclass(frozen=True)
class NamedStore:
    """A server that the user added to the configuration file.

    uri: without an account. username, database, workspace: None if the file has none. password: where it is. insecure:
    whether it may be sent unencrypted. source: the place in the file, for errors.
    """

    name: str
    uri: str
    username: str | None
    password: PasswordSource | None
    database: str | None
    workspace: str | None
    insecure: bool
    source: str


@dataclass(frozen=True)
class Project:
    """The file of a project.

    store: the name of the store that it chooses, if it chooses one. uri, username, database, workspace: what it sets
    instead of the user's settings; None where it sets nothing.
    """

    file: SettingsFile
    store: str | None
    uri: str | None
    username: str | None
    database: str | None
    workspace: str | None


def config_file(environment: Mapping[str, str]) -> Path:
    """The configuration file: STAGEDB_CONFIG, or `config.toml` in the user's configuration directory.

    environment: variables by name.
    """
    if environment.get("STAGEDB_CONFIG"):
        return Path(environment["STAGEDB_CONFIG"])
    return platformdirs.user_config_path("stagedb") / "config.toml"


def project_file(environment: Mapping[str, str]) -> Path | None:
    """The file of the project that the working directory belongs to, if there is one.

    environment: variables by name.
    """
    named = environment.get(PROJECT)
    if named is not None:
        return None if named in ("", os.devnull) else Path(named)
    try:
        here = Path.cwd()
    except OSError:  # the directory was removed
        return None
    for directory in (here, *here.parents):
        try:
            (directory / PROJECT_NAME).lstat()
        except OSError:
            continue
        return directory / PROJECT_NAME
    return None


def read_settings(config: Path) -> SettingsFile:
    """The configuration file; empty if there is none. Raises UsageError if it cannot be read, or if others own it."""
    if str(config) == os.devnull or not is_there(config):
        return SettingsFile(config, "", {})
    what = "configuration file"
    _check_own(config, what, f"copy it, and name the copy in STAGEDB_CONFIG ({_SHARED})", (0,))
    text = read_text(config, what)
    content: dict[str, Any] = parse_document(text, "TOML", f"the {what} {config}")
    return SettingsFile(config, text, content)


_SHARED: Final = "a file of root is read too"


def read_project(path: Path, named: bool) -> Project:
    """The file of a project. named: the user names it, so it may belong to somebody else.

    Raises UsageError if it cannot be read, if others can change it, and for a key that it may not have.
    """
    what = "project file"
    if not named:
        _check_own(path, what, f"look at it, and set {PROJECT} to its path if you trust it, or to nothing to read none")
    text = read_text(path, what, option=PROJECT if named else "")
    file = SettingsFile(path, text, parse_document(text, "TOML", f"the {what} {path_text(path)}"))
    for key, value in file.content.items():
        if key not in _OF_PROJECT:
            raise UsageError(
                f"{file.place(key)}: a project file has no {shown(key)}, only {', '.join(_OF_PROJECT)}; passwords and "
                f"where they are belong into your own configuration ({call('store add')})"
            )
        if not isinstance(value, str):
            raise UsageError(f"{file.place(key)}: {key} must be a text, not {shown(value)}")
    uri, found = file.content.get("uri"), dict(file.content)
    if "store" in found and found["store"] != EMBEDDED:
        # The value may be an address with a password: errors do not show it.
        checked_name(found["store"], f"store in {file.place('store')}")
    if uri is not None:
        found["uri"], user, password = split_uri(uri, f"uri in {file.place('uri')}")
        if user or password:
            raise UsageError(f"{file.place('uri')}: the uri of a project file has no account: write bolt://host:7687")
    if found.get("database") is not None:
        found["database"] = checked_database(found["database"], f"database in {file.place('database')}")
    return Project(file, *(found.get(key) for key in _OF_PROJECT))


def named_store(name: str, settings: SettingsFile, option: str = str(Word("store"))) -> NamedStore:
    """A store of the configuration file. option: what names it.

    name: of the store. Raises UsageError for an unknown or impossible one.
    """
    stores = settings.content.get("stores", {})
    table = stores.get(name) if isinstance(stores, dict) else None
    if not isinstance(table, dict):
        known = sorted(stores) if isinstance(stores, dict) else []
        hint = did_you_mean(name[:100], [*known, EMBEDDED], most=2)
        raise UsageError(
            f"no store named {shown(name)} in {settings.path} (it has {', '.join(known) or 'none'}){hint}: give "
            f"{option} a URI such as bolt://host:7687, or {shown(EMBEDDED)}; {call('store add', 'NAME', 'URI')} adds "
            "one"
        )
    source = f"[stores.{name}] of {settings.path}"
    right = all(isinstance(table[key], str) for key in _TEXTS if key in table)
    if not set(table) <= {*_TEXTS, *_SWITCHES} or not right or "uri" not in table:
        raise UsageError(
            f"{source} ({settings.place('', f'stores.{name}')}) needs uri, and may have {', '.join(_TEXTS[1:])}, which "
            f"are texts, and {' and '.join(_SWITCHES)}, which are true or false"
        )
    for key in _SWITCHES:
        if not isinstance(table.get(key, False), bool):
            raise UsageError(f"{key} of {source} must be true or false, not {shown(table[key])}")
    address, username, inside = split_uri(table["uri"], source)
    return NamedStore(
        name,
        address,
        table.get("username", username),
        _password_source(table, inside, source),
        None if "database" not in table else checked_database(table["database"], f"database of {source}"),
        table.get("workspace"),
        table.get("insecure", False),
        source,
    )


def named_stores(settings: SettingsFile) -> list[NamedStore]:
    """All stores of the configuration file, by name. Raises UsageError if one of them cannot be used."""
    stores = settings.content.get("stores", {})
    return [named_store(name, settings) for name in sorted(stores)] if isinstance(stores, dict) else []


def _password_source(table: Mapping[str, Any], inside: str | None, source: str) -> PasswordSource | None:
    found: list[PasswordSource] = []
    if "password_env" in table:
        found.append(InVariable(table["password_env"]))
    if "password_file" in table:
        path = Path(table["password_file"]).expanduser()
        if not path.is_absolute():
            raise UsageError(f"password_file of {source} must be a whole path, not {shown(table['password_file'])}")
        found.append(InFile(path))
    if table.get("keyring"):
        found.append(InKeyring())
    if len(found) > 1:
        raise UsageError(f"{source} names several places of its password: leave one")
    if found:
        return found[0]
    password = table.get("password", inside)
    return None if password is None else Written(password)


def checked_name(name: str, source: str) -> str:
    """A name for a store.

    source: where the name comes from, for errors. Raises UsageError, without the text, for one that is none.
    """
    if not _NAME.fullmatch(name) or name == EMBEDDED:
        raise UsageError(
            f"{source} is not a name for a store: a name has letters, digits, . _ and -, at most 64, and is not "
            f"{EMBEDDED}, which is the store of this machine"
        )
    return name


def checked_database(name: str, source: str) -> str:
    """The name of a database.

    source: where the name comes from, for errors. Raises UsageError for a text that no server takes.
    """
    if not _DATABASE.fullmatch(name):
        raise UsageError(
            f"{source} is not the name of a database: {shown(name)}; one has letters, digits, . _ and -, begins with a "
            "letter, and has at most 63 characters"
        )
    return name


def _check_own(path: Path, what: str, way: str, also: tuple[int, ...] = ()) -> None:
    """Raise UsageError if somebody else owns a file, or can write to it. also: users who may own it too.

    A link counts as what it leads to, and must be the caller's own too.
    """
    if not hasattr(os, "geteuid"):
        return
    me = os.geteuid()
    try:
        found, link = path.stat(), path.lstat()
    except OSError:
        return  # reading the file reports this error
    for each in (found, link):
        if each.st_uid not in (me, *also):
            raise UsageError(
                f"the {what} {path_text(path)} belongs to {user_text(each.st_uid)}, who could send you to another "
                f"store: {way}"
            )
    others = bool(found.st_mode & stat.S_IWOTH)
    if others or (found.st_mode & stat.S_IWGRP and not is_private_group(found.st_gid, me)):
        raise UsageError(
            f"{'everybody' if others else 'a group'} can write to the {what} {path_text(path)}, and could send you to "
            "another store: run `chmod go-w` on it"
        )


_HEADER = re.compile(r"\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")


def _line(text: str, key: str, table: str) -> int | None:
    """The line of a key in a table, else the line where the table begins; None if neither is written plainly."""
    now, begin = "", None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if header := _HEADER.fullmatch(bare):
            now = re.sub(r"[\s\"']", "", header[1])
            begin = number if now == table else begin
        elif now == table and key and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*=", bare):
            return number
    return begin


# The passwords that a command has, so that what it prints and writes can leave them out.

HIDDEN = "***"
SHORTEST = 4
"""Characters of the shortest password that is hidden: a shorter one is a part of too many words."""


def known_secrets(words: Iterable[str], environment: Mapping[str, str], config: Path) -> frozenset[str]:
    """Every password in the words of a command line, in the environment and in the configuration file.

    Those that this process has read from files and from the keyring are there too.
    """
    uris, found = [*words, environment.get("NEO4J_URI")], [environment.get("NEO4J_PASSWORD"), *read_so_far()]
    with suppress(UsageError):
        stores = read_settings(config).content.get("stores")
        for table in stores.values() if isinstance(stores, dict) else ():
            if isinstance(table, dict):
                uris.append(table.get("uri"))
                found += [table.get("password"), environment.get(str(table.get("password_env")))]
    for uri in uris:
        if isinstance(uri, str):
            # A malformed address too: what is between a colon and the last @.
            account = uri.rpartition("@")[0]
            parts = (account.partition("://")[2] or account).split(":")
            for at in range(1, len(parts)):
                password = ":".join(parts[at:])
                found += [password, unquote(password)]
    return frozenset(secret for secret in found if isinstance(secret, str) and len(secret) >= SHORTEST)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with each secret replaced, as it is, as Python shows it, and as an address has it.

    secrets: such as passwords.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, repr(secret)[1:-1], quote(secret, safe="", errors="surrogatepass")):
            text = text.replace(form, HIDDEN)
    return text
