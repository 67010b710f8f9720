"""A connection to a store: statements of `cypher/` read and written, through one door each."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import neo4j

from stagedb.errors import StagedbError, UsageError
from stagedb.store import embedded, targets
from stagedb.store.migrations import Migration, described, pending
from stagedb.store.statements import Statement, load

BATCH = 5_000
"""Rows that one transaction writes."""


class Store:
    """One open store. Made by `connect`; a context manager. Safe to share between threads."""

    def __init__(self, driver: neo4j.Driver, database: str, engine: str, uri: str) -> None:
        self._driver = driver
        self._database = database
        self.engine = engine
        self.uri = uri

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The embedded engine ends by itself, some time after its last client."""
        self._driver.close()

    def read(self, name: str, /, **params: Any) -> list[dict[str, Any]]:
        """Rows of the statement `cypher/<name>.cypher`, which must be one that reads."""
        statement = self._statement(name, "reads", params)
        with self._session(neo4j.READ_ACCESS) as session:
            return session.execute_read(_rows, statement.text, params)

    def write(self, name: str, /, **params: Any) -> dict[str, Any]:
        """Run a statement that writes in one transaction. Returns the last row that it gives, {} if it gives none."""
        statement = self._statement(name, "writes", params)
        with self._session(neo4j.WRITE_ACCESS) as session:
            rows = session.execute_write(_rows, statement.text, params)
        return rows[-1] if rows else {}

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]], /, **params: Any) -> None:
        """Run a statement that unwinds `$rows`, a transaction for each batch of them."""
        statement = self._statement(name, "writes", {**params, "rows": rows})
        with self._session(neo4j.WRITE_ACCESS) as session:
            for start in range(0, len(rows), BATCH):
                batch = {**params, "rows": [dict(row) for row in rows[start : start + BATCH]]}
                session.execute_write(_rows, statement.text, batch)

    def version(self) -> int:
        """The newest migration that this database has; 0 if it is empty. Raises UsageError if it is not a store."""
        rows = self.read("schema/store")
        if rows:
            return int(rows[0]["version"])
        if not self.read("schema/is_empty")[0]["empty"]:
            raise UsageError(
                f"the database at {self.uri} holds data that is not stagedb's, and is left alone: "
                "name another one with --store or NEO4J_DATABASE"
            )
        return 0

    def migrate(self) -> tuple[Migration, ...]:
        """Apply the migrations that are pending. Returns them."""
        todo = pending(self.version())
        for migration in todo:
            for text in migration.statements:
                # A schema change is a transaction of its own, and its text comes from the schema table alone.
                self._driver.execute_query(text, database_=self._database)
            self.write("schema/mark", version=migration.version, now=time.time_ns() // 1_000_000)
        return todo

    def _statement(self, name: str, mode: str, params: Mapping[str, Any]) -> Statement:
        statement = load(name)
        if statement.mode != mode:
            raise StagedbError(f"statement {name} {statement.mode}, and was called where one that {mode} is wanted")
        statement.check(frozenset(params))
        return statement

    def _session(self, access: str) -> neo4j.Session:
        return self._driver.session(database=self._database, default_access_mode=access)


def connect(
    uri: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    home: Path | None = None,
    migrate: bool = False,
) -> Store:
    """Open the store that is meant: see `targets.choose`. Starts the embedded engine if it is that one.

    An empty database is made a store, the embedded one is brought up to date, a server's only with `migrate`.
    Raises UsageError for a database that is not stagedb's, that a newer stagedb wrote, or that waits for a migration.
    """
    store = open_store(uri, environment=environment, home=home)
    try:
        version = store.version()
        todo = pending(version)
        if todo and version and not migrate and store.engine != "embedded":
            raise UsageError(
                f"the store at {store.uri} waits for migration {described(todo)}: run `stagedb store migrate`"
            )
        if todo:
            store.migrate()
    except BaseException:
        store.close()
        raise
    return store


def open_store(
    uri: str | None = None, *, environment: Mapping[str, str] | None = None, home: Path | None = None
) -> Store:
    """A connection to whatever is there, as it is: for looking at a store before it is used."""
    env = os.environ if environment is None else environment
    target = targets.choose(uri, env, targets.config_file(env))
    if target is None:
        endpoint = embedded.ensure(home or targets.home(env), env)
        auth = (endpoint.username, endpoint.password)
        return Store(_driver(endpoint.uri, auth), endpoint.database, "embedded", endpoint.uri)
    account = (target.username, target.password or "") if target.username else None
    return Store(_driver(target.uri, account), target.database, "neo4j", target.uri)


def _driver(uri: str, auth: tuple[str, str] | None) -> neo4j.Driver:
    return neo4j.GraphDatabase.driver(uri, auth=auth)


def _rows(transaction: neo4j.ManagedTransaction, text: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    result = transaction.run(text, dict(params))
    return [dict(zip(record.keys(), record.values(), strict=True)) for record in result]
