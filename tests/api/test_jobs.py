"""Jobs of commands: what the store shows of them while they run, and when it shows nothing."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, jobs
from stagedb.errors import StagedbError
from stagedb.store import Store
from stagedb.store.failures import ReadOnlyError
from tests.ir.tiny import card

MODEL = card("llama", layers=2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(jobs, "PATIENCE", 0.0)
    monkeypatch.setattr(jobs, "PAUSE", 0.05)
    yield


def until(store: Store, state: str, done: int | None = None) -> jobs.JobInfo:
    """The newest job once the store shows it so."""
    end = time.monotonic() + 300
    while True:
        found = jobs.jobs(store)
        if found and found[0].state == state and done in (None, found[0].done):
            return found[0]
        assert time.monotonic() < end, found
        time.sleep(0.02)


@pytest.mark.usefixtures("quick")
def test_a_job_is_shown_while_it_runs_and_after(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEDB_USER", "ada")
    with jobs.shown(store, "search", MODEL, "plans") as job:
        assert until(store, "running").share is None
        job.note(3, 12, "40 ms: tp 4")
        shown = until(store, "running", 3)
        assert (shown.kind, shown.what, shown.user, shown.unit) == ("search", MODEL.name, "ada", "plans")
        assert (shown.of, shown.share, shown.detail, shown.about) == (12, 0.25, "40 ms: tp 4", None)
    ended = until(store, "done", 3)
    assert ended.id == shown.id
    assert len(jobs.jobs(store)) == 1


@pytest.mark.usefixtures("quick")
def test_a_job_that_fails_is_shown_so_and_keeps_its_error(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), jobs.shown(store, "export", "x", "ranks"):
        until(store, "running")
        raise ZeroDivisionError
    until(store, "failed")


@pytest.mark.usefixtures("quick")
def test_verbs_show_their_jobs_with_what_they_made(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    calls: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        # Each verb waits until its job is shown, so that short ones are too.
        patch.setattr(jobs.RunningJob, "end", _shown_end(jobs.RunningJob.end))
        profile = db.profile(model=MODEL, tp=2, dp=2, progress=lambda *words: calls.append(words))
        made = db.export(profile.instance.id, out=tmp_path / "traces", progress=lambda *words: calls.append(words))
        found = db.search(MODEL, [4], words={"global_batch_size": 8}, top=1)
    shown = {each.kind: each for each in db.jobs()}
    assert shown["profile"].about == ("profile", profile.info.id)
    assert shown["export"].about == ("instance", made.instance.id)
    assert shown["search"].about == ("search", found.id)
    assert (shown["export"].done, shown["export"].of) == (4, 4)
    assert {each.state for each in shown.values()} == {"done"}
    assert calls, "the caller's own function is called as before"
    db.profile(profile.instance.id, keep=False)
    assert len(db.jobs()) == 3
    db.rm(made.instance.id)
    assert len(db.jobs()) == 3


def _shown_end(end: Any) -> Any:
    def wait(self: jobs.RunningJob, state: str) -> None:
        for _ in range(400):
            if self._written:
                break
            time.sleep(0.01)
        end(self, state)

    return wait


def test_a_short_job_leaves_nothing(store: Store) -> None:
    with jobs.shown(store, "export", "x", "ranks"):
        pass
    assert jobs.jobs(store) == []


@pytest.mark.usefixtures("quick")
def test_a_store_that_only_reads_gets_nothing_and_nothing_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Event()

    def refuse(*words: object, **more: object) -> None:
        tried.set()
        raise ReadOnlyError("it only reads")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", refuse)
        with jobs.shown(store, "export", "x", "ranks") as job:
            assert tried.wait(10)
            job.note(1, 2)
    assert jobs.jobs(store) == []
    assert caplog.records == []


@pytest.mark.usefixtures("quick")
def test_a_write_that_fails_is_logged_once_and_the_job_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*words: object, **more: object) -> None:
        raise StagedbError("no space left")

    monkeypatch.setattr(Store, "write", fail)
    with caplog.at_level(logging.WARNING), jobs.shown(store, "export", "x", "ranks"):
        time.sleep(0.4)
    assert [record.message for record in caplog.records] == [
        "the store does not show the progress of this export: no space left"
    ]


def test_a_write_that_hangs_holds_the_job_for_a_moment_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 0.0)
    monkeypatch.setattr(jobs, "PAUSE", 0.1)
    go = threading.Event()
    monkeypatch.setattr(Store, "write", lambda *words, **more: go.wait(30))
    began = time.monotonic()
    with jobs.shown(store, "export", "x", "ranks") as job:
        for done in range(100_000):
            job.note(done, 100_000)
    assert time.monotonic() - began < 5
    go.set()


def put(store: Store, id: str, ago: int, **words: object) -> None:
    properties = {"kind": "export", "what": "x", "host": "h", "user": "u", "unit": "ranks", "state": "running", **words}
    links = dict.fromkeys(("instance", "profile", "search", "run"))
    store.write("jobs/write", id=id, properties=properties, ago=ago, **links)


def test_a_job_without_a_sign_of_life_is_lost(store: Store) -> None:
    put(store, "one", 90_000)
    put(store, "two", 90_000, state="done")
    assert jobs.LOST == 60_000
    assert jobs.jobs(store)[0].state == "running"
    with pytest.MonkeyPatch.context() as patch:
        time.sleep(0.15)
        patch.setattr(jobs, "LOST", 100)
        # A verb of another test may still be writing its end.
        own = {each.id: each.state for each in jobs.jobs(store) if each.id in ("one", "two")}
        assert own == {"one": "lost", "two": "done"}
    assert 90 <= jobs.jobs(store)[0].seconds < 100


def test_a_job_whose_process_was_killed_is_lost_at_once(store: Store) -> None:
    text = "from stagedb.store.events import new_claim; print(new_claim(), flush=True); input()"
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        put(store, "here", 0, owner=owner)
        put(store, "elsewhere", 0, owner=f"other/{owner.partition('/')[2]}")
        put(store, "older", 0)
        assert {each.state for each in jobs.jobs(store)} == {"running"}
        process.kill()
    found = {each.id: each.state for each in jobs.jobs(store)}
    assert found == {"here": "lost", "elsewhere": "running", "older": "running"}


@pytest.mark.usefixtures("quick")
def test_a_job_names_its_process(store: Store) -> None:
    with jobs.shown(store, "export", "x", "ranks"):
        until(store, "running")
        (row,) = store.read("jobs/newest", most=1)
    assert row["owner"].split()[1] == str(os.getpid())


def test_old_jobs_are_forgotten(store: Store) -> None:
    for at in range(5):
        put(store, f"job{at}", ago=1_000 * at)
    store.write("jobs/forget_old", kept=2)
    assert [each.id for each in jobs.jobs(store)] == ["job0", "job1"]


def test_texts_are_short_and_name_no_folder(store: Store) -> None:
    job = jobs.RunningJob(store, "export", jobs._named(Path("/home/ada/secret/card.yaml")), "ranks")
    assert job._fixed["what"] == "card.yaml"
    put(store, "one", 0, what="w\x1b" * 200)
    shown = jobs.jobs(store)[0].what
    assert len(shown) <= jobs.LONGEST
    assert "\x1b" not in shown


def rows(store: Store, most: int) -> list[tuple[object, ...]]:
    return [
        tuple(row[name] for name in ("id", "done", "state", "label")) for row in store.read("jobs/newest", most=most)
    ]


@pytest.mark.parametrize(
    ("made", "most", "expected"),
    [
        ([], 5, []),
        ([("one", 10, {})], 5, [("one", None, "running", None)]),
        ([("one", 9_000, {"done": 1}), ("two", 10, {"state": "failed"})], 1, [("two", None, "failed", None)]),
        ([("one", 9_000, {}), ("one", 10, {"done": 7})], 5, [("one", 7, "running", None)]),
    ],
)
def test_statements_as_graph_query_rows(
    store: Store, made: list[tuple[str, int, dict[str, Any]]], most: int, expected: list[tuple[object, ...]]
) -> None:
    for id, ago, words in made:
        put(store, id, ago, **words)
    assert rows(store, most) == expected
