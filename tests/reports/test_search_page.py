"""The report of a search: one file that fetches nothing, with what the page of the search has, and its provenance."""

import dataclasses
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stagedb.api import SearchInfo, Stagedb, search_views
from stagedb.api.searching import SearchAsked
from stagedb.cli.application import application
from stagedb.errors import UsageError
from stagedb.models import load_card
from stagedb.reports.search_page import best_table, render_search
from stagedb.search import Fate, Objective, SearchRequest
from stagedb.store import Store
from stagedb.traces.output_places import TakenError
from tests.browsing import Browser
from tests.reports.test_candidates_chart import view_of
from tests.store.made_up_searches import FOUND, candidate, made_up_search
from tests.store.searches import small_request


def test_a_report_has_all_sections_and_fetches_nothing(store: Store, tmp_path: Path) -> None:
    request = made_up_search(store)
    done = Stagedb(store).report_search(request.id[:6], out=tmp_path / "page.html")
    text = done.path.read_text(encoding="utf-8")
    assert (done.bytes, done.verdict) == (len(text.encode()), "the best of 24 plans takes 100.0 ms")
    assert isinstance(done.search, SearchInfo) and done.search.id == request.id
    assert re.findall(r"<h2>([^<]+)</h2>", text) == [
        *("All candidates", "The best plans", "Where their time goes", "Step against memory", "Why the others lose"),
        *("What was asked", "How this was made"),
    ]
    assert "All 24 plans were tried or ruled out by a bound, so the first is the best." in text
    assert not re.findall(r"(?:src|href)=\"?(?:https?:)?//", text) and "default-src 'none'" in unescape(text)
    assert f"digest {request.id}" in text and "with the same versions make the same best plans" in text
    assert f'id="plan-{0}"' in text and text.count('class="candidates"') == 1
    assert text == search_views.report_of(store, Stagedb(store).searched(request.id)), "the same bytes again"


def test_the_file_has_a_name_of_its_own_and_replaces_no_other(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made_up_search(store)
    db = Stagedb(store)
    assert db.report_search().path == Path("llama-4-4-search.html")
    with pytest.raises(TakenError, match="exists: name another file"):
        db.report_search()
    db.report_search(force=True)
    made_up_search(store, ranks=(2, 4, 8))
    assert db.report_search().path == Path("llama-4-2-8-search.html")
    with pytest.raises(UsageError, match="no search 'nothing' in the store"):
        db.report_search("nothing")


def test_a_search_without_a_plan_has_a_report() -> None:
    text = render_search(view_of(FOUND[4:]))
    assert "No plan fits." in text and "Where their time goes" not in text and "How this was made" not in text


def test_bars_are_the_terms_of_a_step() -> None:
    view = view_of([candidate(Fate.TIMED, 100, 50, "best", tp=1), candidate(Fate.TIMED, 200, 50, "compute", tp=2)])
    text = render_search(view)
    assert re.findall(r'<rect class="m0" x="0%" width="([\d.]+)%" height="100%"><title>compute: ([^<]+)<', text) == [
        ("50", "100 ms"),
        ("100", "200 ms"),
    ]


@pytest.mark.parametrize("width", [1280, 400])
def test_a_report_works_in_a_browser(browser: Browser, tmp_path: Path, width: int) -> None:
    bad = "</script><img src=x onerror=document.title='owned'>"
    rows = [*FOUND, candidate(Fate.SLOWER, 900, 30, bad, 5, tp=4, schedule=bad)]
    page = tmp_path / "page.html"
    page.write_text(render_search(view_of(rows), {bad: bad}), encoding="utf-8")
    visit = browser.visit(page.as_uri(), width, dark=width < 500)
    assert visit.console == [] and visit.elsewhere("file:///") == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.title") == "tiny on 4 × h100: the best plan"
    assert browser.run("document.querySelectorAll('img').length") == 0
    browser.run(
        "(() => { const field = document.querySelector('[name=color]'); field.value = 'tp';"
        "field.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )
    assert browser.run("document.querySelector('.candidates .legend').textContent") == "124"
    assert browser.run("location.search") == "", "a file has no state in its address"


def asked_by(command: str) -> SearchRequest:
    """The request of a command, as the command line reads it, without a search."""
    found: list[SearchRequest] = []

    class StopError(Exception):
        pass

    def kept(*args: Any) -> None:
        found.append(args[1].request)
        raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stagedb.api.searching.search_in", kept)
        CliRunner().invoke(application(), shlex.split(command)[1:])
    return found[0]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"ranks": [8, 16, 32], "top": 9, "allow": ["zero"], "where": "tp <= 8 and peak < 76e9"},
        {"room": 60_000_000_001, "allow": ["none"], "system": ["h100", "a100-80gb"]},
        {"by": "tokens_per_dollar", "prices": {"h100": 2.5}, "words": {"global_batch_size": 64, "sp": True, "tp": 8}},
        {"framework": "nemo"},
        {"framework": "torchtitan", "words": {"global_batch_size": 64, "matmul_dtype": "fp8", "kernels": "eager"}},
    ],
    ids=str,
)
def test_the_command_of_a_search_asks_the_same(store: Store, more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"ranks": [16], "words": {"global_batch_size": 64, "recipe": "megatron"}, **more}
    usual = {"system": None, "allow": None, "room": None, "by": "step", "where": "", "top": 5}
    asked = SearchAsked.of(**{"model": "llama3-8b", **usual, "prices": None, "watts": None, "framework": None, **given})
    command = search_views.search_command(asked.request)
    assert command is not None
    assert asked_by(command).id == asked.request.id


