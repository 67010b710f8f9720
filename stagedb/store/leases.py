"""Leases: what is built is invisible until it is complete. And reads of several statements that give one thing.

The node of the thing carries `state`, `owner` and `lease` while it is built. The builder renews the lease. A builder
has died if its lease has run out, or if its process on this machine has ended. The next builder of the same thing
clears what a dead one left, and so does `sweep`; a search goes on with what is there. Times are the server's.
"""

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.mentions import call
from stagedb.store.connection import Store
from stagedb.store.events import Input, current_user, dead_owner, new_claim, new_event, user_of
from stagedb.store.failures import ConnectionLost, QueryEnded, ReadOnlyError
from stagedb.store.migrations import VERSION

Kind = Literal["Graph", "Instance", "Profile", "Search", "Run"]

LEASE = 60.0
"""Seconds for which a builder counts as alive after its last sign of life."""

LAST_RENEWAL = 5.0
"""Seconds for which the end of a building waits for a renewal that is under way."""

CHUNK = 2_000
"""Nodes that one transaction deletes."""

_WAIT = 0.2
WAITS_IN_SILENCE = 25
"""Waits for another builder before a warning names it: 5 s."""

_PARENTS: Mapping[Kind, str] = {"Instance": "graph", "Profile": "instance"}


class NeededError(UsageError):
    """A graph is not deleted, because complete instances need it."""


class WaitWarning(UserWarning):
    """This process waits for another one, which builds the same thing."""


class Lease:
    """The right to build one thing. A thread renews it. A builder calls `renew` between its writes."""

    def __init__(self, store: Store, kind: Kind, id: str, owner: str) -> None:
        self._store = store
        self._low = kind.lower()
        self._kind = kind
        self._id = id
        self.owner = owner
        self._renewed = time.monotonic()
        self._lock = threading.Lock()
        self.keeps = False
        """Whether what is there stays if the builder ends early, so that the next one goes on."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease of {id}", daemon=True)

    def renew(self) -> None:
        """Show that the builder is alive, unless it just did so. Raises StagedbError if another one took over."""
        with self._lock:
            if time.monotonic() - self._renewed >= LEASE / 4:
                self._extend()

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Give what is built further properties. Raises StagedbError if another process took over.

        properties: values by name.
        """
        if not self._store.write(f"lifecycle/set_{self._low}", id=self._id, owner=self.owner, properties=properties):
            raise self._lost()

    def _extend(self) -> None:
        if not self._store.write(f"lifecycle/renew_{self._low}", id=self._id, owner=self.owner, lease=_milliseconds()):
            raise self._lost()
        self._renewed = time.monotonic()

    def _release(self) -> None:
        """Let the next builder go on at once."""
        self._store.write(f"lifecycle/renew_{self._low}", id=self._id, owner=self.owner, lease=-1)

    def _keep(self) -> None:
        while not self._ended.wait(LEASE / 4):
            # The builder's own next write reports a failure here.
            with suppress(StagedbError):
                self.renew()

    def _finish(self, inputs: Sequence[Input], detail: str | None) -> None:
        made = {
            "user": current_user(),
            "event": new_event("made", self._kind, self._id, detail, claim=self.owner),
            "inputs": [each.row() for each in inputs],
        }
        if not self._store.write(f"lifecycle/finish_{self._low}", id=self._id, owner=self.owner, **made):
            state = _state(self._store, self._kind, self._id)
            if state is not None and state["owner"] == self.owner:
                raise _parent_gone(self._kind, self._id)
            raise self._lost()

    def _lost(self) -> StagedbError:
        return StagedbError(
            f"another process took over the building of {self._low} {self._id}, as this one gave no sign of life for "
            f"{LEASE:.0f} s: run the command again, it finds the other one's result"
        )


def _parent_gone(kind: Kind, id: str) -> StagedbError:
    return StagedbError(
        f"cannot finish {kind.lower()} {id}: its {_PARENTS[kind]} was removed meanwhile; {call('ls')} lists those "
        "that exist"
    )


def _without_parent(store: Store, kind: Kind, properties: Mapping[str, Any]) -> bool:
    """Whether the graph of an instance, or the instance of a profile, is gone or being deleted."""
    if kind not in _PARENTS:
        return False
    of: Kind = "Graph" if kind == "Instance" else "Instance"
    try:
        state = _state(store, of, properties[_PARENTS[kind]])
    except StagedbError:
        return False
    return state is None or state["state"] != "ready"


