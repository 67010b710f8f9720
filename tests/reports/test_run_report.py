"""A run that was recorded, as a page and as a trace for Perfetto's viewer."""

from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import RunInfo
from stagedb.api.client import Stagedb
from stagedb.api.run_views import run_report
from stagedb.errors import UsageError
from stagedb.reports.run_report import render_run
from stagedb.reports.run_trace import trace_run
from stagedb.runs.overlaps import Half, halves_of
from stagedb.runs.stored_run import StoredRun
from stagedb.store import Store
from stagedb.store.contents.run_reading import read_run
from tests.reports.test_tracing import Read
from tests.runs.recordings import Recording, training_step

MATCHED = Path(__file__).parents[1] / "matching"
"""Recordings of small models whose plans are found."""


def info_of(db: Stagedb, name: str) -> RunInfo:
    found = db.show(name)
    assert isinstance(found, RunInfo)
    return found


def stored(store: Store, directory: Path, *recordings: Recording) -> StoredRun:
    run = Stagedb(store).import_run(*(each.write(directory) for each in recordings), name="mine")
    return read_run(store, run.id)


def pair() -> Recording:
    """A forward and a backward next to each other: each exchanges tokens while the other one computes."""
    found = Recording()
    exchange: dict[str, Any] = {"In msg nelems": 0}
    for at, (name, start, length, stream) in enumerate(
        (
            ("mlp(F)", 10_000, 20_000, 7),
            ("dispatch(B)", 10_000, 15_000, 20),
            ("mlp(B)", 30_000, 30_000, 7),
            ("combine(F)", 31_000, 40_000, 20),
        )
    ):
        found.span("user_annotation", name, 1_000 * at, 900)
        if stream == 7:
            found.kernel("ampere_sgemm_128x64_nn", start, length, launched=1_000 * at + 100)
        else:
            found.collective("all_to_all", start, length, (0,), launched=1_000 * at + 100, **exchange)
    return found


def test_two_overlapped_halves_are_a_pair(store: Store, tmp_path: Path) -> None:
    run = stored(store, tmp_path, pair())
    assert halves_of(run, 0) == (
        Half("forward", 20_000, 40_000, 29_000, 0, 11_000),
        Half("backward", 30_000, 15_000, 15_000, 0, 0),
    )
    page = render_run(run)
    assert "Two overlapped halves" in page and "backward: exchange" in page
    assert "Exposed exchange" in page and "<dd>11 <small>us</small></dd>" in page


def test_a_timeline_has_both_halves_and_what_is_exposed(store: Store, tmp_path: Path) -> None:
    made = trace_run(stored(store, tmp_path, pair()))
    found = Read.of(made.content)
    names = {number: track.name for number, track in found.tracks.items()}
    assert "two overlapped halves: 11 us of 55 us of exchange exposed" in names.values()
    spans: dict[str, list[tuple[int, int]]] = {}
    for each in found.slices:
        spans.setdefault(names[each.track], []).append((each.start, each.finish))
    begin = 10_000
    assert {name: [(start + begin, end + begin) for start, end in of] for name, of in spans.items() if ":" in name} == {
        "forward: computing": [(10_000, 30_000)],
        "forward: exchange": [(31_000, 71_000)],
        "forward: exposed exchange": [(60_000, 71_000)],
        "backward: computing": [(30_000, 60_000)],
        "backward: exchange": [(10_000, 25_000)],
    }
    assert made.slices == len(found.slices)


def test_halves_that_follow_each_other_are_no_pair(store: Store, tmp_path: Path) -> None:
    run = stored(store, tmp_path, *(training_step(rank) for rank in range(4)))
    assert halves_of(run, 0) == ()
    assert "Two overlapped halves" not in render_run(run)
    assert not any("halves" in each.name for each in Read.of(trace_run(run).content).tracks.values())


