"""A store that c3542a0 wrote: brought up to date, it gives what c3542a0 gave, without a model card or a builder."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, kind_of
from stagedb.api.database import migrate, up
from stagedb.api.rebuilding import outdated, rebuild
from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store, connect, migrations
from stagedb.store.schema_version import VERSION
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.checksums import CHECKSUMS

FIXTURE = Path(__file__).parents[1] / "store" / "fixtures" / "c3542a0.json.gz"
OLD: dict[str, Any] = json.loads(gzip.decompress(FIXTURE.read_bytes()))
ANSWERS: dict[str, Any] = OLD["answers"]
FOURTH = migrations.MIGRATIONS[3]
"""The migration that made relationships of membership properties."""


@pytest.fixture
def old_store(store: Store) -> Store:
    """The store as c3542a0 left it, but for the indexes that it had."""
    by_labels: dict[str, list[dict[str, Any]]] = {}
    for _, labels, properties in OLD["nodes"]:
        by_labels.setdefault(":".join(sorted(labels)), []).append(properties)
    with store._session("WRITE") as session:
        for labels, rows in by_labels.items():
            if labels == "Store":
                text = "UNWIND $rows AS row MATCH (n:Store {id: row.id}) SET n = row"
            else:
                text = f"UNWIND $rows AS row CREATE (n:{labels}) SET n += row"
            session.run(text, rows=rows).consume()
        kinds = {(source[0], type_, target[0]) for source, type_, target, _ in OLD["relationships"]}
        for kind in sorted(kinds):
            rows = [
                {"source": source[1], "target": target[1], "properties": properties}
                for source, type_, target, properties in OLD["relationships"]
                if (source[0], type_, target[0]) == kind
            ]
            text = (
                f"UNWIND $rows AS row MATCH (a:{kind[0]} {{id: row.source}}) MATCH (b:{kind[2]} {{id: row.target}}) "
                f"CREATE (a)-[r:{kind[1]}]->(b) SET r += row.properties"
            )
            session.run(text, rows=rows).consume()
    return store


SIMULATORS = ("run.sh", "system.json", "network.yml")
"""What a simulator reads next to the traces: each version describes the system in its own way."""


def content_of(path: Path) -> bytes:
    """A file as c3542a0 wrote it: its compute nodes had no format."""
    data = path.read_bytes()
    if path.suffix != ".et":
        return data
    kept: list[bytes] = []
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        message, at = data[at : at + size], at + size
        if kept and pb.Node.FromString(message).type == pb.COMP_NODE:
            message = b"".join(field for field in fields(message) if not DTYPE.fullmatch(field))
        kept.append(_varint_bytes(len(message)) + message)
    return b"".join(kept)


DTYPE = re.compile(rb"\x52.\x0a\x05dtype.*", re.DOTALL)
"""The attribute of a node with the name `dtype`, as a field."""


def fields(message: bytes) -> Iterator[bytes]:
    """The fields of a node as they were written: numbers may take more bytes than they need."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = varint(message, at)
        value, at = varint(message, at)  # nodes have no fields of a fixed width
        at += value if tag & 7 == 2 else 0
        yield message[begin:at]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def _varint_bytes(value: int) -> bytes:
    """A number in as few bytes as it needs."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def without_bookkeeping(table: str) -> list[list[Any]]:
    """The rows of c3542a0's memory without the 4 or 8 bytes of its recorder, which it counted as a rank's."""
    found = ANSWERS["first"]["memory"]
    scalars = {row[0]: row[-1] for row in found["tensors"]["rows"] if row[1] == "bookkeeping"}
    assert set(scalars.values()) == {4, 8}
    if table == "tensors":
        return [row for row in found[table]["rows"] if row[1] != "bookkeeping"]
    if table == "levels":
        return [
            [*row[:3], row[3] - (scalars[row[0]] if row[2] == "communication_buffers" else 0)]
            for row in found[table]["rows"]
        ]
    return [[*row[:3], row[3] - scalars[row[0]], *row[4:]] for row in found[table]["rows"]]


def check_answers(db: Stagedb, out: Path) -> None:
    for name in ("first", "second"):
        wanted = ANSWERS[name]
        found = db.show(name)
        assert (found.id, found.graph, found.ranks) == (wanted["id"], wanted["graph"], wanted["ranks"])  # type: ignore[union-attr]
        exported = db.export(name, out=out / name)
        digests = {path.name: hashlib.sha256(content_of(path)).hexdigest() for path in exported.path.iterdir()}
        digests.pop(CHECKSUMS)  # what wrote the old store wrote none
        kept = {file: digest for file, digest in wanted["export"]["sha256"].items() if file not in SIMULATORS}
        assert {file: digest for file, digest in digests.items() if file not in (*SIMULATORS, "manifest.json")} == kept
    memory = db.memory("first")
    for table in ("peaks", "levels", "tensors"):
        rows = getattr(memory, table)
        assert list(rows.columns) == ANSWERS["first"]["memory"][table]["columns"]
        assert sorted(map(list, rows.rows), key=repr) == sorted(without_bookkeeping(table), key=repr)
    for name in ("plain", "whatif"):
        wanted = ANSWERS[name]
        profile = next(each for each in db.profiles() if each.name == name)
        assert (profile.id, profile.step, profile.unscaled) == (wanted["id"], wanted["step"], wanted["unscaled"])
        path = db.query("critical-path", profile=name)
        assert [list(row) for row in path.rows] == wanted["queries"]["critical_path"]["rows"]


def test_an_old_store_gives_what_it_gave(old_store: Store, tmp_path: Path) -> None:
    assert old_store.version() == 3
    applied = old_store.migrate()
    assert [each.version for each in applied] == [4, 5, 6, 7, 8]
    lines: list[str] = []
    # Hidden until they are made again.
    assert (Stagedb(old_store).instances(), Stagedb(old_store).profiles(), outdated(old_store)) == ([], [], 4)
    rebuild(old_store, lines.append)
    assert outdated(old_store) == 0
    assert "2 instances and 2 profiles" in lines[0]
    assert len(lines) == 5
    check_answers(Stagedb(old_store), tmp_path)
    created = {each.id: each.created for each in Stagedb(old_store).instances()}
    with old_store._session("READ") as session:
        left = session.run("MATCH (n:Graph|Instance|Profile) WHERE n.schema IS NULL RETURN count(n) AS n").single()
        dates = {
            row["id"]: row["created"]
            for row in session.run("MATCH (i:Instance) RETURN i.id AS id, i.created AS created")
        }
    assert left is not None
    assert left["n"] == 0
    before = {row["id"]: row["created"] for _, labels, row in OLD["nodes"] if labels == ["Instance"]}
    assert dates == before
    assert created.keys() == before.keys()


def test_what_is_interrupted_goes_on(old_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that fails to be made again is named, and hidden; the next attempt makes it."""
    import stagedb.store.contents.instances as made

    real, calls = made.instantiate, []

    def fails_once(*arguments: Any, **words: Any) -> str:
        calls.append(arguments)
        if len(calls) == 1:
            raise StagedbError("the disk is full")
        return real(*arguments, **words)

    old_store.migrate()
    monkeypatch.setattr(made, "instantiate", fails_once)
    lines: list[str] = []
    rebuild(old_store, lines.append)
    assert any("`stagedb rm " in line and line.endswith("the disk is full") for line in lines)
    assert outdated(old_store) >= 1
    rebuild(old_store, lines.append)
    assert outdated(old_store) == 0
    check_answers(Stagedb(old_store), tmp_path)


