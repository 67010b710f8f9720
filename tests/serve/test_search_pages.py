"""Pages of searches: the list, the best plans, both fronts, why the others lose, and what plans became."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest

from stagedb.api import Stagedb
from stagedb.search import Fate
from stagedb.store import Store
from tests.serve.served import Served, serving
from tests.store.made_up_searches import FOUND, MS, candidate, made_up_search
from tests.store.searches import CARD, small_request


@pytest.fixture
def served(store: Store) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def section(page: str, title: str) -> list[tuple[str, ...]]:
    """The rows of the table of a section."""
    part = page[page.index(f"<h2>{title}") :]
    part = part[: part.index("</section>")]
    rows = re.findall(r"<tr[^>]*>(<td.*?)</tr>", part, re.DOTALL)
    return [tuple(unescape(each) for each in re.findall(r"<td[^>]*>(?:<a[^>]*>)?([^<]*)<", row)) for row in rows]


def test_the_list_has_the_state_and_the_best_plan(store: Store, served: Served) -> None:
    assert "There are none" in served.get("/list/searches").text
    ended = made_up_search(store, covered=False, left=90 * MS, top=4)
    whole = made_up_search(store)
    page = served.get("/list/searches").text
    rows = section(page.replace("<section>", "<h2>all", 1), "all")
    assert [(row[1], row[2], row[3], row[7], row[8], row[9]) for row in rows] == [
        (whole.id[:12], "finished", "4", "dp 4, zero 0", "24", "4"),
        (ended.id[:12], "unfinished", "4", "dp 4, zero 0", "24", "4"),
    ]
    assert re.findall(r'<a href="/searches/([0-9a-f]+)"', page) == [whole.id, whole.id, ended.id, ended.id]
    assert '<a href="/list/searches" aria-current="page">Searches</a>' in page
    assert f"/searches/{whole.id}" in served.get("/").text
    assert len(re.findall("/searches/", served.get("/list/searches?text=finished").text)) == 0
    assert "/searches/" in served.get("/list/searches?system=h100&model=llama-4").text


def test_a_search_that_was_stopped_is_listed_without_a_page(store: Store, served: Served) -> None:
    request = made_up_search(store, covered=False, left=MS)
    with store._session("WRITE") as session:  # as a process that ends leaves it
        session.run(
            "MATCH (s:Search) SET s.state = 'building', s.lease = 0, s.owner = 'somebody@elsewhere/1/2'"
        ).consume()
    page = served.get("/list/searches").text
    assert ">stopped<" in page and f">{request.id[:12]}<" in page
    assert "/searches/" not in page
    assert served.get(f"/searches/{request.id}").status == 400


def test_a_page_has_the_best_plans_and_why_they_lose(store: Store, served: Served) -> None:
    request = made_up_search(store)
    page = served.get(f"/searches/{request.id[:8]}").text
    assert "All 24 plans were tried or ruled out by a bound, so the first is the best." in page
    assert section(page, "The best plans") == [
        ("dp 4, zero 0", "100.0", "0.0", "70.0", "the best"),
        ("tp 2, dp 2, zero 0", "120.0", "20.0", "30.0", "bubble it is"),
        ("tp 2, dp 2, zero 1", "130.0", "30.0", "35.0", "compute it is"),
    ]
    assert section(page, "Step against memory") == [
        ("100.0", "70.0", "dp 4, zero 0", "yes"),
        ("120.0", "30.0", "tp 2, dp 2, zero 0", "yes"),
        ("150.0", "20.0", "dp 4, zero 1", "unknown: others take 140.0 ms or more"),
    ]
    assert [row[:5] for row in section(page, "Why the others lose")] == [
        ("memory", "9", "37.5%", "1", "0"),
        ("bubble", "7", "29.2%", "2", "1"),
        ("compute", "5", "20.8%", "3", "2"),
        ("refused", "2", "8.3%", "1", "0"),
    ]
    assert "Step against ranks" not in page
    facts = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]*)</dd>", page))
    assert (facts["model"], facts["global_batch_size"], facts["best plans"]) == ("llama-4", "8", "3")
    command = re.findall(r'<pre class="command"[^>]*>([^<]*)</pre>', page)[0]
    assert command == Stagedb(store).searched(request.id).candidates.rows[0][-1]
    assert served.get(f"/show/{request.id}").headers["location"] == f"/searches/{request.id}"
    assert served.get("/searches/nothing").status == 400


def test_the_memory_front_is_that_of_the_query(store: Store, served: Served) -> None:
    request = made_up_search(store, (*FOUND[:4], replace(FOUND[1], words={**FOUND[1].words, "zero": 3}), *FOUND[4:]))
    shown = section(served.get(f"/searches/{request.id}").text, "Step against memory")
    asked = Stagedb(store).query("step_memory_front", {"search": request.id})
    assert [(row[0], row[1]) for row in shown] == [
        (f"{row['step'] / 1e6:,.1f}", f"{row['peak'] / 1e9:,.1f}") for row in asked
    ]


def test_the_losses_are_those_of_the_query(store: Store, served: Served) -> None:
    request = made_up_search(store)
    shown = section(served.get(f"/searches/{request.id}").text, "Why the others lose")
    asked = Stagedb(store).query("why_plans_lose", {"search": request.id})
    assert [(row[0], row[1], row[3], row[4]) for row in shown] == [
        (row["code"], f"{row['plans']:,}", f"{row['candidates']}", f"{row['timed']}")
        for row in asked
        if row["code"] != "best"
    ]


def test_ranks_without_a_timed_plan_have_a_bound(store: Store, served: Served) -> None:
    request = made_up_search(
        store,
        (
            candidate(Fate.TIMED, 50, 40, "best", ranks=8, dp=8),
            candidate(Fate.TIMED, 110, 40, "compute", ranks=4, dp=4),
            candidate(Fate.SLOWER, 105, 30, "compute", 2, ranks=4, tp=2),
            candidate(Fate.SLOWER, 200, 30, "compute", 4, ranks=2, tp=2),
            candidate(Fate.MEMORY, 400, 99, "memory", 4, ranks=1),
        ),
        ranks=(1, 2, 4, 8),
    )
    page = served.get(f"/searches/{request.id}").text
    assert "llama-4 on 1, 2, 4 and 8 × h100" in unescape(page)
    assert section(page, "Step against ranks") == [
        ("1", "", "", "", "none fits", ""),
        ("2", "≥ 200.0", "", "", "none was timed", ""),
        ("4", "110.0", "0.4", "40.0", "dp 4", "unknown: others take 105.0 ms or more"),
        ("8", "50.0", "0.4", "40.0", "dp 8", "yes"),
    ]
    # The plan on 4 ranks is no worse than another one on as many ranks.
    assert [row[0] for row in section(page, "Step against memory")] == ["4", "8"]


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (90 * MS, "6 of 30 plans were not tried: they take 90.0 ms or more, so the best may be up to 10.0% shorter"),
        (100 * MS, "they take 100.0 ms or more, so the first is the best, and others may be missing"),
    ],
)
def test_what_may_be_left_is_named(store: Store, served: Served, left: int, text: str) -> None:
    untried = candidate(Fate.UNTRIED, left / MS, 10, "untried", 6, tp=4, pp=1)
    request = made_up_search(store, (*FOUND, untried), covered=False, left=left)
    page = served.get(f"/searches/{request.id}").text
    assert text in page
    assert ">unfinished<" in page and "asked again, goes on" in page


@pytest.mark.parametrize(
    ("covered", "text"), [(True, "were tried or ruled out by a bound, and none fits"), (False, "no plan that fits was")]
)
def test_a_search_without_a_plan_is_a_page(store: Store, served: Served, covered: bool, text: str) -> None:
    request = made_up_search(store, FOUND[4:], covered=covered, left=None if covered else 90 * MS)
    page = served.get(f"/searches/{request.id}").text
    assert text in page
    assert "Step against memory" not in page
    assert section(page, "Why the others lose")
    assert f"<li>{'finished' if covered else 'unfinished'}</li>" in page


def test_plans_lead_to_what_they_became(store: Store, served: Served) -> None:
    db = Stagedb(store)
    words = {"global_batch_size": 8, "seq_len": 1024, "recipe": "megatron"}
    found = db.search(CARD, [4], allow=["none"], top=3, words=words)
    assert "instance" not in served.get(f"/searches/{found.id}").text.partition("<tbody>")[0].partition("<thead>")[2]
    best = found.result.winners[0]
    made = db.profile(model=CARD, **best.words)
    page = served.get(f"/searches/{found.id}").text
    assert f'<a href="/instances/{made.instance.id}">' in page
    assert f'<a href="/profiles/{made.info.id}">{made.info.id[:12]}</a>' in page
    assert section(page, "The best plans")[0][-2:] == (made.instance.name, made.info.id[:12])
    # Another system's step, and one with other durations, are not those of the plan.
    db.profile(made.instance.id, system="a100-80gb")
    db.profile(made.instance.id, scale=["compute=0.5"])
    db.profile(made.instance.id, blocking="dp")
    assert section(served.get(f"/searches/{found.id}").text, "The best plans")[0][-1] == made.info.id[:12]


def test_all_candidates_are_a_file(store: Store, served: Served) -> None:
    request = made_up_search(store)
    rows = list(csv.DictReader(io.StringIO(served.get(f"/searches/{request.id}?format=csv").text)))
    assert [(row["fate"], row["step"], row["plans"]) for row in rows] == [
        (each.fate.value, str(each.step), str(each.plans)) for each in FOUND
    ]
    answer = served.get(f"/searches/{request.id}?format=json")
    assert json.loads(answer.text)[0]["terms"] == {"compute": 100 * MS}
    assert answer.headers["content-disposition"] == f'attachment; filename="search-{request.id[:12]}.json"'
    assert served.get(f"/searches/{request.id}?format=exe").status == 400


def test_a_search_that_goes_on_is_read_again(store: Store, served: Served) -> None:
    request = made_up_search(store, FOUND[2:], covered=False, left=90 * MS)
    for found, covered in ((FOUND[2:], False), (FOUND[1:], False), (FOUND, True)):
        made_up_search(store, found, covered=covered, left=None if covered else 90 * MS)
        best = section(served.get(f"/searches/{request.id}").text, "The best plans")[0]
        assert best[1] == f"{found[0].step / MS:.1f}"


def test_questions_about_a_search_are_forms(store: Store, served: Served) -> None:
    made_up_search(store, top=4)
    request = small_request()
    made_up_search(store)
    page = served.get(f"/queries?search={request.id}").text
    assert f"/queries/why_plans_lose?search={request.id}" in page and "/queries/hotspots" not in page
    form = served.get("/queries/why_plans_lose").text
    assert "search (the newest)" in form and f'value="{request.id[:12]}"' in form
    assert re.search(r'<input name="search" value=""(?![^>]*required)', form)
    answered = served.get(f"/queries/why_plans_lose?search={request.id}&format=json")
    assert json.loads(answered.text)[0]["code"] == "memory"
    assert "of the newest search" in unescape(served.get("/queries/why_plans_lose?ask=1").text)


def test_the_picture_has_its_state_in_the_address(store: Store, served: Served) -> None:
    request = made_up_search(store)
    page = served.get(f"/searches/{request.id}?color=zero&show=timed").text
    assert '<option value="zero" selected>' in page and '<option value="timed" selected>' in page
    assert '<form class="controls filters" method="get">' in page
    refused = served.get(f"/searches/{request.id}?color=nothing")
    assert refused.status == 400 and "it is one of why, tp, dp, zero" in refused.text
    for name, kind in (("candidates.css", "text/css"), ("candidates.js", "javascript"), ("pages.css", "text/css")):
        answer = served.get(f"/static/{name}")
        assert answer.status == 200 and kind in answer.headers["content-type"]
    assert served.get("/static/report.css").status == 404, "other files of the package are not public"
