"""Who changes the store: events, with the user, the version and the command; and the inputs of what is made.

An event is written in the transaction that makes the change visible, so that both are there or neither is.
"""

import getpass
import hashlib
import json
import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from stagedb.store.migrations import VERSION
from stagedb.store.store_settings import config_file, known_secrets, without_secrets

# The users who make instances and profiles. In a shared store, the newest one is the caller's own newest.
#
# A claim (`new_claim`) is a text that identifies a process and ends with the user's name. `builder` of a node is the
# claim of the process that made it, `claim` that of the one which last asked for it.

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


LONGEST_COMMAND = 1_000
_OPTIONS_OF_STORE = ("--store", "--database", "--to", "--from")
"""Options that only choose the store, with their values; an address may have a password."""


@dataclass(frozen=True)
class Input:
    """Something that a thing is made from. id: a digest of its content. kind: card, options, plan, system …"""

    kind: str
    id: str
    name: str | None = None

    @classmethod
    def of(cls, kind: str, content: Any, name: str | None = None) -> "Input":
        """The input with this content, which JSON can express.

        kind: what the input is for, such as a plan. name: that the user gave it; None: no name.
        """
        text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
        return cls(kind, hashlib.sha256(text.encode()).hexdigest()[:20], name)

    def row(self) -> dict[str, str | None]:
        """Its properties, as statements take them."""
        return {"kind": self.kind, "id": self.id, "name": self.name}


def new_event(
    action: str, kind: str, thing: str, detail: str | None = None, *, claim: str | None = None
) -> dict[str, Any]:
    """The properties of an `Event` of now.

    action: such as made or removed. kind, thing: label and id of the thing. detail: in words. claim: that of the
    process, from which the id is made, so that a repeated write is one event.
    """
    words = (claim or new_claim()).split()
    found = {
        "id": f"{action}/{words[3]}",
        "time": time.time_ns() // 1_000_000,
        "action": action,
        "kind": kind.lower(),
        "thing": thing,
        "detail": detail,
        "version": _version(),
        "schema": VERSION,
        "command": command(sys.argv, os.environ),
        "process": " ".join(words[:3]),
    }
    return {name: value for name, value in found.items() if value is not None}


def command(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command line without secrets and without the options that choose a store; for a script its file's name.

    argv: the arguments of the process. environment: its variables.
    """
    program = Path(argv[0] if argv else "")
    if program.stem != "stagedb" and (program.parent.name, program.name) != ("stagedb", "__main__.py"):
        return f"Python: {program.name or 'interactive'}"[:LONGEST_COMMAND]
    words = list(argv[1:])
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word not in _OPTIONS_OF_STORE
        and before not in _OPTIONS_OF_STORE
        and not word.startswith(tuple(f"{option}=" for option in _OPTIONS_OF_STORE))
    ]
    text = shlex.join(["stagedb", *kept])
    secrets = known_secrets(words, environment, config_file(environment))
    clean = without_secrets(text, secrets).encode("utf-8", "replace").decode()
    return clean[:LONGEST_COMMAND]


@cache
def _version() -> str:
    # Only what writes to a store asks for it, and the import takes as long as a statement.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("stagedb")
    except PackageNotFoundError:
        return "unknown"
