"""A connection to a store: one method that reads, one that writes, and one for free queries."""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self

import neo4j
import neo4j.exceptions

from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import Word
from stagedb.store import free_queries as queries
from stagedb.store import migrations
from stagedb.store import store_targets as targets
from stagedb.store.answer_parts import Table
from stagedb.store.events import dead_owner, new_claim
from stagedb.store.failures import Collided, OutOfMemory, ReadOnlyError, product_of, rows_of, translated, written
from stagedb.store.free_queries import check_iterations
from stagedb.store.migrations import Migration, pending
from stagedb.store.rank_nodes import NodesWritten, unwatched, write_reached
from stagedb.store.recent_rows import SHARED, RecentRows
from stagedb.store.row_checks import check_rows, sound
from stagedb.store.statements import Statement, load

AWAIT_INDEXES: Final = "CALL db.awaitIndexes(60)"
"""Only for a server. The embedded engine has its indexes at once, and does not have this procedure."""

MADE_MEANWHILE: Final = "Neo.ClientError.Schema.EquivalentSchemaRuleAlreadyExists"

TORN: Final = "Neo.ClientError.Schema.IndexWithNameAlreadyExists"
"""The code for a constraint of which only the index is there."""

BATCH = 5_000
"""Rows that one transaction writes. A server with too little memory gets fewer."""

MIGRATION_LEASE = 120_000
"""Milliseconds for which a process that migrates counts as alive."""

_GONE = "Neo.ClientError.Statement.EntityNotFound"
"""The code of a node that was removed while a statement used it."""

_COLLIDED = "concurrent modification"
"""With these words the embedded engine ends a transaction whose page another one has changed, and asks for another
try. The driver does not always know the code that it gives."""

_TYPE_RACE = "Neo.ClientError.Statement.SemanticError"
"""The code with which the embedded engine refuses the first node of some labels, if another transaction makes the type
of these labels at the same moment. Its statements are known to be right."""


