"""The database itself: its state and version, how to start and end it, and how to migrate it."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stagedb.api import catalog, lookup, team
from stagedb.api.results import GraphInfo, SearchInfo, Thing
from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.mentions import OPTIONS, Word, shown_in
from stagedb.store import Store, connect, embedded, migrations, open_store, store_targets, unfinished
from stagedb.store.failures import ConnectionLost, UnreachableError
from stagedb.store.opening import check_age, open_running


@dataclass(frozen=True)
class StoreStatus:
    """The state of a store. `address` and all fields after `files` are None for an embedded engine that does not run.

    engine: embedded or neo4j. product: what the server calls itself, with its version. files: the embedded engine's
    directory. name: of the configuration file, or embedded. chosen_by: what names the store: an option, a variable, a
    line of a file. database: that of a server. version: the schema's, 0 for an empty database. newest: the version
    that this program writes. latency_ms: of a small read.

    All others are None if the schema is not the newest. graphs, instances, profiles, searches: their numbers. nodes,
    edges: those of the whole store. unfinished: what is being built or deleted; dead: the part that a process left
    which has ended (`stagedb gc --dead` removes it). last_change: when, who and what, the newest line of `stagedb store
    log`.
    """

    engine: str
    state: str
    address: str | None
    files: str | None
    version: int | None
    newest: int = migrations.NEWEST
    name: str | None = None
    chosen_by: str | None = None
    database: str | None = None
    product: str | None = None
    latency_ms: float | None = None
    graphs: int | None = None
    instances: int | None = None
    profiles: int | None = None
    searches: int | None = None
    nodes: int | None = None
    edges: int | None = None
    unfinished: int | None = None
    dead: int | None = None
    last_change: str | None = None


LATENCIES = 5
"""Reads of which the fastest is the latency."""


def status(store: str | None = None, *, database: str | None = None, insecure: bool = False) -> StoreStatus:
    """Look at a store without starting or changing it.

    store: an address or a name; None: the default one. database: of a Neo4j server. insecure: send the password
    unencrypted to another machine too. Raises UsageError if a server does not answer.
    """
    files = None
    chosen = store_targets.selected(store, os.environ, database)
    by = shown_in(OPTIONS, chosen.by)
    if chosen.is_embedded:
        home = store_targets.home(os.environ)
        files = str(home)
        if embedded.running(home) is None:
            return StoreStatus("embedded", "not running", None, files, None, name=chosen.name, chosen_by=by)
    with open_store(store, database=database, insecure=insecure) as opened:
        version = opened.version()
        found = StoreStatus(opened.engine, _state(version), opened.uri, files, version, product=opened.product())
        found = replace(found, name=chosen.name, chosen_by=by, latency_ms=_latency(opened))
        if not chosen.is_embedded:
            found = replace(found, database=opened.database)
        if not version:
            return replace(found, graphs=0, instances=0, profiles=0, searches=0)
        return found if version != migrations.NEWEST else _with_content(found, opened)


def _state(version: int) -> str:
    if version > migrations.NEWEST:
        return "written by a newer stagedb"
    if migrations.is_older(version):
        return "written by an older stagedb"
    if version < migrations.NEWEST:
        return "needs `stagedb store migrate`" if version else "empty"
    return "ready"


def _latency(store: Store) -> float:
    """The time of a small read, the shortest of a few, in ms."""
    times = []
    for _ in range(LATENCIES):
        begin = time.perf_counter()
        store.version()
        times.append(time.perf_counter() - begin)
    return round(1000 * min(times), 1)


def _with_content(found: StoreStatus, store: Store) -> StoreStatus:
    open_work = unfinished(store)
    newest = next(iter(team.log(store, None, None, team.ALL_DAYS, 1)), None)
    return replace(
        found,
        graphs=len(catalog.graphs(store)),
        instances=len(catalog.instances(store)),
        profiles=len(catalog.profiles(store)),
        searches=len(catalog.searches(store)),
        nodes=store.read("catalog/node_count")[0]["nodes"],
        edges=store.read("catalog/edge_count")[0]["edges"],
        unfinished=len(open_work),
        dead=sum(each.dead for each in open_work),
        last_change=None if newest is None else _change(newest),
    )


def _change(event: Mapping[str, Any]) -> str:
    """An event of the log in a line."""
    thing = event["id"] if event["kind"] == "query" else event["id"][: catalog.SHORT_ID]
    words = (event["user"] or "somebody", event["action"], event["kind"], thing, event["detail"])
    return f"{event['time']}: {' '.join(str(word) for word in words if word)}"


_READERS: Mapping[str, Callable[[Store], Sequence[Thing]]] = {
    "graph": catalog.graphs,
    "instance": catalog.instances,
    "profile": catalog.profiles,
    "search": catalog.searches,
    "run": catalog.runs,
}


def names_at_hand(kinds: Sequence[str]) -> list[str]:
    """Names, then short ids, of things in the embedded store, the newest first.

    kinds: graph, instance, profile, search, run. Empty if the store is a server, or no engine runs; it starts nothing.
    """
    opened = open_running(store_targets.home(os.environ)) if _is_embedded(None) else None
    if opened is None:
        return []
    with opened:
        if opened.version() != migrations.NEWEST:
            return []
        found = [each for kind in kinds for each in _READERS[kind](opened)]
    names = [each.name for each in found if each.name is not None and not isinstance(each, GraphInfo | SearchInfo)]
    return [*dict.fromkeys([*names, *(each.id[: catalog.SHORT_ID] for each in found)])]


def up(store: str | None = None, *, database: str | None = None, insecure: bool = False) -> str:
    """Start the embedded engine, or check that a server answers, and make an empty database a store. Its address.

    The parameters are those of `status`.
    """
    with connect(store, database=database, insecure=insecure) as opened:
        return opened.uri


def wait(
    word: str | None = None,
    store: str | None = None,
    *,
    database: str | None = None,
    insecure: bool = False,
    seconds: float = 600.0,
) -> Thing | None:
    """Wait until a store answers, and has something complete of this id or name. It writes nothing.

    Returns the thing, or None without `word`. store, database, insecure: as in `status`. seconds: how long to wait.
    Raises StagedbError after `seconds`, and UsageError for what waiting does not mend: an account that is refused, an
    ambiguous id.
    """
    end, pause = time.monotonic() + seconds, 0.5
    while True:
        try:
            with open_store(store, database=database, insecure=insecure) as opened:
                if word is None:
                    return None
                ready = opened.version() == migrations.NEWEST
                found = lookup.known(opened, word) if ready else None
                missing = f"the store at {opened.uri} has no {shown(word)}"
        except (UnreachableError, ConnectionLost) as error:
            found, missing = None, error.message
        if found is not None:
            return found
        left = end - time.monotonic()
        if left <= 0:
            raise StagedbError(f"waited {seconds:g} s, and {missing}")
        # Tasks of a job that begin together should not ask at the same moments: the pause depends on the process id.
        time.sleep(min(left, pause * (1 + os.getpid() % 100 / 100)))
        pause = min(pause * 1.5, 10.0)


def down(store: str | None = None, *, database: str | None = None) -> bool:
    """End the embedded engine; False if it did not run.

    The parameters are those of `status`. Raises UsageError for a server, which stagedb cannot end.
    """
    if not _is_embedded(store, database):
        raise UsageError(
            f"this store is a server: stop it on its machine. {Word('store', 'embedded')} names this machine's engine"
        )
    return embedded.stop(store_targets.home(os.environ))


def migrate(store: str | None = None, *, database: str | None = None, insecure: bool = False) -> list[str]:
    """Migrate the schema. Returns a description of each migration that was applied.

    The parameters are those of `status`. Raises UsageError for a store that a newer stagedb wrote, or one that is too
    old for any migration.
    """
    with open_store(store, database=database, insecure=insecure) as opened:
        check_age(opened, opened.version())
        return [f"{migration.version} ({migration.description})" for migration in opened.migrate()]


def _is_embedded(store: str | None, database: str | None = None) -> bool:
    chosen = store_targets.selected(store, os.environ, database)
    return chosen.is_embedded
