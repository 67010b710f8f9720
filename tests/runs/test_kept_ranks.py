"""Ranks that are kept between imports: the same as read, or read again."""

import os
import time
from dataclasses import fields
from pathlib import Path

import pytest

from stagedb.runs import RankTrace, file_digest, read_trace, trace_files
from stagedb.runs.trace_files import LONGEST_KEPT, KeptRanks, TraceReading, read_traces
from tests.runs.nsight_exports import two_processes, write_export
from tests.runs.test_trace_files import TRACES, columns, long_recording, profiles


@pytest.fixture
def kept(tmp_path: Path) -> KeptRanks:
    return KeptRanks(tmp_path / "kept")


def types(trace: RankTrace) -> dict[str, str]:
    return {name: column.dtype.str for name, column in vars(trace.ops).items()}


@pytest.mark.parametrize("form", ("devices", "gloo", "nsight"))
def test_what_is_kept_is_what_was_read(form: str, kept: KeptRanks, tmp_path: Path) -> None:
    path = TRACES[0]
    if form == "devices":
        path = long_recording().write(tmp_path)
    elif form == "nsight":
        path = write_export(tmp_path / "e.sqlite", two_processes())
    ranks = read_trace(path, file_digest(path))
    kept.keep("a", ranks)
    found = kept.ranks("a")
    assert found is not None and [*map(columns, found)] == [*map(columns, ranks)]
    assert [*map(types, found)] == [*map(types, ranks)]
    assert all(column.flags.writeable for column in vars(found[0].ops).values())
    assert kept.ranks("b") is None


def test_every_field_of_a_rank_is_kept() -> None:
    assert {each.name for each in fields(RankTrace)} == {*trace_files._SAME, "ops", "memory"}


def test_what_is_damaged_or_of_another_version_is_read_again(kept: KeptRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.keep("a", read_trace(TRACES[0], "a"))
    (path,) = kept.directory.iterdir()
    whole = path.read_bytes()
    for end in (0, 5, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert kept.ranks("a") is None
    for place in (0, 3, 20, len(whole) // 3, len(whole) - 40, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        assert kept.ranks("a") is None
    path.write_bytes(whole)
    assert kept.ranks("a") is not None
    monkeypatch.setattr("stagedb.runs.trace_files.FORMAT", 0)
    assert kept.ranks("a") is None


def test_an_interrupted_reading_goes_on(kept: KeptRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    read, real = list[Path](), read_trace

    def interrupted(path: Path, *more: object) -> list[RankTrace]:
        read.append(path)
        if len(read) == 3:
            raise KeyboardInterrupt
        return real(path, "0" * 64)

    monkeypatch.setattr(trace_files, "read_trace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_traces(profiles(TRACES), TraceReading(kept=kept))
    notes, reported = list[str](), list[int]()
    found = read_traces(profiles(TRACES), TraceReading(reported.append, kept, notes.append))
    assert read == [*TRACES[:3], *TRACES[2:]]
    assert notes == ["2 of 4 files were read by an import that did not end, and are not read again"]
    assert reported[0] == sum(path.stat().st_size for path in TRACES[:2])
    assert [*map(columns, found)] == [columns(each) for path in TRACES for each in real(path, "0" * 64)]
    kept.remove(profiles(TRACES))
    assert not kept.directory.exists()


def test_one_file_alone_is_kept_if_it_is_large(kept: KeptRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = TRACES[:1]
    first = read_traces(profiles([path]), TraceReading(kept=kept))
    assert not kept.directory.exists()
    monkeypatch.setattr(trace_files, "LARGE", path.stat().st_size)
    read_traces(profiles([path]), TraceReading(kept=kept))
    notes = list[str]()
    monkeypatch.setattr(trace_files, "read_trace", lambda *more: pytest.fail("the file is read again"))
    again = read_traces(profiles([path]), TraceReading(kept=kept, notes=notes.append))
    assert notes == ["the file was read by an import that did not end, and is not read again"]
    assert [*map(columns, again)] == [*map(columns, first)]


def test_without_a_place_for_them_ranks_are_only_read(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    assert len(read_traces(profiles(TRACES[:2]), TraceReading(kept=KeptRanks(tmp_path / "kept")))) == 2


def test_old_ranks_are_removed_with_others(kept: KeptRanks) -> None:
    for digest, age in (("old", LONGEST_KEPT + 60), ("new", LONGEST_KEPT - 60), ("done", 0)):
        kept.keep(digest, read_trace(TRACES[0], digest))
        moment = time.time() - age
        os.utime(kept._path(digest), (moment, moment))
    kept.remove(["done"])
    assert [kept.ranks(digest) is not None for digest in ("old", "new", "done")] == [False, True, False]