def test_what_another_process_made_again_stays(old_store: Store, tmp_path: Path) -> None:
    """Two that found version 3 at once: the slower one does its work when the other has made everything again."""
    old_store.migrate()
    rebuild(old_store, lambda line: None)
    old_store._apply(FOURTH, empty=False)
    assert outdated(old_store) == 0
    check_answers(Stagedb(old_store), tmp_path)


def test_whoever_opens_next_goes_on(old_store: Store, store_environment: dict[str, str], tmp_path: Path) -> None:
    """After a kill between migration and rebuilding: opening the embedded store is enough, a server needs a command."""
    old_store.migrate()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store_environment.items():
            patch.setenv(name, value)
        if old_store.engine == "embedded":
            up()
        else:
            assert outdated(old_store) == 4
            migrate()
    assert outdated(old_store) == 0
    check_answers(Stagedb(old_store), tmp_path)


def test_what_waits_holds_its_graph_and_can_be_removed(old_store: Store) -> None:
    old_store.migrate()
    db = Stagedb(old_store)
    (graph,) = {each["graph"] for each in old_store.read("catalog/outdated") if each["graph"]}
    with pytest.raises(UsageError, match="2 instances need graph"):
        db.rm(graph)
    assert [kind_of(each) for each in db.rm("second")] == ["instance"]
    assert [kind_of(each) for each in db.rm("plain")] == ["profile"]
    lines: list[str] = []
    rebuild(old_store, lines.append)
    assert [each.name for each in db.instances()] == ["first"]
    assert outdated(old_store) == 0


def test_a_migration_may_be_run_again(old_store: Store, tmp_path: Path) -> None:
    """As after a kill before the store was marked: what is done is left alone, what is not is done."""
    for text in FOURTH.creates[:3]:
        old_store._define(text)
    old_store.write("schema/outdate_v3")
    old_store.write("schema/clear_v3")
    old_store.migrate()
    rebuild(old_store, lambda line: None)
    check_answers(Stagedb(old_store), tmp_path)
    assert old_store.migrate() == ()


def test_an_old_server_is_refused_until_it_is_migrated(old_store: Store, store_environment: dict[str, str]) -> None:
    if old_store.engine == "embedded":
        with connect(environment={}, home=Path(store_environment["STAGEDB_HOME"])) as opened:
            assert opened.version() == VERSION
    else:
        with pytest.raises(UsageError, match=r"waits for migration 4 .*: run `stagedb store migrate`"):
            connect(environment=store_environment)
        old_store.migrate()
        with connect(environment=store_environment) as opened:
            assert opened.version() == VERSION


def test_the_version_of_the_schema_is_that_of_the_newest_migration() -> None:
    assert migrations.NEWEST == VERSION
