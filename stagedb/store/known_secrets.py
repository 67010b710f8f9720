"""The passwords that a command has, so that what it prints and writes can leave them out."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from stagedb.errors import UsageError
from stagedb.store.password_sources import read_so_far
from stagedb.store.store_settings import read_settings

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
