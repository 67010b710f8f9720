"""What changes nothing writes nothing: a read-only server can do it, and many jobs at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.store import Store, current_user
from stagedb.store.failures import ReadOnlyError
from tests.ir.tiny import card

MODEL = card("llama", layers=2)
PLAN: dict[str, Any] = {"tp": 2, "dp": 2}


@pytest.fixture
def refusing(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stagedb]:
    """A store with one of everything, which refuses each write as a read-only server does."""
    db = Stagedb(store)
    db.instantiate(MODEL, name="mine", **PLAN)
    db.profile("mine", name="timed")
    db.memory("mine")

    def refuse(*words: object, **more: object) -> None:
        raise ReadOnlyError(f"a write: {words}")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", refuse)
        patched.setattr(Store, "write_rows", refuse)
        yield db


def test_what_is_there_is_used_without_a_write(refusing: Stagedb, tmp_path: Path) -> None:
    db = refusing
    made = db.instantiate(MODEL, name="mine", **PLAN)
    assert (made.name, made.new) == ("mine", False)
    assert db.instantiate(MODEL, **PLAN).id == made.id
    assert db.build(MODEL).new is False
    assert db.profile("mine").info.name == "timed"
    assert db.memory(model=MODEL, **PLAN).instance.id == made.id
    assert db.export(model=MODEL, out=tmp_path / "traces", **PLAN).files == 4
    assert db.export(model=MODEL, shard="0/2", out=tmp_path / "part", **PLAN).files == 2
    db.report("mine", out=tmp_path / "report.html")
    assert len(db.ls().rows) == 3
    assert len(db.query("bytes_by_axis").rows) > 0


def test_a_step_is_timed_without_a_write(refusing: Stagedb) -> None:
    """What is not kept has the figures of what would be kept, on systems that the store has no profile of."""
    kept = refusing.profile("mine")
    same = refusing.profile("mine", keep=False)
    assert (same.info.id, same.info.kept, kept.info.kept) == (kept.info.id, False, True)
    assert (same.step, same.merit, same.memory, same.info.room) == (kept.step, kept.merit, kept.memory, kept.room)
    other = refusing.profile(model=MODEL, system="b200", scale=["compute=2"], keep=False, **PLAN)
    assert other.info.scalings == ("compute=2",)
    assert other.gain < 0
    with pytest.raises(ReadOnlyError):
        refusing.profile("mine", system="b200")
    missing = refusing.profile(model=MODEL, keep=False, **{**PLAN, "tp": 1})
    assert (missing.instance.kept, same.instance.kept) == (False, True)
    held = refusing.memory(model=MODEL, keep=False, **{**PLAN, "tp": 1})
    assert max(row["peak"] for row in held.peaks) == missing.memory[0].bytes
    with pytest.raises(UsageError, match="keep"):
        refusing.profile("mine", name="new", keep=False)
    assert len(refusing.profiles()) == len(refusing.ls("instances").rows) == 1


def test_what_is_computed_in_memory_is_what_is_kept(store: Store) -> None:
    db, words = Stagedb(store), {**PLAN, "dp": 4, "zero": 3}
    free, held = db.profile(model=MODEL, keep=False, **words), db.memory(model=MODEL, keep=False, **words)
    assert not db.ls().rows
    kept = db.profile(model=MODEL, **words)
    assert (free.info.id, free.instance.id, free.step, free.merit) == (
        *(kept.info.id, kept.instance.id, kept.step, kept.merit),
    )
    assert (free.lanes, free.path, free.memory) == (kept.lanes, kept.path, kept.memory)
    for name in ("name", "graph", "model", "recipe", "plan", "ranks", "classes"):
        assert getattr(free.instance, name) == getattr(kept.instance, name), name
    there = db.memory(model=MODEL, **words)
    assert (there.peaks, there.levels, there.tensors) == (held.peaks, held.levels, held.tensors)


def test_a_new_name_is_a_write(refusing: Stagedb) -> None:
    with pytest.raises(UsageError, match="a write"):
        refusing.instantiate(MODEL, name="other", **PLAN)


def test_another_user_only_reads(refusing: Stagedb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the user's newest yet, and stays so where nothing can be written."""
    owner = current_user()
    monkeypatch.setenv("STAGEDB_USER", "somebody-else")
    assert refusing.export(model=MODEL, out=tmp_path / "traces", **PLAN).files == 4
    assert refusing.profile("mine").info.name == f"{owner}/timed"


def test_a_request_makes_it_the_newest_again(store: Store) -> None:
    db = Stagedb(store)
    first = db.instantiate(MODEL, **PLAN)
    second = db.instantiate(MODEL, tp=4)
    assert db.instantiate(MODEL, **PLAN).id == first.id
    assert [each.id for each in db.instances()] == [first.id, second.id]