@contextmanager
def building(
    store: Store,
    kind: Kind,
    id: str,
    properties: Mapping[str, Any],
    inputs: Sequence[Input] = (),
    *,
    resumes: bool = False,
) -> Iterator[Lease | None]:
    """Build a graph, an instance, a profile, a search or a run. What is written inside becomes visible at the end.

    inputs: what it is made from. The event of its making has them, the user, the version and the command. resumes: what
    a builder that died left stays, for this one to go on with.

    Yields None if the thing exists and is complete: there is nothing to do. While another process builds it, this
    waits. If that process died, this clears what it left and takes over. An error inside clears what was made, unless
    the lease `keeps` it, and is raised again. properties: of the new node. id: of the thing. Raises StagedbError for a
    profile without its instance, and for an instance without its graph.
    """
    lease = _claim(store, kind, id, properties, resumes)
    if lease is None:
        yield None
        return
    lease._thread.start()
    try:
        with suppress(StagedbError):
            sweep(store)  # without this, nothing would sweep a store in which every command succeeds
        yield lease
        lease._finish(inputs, properties.get("system") or properties.get("name") or properties.get("model"))
    except ConnectionLost:
        raise  # the same state as after a kill: the next builder clears it
    except BaseException as error:
        # This process clears what it made if it still owns it and the store allows that; else the next builder does, as
        # after a kill.
        with suppress(StagedbError):
            if lease.keeps:
                lease._release()
            else:
                lease._extend()
                _clear(store, kind, id, lease)
                _remove(store, kind, id, lease.owner, [])
        if isinstance(error, StagedbError) and _without_parent(store, kind, properties):
            # The graph or instance that the thing is made from was removed meanwhile: any error may be its consequence.
            raise _parent_gone(kind, id) from error
        raise
    finally:
        lease._ended.set()
        # The caller may close the store next: a thread that still sends would fail, or leave a connection open.
        lease._thread.join(LAST_RENEWAL)


def ask_again(store: Store, kind: Kind, id: str) -> None:
    """Make a thing that exists the newest of this user.

    Nothing is written if it is, as in a hundred tasks of one job, or where writing is not allowed. id: of the thing.
    """
    low, user = kind.lower(), current_user()
    rows = store.read(f"lifecycle/asked_{low}", id=id, user=user)
    if rows and not rows[0]["newest"]:  # no row: removed meanwhile, which the caller finds when it reads the thing
        with suppress(ReadOnlyError):
            store.write(f"lifecycle/ask_{low}", id=id, user=user)


def delete(store: Store, kind: Kind, id: str, detail: str | None = None, *, unnamed: bool = False) -> bool:
    """Delete a graph, instance (with its profiles), profile, search or run, names and notes too. False without one.

    It becomes invisible first. detail: what the event of its removal names. unnamed: only if it has neither name nor
    tag, and no complete instance needs it, else False. id: of the thing. Raises StagedbError while another process
    builds it, and NeededError for a graph with complete instances.
    """
    owner = new_claim()
    state = _state(store, kind, id)
    if state is None:
        return False
    if kind == "Instance":
        _check_profiles(store, id)
    row = store.write(
        f"lifecycle/retire_{kind.lower()}",
        id=id,
        owner=owner,
        lease=_milliseconds(),
        dead=dead_owner(state) or "",
        unnamed=unnamed,
    )
    if not row and unnamed:
        return False
    if not row and kind == "Graph" and (needed := _complete_parts(store, id)):
        raise NeededError(
            f"instance {needed[0]['id']} needs graph {id}: remove it first, with "
            f"{call('rm', needed[0]['id'], force=True)}"
        )
    if not row:
        raise StagedbError(f"{kind.lower()} {id} is being built or deleted by another process: wait until it is done")
    if kind == "Instance":
        # From now on no profile can begin, because a profile needs an instance that is ready.
        for profile in store.read("lifecycle/parts_instance", id=id):
            delete(store, "Profile", profile["id"])
    lease = Lease(store, kind, id, owner)
    _clear(store, kind, id, lease)
    was_there = state["state"] != "building"
    _remove(store, kind, id, owner, [new_event("removed", kind, id, detail, claim=owner)] if was_there else [])
    return True


def _complete_parts(store: Store, graph: str) -> list[dict[str, Any]]:
    """The complete instances of a graph, by their ids."""
    return [row for row in store.read("lifecycle/parts_graph", id=graph) if row["state"] == "ready"]


