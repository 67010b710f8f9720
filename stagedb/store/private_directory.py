"""The embedded store's directory: only its owner may write to it, as it decides what the engine runs and reads."""

import os
import stat
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.mentions import Word

_ELSEWHERE = (
    "STAGEDB_HOME to a directory of your own (one that does not exist yet is made), or name a server with "
    f"{Word('store')}"
)


def check_private(directory: Path) -> None:
    """Raise UsageError unless a directory is the caller's own and nobody else can write to it.

    A group may write if it is the user's private group, as many Linux distributions have it. There is nothing to check
    where there is no directory, and on Windows, which keeps the data of users apart.
    """
    if not hasattr(os, "geteuid"):
        return
    try:
        found = directory.stat()
    except OSError:
        return  # the first use of the directory reports this error
    me = os.geteuid()
    if found.st_uid != me:
        raise UsageError(
            f"{directory} belongs to {user_text(found.st_uid)}, and this process is {user_text(me)}: the embedded "
            f"store needs a directory of one's own. Set {_ELSEWHERE}. In a container: run it as the owner "
            f"(--user), or take a volume of its own"
        )
    others = bool(found.st_mode & stat.S_IWOTH)
    if others or (found.st_mode & stat.S_IWGRP and not is_private_group(found.st_gid, me)):
        raise UsageError(
            f"{'everybody' if others else 'a group'} can write to {directory}, and could change the embedded store in "
            f"it: run `chmod go-w {directory}`, or set {_ELSEWHERE}"
        )


def is_private_group(group: int, user: int) -> bool:
    """Whether a group is the primary one of a user, has the user's name, and has nobody else."""
    import grp
    import pwd

    try:
        account, entry = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return account.pw_gid == group and entry.gr_name == account.pw_name and set(entry.gr_mem) <= {account.pw_name}


def user_text(number: int) -> str:
    """A user of this machine for an error: its name, or its number without one."""
    import pwd

    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"
