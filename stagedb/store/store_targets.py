"""The store that a command uses: `--store`, the environment, the configuration file, or the embedded engine."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import platformdirs

from stagedb.errors import UsageError
from stagedb.inputs import is_there, parse_document, read_text, shown
from stagedb.places import embedded_home

EMBEDDED = "embedded"
"""The name of the store on this machine that needs no server; it is the default."""

SCHEMES = ("bolt", "bolt+s", "bolt+ssc", "neo4j", "neo4j+s", "neo4j+ssc")

_PLAIN = ("bolt", "neo4j")
"""Schemes that send everything as it is, the password included. `+s` encrypts, `+ssc` does so for a certificate that
the server signed itself."""

_LONGEST_WRITE = 86_400
_KEYS = {"uri", "username", "password", "password_env", "database"}
INSECURE = "STAGEDB_INSECURE"
"""Environment variable: 1 sends passwords unencrypted too, as `--insecure` does."""

WRITE_TIME = 60.0
"""Seconds after which a server ends a transaction that writes; STAGEDB_WRITE_TIME overrides it.

So a suspended client holds its locks no longer. One that waits for these locks has as long, and begins later. The
largest batches take a few seconds. The embedded engine ignores it: it has no locks that outlast a commit.
"""


@dataclass(frozen=True)
class StoreTarget:
    """A server's address and account. Its text leaves the password out. `source` names where the address comes from."""

    uri: str
    username: str | None
    password: str | None = field(repr=False)
    database: str
    source: str


def choose(
    word: str | None,
    environment: Mapping[str, str],
    config: Path,
    *,
    insecure: bool = False,
    option: str = "--store",
    holder: str | None = None,
) -> StoreTarget | None:
    """The server to use, or None for the embedded engine.

    word: the value of `--store`: a URI, the name of a store in the configuration file, or `embedded`. Without it
    NEO4J_URI decides, then `default` in the configuration file; without these it is the embedded engine.
    insecure: whether a password may be sent to another machine unencrypted. STAGEDB_INSECURE and `insecure` in the
    configuration file allow it too. option: where the word comes from, for errors. holder: the address of the server
    that the account in the environment belongs to; NEO4J_URI names it if it is set. The account is sent to no other
    server. Raises UsageError for a URI or a name that cannot be used.
    """
    allowed = _switch(environment, INSECURE) or insecure
    if word is None and environment.get("NEO4J_URI"):
        return _encrypted(_from_uri(environment["NEO4J_URI"], environment, "NEO4J_URI"), allowed)
    if word is not None and "://" in word:
        return _encrypted(_from_uri(word, _account_for(word, environment, option, holder), option), allowed)
    if word == EMBEDDED:
        return None
    settings = read_config(config)
    name = word if word is not None else settings.get("default")
    if name is None or name == EMBEDDED:
        return None
    if isinstance(name, str) and any(mark in name for mark in "@:/"):
        # It may be an address with a password, so that its text stays out of the error.
        source = option if word is not None else f"default of {config}"
        raise UsageError(
            f"{source} is neither the URI of a store nor the name of one: write a URI as bolt://host:7687, with the "
            "account in NEO4J_USERNAME and NEO4J_PASSWORD; a name has no @ : or /"
        )
    stores = settings.get("stores", {})
    if not isinstance(stores, dict) or not isinstance(name, str) or not isinstance(stores.get(name), dict):
        known = ", ".join(sorted(stores)) if isinstance(stores, dict) and stores else "none"
        raise UsageError(
            f"no store named {shown(name)} in {config} (it has {known}): give {option} a URI such as "
            f"bolt://host:7687, {shown(EMBEDDED)}, or add [stores.NAME] to that file"
        )
    table = dict(stores[name])
    insecure = table.pop("insecure", False)
    if not isinstance(insecure, bool):
        raise UsageError(f"insecure of [stores.{name}] of {config} must be true or false, not {shown(insecure)}")
    return _encrypted(_from_table(name, table, environment, config), allowed or insecure)