def _check_profiles(store: Store, instance: str) -> None:
    """Raise StagedbError while a living process writes a profile of an instance."""
    for row in store.read("lifecycle/parts_instance", id=instance):
        state = _state(store, "Profile", row["id"])
        if state is not None and state["state"] != "ready" and not state["expired"] and dead_owner(state) is None:
            raise StagedbError(
                f"profile {row['id']} of instance {instance} is being built or deleted by another process: wait until "
                "it is done"
            )


@dataclass(frozen=True)
class Unfinished:
    """A graph, instance, profile, search or run that a process builds or deletes, or left so when it ended.

    state: building or deleting. user: whose process it is, if known. dead: whether the process has ended, or shows no
    sign of life. created: when its building began, in ms since 1970.
    """

    kind: Kind
    id: str
    name: str | None
    state: str
    user: str | None
    dead: bool
    created: int | None


def unfinished(store: Store) -> list[Unfinished]:
    """All that is unfinished: searches, runs, profiles, instances, then graphs, in which order they can be deleted."""
    found = [
        Unfinished(
            row["kind"],
            row["id"],
            row["name"],
            row["state"],
            user_of(row["owner"]),
            row["expired"] or dead_owner(row) is not None,
            row["created"],
        )
        for row in store.read("catalog/unfinished")
    ]
    return sorted(found, key=lambda each: each.kind, reverse=True)


def sweep(store: Store, *, searches: bool = False) -> list[Unfinished]:
    """Delete what dead processes left, and return it. searches: also those that could go on with what they have."""
    swept = []
    for each in unfinished(store):
        if each.dead and (searches or each.kind != "Search" or each.state == "deleting"):
            # Another process may have begun to build or to sweep it since.
            with suppress(StagedbError):
                if delete(store, each.kind, each.id):
                    swept.append(each)
    return swept


def _claim(store: Store, kind: Kind, id: str, properties: Mapping[str, Any], resumes: bool) -> Lease | None:
    owner, waits = new_claim(), 0
    while True:
        state = _state(store, kind, id)
        if state is not None and state["state"] == "ready":
            return None
        dead = dead_owner(state) if state is not None else None
        if state is not None and dead is None and not state["expired"]:
            waits += 1
            if waits == WAITS_IN_SILENCE:
                warnings.warn(_waiting(kind, id, state), WaitWarning, stacklevel=2)
            time.sleep(_WAIT)
            continue
        row = store.write(
            f"lifecycle/claim_{kind.lower()}",
            id=id,
            owner=owner,
            lease=_milliseconds(),
            dead=dead or "",
            properties={**properties, "schema": VERSION},
        )
        if not row:
            raise StagedbError(
                f"cannot make {kind.lower()} {id}: its {_PARENTS[kind]} is gone, or is being deleted; {call('ls')} "
                "lists those that exist"
            )
        if row.get("owner") == owner:
            lease = Lease(store, kind, id, owner)
            if row["taken"] and not resumes:
                _clear(store, kind, id, lease)
            return lease


def _waiting(kind: Kind, id: str, state: Mapping[str, Any]) -> str:
    whose = user_of(state["owner"]) or "another process"
    doing = "deletes" if state["state"] == "deleting" else "builds"
    return (
        f"waiting for {kind.lower()} {id}, which {whose} {doing} ({state['owner'] or 'unknown'}); this process takes "
        f"over {LEASE:.0f} s after the other one's last sign of life"
    )


def _clear(store: Store, kind: Kind, id: str, lease: Lease) -> None:
    from stagedb.store.schema import members

    for label, _ in members(kind):
        while store.write(f"lifecycle/clear_{label.name.lower()}", id=id, limit=CHUNK)["deleted"] > 0:
            lease.renew()


def _remove(store: Store, kind: Kind, id: str, owner: str, events: list[dict[str, Any]]) -> None:
    store.write(f"lifecycle/remove_{kind.lower()}", id=id, owner=owner, user=current_user(), events=events)


def _state(store: Store, kind: Kind, id: str) -> dict[str, Any] | None:
    rows = store.read(f"lifecycle/state_{kind.lower()}", id=id)
    return rows[0] if rows else None


def _milliseconds() -> int:
    return round(LEASE * 1000)


# Reads of several statements that give one thing, whole, while other clients write.
#
# Each statement is a transaction of its own, and a large one sees what others commit while it runs. A delete changes
# the state of the thing before anything else (`leases`), and each build has another builder. So what was read between
# two equal answers of `lifecycle/version_*` is one thing, complete. Otherwise it is read again.

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
