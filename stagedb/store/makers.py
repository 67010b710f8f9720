"""The users who make instances and profiles. In a shared store, the newest one is the caller's own newest.

A claim (`stagedb.store.leases`) is a text that ends with the user's name. `builder` of a node is the claim of the
process that made it, `claim` that of the one which last asked for it.
"""

import getpass
import os
from collections.abc import Mapping

_LONGEST = 64


def current_user(environment: Mapping[str, str] | None = None) -> str:
    """The user of this process, as one word: STAGEDB_USER, or the name of the account."""
    name = (os.environ if environment is None else environment).get("STAGEDB_USER", "").strip()
    try:
        name = name or getpass.getuser()
    except (OSError, KeyError, ImportError):
        # An account may have no name, as in a container that runs under a number.
        name = str(os.getuid()) if hasattr(os, "getuid") else "user"
    return "".join(each if each.isprintable() and not each.isspace() else "_" for each in name)[:_LONGEST]


def user_of(claim: str | None) -> str | None:
    """The user of a claim; None if it has none, as those of older versions."""
    parts = (claim or "").split()
    return parts[4] if len(parts) == 5 else None