def _encrypted(target: StoreTarget, insecure: bool) -> StoreTarget:
    """The target. Raises UsageError if its password would go to another machine unencrypted."""
    parts = urlsplit(target.uri)
    if insecure or not target.password or parts.scheme not in _PLAIN or _is_loopback(parts.hostname or ""):
        return target
    raise UsageError(
        f"{target.source} is {target.uri}, and the password would cross the network unencrypted: use "
        f"{parts.scheme}+s://{parts.netloc} ({parts.scheme}+ssc:// if the server signed its certificate itself), or an "
        f"SSH tunnel to localhost. For a private network there is --insecure, {INSECURE}=1, or insecure = true in the "
        "configuration file"
    )


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its text alone: a name server may be someone else's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _switch(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{name} must be 1 or 0, not {shown(text)}")
    return text == "1"


def write_time(environment: Mapping[str, str]) -> float:
    """Seconds after which a server ends a transaction that writes. Raises UsageError for a text that is no time."""
    text = environment.get("STAGEDB_WRITE_TIME", str(WRITE_TIME))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _LONGEST_WRITE:
        raise UsageError(
            f"STAGEDB_WRITE_TIME must be a number of seconds from 1 to {_LONGEST_WRITE}, not {shown(text)}"
        )
    return seconds


def config_file(environment: Mapping[str, str]) -> Path:
    """The configuration file: STAGEDB_CONFIG, or `config.toml` in the user's configuration directory."""
    if environment.get("STAGEDB_CONFIG"):
        return Path(environment["STAGEDB_CONFIG"])
    return platformdirs.user_config_path("stagedb") / "config.toml"


def home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory of the embedded store: STAGEDB_HOME, or the user's data directory."""
    return embedded_home(environment)


def _account_for(uri: str, environment: Mapping[str, str], option: str, holder: str | None) -> Mapping[str, str]:
    """The environment, without its account and database if these belong to another server than that of a URI.

    Raises UsageError if the URI has no account of its own then.
    """
    named = environment.get("NEO4J_URI")
    address, username, _ = split_uri(uri, option)
    whose = split_uri(named, "NEO4J_URI")[0] if named else holder
    if whose is None or urlsplit(whose).netloc == urlsplit(address).netloc:
        return environment
    if not username and environment.get("NEO4J_PASSWORD"):
        raise UsageError(
            f"{option} is {address}, and the account in NEO4J_USERNAME and NEO4J_PASSWORD belongs to {whose}: it is "
            "sent to no other server. Name this store, with its account, in the configuration file, as [stores.NAME]"
        )
    return {name: value for name, value in environment.items() if not name.startswith("NEO4J_")}


def _from_uri(uri: str, environment: Mapping[str, str], source: str) -> StoreTarget:
    address, username, password = split_uri(uri, source)
    return StoreTarget(
        uri=address,
        username=username or environment.get("NEO4J_USERNAME"),
        password=password or environment.get("NEO4J_PASSWORD"),
        database=environment.get("NEO4J_DATABASE") or "neo4j",
        source=source,
    )


def _from_table(name: str, table: Mapping[str, Any], environment: Mapping[str, str], config: Path) -> StoreTarget:
    source = f"[stores.{name}] of {config}"
    unknown = sorted(set(table) - _KEYS)
    if unknown or not all(isinstance(value, str) for value in table.values()) or "uri" not in table:
        raise UsageError(
            f"{source} needs uri, and may have {', '.join(sorted(_KEYS - {'uri'}))}, which are texts, and insecure, "
            "which is true or false"
        )
    address, username, password = split_uri(table["uri"], source)
    variable = table.get("password_env")
    if variable is not None and variable not in environment:
        raise UsageError(f"{source} takes its password from the environment variable {variable}, which is not set")
    return StoreTarget(
        uri=address,
        username=table.get("username", username),
        password=environment[variable] if variable is not None else table.get("password", password),
        database=table.get("database", "neo4j"),
        source=source,
    )


def split_uri(uri: str, source: str) -> tuple[str, str | None, str | None]:
    """The URI without its account, the user and the password. Raises UsageError, without secrets, if it is invalid."""
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


def read_config(config: Path) -> dict[str, Any]:
    """The content of the configuration file; nothing if there is none. Raises UsageError if it cannot be read."""
    if str(config) == os.devnull or not is_there(config):
        return {}
    what = "configuration file"
    content: dict[str, Any] = parse_document(read_text(config, what), "TOML", f"the {what} {config}")
    return content
