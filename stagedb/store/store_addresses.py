"""Addresses of servers: what a URI names without its account, and whether a password could be read on the way."""

import ipaddress
from urllib.parse import unquote, urlsplit, urlunsplit

from stagedb.errors import UsageError
from stagedb.mentions import Word

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
