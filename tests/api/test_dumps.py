"""Dumps move content between stores of both engines, and files that are not sound change nothing."""

import gzip
import hashlib
from pathlib import Path

import pytest

from stagedb.api.client import Stagedb
from stagedb.errors import UsageError
from stagedb.store import DumpError, Store
from tests.conftest import empty
from tests.ir.tiny import card


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.et"))}


def test_a_loaded_instance_has_the_same_traces(store: Store, embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    made = db.instantiate(card("llama", layers=2), name="mine", tp=2, dp=2)
    timed = db.profile("mine")
    db.export("mine", out=tmp_path / "before")
    asked = db.query("bytes_by_axis", instance=made.id).rows
    # A profile brings its instance, and that its graph.
    assert db.dump(tmp_path / "some.dump", timed.info.id) == 3
    for each in (store, embedded_store):
        empty(each)
        each.migrate()
    other = Stagedb(embedded_store)
    assert other.load(tmp_path / "some.dump") == 3
    assert other.load(tmp_path / "some.dump") == 0
    other.export(made.id, out=tmp_path / "after")
    assert _digests(tmp_path / "after") == _digests(tmp_path / "before") != {}
    assert other.query("bytes_by_axis", instance=made.id).rows == asked
    assert [each.step for each in other.profiles()] == [timed.info.step]
    # And back.
    assert other.dump(tmp_path / "back.dump") == 3
    assert db.load(tmp_path / "back.dump") == (0 if store is embedded_store else 3)


def test_what_is_not_there_or_not_sound_is_refused(store: Store, tmp_path: Path) -> None:
    db, path = Stagedb(store), tmp_path / "all.dump"
    with pytest.raises(UsageError, match="nothing to dump"):
        db.dump(path)
    db.instantiate(card("llama", layers=2), name="mine")
    with pytest.raises(UsageError, match="no graph, instance, profile, search or run 'other'"):
        db.dump(path, "other")
    assert not path.exists()
    assert db.dump(path) == 2
    with pytest.raises(UsageError, match="is there already"):
        db.dump(path)
    assert db.dump(path, "mine", force=True) == 2
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-20]))
    with pytest.raises(DumpError):
        db.load(path)
    with pytest.raises(UsageError, match="cannot read the dump"):
        db.load(tmp_path / "none.dump")
    assert len(db.instances()) == 1