class Texts(HTMLParser):
    """The tables of a page, as rows of texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        self.inside = tag == "td"
        if self.inside:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def test_a_page_has_who_is_waited_for_and_what_is_exposed(store: Store, tmp_path: Path) -> None:
    run = stored(store, tmp_path, *(training_step(rank, 120_000 * (rank == 2)) for rank in range(4)))
    page = render_run(run, {"run": run.id})
    assert "The others wait most for rank 2: 1.9% of their time." in page
    rows = Texts(page).rows
    assert ["2", "360 us", "1.9%", "all-reduce", "mesh_tp", "1", ""] in rows
    assert any(row[:2] == ["mesh_tp", "all-reduce"] for row in rows)
    assert any(row[:1] == ["matmul"] for row in rows) and run.id in page
    assert "layer *" in page


def test_names_of_a_recording_cannot_leave_their_place(store: Store, tmp_path: Path) -> None:
    recording = Recording()
    bad = "</script><script>alert(1)</script>"
    recording.span("user_annotation", bad, 0, 90_000)
    recording.kernel(bad, 1_000, 10_000)
    assert bad not in render_run(stored(store, tmp_path, recording))


def test_a_timeline_has_all_ranks_on_one_clock(store: Store, tmp_path: Path) -> None:
    run = stored(store, tmp_path, *(training_step(rank, 120_000 * (rank == 2)) for rank in range(4)))
    made = trace_run(run)
    found = Read.of(made.content)
    names = {number: track.name for number, track in found.tracks.items()}
    assert sorted(set(names.values())) == [
        "critical path", "mine on GPU", *(f"rank {rank}" for rank in range(4)), "stream 20", "stream 7",
    ]  # fmt: skip
    reduces = [each for each in found.slices if "AllReduce" in each.name and names[each.track] == "stream 20"]
    # All ranks leave a collective together, though their clocks differ by 37 ms each.
    assert len({each.finish for each in reduces}) == 4 and len(reduces) == 16
    assert {each.depth for each in reduces if each.args.get("block", "").startswith("layer")} == {1}
    late = [each for each in reduces if each.args.get("waited_ns")]
    assert [each.args["waited_ns"] for each in late] == [120_000] * 3
    assert (made.slices, made.flows) == (len(found.slices), 12)
    path = [each for each in found.slices if names[each.track] == "critical path"]
    assert path[0].name.startswith("rank ") and path[-1].finish == run.step


def test_annotations_of_one_name_are_apart(store: Store, tmp_path: Path) -> None:
    """An op of another stream may be all that is between them."""
    recording = Recording()
    for at, (name, stream) in enumerate((("a", 7), ("a", 7), ("b", 9), ("a", 7))):
        start = 1_000 * at
        recording.span("user_annotation", name, start, 900)
        recording.kernel(f"kernel{at}", start + 200, 500, stream, launched=start + 100)
    found = Read.of(trace_run(stored(store, tmp_path, recording)).content)
    slices = sorted((each.start, each.finish, each.name) for each in found.slices if each.name in ("a", "b"))
    assert slices == [(0, 1_500, "a"), (2_000, 2_500, "b"), (3_000, 3_500, "a")]


def test_ops_of_a_stream_that_overlap_are_on_several_tracks(store: Store, tmp_path: Path) -> None:
    recording = Recording()
    for at, (start, length) in enumerate(((1_000, 5_000), (2_000, 8_000), (6_500, 1_000))):
        recording.kernel(f"kernel{at}", start, length)
    found = Read.of(trace_run(stored(store, tmp_path, recording)).content)
    tracks = {each.name: found.tracks[each.track].name for each in found.slices if each.name.startswith("kernel")}
    assert tracks == {"kernel0": "stream 7", "kernel1": "stream 7 (2)", "kernel2": "stream 7"}


def test_views_are_written_to_files(store: Store, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    stored(store, tmp_path / "in", training_step(0))
    db = Stagedb(store)
    page, timeline = tmp_path / "a.html", tmp_path / "a.pftrace"
    assert db.report_run("mine", out=page).bytes == page.stat().st_size
    assert db.timeline_run("mine", out=timeline).slices > 13
    with pytest.raises(UsageError, match="exists"):
        db.report_run("mine", out=page)
    assert db.report_run("mine", out=page, force=True).run.name is not None


def test_a_matched_run_has_what_was_expected(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    db.import_run(MATCHED / "gloo" / "fsdp-no-reduction", name="dropped")
    assert "Expected and seen" not in run_report(embedded_store, info_of(db, "dropped"))
    db.profile(db.match("dropped").instance.id, system="h100", name="expected")
    page = run_report(embedded_store, info_of(db, "dropped"))
    verdict = db.diff("expected", "dropped").verdict
    assert verdict in unescape(page)
    rows = Texts(page).rows
    terms = {row[0]: row[1:] for row in rows if len(row) == 4}
    assert {"computing", "exposed communication over dp", "other waiting"} <= terms.keys()
    assert [row[:3] for row in rows if row[:1] == ["missing"]] == [["missing", "layer.1", "0-3"]]


def test_a_matched_run_has_its_memory_next_to_the_account(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    db.import_run(MATCHED / "memory" / "ddp", name="remembered")
    db.match("remembered")
    page = run_report(embedded_store, info_of(db, "remembered"))
    assert "The instance has no profile" in page and "peaks at 22.17 MB above the start" in page
    (peak,) = [row for row in Texts(page).rows if row[2:3] == ["peak"]]
    assert peak[:6] == ["0-1", "host", "peak", "22.17 MB", "22.17 MB", "+4 B"]
