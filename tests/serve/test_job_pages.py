"""Jobs on pages: those that run, with their bars, and the last ones."""

import re
import time
from collections.abc import Iterator

import pytest

from stagedb.api import Stagedb
from stagedb.serve.home_pages import duration
from stagedb.store import Store
from tests.browsing import Browser
from tests.ir.tiny import card
from tests.serve.served import Served, serving

LINKS = dict.fromkeys(("instance", "profile", "search", "run"))


def put(store: Store, id: str, **words: object) -> None:
    links = {name: words.pop(name, None) for name in LINKS}
    properties = {"kind": "export", "what": "llama", "host": "far", "user": "ada", "unit": "ranks", "state": "running"}
    store.write("jobs/write", id=id, properties={**properties, **words}, ago=65_000, **links)


@pytest.fixture
def served(store: Store) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def test_pages_show_what_runs_elsewhere(store: Store, served: Served) -> None:
    assert "Nothing runs." in served.get("/jobs").text
    assert 'data-when="running" hidden' in served.get("/").text
    put(store, "one", done=3, of=12)
    put(store, "two", kind="import", what="<script>")
    for path in ("/", "/jobs", "/jobs?part=running"):
        page = served.get(path).text
        assert re.search(r'<progress value="25.0" max="100" aria-label="export of llama">', page), path
        assert "25 %, 3 of 12 ranks, 1 min 5 s" in page
        assert '<progress aria-label="import of &lt;script&gt;">' in page
        assert "ada on far" in page
    assert "2 jobs running." in served.get("/jobs").text
    assert "hidden" not in re.findall('<section data-when="running"([^>]*)>', served.get("/").text)[0]


def test_ended_jobs_lead_to_what_they_made(store: Store, served: Served) -> None:
    made = Stagedb(store).instantiate(card("llama"), tp=2)
    put(store, "one", state="done", done=2, of=2, instance=made.id)
    put(store, "two", state="failed")
    page = served.get("/jobs").text
    assert f'<a href="/instances/{made.id}">llama</a></td><td>done</td><td>2 of 2 ranks</td>' in page
    assert '<td class="not-done">failed</td>' in page
    assert "<progress" not in page
    assert "Ended" not in served.get("/jobs?part=running").text
    assert served.get("/jobs?part=other").status == 400


def test_durations_are_short() -> None:
    assert [duration(each) for each in (4.4, 200, 7_500)] == ["4 s", "3 min 20 s", "2 h 5 min"]


def test_a_page_follows_a_job_without_being_loaded_again(store: Store, served: Served, browser: Browser) -> None:
    """The bar moves, the section of the first page appears, and a screen reader gets the number of jobs alone."""
    visit = browser.visit(f"{served.address}/", 1280)
    browser.run("window.kept = 1")
    put(store, "one", done=3, of=12)
    _until(browser, "document.querySelector('progress')?.value", 25)
    assert browser.run("document.querySelector('[data-when]').hidden") is False
    assert browser.run("document.getElementById('jobs-count').textContent") == "1 job running."
    put(store, "one", done=6, of=12)
    _until(browser, "document.querySelector('progress')?.value", 50)
    put(store, "one", state="done", done=12, of=12)
    _until(browser, "document.querySelector('[data-when]').hidden", True)
    assert browser.run("window.kept") == 1
    assert visit.console == []
    assert visit.elsewhere(served.address) == []


def _until(browser: Browser, expression: str, value: object) -> None:
    end = time.monotonic() + 300
    while (found := browser.run(expression)) != value:
        assert time.monotonic() < end, found
        time.sleep(0.2)
