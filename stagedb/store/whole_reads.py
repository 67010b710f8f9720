"""Reads of several statements that give one thing, whole, while other clients write.

Each statement is a transaction of its own, and a large one sees what others commit while it runs. A delete changes the
state of the thing before anything else (`leases`), and each build has another builder. So what was read between two
equal answers of `lifecycle/version_*` is one thing, complete. Otherwise it is read again.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.mentions import call
from stagedb.store.connection import Store
from stagedb.store.failures import ConnectionLost, QueryEnded
from stagedb.store.leases import Kind

ATTEMPTS = 3
"""How often a thing is read that others make again meanwhile."""

_MISSING: Mapping[Kind, str] = {
    "Graph": f"the store has no graph {{}}: {call('ls')} lists them, {call('build')} makes one",
    "Instance": f"no instance {{}} in the store; {call('ls')} lists them",
    "Profile": f"no profile {{}} in the store; {call('ls', 'profiles')} lists them",
    "Run": f"no run {{}} in the store; {call('ls', 'runs')} lists them",
    "Search": f"no search {{}} in the store; {call('ls', 'searches')} lists them",
}

Result = TypeVar("Result")


class RemovedError(StagedbError):
    """Another client removed the thing, or made it again, while it was read."""


class ReadAgainWarning(UserWarning):
    """Another client made the thing again while it was read, and it was read again."""


def read_whole(store: Store, kind: Kind, id: str, read: Callable[[], Result]) -> Result:
    """The result of `read`, which runs several statements on one thing (`Kind`), and changes nothing.

    It runs again if the thing, or what it is made from, was made again meanwhile. An error of `read` counts only if
    nothing was. Raises UsageError if the store has no complete thing of this id, and RemovedError if it was removed
    meanwhile, or is made again and again.
    """
    before = _version(store, kind, id)
    if before is None:
        raise UsageError(_MISSING[kind].format(shown(id)))
    for _ in range(ATTEMPTS):
        found, failure = _attempt(read)
        after = _version(store, kind, id)
        if after == before:
            if failure is not None:
                raise failure
            return found  # type: ignore[return-value]  # there is a result where there is no failure
        if after is None:
            raise RemovedError(
                f"{kind.lower()} {shown(id)} was removed by another process while it was read: nothing was made from "
                f"it; {call('ls')} lists what there is"
            )
        warnings.warn(
            f"{kind.lower()} {shown(id)} was made again by another process while it was read: it is read again",
            ReadAgainWarning,
            stacklevel=2,
        )
        before = after
    raise RemovedError(
        f"{kind.lower()} {shown(id)} was made again {ATTEMPTS} times by other processes while it was read: run the "
        "command again when they are done"
    )


def _attempt(read: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return read(), None
    except (ConnectionLost, QueryEnded):
        raise
    except Exception as failure:  # noqa: BLE001 - half of a thing can cause any error
        return None, failure


def _version(store: Store, kind: Kind, id: str) -> list[Any] | None:
    """A value that differs for each build of a thing; None if it is not complete."""
    rows = store.read(f"lifecycle/version_{kind.lower()}", id=id)
    return list(rows[0]["made"]) if rows and rows[0]["state"] == "ready" else None
