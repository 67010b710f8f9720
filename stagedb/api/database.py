"""The database itself: is it there, which version is it, start it, end it, bring it up to date."""

import os
from dataclasses import dataclass

from stagedb.api import catalog
from stagedb.errors import UsageError
from stagedb.store import connect as connect_store
from stagedb.store import embedded, migrations, open_store, targets


@dataclass(frozen=True)
class StoreStatus:
    """What a store says of itself. `address` is None, and so is what follows, for an embedded engine that sleeps.

    engine: embedded or neo4j. files: the embedded engine's directory. version: the schema's, 0 for an empty database;
    newest: the one that this program writes.
    """

    engine: str
    state: str
    address: str | None
    files: str | None
    version: int | None
    newest: int
    graphs: int | None
    instances: int | None


def status(store: str | None = None) -> StoreStatus:
    """Look at a store without starting or changing it. Raises UsageError where a server does not answer."""
    files = None
    if _is_embedded(store):
        home = targets.home(os.environ)
        files = str(home)
        if embedded.running(home) is None:
            return StoreStatus("embedded", "not running", None, files, None, migrations.NEWEST, None, None)
    with open_store(store) as opened:
        version = opened.version()
        graphs, instances = (len(catalog.graphs(opened)), len(catalog.instances(opened))) if version else (0, 0)
        state = "empty" if not version else "ready"
        if 0 < version < migrations.NEWEST:
            state = "waits for `stagedb store migrate`"
        elif version > migrations.NEWEST:
            state = "written by a newer stagedb"
        return StoreStatus(opened.engine, state, opened.uri, files, version, migrations.NEWEST, graphs, instances)


def up(store: str | None = None) -> str:
    """Start the embedded engine, or see that a server answers, and make an empty database a store. Its address."""
    with connect_store(store) as opened:
        return opened.uri


def down(store: str | None = None) -> bool:
    """End the embedded engine; False if it did not run. Raises UsageError for a server, which is not ours to end."""
    if not _is_embedded(store):
        raise UsageError("this store is a server, and is stopped where it runs; --store embedded means this machine's")
    return embedded.stop(targets.home(os.environ))


def migrate(store: str | None = None) -> list[str]:
    """Bring a store's schema up to date. Returns what each migration did that was applied."""
    with open_store(store) as opened:
        return [f"{migration.version} ({migration.description})" for migration in opened.migrate()]


def _is_embedded(store: str | None) -> bool:
    return targets.choose(store, os.environ, targets.config_file(os.environ)) is None