class Store:
    """One open store, made by `opening.connect`. It is a context manager, and threads may share it.

    All methods raise StagedbError if the store fails, and UsageError if the request cannot be served.
    """

    def __init__(
        self,
        driver: neo4j.Driver,
        database: str,
        engine: str,
        uri: str,
        readers: queries.Readers | None = None,
        write_time: float = targets.WRITE_TIME,
        workspace: str | None = None,
    ) -> None:
        self._driver = driver
        self._written = neo4j.unit_of_work(timeout=write_time)(written)
        self.database = database
        self._readers = readers
        self._writes = True
        self._recent: RecentRows | None = None
        self.engine = engine  # embedded or neo4j
        self.uri = uri
        """Its address, without an account."""
        self.workspace = workspace
        """The space of names of its entry in the configuration file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The embedded engine ends by itself, some time after its last client."""
        self._driver.close()

    def only_read(self) -> Self:
        """Refuse every write on this connection from now on, with ReadOnlyError. Nothing is sent for it."""
        self._writes = False
        return self

    def share_rows(self, recent: RecentRows) -> None:
        """Read a list that was just read from what others read. recent: theirs, which this connection adds to."""
        self._recent = recent

    def read(self, name: str, /, **params: Any) -> list[dict[str, Any]]:
        """Rows of the statement `cypher/<name>.cypher`. The statement must read.

        params: values of the statement's parameters. Raises DamagedError for a value that is not of the type in the
        statement's header.
        """
        rows = self._read(name, params)
        check_rows(load(name), rows)
        return rows

    def read_sound(self, name: str, /, **params: Any) -> list[Mapping[str, Any]]:
        """`read` for lists: rows that are damaged are left out, each with a DamageWarning.

        name, params: as in `read`.
        """
        return [*sound(load(name), self._read(name, params))]

    def _read(self, name: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        statement = self._statement(name, "reads", params)

        def asked() -> list[dict[str, Any]]:
            with translated(self.uri, f"statement {name}"), self._session(neo4j.READ_ACCESS) as session:
                return session.execute_read(rows_of, statement.text, params)

        if self._recent is None or not name.startswith(SHARED):
            return asked()
        return self._recent.get(name, params, asked)

    def write(self, name: str, /, **params: Any) -> dict[str, Any]:
        """Run a statement that writes in one transaction. Returns the last row of its result, {} for an empty result.

        The driver runs a transaction again if the server asks for it, so that a statement must be safe to repeat. name:
        of a file `cypher/<name>.cypher`. params: values of the statement's parameters.
        """
        statement = self._statement(name, "writes", params)
        with translated(self.uri, f"statement {name}"), self._session(neo4j.WRITE_ACCESS) as session:
            rows = self._write(session, statement, params)
        return rows[-1] if rows else {}

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]], /, **params: Any) -> None:
        """Run a statement that unwinds `$rows`, with one transaction for each batch of rows.

        A batch that is too large for the server's memory is halved, and so are all later ones. So is a batch that takes
        so long that others change its nodes each time that it is tried, as the renewal of its own lease does. name: of
        a file `cypher/<name>.cypher`. params: values of its other parameters.
        """
        statement = self._statement(name, "writes", {**params, "rows": rows})
        start, size = 0, BATCH
        with self._session(neo4j.WRITE_ACCESS) as session:
            while start < len(rows):
                batch = [dict(row) for row in rows[start : start + size]]
                try:
                    with translated(self.uri, f"statement {name}"):
                        self._write(session, statement, {**params, "rows": batch})
                except (OutOfMemory, Collided):
                    if len(batch) == 1:
                        raise
                    size = max(1, len(batch) // 2)
                    continue
                start += size

    def _write(self, session: neo4j.Session, statement: Statement, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run a statement in a managed transaction, and again if another one made or removed its nodes meanwhile.

        One engine lets both make the node, and the second one fails when it commits. The second run finds the node, if
        the statement merges it, or writes `claim` to take a lock and looks at what is there. A node that was removed
        after it was found is an error too, and the second run does not find it. The embedded engine makes a type with
        the first node of some labels, and the second run finds the type.
        """
        again = (_GONE, _TYPE_RACE) if self.engine == "embedded" else (_GONE,)
        for pause in (0.05, 0.2, None):
            try:
                return session.execute_write(self._written, statement, params)
            except neo4j.exceptions.ConstraintError:
                if pause is None or not any(word in statement.text for word in ("MERGE", ".claim = ")):
                    raise
            except neo4j.exceptions.Neo4jError as error:
                if pause is None or not (error.code in again or _COLLIDED in (error.message or "").lower()):
                    raise
            time.sleep(pause * (1 + random.random()))
        raise AssertionError("unreachable")

    def query(
        self,
        text: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
        most: int | None = None,
        ranks: bool = True,
        progress: NodesWritten = unwatched,
        graph: bool = False,
    ) -> Table:
        """The answer to a Cypher text that only reads. All its effects are rolled back.

        timeout: seconds after which the query is ended. most: rows that are read; the answer's `cut` shows that there
        are more. ranks: first write the nodes of ranks and groups that the text can reach and nobody wrote yet, with
        `progress`; the answer's `unwritten` counts those that it is without. graph: the answer's `graph` has the nodes
        and relationships in its rows. text: Cypher. params: values of its parameters, by name. Raises UsageError for a
        text that could write or that the store does not understand, QueryEnded if the query takes longer than `timeout`
        or more memory than the store has.
        """
        queries.check(text)
        if self.engine == "neo4j":
            # Neo4j cannot end a query within an expression. The embedded engine can: it ends the thread of the query.
            check_iterations(text)
        unwritten = write_reached(self, text, params or {}, progress) if ranks else 0
        if self._readers is None:
            answer = queries.run(self._driver, self.database, self.uri, text, params or {}, timeout, most, graph=graph)
        else:
            # The embedded engine ends a query whose connection is closed. A query that runs out of memory ends the
            # engine too.
            with queries.one_query(self._readers.driver(timeout)) as driver:
                ran_out = self._readers.ran_out
                answer = queries.run(driver, self.database, self.uri, text, params or {}, timeout, most, ran_out, graph)
        return replace(answer, unwritten=unwritten)

    def product(self) -> str:
        """The product and version that the server states, such as Neo4j/5.26.0."""
        return product_of(self._driver, self.uri)

    def version(self) -> int:
        """The newest migration that this database has, 0 if it is empty. UsageError if it is no store.

        Newer ones than this program knows count only if it cannot use the store.
        """
        rows = self.read_sound("schema/store")
        if not rows:
            if self.read("schema/is_empty")[0]["empty"]:
                return 0
            # Another process may have made it a store since the first check.
            rows = self.read_sound("schema/store")
        if not rows and self._read("schema/store", {}):
            # The mark is damaged, and a warning has named it. The newest version is what most stores have.
            return migrations.NEWEST
        if not rows:
            raise UsageError(
                f"the database at {self.uri} holds data of another program, and stagedb leaves it alone: name another "
                f"one with {Word('store')} or NEO4J_DATABASE"
            )
        version, applied = rows[0]["version"], rows[0]["applied"]
        return int(applied if applied <= migrations.NEWEST else max(version, migrations.NEWEST))

    def migrate(self) -> tuple[Migration, ...]:
        """Apply the migrations that are pending, and return them. One process does so, others wait for it.

        The store is marked after the last migration: until then, others wait or see the version before.
        """
        if not pending(self.version()):
            return ()
        self._check_writes("a migration")
        owner = new_claim()
        version = self._claim(owner)
        try:
            todo = pending(version)
            for migration in todo:
                self._apply(migration, empty=version == 0)
            if todo and self.engine == "neo4j":
                # A server fills new indexes in the background, and plans queries without them until that is done.
                with translated(self.uri, "waiting for its indexes"):
                    self._driver.execute_query(AWAIT_INDEXES, database_=self.database)
            if todo:
                self.write(
                    "schema/mark",
                    version=migrations.oldest_user(),
                    applied=todo[-1].version,
                    now=time.time_ns() // 1_000_000,
                )
        finally:
            with suppress(StagedbError):
                self.write("schema/release", owner=owner)
        return todo

    def _claim(self, owner: str) -> int:
        """Wait until this process may migrate. Returns the version that the store has then.

        A process that takes very long may lose its claim: then two migrate, which is safe and only slower.
        """
        from stagedb.store.schema import STORE, definitions

        for text in definitions((STORE,)):  # without its constraint two processes could make two marks
            self._define(text)
        dead = ""
        while True:
            now = time.time_ns() // 1_000_000
            row = self.write("schema/claim", owner=owner, dead=dead, lease=MIGRATION_LEASE, now=now)
            if row["owner"] == owner:
                return int(row["version"])
            dead = dead_owner(row) or ""
            time.sleep(0 if dead else 0.2)

    def _apply(self, migration: Migration, empty: bool) -> None:
        """An empty database has nothing to drop or to change, and needs only the definitions."""
        with translated(self.uri, f"migration {migration.version}"):
            for dropped in () if empty else migration.drops:
                self._define(f"DROP {dropped} IF EXISTS")
            for text in migration.creates:
                self._define(text)
            if empty:
                return
            for name in migration.work:
                while self.write(f"schema/{name}").get("done", 0) > 0:
                    pass

    def _define(self, text: str) -> None:
        """Make a constraint or an index in a transaction of its own. The text comes only from the schema table."""
        for pause in (0.2, 1.0, None):
            try:
                with translated(self.uri, "making the schema"):
                    self._driver.execute_query(text, database_=self.database)
            except StagedbError as error:
                code = getattr(error.__cause__, "code", None)
                # `IF NOT EXISTS` checks before it takes the lock, so that two processes may both try to make the same
                # index.
                if code == MADE_MEANWHILE:
                    return
                if code != TORN or pause is None:
                    raise
                self._drop_index(text.split()[2])
                time.sleep(pause)
            else:
                return

    def _drop_index(self, name: str) -> None:
        """Remove the index of a constraint that is not there: its client ended while the server made it.

        The server keeps that of a constraint that another client is making.
        """
        with suppress(neo4j.exceptions.Neo4jError):
            self._driver.execute_query(f"DROP INDEX {name} IF EXISTS", database_=self.database)

    def _statement(self, name: str, mode: str, params: Mapping[str, Any]) -> Statement:
        statement = load(name)
        if statement.mode != mode:
            raise StagedbError(f"statement {name} {statement.mode}, and was called as one that {mode}")
        statement.check(frozenset(params))
        if mode == "writes":
            self._check_writes(f"statement {name}")
        return statement

    def _check_writes(self, what: str) -> None:
        if not self._writes:
            raise ReadOnlyError(f"this connection to the store at {self.uri} only reads, and {what} writes")

    def _session(self, access: str) -> neo4j.Session:
        return self._driver.session(database=self.database, default_access_mode=access)
