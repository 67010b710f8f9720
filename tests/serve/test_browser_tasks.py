"""What a team does in a browser, wide and narrow: filter many instances, find the fastest plan that fits, name it, open
the moment at which its memory is fullest.
"""

from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from stagedb.store.contents.memory import analyse
from tests.browsing import Browser
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.matching.recorded import FOLDER
from tests.serve.served import serving
from tests.store.made_up_searches import made_up_search
from tests.store.many import copies

WIDTHS = (1280, 400)
WRITER = "the-token-of-writers"


def go(browser: Browser, script: str) -> None:
    """Run a script that leads to another page, and wait until that is there."""
    browser.run("document.documentElement.dataset.ready = 'no'")
    browser.run(f"void {script}")
    browser.settle()


def text(browser: Browser, selector: str) -> str:
    found: str = browser.run(f"document.querySelector({selector!r})?.textContent.trim() ?? ''")
    return found


def press(browser: Browser, key: str, **words: str) -> None:
    """Press a key, as a person does."""
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=words.get("code", key), **words)


def click(browser: Browser, x: str, y: str) -> None:
    """Click at a place of the window, given as expressions in the page."""
    at = {"x": browser.run(x), "y": browser.run(y), "button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, **at)


def many(store: Store) -> str:
    """The id of a profile with a thousand copies: tp 8 in every tenth, and each slower than the one before."""
    one = Stagedb(store).profile(model=card("llama"), tp=2, dp=2)
    copies(store, one.instance.id, 1_000)
    with store._session("WRITE") as session:
        session.run("MATCH (i:Instance) WHERE i.name ENDS WITH '7' SET i.tp = 8").consume()
        session.run("MATCH (p:Profile) SET p.tokens_per_second = 1.0e15 / p.step").consume()
        # The fastest does not fit.
        session.run("MATCH (p:Profile {id: $id}) SET p.room = 1", id=one.info.id).consume()
    return one.info.id


@pytest.mark.parametrize("width", WIDTHS)
def test_filter_a_thousand_instances_and_compare_two(fill_embedded: Fill, browser: Browser, width: int) -> None:
    with serving(fill_embedded(many).store) as served:
        browser.visit(f"{served.address}/list/instances", width)
        assert text(browser, "h1") == "instances 1,001"
        # The name and the first figure are on the first screen.
        assert browser.run(
            "[...document.querySelectorAll('tbody tr:first-child td')].slice(1, 3).every((each) => {"
            " const box = each.getBoundingClientRect();"
            " return each.textContent && box.right <= innerWidth && box.bottom <= 800; })"
        )
        browser.run("document.querySelector('[name=plan]').value = 'tp=8'")
        go(browser, "document.querySelector('#list button').click()")
        assert text(browser, "h1") == "instances 100"
        assert browser.run("location.search").startswith("?plan=tp%3D8")
        assert text(browser, ".chips li") == "plan: tp=8 ✕"
        step = "[...document.querySelectorAll('thead a')].find((each) => each.textContent.startsWith('step'))"
        go(browser, f"{step}.click()")
        first = text(browser, "tbody tr:first-child td:nth-child(2)")
        assert first == "ada/copy-7"
        go(browser, f"{step}.click()")
        assert text(browser, "tbody tr:first-child td:nth-child(2)") == "ada/copy-997"
        assert browser.run("document.querySelector('#compare button').disabled")
        browser.run("[...document.querySelectorAll('[name=of]')].slice(0, 2).forEach((each) => each.click())")
        assert text(browser, "#compare small") == "2 ticked"
        go(browser, "document.querySelector('#compare button').click()")
        assert browser.run("location.pathname") == "/compare"
        assert browser.run("new URLSearchParams(location.search).getAll('of').length") == 2


@pytest.mark.parametrize("width", WIDTHS)
def test_find_the_fastest_plan_that_fits(fill_embedded: Fill, browser: Browser, width: int) -> None:
    filled = fill_embedded(many)
    store, too_large = filled.store, filled.made
    with serving(store) as served:
        browser.visit(f"{served.address}/list/profiles?sort=tokens", width)
        assert browser.run("document.querySelector('tbody tr').id") == f"row-{too_large}"
        browser.run("document.querySelector('[name=fits]').click()")
        go(browser, "document.querySelector('#list button').click()")
        assert text(browser, "h1") == "profiles 1,000"
        best = browser.run("document.querySelector('tbody tr').id.slice(4)")
        assert Stagedb(store).find(fits=True).rows[0][5] == best
        assert "copy-1:" in text(browser, "figcaption")
        # A mark ticks its row, and leads to it.
        browser.run(
            "document.querySelector(`.plans-chart a[href='#row-"
            + best
            + "']`).dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
        )
        assert browser.run("document.querySelector('tbody tr [name=of]').checked")
        assert browser.run("location.hash") == f"#row-{best}"
        browser.run("document.querySelector('[name=color]').value = 'dp'")
        go(browser, "document.querySelector('[name=color]').dispatchEvent(new Event('change'))")
        assert "color=dp" in browser.run("location.search")
        assert text(browser, ".plans-chart .legend b") == "dp"


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_name_and_tag_a_plan(embedded_store: Store, browser: Browser, width: int) -> None:
    made = Stagedb(embedded_store).profile(model=card("llama"), tp=2, dp=2)
    browser.call("Network.clearBrowserCookies")
    with serving(embedded_store, writer=WRITER) as served:
        browser.visit(f"{served.address}/profiles/{made.info.id}", width, dark=True)
        assert text(browser, ".writing") == ""
        go(browser, "document.querySelector('a.who').click()")
        browser.run(f"document.querySelector('[name=token]').value = '{WRITER}'")
        go(browser, "document.forms[0].submit()")
        assert browser.run("location.pathname") == f"/profiles/{made.info.id}"
        for field, value in (("name", "champion"), ("tags", "week-12")):
            browser.run(f"document.querySelector('.writing [name={field}]').value = '{value}'")
            go(browser, f"document.querySelector('.writing [name={field}]').form.requestSubmit()")
        go(browser, "document.querySelector('[name=star]').click()")
        assert text(browser, "h1") == "champion on h100"
        assert "week-12" in text(browser, ".team")
        browser.visit(f"{served.address}/list/profiles?tag=week-12", width)
        assert text(browser, "tbody tr td:nth-child(2)") == "★ champion"
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        go(browser, "document.querySelector('.star').click()")
        assert text(browser, "tbody tr td:nth-child(2)") == "champion"
        go(browser, "document.querySelector('form.who button').click()")
        assert text(browser, "a.who") == "write"
    assert Stagedb(embedded_store).show("champion").tags == ("week-12",)


@pytest.mark.parametrize("width", WIDTHS)
def test_open_the_moment_of_the_memory_peak(embedded_store: Store, browser: Browser, width: int) -> None:
    made = Stagedb(embedded_store).profile(model=card("llama"), pp=2, dp=2, global_batch_size=8)
    fullest = max(analyse(embedded_store, made.instance.id), key=lambda each: sum(each.usage.at(each.peak).values()))
    with serving(embedded_store) as served:
        browser.visit(f"{served.address}/profiles/{made.info.id}", width)
        go(
            browser,
            "[...document.querySelectorAll('a')].find((each) => each.textContent.endsWith('of the peak')).click()",
        )
        assert browser.run("location.search") == (
            f"?class={fullest.rank_class.number}&at={fullest.peak.task}.{fullest.peak.index}"
        )
        assert browser.run("document.querySelector('#moment').getBoundingClientRect().top") < 500
        task, _, op = fullest.at(fullest.peak)
        assert text(browser, "#moment h2").endswith(f"{task.kind.words} of micro-batch {task.microbatch}")
        assert text(browser, "#moment code") == op
        shown = browser.run(
            "[...document.querySelectorAll('#moment tbody tr')].map((row) => +row.cells[1].dataset.value)"
        )
        assert shown == sorted(shown, reverse=True)
        assert sum(shown) == pytest.approx(sum(fullest.usage.at(fullest.peak).values()), rel=1e-6)
        # The tensors of any other moment: by keys, and by a click into the chart.
        browser.run(
            "[...document.querySelectorAll('#moment a')].find((each) => each.textContent === 'earlier').focus()"
        )
        browser.run("document.documentElement.dataset.ready = 'no'")
        press(browser, "Enter", text="\r")
        browser.settle()
        assert float(browser.run("new URLSearchParams(location.search).get('at')")) < float(
            f"{fullest.peak.task}.{fullest.peak.index}"
        )
        first = "document.querySelector('.moments a rect').getBoundingClientRect()"
        browser.run("document.querySelector('.moments').scrollIntoView()")
        browser.run("document.documentElement.dataset.ready = 'no'")
        click(browser, f"{first}.left + {first}.width / 2", f"{first}.top + 40")
        browser.settle()
        assert browser.run("new URLSearchParams(location.search).get('at')").startswith("0.")
        assert text(browser, "#moment h2").endswith("forward of micro-batch 0")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", WIDTHS)
def test_see_the_front_of_a_search(embedded_store: Store, browser: Browser, width: int) -> None:
    found = made_up_search(embedded_store)
    with serving(embedded_store) as served:
        browser.visit(f"{served.address}/list/searches", width, dark=width < 500)
        go(browser, f"document.querySelector('a[href^=\"/searches/{found.id}\"]').click()")
        # The picture is on the first screen, and has the front as a line through its three plans.
        assert browser.run("document.querySelector('.candidates .front').getBoundingClientRect().top < innerHeight")
        rows = browser.run(
            "[...document.querySelectorAll('#front tbody tr')].map((row) => [...row.cells].slice(0, 2)"
            ".map((cell) => cell.textContent.trim()))"
        )
        assert rows == [["100.0", "70.0"], ["120.0", "30.0"], ["150.0", "20.0"]]
        # Where the time of the best plans goes, in the colours of the picture.
        assert text(browser, ".plans .legend") == "compute"
        assert browser.run("getComputedStyle(document.querySelector('.plans .bar rect')).fill") == browser.run(
            "getComputedStyle(document.querySelector('.candidates .legend .k0')).backgroundColor"
        )
        browser.run("document.querySelector('.area:not([hidden]) .field').focus()")
        press(browser, "ArrowRight")
        press(browser, "Enter", text="\r")
        assert "ms" in text(browser, ".candidates .picked")


SEEN = """(() => { const box = document.querySelector(%r)?.getBoundingClientRect();
  return !!box && box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.top < 900; })()"""
"""Whether an element is on the first screen."""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_compare_three_plans(embedded_store: Store, browser: Browser, width: int, dark: bool) -> None:
    """Tick three instances, and read off the term that differs most, the plans, and the pipelines."""
    db = Stagedb(embedded_store)
    plans: dict[str, dict[str, Any]] = {"tensor": {"tp": 2, "dp": 2}, "deep": {"pp": 2, "dp": 2}, "data": {"dp": 4}}
    for name, plan in plans.items():
        db.instantiate(card("llama"), name=name, seq_len=8, global_batch_size=8, **plan)
        db.profile(name)
    with serving(embedded_store) as served:
        browser.visit(f"{served.address}/list/instances", width, dark)
        browser.run("[...document.querySelectorAll('[name=of]')].forEach((each) => each.click())")
        go(browser, "document.querySelector('#compare button').click()")
        found = db.compare(*(browser.run("new URLSearchParams(location.search).getAll('of')")))
        assert text(browser, ".verdict") == f"{found.verdict}."
        assert browser.run(SEEN % ".verdict") and browser.run(SEEN % ".compared-plans tbody td")
        terms = [text(browser, f"section:has(.stacked) .own-words tbody tr:nth-child({at + 1}) th") for at in range(9)]
        (most,) = [each.removesuffix(" differs the most") for each in terms if each.endswith(" differs the most")]
        assert f"; {most} differs the most, from " in found.verdict
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        # The picture comes when it is scrolled to.
        browser.run("document.querySelector('.picture img').scrollIntoView()")
        assert browser.run("document.querySelector('.picture img').decode().then(() => true)")
        # With the keyboard alone: the first link that removes one.
        browser.run("document.querySelector('.compared-plans a[aria-label^=remove]').focus()")
        go(browser, "document.activeElement.click()")
        assert browser.run("document.querySelectorAll('.compared-plans tbody tr').length") == 2
        left = db.diff(*(browser.run("new URLSearchParams(location.search).getAll('of')")))
        assert text(browser, ".verdict") == f"{left.verdict}."
        browser.run("document.querySelector('.adding select').selectedIndex = 1")
        go(browser, "document.querySelector('.adding button').click()")
        assert text(browser, ".verdict") == f"{found.verdict}."


@pytest.mark.parametrize(("width", "dark"), [(1280, True)])
def test_see_a_run_against_its_instance(embedded_store: Store, browser: Browser, width: int, dark: bool) -> None:
    db = Stagedb(embedded_store)
    run = db.import_run(FOLDER / "fsdp-no-reduction", name="dropped")
    db.profile(db.match("dropped").instance.id, system="h100", name="expected")
    with serving(embedded_store) as served:
        browser.visit(f"{served.address}/list/runs", width, dark)
        go(browser, f"document.querySelector(`main a[href='/runs/{run.id}']`).click()")
        link = "[...document.querySelectorAll('.links a')].find((each) => each.textContent.startsWith('compare'))"
        go(browser, f"{link}.click()")
        assert text(browser, ".verdict") == f"{db.diff('expected', 'dropped').verdict}."
        assert browser.run(SEEN % ".verdict")
        bars = browser.run(
            "[...document.querySelectorAll('.stacked svg')].map((each) => each.getAttribute('aria-label'))"
        )
        assert bars[0].startswith("expected, 1.032 ms: computing: 909 us, 88.1%; exposed communication over dp: ")
        assert bars[1].startswith("seen, 392.5 ms: computing: 240 ms, 61.2%; ")
        assert "missing" in browser.run("[...document.querySelectorAll('tbody td')].map((each) => each.textContent)")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
