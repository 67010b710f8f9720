"""Opening a store, and the one door through which all is written."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import neo4j.exceptions
import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store, building, connect, connection, embedded, failures, migrations, open_store
from stagedb.store.failures import Collided, ConnectionLost, OutOfMemory, check_disk
from stagedb.store.statements import load, parse
from tests.store.bare import bare_graph


@contextlib.contextmanager
def unmarked(store: Store) -> Iterator[None]:
    """The store without the node that marks it."""
    with store._session("WRITE") as session:
        session.run("MATCH (s:Store) DETACH DELETE s").consume()
        try:
            yield
        finally:
            session.run("MATCH (n:Foreign) DETACH DELETE n").consume()
            store.write("schema/mark", version=migrations.oldest_user(), applied=migrations.NEWEST, now=0)


@contextlib.contextmanager
def bare(store: Store) -> Iterator[None]:
    """A Neo4j database as it is before anybody opens it: no mark, constraint or index."""
    with store._session("WRITE") as session:
        tests = [dict(row["t"]) for row in session.run("MATCH (t:StagedbTests) RETURN t")]
        session.run("MATCH (n) DETACH DELETE n").consume()
        for what in ("CONSTRAINT", "INDEX"):
            for row in list(session.run(f"SHOW {what} YIELD name, labelsOrTypes WHERE labelsOrTypes <> []")):
                session.run(f"DROP {what} {row['name']}").consume()
        try:
            yield
        finally:
            store.migrate()
            session.run("UNWIND $tests AS t CREATE (m:StagedbTests) SET m = t", tests=tests).consume()


def test_a_foreign_database_is_refused_and_left_alone(store: Store, store_environment: dict[str, str]) -> None:
    with unmarked(store), store._session("WRITE") as session:
        session.run("CREATE (:Foreign {id: 'x'})").consume()
        with pytest.raises(UsageError, match="holds data of another program, and stagedb leaves it alone"):
            connect(environment=store_environment)
        assert store.read("schema/store") == []


@pytest.mark.parametrize("times", range(3))
def test_a_database_that_several_open_first_at_once_serves_all(
    store: Store, store_environment: dict[str, str], tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them makes the schema."""
    applied, apply = [], Store._apply

    def noted(self: Store, migration: migrations.Migration, empty: bool) -> None:
        applied.append(migration.version)
        apply(self, migration, empty)

    monkeypatch.setattr(Store, "_apply", noted)
    environment = store_environment if store.engine == "neo4j" else {"STAGEDB_HOME": str(tmp_path)}
    together = threading.Barrier(8)

    def open_first() -> int:
        together.wait()
        with connect(environment=environment) as opened:
            return opened.version()

    with contextlib.ExitStack() as ends, ThreadPoolExecutor(8) as people:
        if store.engine == "neo4j":
            ends.enter_context(bare(store))
        else:
            ends.callback(embedded.stop, tmp_path)
        opening = [people.submit(open_first) for _ in range(8)]
        assert [each.result() for each in opening] == [migrations.NEWEST] * 8
        assert applied == [each.version for each in migrations.MIGRATIONS]
        with connect(environment=environment) as opened:
            assert opened.query("MATCH (s:Store) RETURN s.owner AS owner, s.lease AS lease").rows == ((None, None),)


def test_a_newer_store_is_refused(store: Store, store_environment: dict[str, str]) -> None:
    """Unless that only added to the schema."""
    newer = migrations.NEWEST + 1
    store.write("schema/mark", version=newer, applied=newer, now=0)
    try:
        with pytest.raises(UsageError, match="written by a newer stagedb"):
            connect(environment=store_environment)
        store.write("schema/mark", version=migrations.NEWEST, applied=newer, now=0)
        with connect(environment=store_environment) as opened:
            assert opened.version() == migrations.NEWEST
            assert opened.migrate() == ()
    finally:
        store.write("schema/mark", version=migrations.oldest_user(), applied=migrations.NEWEST, now=0)


MARK_USERS = """// Give some users without a team one.
//
// mode: writes
// column done: integer — how many got one
MATCH (u:User)
WHERE u.team IS NULL
WITH u LIMIT 2
SET u.team = 'all'
RETURN count(u) AS done
"""


