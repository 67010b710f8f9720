"""Content that moves between the embedded engine and Neo4j: equal rows, and byte-identical exports."""

from pathlib import Path

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store

QUERIES = ("bytes_by_axis", "classes")


@pytest.mark.parametrize("first", ["embedded", "neo4j"])
def test_a_dump_moves_to_the_other_engine(
    embedded_store: Store, neo4j_store: Store, tmp_path: Path, first: str
) -> None:
    stores = (embedded_store, neo4j_store)
    source, other = (Stagedb(store) for store in (stores if first == "embedded" else stores[::-1]))
    made = source.instantiate("gpt2", tp=2, ranks=4, seq_len=16)
    timed = source.profile(made.id, system="h100")
    dump = tmp_path / "all.dump"
    assert source.dump(dump) == 3
    assert other.load(dump) == 3
    for query in QUERIES:
        rows = source.query(query, instance=made.id).rows
        assert rows
        assert other.query(query, instance=made.id).rows == rows
    assert [each.id for each in other.profiles()] == [timed.info.id]
    files = []
    for number, db in enumerate((source, other)):
        out = tmp_path / f"{number}"
        db.export(made.id, out=out, system="h100")
        files.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert files[0] == files[1]


@pytest.mark.parametrize("first", ["embedded", "neo4j"])
@pytest.mark.parametrize("way", ["push", "pull"])
def test_what_is_missing_goes_to_the_other_engine(
    embedded_store: Store, neo4j_store: Store, tmp_path: Path, first: str, way: str
) -> None:
    stores = (embedded_store, neo4j_store)
    source, other = (Stagedb(store) for store in (stores if first == "embedded" else stores[::-1]))

    def move(word: str) -> int:
        return source.push(word, to=other) if way == "push" else other.pull(word, source=source)

    made = source.instantiate("gpt2", tp=2, ranks=4, seq_len=16, name="base")
    assert move("base") == 2
    assert move("base") == 0
    source.note("base", "the run of table 3")
    other.tag("base", "here")
    assert move("base") == 0
    assert other.instances()[0].notes == ("the run of table 3",)
    assert (other.instances()[0].names, other.instances()[0].tags) == (source.instances()[0].names, ("here",))
    timed = source.profile(made.id, system="h100")
    assert move(timed.info.id) == 1  # the graph and the instance are there
    assert [each.id for each in other.profiles()] == [timed.info.id]
    for query in QUERIES:
        rows = source.query(query, instance=made.id).rows
        assert rows
        assert other.query(query, instance=made.id).rows == rows
    files = []
    for number, db in enumerate((source, other)):
        out = tmp_path / f"{number}"
        db.export(made.id, out=out, system="h100")
        files.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert files[0] == files[1] != {}
    assert other.check() == ()
