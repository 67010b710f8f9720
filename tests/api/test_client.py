"""The Python API: the same verbs, as values."""

from pathlib import Path
from typing import Any

import pytest

import stagedb
from stagedb.api import Rows, Stagedb, model, models, properties, validate
from stagedb.errors import UsageError
from stagedb.models import Card, load_card
from stagedb.store import Store

TINY: dict[str, Any] = {
    **load_card("llama3-8b").to_dict(),
    "name": "tiny",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "ffn": 96,
    "vocab": 256,
    "max_positions": 32,
    "train_seq_len": 32,
    "parameters": 0,
}
CARD = Card(**TINY)


@pytest.fixture
def db(store: Store) -> Stagedb:
    return Stagedb(store)


def test_connect_opens_the_store_that_the_environment_names(
    store_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NEO4J_URI", "NEO4J_USERNAME", "NEO4J_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    with stagedb.connect() as db:
        assert db.instances() == []


def test_a_card_goes_all_the_way_to_traces(db: Stagedb, tmp_path: Path) -> None:
    done = db.export(model=CARD, tp=2, pp=2, ranks=4, out=tmp_path / "traces")
    assert (done.files, done.instance.ranks, done.instance.classes, done.replayed) == (4, 4, 2, True)
    assert done.bytes == sum(file.stat().st_size for file in done.path.glob("*.et"))
    assert {"build", "instantiate", "encode", "write"} <= done.seconds.keys()
    report = validate(done.path)
    assert report.faults == ()
    assert report.nodes == done.nodes


def test_what_is_new_is_marked(db: Stagedb) -> None:
    assert db.build(CARD).new
    assert not db.build(CARD).new
    assert db.instantiate(CARD, tp=2).new
    assert not db.instantiate(CARD, tp=2).new
    (graph,) = db.graphs()
    (instance,) = db.instances()
    assert instance.graph == graph.id
    assert db.show(instance.id[:8]) == instance
    assert properties(instance)["tp"] == 2
    assert properties(graph)["H"] == 64


def test_a_query_is_a_data_frame(db: Stagedb) -> None:
    first = db.instantiate(CARD, tp=2)
    db.instantiate(CARD, tp=4)
    frame = db.query("bytes_by_axis", instance=first.id).to_pandas()
    assert list(frame.columns) == ["axis", "kind", "phase", "dtype", "messages", "bytes"]
    assert frame["bytes"].sum() > 0
    assert list(db.query("RETURN $x AS x", {"x": 1})) == [{"x": 1}]


def test_words_that_no_plan_has_are_refused(db: Stagedb) -> None:
    with pytest.raises(UsageError, match="micro_batch_size"):
        db.instantiate(CARD, micro_batch=2)  # type: ignore[call-arg]
    assert db.graphs() == []


def test_rm_returns_what_it_removed(db: Stagedb) -> None:
    instance = db.instantiate(CARD, tp=2)
    assert [info.id for info in db.rm(instance.graph, force=True)] == [instance.id, instance.graph]
    assert (db.graphs(), db.instances()) == ([], [])


def test_files_need_no_connection(db: Stagedb, tmp_path: Path) -> None:
    db.export(model=CARD, tp=2, pp=2, ranks=4, packed=True, out=tmp_path / "tiny.packed")
    done = stagedb.unpack(tmp_path / "tiny.packed", only="0,2")
    assert (done.path, done.files) == (tmp_path / "tiny", 2)
    assert stagedb.validate(done.path).faults == ()
    with pytest.raises(AttributeError, match="no attribute 'models_'"):
        stagedb.models_  # noqa: B018


def test_a_shard_has_a_directory_of_its_own(db: Stagedb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert db.export(model=CARD, tp=2, ranks=4, shard="1/3").path == Path("tiny-4.1of3")
    assert db.export(model=CARD, tp=2, ranks=4, shard="1/3", packed=True).path == Path("tiny-4.1of3.packed")
    assert db.export(model=CARD, tp=2, ranks=4).path == Path("tiny-4")


def test_the_library_needs_no_connection() -> None:
    (row,) = [row for row in models() if row["name"] == "llama3-8b"]
    assert row["parameters"] == 8_030_261_248
    assert model("llama3-8b")["hidden"] == 4096
    with pytest.raises(UsageError, match="llama3-8b"):
        model("lama3-8b")


def test_rows_are_dicts_in_order() -> None:
    rows = Rows(("a", "b"), ((1, 2), (3, 4)))
    assert list(rows) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert len(rows) == 2
