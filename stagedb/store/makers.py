"""The users who make instances and profiles. In a shared store, the newest one is the caller's own newest.

A claim (`new_claim`) is a text that identifies a process and ends with the user's name. `builder` of a node is the
claim of the process that made it, `claim` that of the one which last asked for it.
"""

import getpass
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

_LONGEST = 64


def current_user(environment: Mapping[str, str] | None = None) -> str:
    """The user of this process, as one word: STAGEDB_USER, or the name of the account.

    environment: variables; None: those of this process.
    """
    name = (os.environ if environment is None else environment).get("STAGEDB_USER", "").strip()
    try:
        name = name or getpass.getuser()
    except (OSError, KeyError, ImportError):
        # An account may have no name, as in a container that runs under a number.
        name = str(os.getuid()) if hasattr(os, "getuid") else "user"
    return "".join(each if each.isprintable() and not each.isspace() and each != "/" else "_" for each in name)[
        :_LONGEST
    ]


def user_of(claim: str | None) -> str | None:
    """The user who made a claim; None for a claim of an older version, which has no user."""
    parts = (claim or "").split()
    return parts[4] if len(parts) == 5 else None


def new_claim() -> str:
    """The text that identifies one builder: `machine pid started word user`.

    started: when its process began. word: random, so that each claim of a process has its own text.
    """
    started = psutil.Process().create_time()
    return f"{_machine()} {os.getpid()} {started:.2f} {secrets.token_hex(8)} {current_user()}"


def _machine() -> str:
    """This machine, more exactly its space of process numbers: a container has its own."""
    try:
        space = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        space = ""
    return f"{socket.gethostname()}/{space}".replace(" ", "_")


def dead_owner(state: Mapping[str, Any]) -> str | None:
    """The owner, if it is a process of this machine that has ended.

    state: of the thing, with its `owner`.
    """
    owner = state["owner"]
    parts = owner.split() if isinstance(owner, str) else []
    if len(parts) not in (4, 5) or parts[0] != _machine():  # an older version writes no user
        return None
    try:
        alive = abs(psutil.Process(int(parts[1])).create_time() - float(parts[2])) < 1.0
    except psutil.NoSuchProcess:
        alive = False
    except (psutil.Error, ValueError):
        return None
    return None if alive else str(owner)
