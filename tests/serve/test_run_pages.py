"""Pages of runs that were recorded: the list, and the answers to the first questions about one."""

import json
import re
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from stagedb.api import Stagedb, run_views
from stagedb.serve import run_pages
from stagedb.store import Store
from tests.ir.tiny import card
from tests.runs.execution_traces import linear_step
from tests.runs.recordings import step
from tests.serve.served import Served, serving
from tests.serve.test_search_pages import section


@pytest.fixture
def served(store: Store) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def test_a_run_is_listed_and_has_a_page(store: Store, served: Served, tmp_path: Path) -> None:
    assert "There are none" in served.get("/list/runs").text
    paths = [step(rank, 2, late=4_000 * rank).write(tmp_path) for rank in range(2)]
    run = Stagedb(store).import_run(*paths, name="base")
    assert f"/runs/{run.id}" in served.get("/list/runs").text
    assert f"/runs/{run.id}" in served.get("/").text
    page = served.get(f"/runs/{run.id}").text
    assert "A rank's time is 46% computing, 51% exposed communication, 3% idle." in unescape(page)
    assert page.count("<dt>Computing</dt>") == 1 and 'aria-current="page">Runs' in page
    assert run_views.run_report_parts(store, run).html in page
    assert not re.search(r"<iframe|<style|\sstyle=|\son\w+=|<script>", page)
    assert section(page, "Ranks that the others wait for") == [("1", "mesh_tp", "all_reduce", "0.004", "3.1", "1")]
    assert section(page, "Communication that nothing hides")[0][:2] == ("mesh_tp", "all_reduce")
    assert "stagedb query late-ranks --run" in page
    titles = [each for each in run_pages.TABLES.values() if f"<h2>{each}" in page]
    assert "Time by module" in titles and all(any(section(page, each)) for each in titles)
    assert served.get(f"/show/{run.id[:8]}").status == 303
    answer = served.get(f"/queries/late_ranks?ask=1&run={run.id[:12]}").text
    assert "4,000" in answer or "4000" in answer
    assert served.get("/runs/none").status == 400
    assert f'/runs/{run.id}/report"' in page
    report = served.get(f"/runs/{run.id}/report").text
    assert "What every stream does" in report and "The others wait most for rank 1" in report
    assert served.get("/runs/none/report").status == 400


def test_a_query_about_profiles_is_asked_about_the_run_of_its_address(
    store: Store, served: Served, tmp_path: Path
) -> None:
    Stagedb(store).profile(model=card("llama"), tp=2, name="newest")
    run = Stagedb(store).import_run(step(0, 1).write(tmp_path), name="seen")
    page = unescape(served.get(f"/queries/hotspots?run={run.id}").text)
    assert "of the newest" not in page and f'name="run" value="{run.id}"' in page
    assert 'name="profile"' not in page
    found = served.get(f"/queries/hotspots?run={run.id}&format=json").text
    rows = [dict(zip(each, each.values(), strict=True)) for each in Stagedb(store).query("hotspots", run=run.id)]
    assert json.loads(found) == rows != []
    assert f'"/queries/hotspots?run={run.id}"' in served.get(f"/queries?run={run.id}").text


def test_a_word_that_a_query_does_not_take_is_refused(store: Store, served: Served, tmp_path: Path) -> None:
    profile = Stagedb(store).profile(model=card("llama"), tp=2, name="newest")
    run = Stagedb(store).import_run(step(0, 1).write(tmp_path), name="seen")
    answer = served.get(f"/queries/bytes_by_axis?run={run.id}")
    assert answer.status == 400 and "needs what a recording does not have; about a run: " in unescape(answer.text)
    for path in (
        f"/queries/bytes_by_axis?search={run.id}",
        f"/queries/late_ranks?profile={profile.info.id}",
        f"/queries/classes?profile={profile.info.id}",
    ):
        answer = served.get(path)
        assert answer.status == 400 and "is not one of its parameters" in unescape(answer.text), path


def test_a_run_without_times_has_a_page_of_counts(store: Store, served: Served, tmp_path: Path) -> None:
    files = [linear_step(rank).write(tmp_path / f"rank{rank}.json") for rank in range(2)]
    run = Stagedb(store).import_run(*files, name="order")
    assert f"/runs/{run.id}" in served.get("/list/runs").text
    # The first answer comes in parts, the second one as a whole.
    for _ in range(2):
        page = served.get(f"/runs/{run.id}").text
        assert "The files of this run have no times" in page and "/report" not in page and "/trace" not in page
        assert section(page, "What its ranks communicate") == [
            ("default_pg", "all_reduce", "backward", "Float", "2", "2", "384")
        ]
        assert len(section(page, "What ran most often")) == 8
    for part in ("report", "trace"):
        refused = served.get(f"/runs/{run.id}/{part}")
        assert refused.status == 400 and "has no times" in unescape(refused.text)


def test_the_timeline_of_a_run_goes_to_perfetto(store: Store, served: Served, tmp_path: Path) -> None:
    run = Stagedb(store).import_run(*(step(rank, 2).write(tmp_path) for rank in range(2)), name="base")
    file = f"/runs/{run.id}/trace"
    # The first answer comes in parts, the second one as a whole.
    for _ in range(2):
        page = served.get(f"/runs/{run.id}")
        assert f'data-trace="{file}" data-to="https://ui.perfetto.dev" data-title="base"' in page.text
        assert f'href="{file}" download' in page.text and "/static/perfetto.js" in page.text
        assert page.headers["cross-origin-opener-policy"] == "same-origin-allow-popups"
    written = Stagedb(store).timeline_run(run.id, out=tmp_path / "base.pftrace").path
    with urllib.request.urlopen(served.address + file, timeout=300) as answer:  # noqa: S310 - the test's own server
        assert answer.headers["content-disposition"].endswith(f'base-{run.id[:12]}.pftrace"')
        assert answer.read() == written.read_bytes()
    assert served.get("/runs/none/trace").status == 400


def test_what_was_left_out_is_on_the_page(store: Store, served: Served, tmp_path: Path) -> None:
    recording = step(0)
    recording.events.insert(1, {"ph": 5})
    run = Stagedb(store).import_run(recording.write(tmp_path))
    assert "rank 0: event 1: " in served.get(f"/runs/{run.id}").text
