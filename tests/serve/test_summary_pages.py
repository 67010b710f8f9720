"""The summary of a plan as a page, on paper, and as a PDF."""

import base64
import html
import io
import re
from collections.abc import Iterator
from typing import Any

import pypdf
import pytest

from stagedb.api import Profile, Stagedb
from stagedb.api.plan_summaries import in_words
from stagedb.plans import Plan
from stagedb.store import Store
from stagedb.store.contents.searches import record_search
from tests.browsing import Browser
from tests.ir.tiny import card
from tests.serve.served import Served, serving
from tests.store.searches import small_request, working

GIVEN = "tokens=1B&price_hour=2&watts=500&price_kwh=0.1"


@pytest.fixture
def made(store: Store) -> tuple[Profile, Profile]:
    db = Stagedb(store)
    first = db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    db.instantiate(card("llama"), name="deep", pp=2, dp=2, global_batch_size=4)
    db.instantiate(card("llama"), name="bare", tp=2)
    request = small_request()
    record_search(store, request, working(request), lambda each: first.id)
    return db.profile("wide", name="first"), db.profile("deep", name="second")


@pytest.fixture
def served(store: Store, made: tuple[Profile, Profile]) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def figures(page: str) -> dict[str, str]:
    found = re.findall(r"<dt>([^<]*)</dt><dd[^>]*>([^<]*)</dd>", page)
    return {name: html.unescape(value) for name, value in found}


def test_the_page_has_the_figures_of_the_profile(made: tuple[Profile, Profile], served: Served) -> None:
    info, merit = made[0].info, made[0].merit
    page = served.get(f"/profiles/{info.id}/summary?{GIVEN}").text
    found = figures(page)
    assert merit.tokens_per_second is not None
    assert found["Tokens a second"] == f"{merit.tokens_per_second:,.0f}"
    days = 1e9 / merit.tokens_per_second / 86_400
    assert float(found["Days"].replace(",", "")) == pytest.approx(days, rel=1e-2)
    assert float(found["Price"].replace(",", "")) == pytest.approx(4 * days * 24 * 2, rel=1e-2)
    energy = 4 * 500 * days * 86_400 / 3.6e6
    assert float(found["Energy"].removesuffix(" kWh").replace(",", "")) == pytest.approx(energy, rel=1e-2)
    assert float(found["Price of the energy"].replace(",", "")) == pytest.approx(energy * 0.1, rel=1e-2)
    assert "published steps" in page
    # The other profile of the model on the system, and the search that tried the plan.
    assert f'href="/profiles/{made[1].info.id}"' in page
    assert f"Search {small_request().id[:12]}" in found


def test_an_instance_has_the_summary_of_its_newest_profile(
    store: Store, made: tuple[Profile, Profile], served: Served
) -> None:
    Stagedb(store).profile("wide", scale=["compute=0.5"])
    one, other = (
        figures(served.get(path).text)
        for path in (f"/instances/{made[0].instance.id}/summary", f"/profiles/{made[0].info.id}/summary")
    )
    assert one == other
    assert one["Price"] == "–"
    bare = Stagedb(store).show("bare")
    page = served.get(f"/instances/{bare.id}/summary")
    assert page.status == 200
    assert "It has no profile" in page.text
    assert served.get(f"/instances/{made[0].info.id}/summary").status == 404
    assert served.get(f"/profiles/{bare.id}/summary").status == 404
    assert f'href="/instances/{bare.id}/summary"' in served.get(f"/instances/{bare.id}").text
    assert f'href="/profiles/{made[0].info.id}/summary"' in served.get(f"/profiles/{made[0].info.id}").text


def test_a_step_of_serving_has_no_published_error(store: Store, made: tuple[Profile, Profile], served: Served) -> None:
    found = Stagedb(store).profile(model=card("llama"), workflow="forward-only", tp=2).info.id
    page = served.get(f"/profiles/{found}/summary?tokens=1B").text
    assert figures(page)["Expected error of the step"] == "–"
    assert "no published step of forward-only was compared" in page


def test_steps_of_other_workflows_are_no_rivals(store: Store, made: tuple[Profile, Profile], served: Served) -> None:
    found = Stagedb(store).profile(model=card("llama"), workflow="decode", cache_len=7, dp=2).info.id
    page = served.get(f"/profiles/{found}/summary").text
    assert "decode: 2 sequences of 1 token behind 7 in the cache in a step" in page
    assert f"/profiles/{made[0].info.id}" not in page
    assert f"/profiles/{found}" not in served.get(f"/profiles/{made[0].info.id}/summary").text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            {"dp": 8, "zero": 3},
            "8 copies of the model (data parallel); parameters, gradients and the optimizer's state are",
        ),
        ({"recompute": "full"}, "one rank has all of the model; activations are computed again in the backward (full)"),
        ({"pp": 2, "global_batch_size": 4}, "2 pipeline stages (1f1b); 4 sequences of 2,048 tokens in a step"),
    ],
)
def test_a_plan_in_words(words: dict[str, Any], text: str) -> None:
    assert in_words(Plan.from_mapping(words).to_dict()).startswith(text)


def test_a_what_if_has_no_expected_error(store: Store, made: tuple[Profile, Profile], served: Served) -> None:
    scaled = Stagedb(store).profile("wide", scale=["compute=0.5"]).info.id
    assert figures(served.get(f"/profiles/{scaled}/summary").text)["Expected error of the step"] == "–"


def test_other_numbers_are_refused(made: tuple[Profile, Profile], served: Served) -> None:
    for words in ("tokens=-1", "tokens=nan", "price_hour=1e300", "watts=%3Cscript%3E", "format=doc"):
        answer = served.get(f"/profiles/{made[0].info.id}/summary?{words}")
        assert answer.status == 400, words
        assert "<script>" not in answer.text.replace('<script src="/static/pages.js"></script>', ""), words


def test_paper_has_the_figures_and_no_navigation(store: Store, browser: Browser, made: tuple[Profile, Profile]) -> None:
    """What is printed fits on a page, black on white also where the browser is dark."""
    with serving(store) as served:
        browser.visit(f"{served.address}/profiles/{made[0].info.id}/summary?{GIVEN}", 1280, True)
        browser.call("Emulation.setEmulatedMedia", media="print")
        colors = browser.run("['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name])")
        browser.call("Emulation.setEmulatedMedia", media="")
        file = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert colors == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    pages = [page.extract_text() for page in pypdf.PdfReader(io.BytesIO(file)).pages]
    assert len(pages) <= 2
    text = " ".join(" ".join(pages).split())
    assert "Days with the worst error" in text
    assert all(word not in text for word in ("Explore", "Compute", "price of an accelerator and hour"))