def test_what_no_command_names_is_shown_again(store: Store) -> None:
    card = load_card("llama3-8b")
    request = small_request(model="llama3-8b", card=card.digest)
    assert search_views.search_command(request) is None, "the system has other numbers than the preset"
    assert search_views.provenance_of(request).commands == (f"stagedb report {request.id}",)
    asked = SearchAsked.of(card, [8, 12], None, None, None, "step", "", 5, None, None, None, {"global_batch_size": 64})
    assert "--ranks 8,12" in (search_views.search_command(asked.request) or "")


@pytest.mark.parametrize(
    ("by", "column", "value", "worse"),
    [
        # A step of 8 x 1024 tokens takes 100 ms on 4 accelerators, of 2 dollars an hour or of 500 W.
        ("tokens_per_dollar", "tokens a dollar", "36,864,000", "50.0"),
        ("tokens_per_joule", "tokens a joule", "40.96", "50.0"),
    ],
)
def test_plans_are_compared_by_what_is_best(by: str, column: str, value: str, worse: str) -> None:
    rows = [candidate(Fate.TIMED, 100, 50, "best", tp=1), candidate(Fate.TIMED, 200, 25, "compute", tp=2)]
    view = view_of(rows, by=Objective(by), prices={"h100": 2.0}, watts={"h100": 500.0})
    found = best_table(view)
    names = [each.name for each in found.columns]
    assert names == ["plan", "step ms", column, "fewer %", "peak GB", "why it loses"]
    assert found.rows[0][names.index(column)][0] == value
    assert [row[names.index("fewer %")][0] for row in found.rows] == ["0.0", worse]
    sent = [dataclasses.replace(each, sent=size) for each, size in zip(rows, (3 * 10**9, 4_500_000_000), strict=True)]
    fewest = best_table(view_of(sent, by=Objective.BYTES))
    assert [each.name for each in fewest.columns][1:4] == ["step ms", "sent GB", "more sent %"]
    assert [[cell[0] for cell in row[2:4]] for row in fewest.rows] == [["3.000", "0.0"], ["4.500", "50.0"]]
    smaller = best_table(view_of(rows[::-1], by=Objective.MEMORY))
    assert [row[2][0] for row in smaller.rows] == ["0.0", "100.0"] and smaller.columns[2].name == "larger %"