def test_a_store_that_waits_for_a_migration(
    store: Store, store_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's is brought up to date when that is asked for; the embedded one, which is the user's own, at once.

    The migration drops an index, changes data in several steps, and makes constraints and indexes.
    """
    more = migrations.Migration(
        migrations.NEWEST + 1, "more", drops=("INDEX user_team",), work=("mark_users",), defines=("Tag",)
    )
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, more))
    monkeypatch.setattr(migrations, "NEWEST", more.version)
    statement = parse("schema/mark_users", MARK_USERS)
    monkeypatch.setattr(connection, "load", lambda name: statement if name == statement.name else load(name))

    def run(text: str) -> list[Any]:
        with store._session("WRITE") as session:
            return [tuple(row.values()) for row in session.run(text)]

    try:
        run("CREATE INDEX user_team IF NOT EXISTS FOR (n:User) ON (n.team)")
        run("UNWIND range(1, 5) AS k CREATE (:User {id: 'user' + toString(k)})")
        if store.engine == "neo4j":
            with pytest.raises(UsageError, match=rf"migration {more.version} \(more\): run `stagedb store"):
                connect(environment=store_environment)
            with open_store(environment=store_environment) as opened:
                assert opened.migrate() == (more,)
        with connect(environment=store_environment) as opened:
            assert opened.version() == more.version
            assert opened.migrate() == ()
        assert run("MATCH (u:User {team: 'all'}) RETURN count(u)") == [(5,)]
        names = {row["name"] for row in store._driver.execute_query("SHOW INDEXES", database_=store.database).records}
        assert "user_team" not in names
    finally:
        run("MATCH (u:User) DETACH DELETE u")
        store.write("schema/mark", version=migrations.oldest_user(), applied=more.version - 1, now=0)


def test_a_server_that_does_not_answer_is_named_without_the_password() -> None:
    with pytest.raises(UsageError, match=r"no store answers at bolt://127\.0\.0\.1:1 ") as refused:
        connect("bolt://me:hunter2@127.0.0.1:1", environment={})
    assert "hunter2" not in str(refused.value)
    assert "--store" in str(refused.value)


def test_a_server_that_is_no_database_is_refused() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(10)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = server.accept()
                    with one:  # the driver may have gone, and then sending fails
                        one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UsageError, match="no store answers"):
            connect(f"bolt://127.0.0.1:{port}", environment={})


def test_a_database_that_the_server_has_not_is_refused(store: Store, store_environment: dict[str, str]) -> None:
    if store.engine == "embedded":
        return  # the user cannot choose its name
    with pytest.raises(UsageError, match="NEO4J_DATABASE"):
        connect(environment={**store_environment, "NEO4J_DATABASE": "nothere"})


def test_rows_are_written_in_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BATCH", 7)
    store.write_rows("build/tensors", [{"id": f"x/{n}", "graph": "x"} for n in range(50)], graph=bare_graph(store))
    store.write_rows("build/tensors", [], graph="x")
    assert store.query("MATCH (t:SymTensor {graph: 'x'}) RETURN count(t) AS n").rows == ((50,),)


@pytest.mark.parametrize("failure", [OutOfMemory, Collided])
def test_a_batch_that_does_not_fit_is_halved(
    failure: type[StagedbError], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run, graph = failures.rows_of, bare_graph(store)

    def small_memory(transaction: Any, text: str, params: dict[str, Any]) -> Any:
        sizes.append(len(params["rows"]))
        if sizes[-1] > 15:
            raise failure("too large")
        return run(transaction, text, params)

    monkeypatch.setattr(failures, "rows_of", small_memory)
    store.write_rows("build/tensors", [{"id": f"x/{n}", "graph": "x"} for n in range(50)], graph=graph)
    assert sizes == [50, 25, 12, 12, 12, 12, 2]
    monkeypatch.undo()
    assert store.query("MATCH (t:SymTensor {graph: 'x'}) RETURN count(t) AS n").rows == ((50,),)


def test_one_row_that_does_not_fit_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(transaction: Any, text: str, params: dict[str, Any]) -> Any:
        raise OutOfMemory("too large")

    monkeypatch.setattr(failures, "rows_of", no_memory)
    with pytest.raises(OutOfMemory):
        store.write_rows("build/tensors", [{"id": "x/1", "graph": "x"}] * 3, graph="x")


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    with building(store, "Instance", "x", {"graph": bare_graph(store)}):
        store.write_rows("dump/make_rankclass", [{"id": "x/0", "parent": "x", "values": {}}])
    rows = [{"id": f"x/{n}", "parent": "x/0", "values": {}} for n in (1, 2, 1)]
    with pytest.raises(StagedbError, match="statement dump/make_task"):
        store.write_rows("dump/make_task", rows)
    assert store.query("MATCH (t:Task) RETURN count(t) AS n").rows == ((0,),)


@pytest.mark.parametrize(
    ("code", "message", "kind", "advice"),
    [
        ("Neo.TransientError.General.MemoryPoolOutOfMemoryError", "pool", OutOfMemory, "more memory"),
        ("Neo.ClientError.Security.Unauthorized", "no", UsageError, "NEO4J_PASSWORD"),
        ("Neo.ClientError.Database.DatabaseNotFound", "db", UsageError, "NEO4J_DATABASE"),
        (
            "Neo.DatabaseError.Transaction.CommitFailed",
            "No space left on device",
            UsageError,
            "disk is full",
        ),
        ("Neo.DatabaseError.General.UnknownError", "java.io.IOException: File too large", UsageError, "disk is full"),
        (
            "Neo.DatabaseError.Transaction.TransactionStartFailed",
            "The database has encountered a critical error, and needs to be restarted.",
            ConnectionLost,
            "restart the server",
        ),
        (
            "Neo.DatabaseError.Transaction.TransactionLogError",
            "Could not append transaction: Transaction #1250 to log.",
            ConnectionLost,
            "restart the server",
        ),
        ("Neo.ClientError.General.WriteOnReadOnlyAccessDatabase", "ro", UsageError, "read-only"),
        ("Neo.ClientError.Schema.ConstraintValidationFailed", "exists", StagedbError, "statement x failed"),
        ("Neo.TransientError.Transaction.DeadlockDetected", "slot 0", Collided, "each time that it was tried"),
    ],
)
def test_what_servers_report_becomes_advice(code: str, message: str, kind: type[StagedbError], advice: str) -> None:
    error = neo4j.exceptions.Neo4jError._hydrate_neo4j(code=code, message=message)
    with pytest.raises(kind, match=advice), failures.translated("bolt://host", "statement x"):
        raise error


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Neo.ClientError.Statement.EntityNotFound", "Unable to load NODE 4:0:1."),
        ("Neo.ClientError.Statement.SemanticError", "Error executing Cypher command: Unable to load"),
        ("Neo.DatabaseError.General.UnknownError", "Unable to load: Concurrent modification on page 3. Please retry"),
    ],
    ids=["a node was removed", "a type was made meanwhile", "a page was changed"],
)
def test_what_another_transaction_spoiled_is_tried_again(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    gone = neo4j.exceptions.Neo4jError._hydrate_neo4j(code=code, message=message)
    failures, original = [gone, gone], embedded_store._written

    def written(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*arguments)

    monkeypatch.setattr(embedded_store, "_written", written)
    unknown = {"id": "nothing", "name": "instance:me/x", "properties": {}, "user": "me", "event": {"id": "1"}}
    assert embedded_store.write("lifecycle/name_instance", **unknown) == {}
    failures += [gone] * 3
    with pytest.raises(StagedbError, match="Unable to load"):
        embedded_store.write("lifecycle/name_instance", **unknown)


def test_a_lost_connection_is_reported() -> None:
    lost = pytest.raises(StagedbError, match="was lost during statement x")
    with lost, failures.translated("bolt://host", "statement x"):
        raise neo4j.exceptions.ServiceUnavailable("gone")


def test_what_the_driver_logs_is_not_printed() -> None:
    """A transaction that is tried again prints nothing. A program that sets up logging still gets its record."""
    code = (
        "import logging\nimport stagedb.store\n"
        "log = logging.getLogger('neo4j.session')\n"
        "log.warning('Transaction failed and will be retried in 1s (DeadlockDetected)')\n"
        "logging.basicConfig(format='%(name)s: %(message)s')\n"
        "log.warning('for those who ask')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "neo4j.session: for those who ask\n"


def test_a_server_of_the_script_has_an_account_and_reads_no_files(
    neo4j_store: Store, neo4j_environment: dict[str, str]
) -> None:
    uri = neo4j_environment["NEO4J_URI"]
    if "@" not in uri:
        pytest.skip("the server was not started by scripts/neo4j: its settings are its owner's")
    with neo4j_store._session("WRITE") as session, pytest.raises(Exception, match=r"allow_csv_import_from_file_urls"):
        session.run("LOAD CSV FROM 'file:///etc/passwd' AS line RETURN line").data()
    address = uri.rpartition("@")[2]
    for account in ("", "neo4j:neo4j@", "neo4j:wrong@"):
        with pytest.raises(StagedbError):
            connect(environment={"NEO4J_URI": f"bolt://{account}{address}", "STAGEDB_CONFIG": os.devnull})


def test_a_full_disk_under_the_embedded_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = StagedbError("migration 4 failed on the store at bolt://127.0.0.1:1: Error executing Cypher command")
    check_disk(tmp_path, failed)
    check_disk(tmp_path / "none", failed)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1234))
    with pytest.raises(UsageError, match=rf"the disk .* is full: {tmp_path} has 1,234 bytes free.*STAGEDB_HOME"):
        check_disk(tmp_path, failed)


def test_a_store_that_cannot_be_made_on_a_full_disk_names_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: Store) -> None:
        raise StagedbError("migration 4 failed")

    monkeypatch.setattr(Store, "migrate", fail)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    try:
        with pytest.raises(UsageError, match="the disk of the embedded store is full"):
            connect(environment={}, home=tmp_path)
    finally:
        embedded.stop(tmp_path)
