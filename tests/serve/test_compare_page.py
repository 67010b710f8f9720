"""The page that compares: two to eight plans, two runs, or a run next to its instance."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from stagedb.api import Stagedb
from stagedb.reports.step_difference import compared_terms
from stagedb.reports.terminal_chart import span
from stagedb.store import Store
from tests.ir.tiny import card
from tests.matching.recorded import FOLDER
from tests.serve.served import Served, serving
from tests.serve.test_answers import content

PLANS: dict[str, dict[str, Any]] = {"tensor": {"tp": 2, "dp": 2}, "deep": {"pp": 2, "dp": 2}, "data": {"dp": 4}}


@pytest.fixture(scope="module")
def reading(embedded_engine: Store) -> Store:
    """Three instances with profiles, one without, and a run that is matched: made once, and only read."""
    db = Stagedb(embedded_engine)
    for name, plan in PLANS.items():
        db.instantiate(card("llama"), name=name, seq_len=8, global_batch_size=8, **plan)
        db.profile(name, name=f"{name}-timed")
    db.instantiate(card("llama"), name="untimed", dp=2)
    db.import_run(FOLDER / "fsdp-no-reduction", name="dropped")
    db.import_run(FOLDER / "fsdp", name="clean")
    db.profile(db.match("dropped").instance.id, system="h100", name="expected")
    db.import_run(FOLDER.parent / "memory" / "ddp", name="remembered")
    db.match("remembered")
    return embedded_engine


@pytest.fixture
def served(reading: Store) -> Iterator[Served]:
    with serving(reading) as found:
        yield found


def compare(*words: str) -> str:
    return "/compare?" + urlencode({"of": words}, doseq=True)


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def rows_of(page: str, title: str) -> list[list[str]]:
    """The texts of the first table below a heading."""
    table = page[page.index(f"<h2>{title}") :].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [text_of(each) for each in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)
    ]


def test_three_plans_have_the_sentence_and_their_differences(reading: Store, served: Served) -> None:
    answer = served.get(compare(*PLANS))
    assert answer.status == 200
    page, found = unescape(answer.text), Stagedb(reading).compare(*PLANS)
    assert f'<p class="verdict">{found.verdict}.</p>' in page
    assert all(f"<li>{each}.</li>" in page for each in found.sentences)
    assert rows_of(page, "Plans") == [[str(each) for each in row] for row in found.plan.rows]
    order = [
        "Plans",
        "Where the time of a step goes",
        "Memory at the peak",
        "Pipelines on one scale",
        "Operators and",
        "Work and",
    ]
    places = [page.index(f"<h2>{title}") for title in order]
    assert places == sorted(places)


def test_shares_of_each_step_add_up_and_bars_are_on_one_scale(reading: Store, served: Served) -> None:
    page, found = served.get(compare(*PLANS)).text, Stagedb(reading).compare(*PLANS)
    rows = rows_of(page, "Where the time of a step goes")
    shares = [[float(cell.split(" ")[-1].rstrip("%")) for cell in row[1:4]] for row in rows]
    assert [sum(column) for column in zip(*shares, strict=True)] == pytest.approx([100] * 3)
    section = page[page.index("<h2>Where the time") : page.index("<h2>Memory")]
    bars = re.findall(r'<svg viewBox="0 0 100 10".*?</svg>', section, re.DOTALL)
    steps = [each.step for each in found.sums]
    for bar, step in zip(bars, steps, strict=True):
        widths = [float(each) for each in re.findall(r'<rect class="m\d" x="[\d.]+" width="([\d.]+)"', bar)]
        assert sum(widths) == pytest.approx(100 * step / max(steps), abs=0.01)
    (most,) = [row[0] for row in rows if "differs the most" in row[0]]
    widest = max(compared_terms(found.sums), key=lambda each: each.spread)
    assert most == f"{widest.text} differs the most" and widest.text in found.verdict
    assert all("%;" in each for each in re.findall(r'aria-label="([^"]*a step[^"]*|[^"]*: computing[^"]*)"', section))


def test_what_is_compared_is_added_and_removed_without_a_script(served: Served) -> None:
    page = served.get(compare("tensor", "deep")).text
    form = page[page.index('class="filters adding"') :].partition("</form>")[0]
    assert re.findall(r'type="hidden" name="of" value="([^"]+)"', form) == ["tensor", "deep"]
    offered = re.findall(r'<option value="(\w+)">([^<]+)', form)
    assert [text.split(",")[0] for _, text in offered if "data" in text] == ["instance data"]
    assert not any("tensor" in text or text.startswith(("profile", "run")) for _, text in offered)
    removed = unescape(page[page.index('aria-label="remove tensor"') - 60 :].partition('aria-label="remove tensor"')[0])
    assert 'href="/compare?of=deep"' in removed
    assert "Add another instance" in served.get("/compare?of=deep").text
    assert "run dropped" in served.get("/compare?of=deep").text
    assert 'name="of"' in served.get("/compare").text
    assert "<option" not in served.get(compare(*["tensor"] * 8)).text


def test_two_are_those_of_diff(reading: Store, served: Served) -> None:
    for words in (("tensor", "deep"), ("tensor-timed", "deep-timed")):
        page = unescape(served.get(compare(*words)).text)
        assert f"{Stagedb(reading).diff(*words).verdict}." in page
    assert f"{Stagedb(reading).diff('tensor', 'deep').verdict}." in unescape(
        served.get("/compare?first=tensor&second=deep").text
    )
    assert "Nothing differs: " in served.get(compare("deep", "deep")).text
    untimed = unescape(served.get(compare("untimed", "deep")).text)
    assert f"{Stagedb(reading).diff('untimed', 'deep').verdict}." in untimed
    assert "there are no times" in untimed and "Pipelines" not in untimed and "<h2>Memory" in untimed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("deep",) * 9, "a comparison takes 2 to 8, and 9 are chosen"),
        (("deep", "deep-timed"), "compare instances, or profiles"),
        (("dropped", "deep", "tensor"), "a run is compared with one other run, or with one instance or profile"),
        (("dropped", "untimed"), "the run is of a job of 4 ranks, and the plan has 2"),
        (("deep", "nothing"), "no graph, instance, profile, search or run"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(served: Served, words: tuple[str, ...], message: str) -> None:
    answer = served.get(compare(*words))
    assert answer.status == 400 and message in unescape(answer.text)


def test_a_graph_is_not_compared(reading: Store, served: Served) -> None:
    answer = served.get(compare(Stagedb(reading).graphs()[0].id))
    assert answer.status == 400 and "is a graph: compare instances, profiles or runs" in answer.text


def test_a_run_is_next_to_what_was_expected(reading: Store, served: Served) -> None:
    db, before = Stagedb(reading), content(reading)
    run = db.show("dropped").id
    to = re.search(r'href="(/compare[^"]+)">compare with its instance', served.get(f"/runs/{run}").text)
    assert to is not None
    page = unescape(served.get(unescape(to[1])).text)
    assert content(reading) == before
    found = db.diff("expected", "dropped")
    verdict = found.verdict
    assert f'<p class="verdict">{verdict}.</p>' in page
    code = re.sub("`([^`]*)`", r"<code>\1</code>", found.remark)
    assert "was recorded on CPUs" in found.remark and f"<p>{code}.</p>" in page
    assert f"{found.remark}." in unescape(served.get(f"/runs/{run}/report").text)
    assert verdict.startswith("224 of 228 planned ops are in the run") and " times the expected " in verdict
    terms = rows_of(page, "Where the time of a step goes")
    assert [row[0].removesuffix(" differs the most") for row in terms] == [
        *("computing", "exposed communication over dp", "other waiting"),
    ]
    (finding,) = rows_of(page, "What differs from the plan")
    assert finding[0] == "missing" and "layer.1" in finding
    assert {"matmul forward", "all_gather backward"} <= {row[0] for row in rows_of(page, "What a call takes")}


def test_memory_is_next_to_the_account(reading: Store, served: Served) -> None:
    for run, recorded in (("remembered", True), ("dropped", False)):
        to = re.search(
            r'href="(/compare[^"]+)">compare with its instance',
            served.get(f"/runs/{Stagedb(reading).show(run).id}").text,
        )
        assert to is not None
        page = unescape(served.get(unescape(to[1])).text)
        found = page[page.index("<h2>Memory next to the account") :]
        assert found.index("peaks at 22.17 MB above" if recorded else "profile_memory=True") < found.index("</section>")
        if recorded:
            peaks = [row for row in rows_of(page, "Memory next to the account") if row[2] == "peak"]
            assert [row[:6] for row in peaks] == [["0-1", "host", "peak", "22.17 MB", "22.17 MB", "+4 B"]]


def test_a_run_that_was_not_matched_asks_for_an_instance(reading: Store, served: Served) -> None:
    db = Stagedb(reading)
    run = db.show("clean").id
    page = served.get(f"/runs/{run}").text
    assert f'href="/compare?of={run}">compare with a plan or another run' in page and "its instance" not in page
    form = unescape(served.get(f"/compare?of={run}").text)
    assert "Add the instance that it ran" in form and "run dropped" in form and "profile expected" in form
    # It is matched on the page; what a call takes needs the store to have the match.
    page = served.get(compare("clean", "expected")).text
    assert "<h2>What a call takes" not in page and "stagedb match" in page
    assert "every op of the plan is in the run" in page


def test_two_runs_are_those_of_diff(reading: Store, served: Served) -> None:
    page = unescape(served.get(compare("dropped", "clean")).text)
    assert f"{Stagedb(reading).diff('dropped', 'clean').verdict}." in page
    assert "Operators and calls, a rank and step" in page


def test_the_picture_has_no_script_and_reaches_nothing(served: Served) -> None:
    page = unescape(served.get(compare(*PLANS)).text)
    source = re.search(r'<img src="(/compare/pipelines.svg[^"]+)"', page)
    assert source is not None
    answer = served.get(source[1])
    assert answer.status == 200 and answer.headers["content-type"].startswith("image/svg+xml")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.text.count("<svg x=") == 3 and "<script" not in answer.text
    assert served.get("/compare/pipelines.svg").status == 400
    assert served.get("/compare/pipelines.svg?of=tensor").status == 404
    reports = re.findall(r'href="(/compare/report[^"]+)"', page)
    assert len(reports) == 2 and all(served.get(each).status == 200 for each in reports)
    assert served.get("/compare/report?of=tensor-timed").status == 400


def test_a_word_of_an_address_is_only_text(served: Served) -> None:
    word = "<script>alert(1)</script>"
    answer = served.get(f"/compare?of={quote(word)}")
    assert answer.status == 400 and word not in answer.text


def test_bars_and_their_sums_are_for_the_same_tokens(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    made = [db.profile(model=card("llama"), dp=2, seq_len=8, global_batch_size=size).info for size in (8, 4)]
    with serving(embedded_store) as served:
        page = served.get(compare(*(each.id for each in made))).text
    bars = page.partition("<h2>Where the time of a step goes")[2].partition("<tbody>")[0]
    sums = re.findall(r'<span class="n">([^<]+)</span>', bars)
    assert sums == [span(made[0].step, 4, zeros=True), span(2 * made[1].step, 4, zeros=True)]
    assert "times are for as many tokens as the first has" in page
    (row,) = [row for row in rows_of(page, "Plans") if row[0] == "global_batch_size"]
    assert row[1:] == ["8", "4"]
