"""The tasks of a team, by what is visible alone: at both widths, light and dark, with the mouse where a control is."""

import json
import time
from typing import Any

from stagedb.api import Stagedb
from stagedb.store import Store
from tests.browsing import Browser
from tests.ir.tiny import card
from tests.matching.recorded import FOLDER
from tests.sampling import draws
from tests.serve.served import serving
from tests.serve.test_browser_tasks import WRITER, text
from tests.store.made_up_searches import made_up_search

FIND = """(([selector, words]) => {
  const all = [...document.querySelectorAll(selector)].filter((each) =>
    (each.innerText || each.getAttribute("aria-label") || "").trim().startsWith(words) && each.getClientRects().length);
  if (!all.length) return null;
  all[0].scrollIntoView({block: "nearest", inline: "nearest"});
  const box = all[0].getClientRects()[0], x = box.left + Math.min(box.width / 2, 20), y = box.top + box.height / 2;
  const hit = document.elementFromPoint(x, y);
  return hit && (all[0] === hit || all[0].contains(hit) || hit.contains(all[0])) ? {x, y} : null;
})(%s)"""
"""Where the first element of a selector is, whose text begins so; null if nobody sees it."""


class Person:
    """Somebody with a mouse and a keyboard in front of a page."""

    def __init__(self, browser: Browser, address: str, width: int, dark: bool) -> None:
        self.browser, self.address, self.width, self.dark = browser, address, width, dark

    def visit(self, path: str) -> None:
        """Open a page, and look at it."""
        self.browser.visit(self.address + path, self.width, self.dark)
        self.look()

    def look(self) -> None:
        """A page has its scheme, and does not scroll sideways."""
        paper = "rgb(16, 19, 24)" if self.dark else "rgb(246, 247, 249)"
        self.until(f"getComputedStyle(document.body).backgroundColor === '{paper}'")
        assert self.browser.run("document.documentElement.scrollWidth <= innerWidth"), self.where()

    def where(self) -> str:
        return f"{self.browser.run('location.href')}, {self.width} px{', dark' if self.dark else ''}"

    def click(self, selector: str, words: str = "") -> None:
        """Click what is visible."""
        at = self.browser.run(FIND % json.dumps([selector, words]))
        assert at is not None, f"nobody sees {selector} {words!r} at {self.where()}"
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def follow(self, selector: str, words: str = "") -> None:
        """Click what leads to another page."""
        self.browser.run("document.documentElement.dataset.ready = 'no'")
        self.click(selector, words)
        self.browser.settle()
        self.look()

    def choose(self, selector: str, words: str = "") -> None:
        """Click what changes a drawing in place."""
        self.until("document.documentElement.dataset.drawn")
        before = self.browser.run("location.href")
        self.click(selector, words)
        self.until(f"location.href !== {json.dumps(before)} && !document.getElementById('graph').ariaBusy")

    def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        for _ in range(200):
            if self.browser.holds(expression):
                return
            time.sleep(0.02)
        raise AssertionError(f"{expression} at {self.where()}")

    def type(self, selector: str, words: str) -> None:
        """Type into a field."""
        self.click(selector)
        self.browser.call("Input.insertText", text=words)

    def sees(self, selector: str) -> bool:
        """Whether an element is visible without scrolling."""
        return bool(
            self.browser.run(
                f"(() => {{ const box = document.querySelector({selector!r})?.getBoundingClientRect();"
                " return !!box && box.width > 0 && box.top < innerHeight && box.bottom > 0; })()"
            )
        )


def filled(store: Store) -> dict[str, Any]:
    """A store with three plans, a search, and a run with its instance."""
    db = Stagedb(store)
    plans: dict[str, dict[str, Any]] = {"tensor": {"tp": 2, "dp": 2}, "deep": {"pp": 2, "dp": 2}, "data": {"dp": 4}}
    for name, plan in plans.items():
        db.instantiate(card("llama"), name=name, seq_len=8, global_batch_size=8, **plan)
        db.profile(name, name=f"{name}-timed")
    search = made_up_search(store)
    db.import_run(FOLDER / "fsdp-no-reduction", name="dropped")
    db.match("dropped")
    return {"search": search.id, "verdict": db.compare("tensor", "deep", "data").verdict}


LOOKS = ((1280, False), (400, True), (1280, True), (400, False))[: draws(4, 2)]
"""Widths of a window, and whether it is dark: usually each width and each colour once."""


def test_ten_tasks(embedded_store: Store, browser: Browser) -> None:
    known = filled(embedded_store)
    with serving(embedded_store, writer=WRITER) as served:
        for width, dark in LOOKS:
            browser.call("Network.clearBrowserCookies")
            _tasks(Person(browser, served.address, width, dark), known)


def _tasks(person: Person, known: dict[str, Any]) -> None:
    browser = person.browser
    # Find the fastest plan that fits.
    person.visit("/")
    person.follow("main section a[href^='/profiles/']")
    assert text(browser, "h1").endswith("-timed on h100")
    # Open the moment of its memory peak.
    profile = browser.run("location.pathname")
    person.follow("a", "The moment of the peak")
    assert person.sees("#moment") and "time of the step" in text(browser, "main")
    # Walk from a slow op to its symbolic op, and back.
    person.visit(profile)
    person.follow("a", "slowest operators")
    person.choose(".panel ol a")
    op = text(browser, "#chosen")
    assert op.endswith(" OpTime")
    person.choose(".panel h3:nth-of-type(n) + ul a:not([href*='more='])", op.removesuffix(" OpTime"))
    assert " Op " in text(browser, "#chosen") + " "
    # Draw the path between two ops.
    person.choose(".panel a", "a path from here")
    person.click("summary", "The same as tables")
    person.choose("#tables tr:last-child a")
    person.choose(".panel a", "a path to here over all types")
    assert text(browser, ".path").startswith(("The shortest path", "No path"))
    # Filter instances, and compare three.
    person.visit("/list/instances")
    person.type("[name=plan]", "tp=2")
    person.follow("#list button", "Show")
    assert text(browser, ".chips li").startswith("plan: tp=2")
    person.visit("/list/instances?text=tiny-llama")
    for at in range(1, 4):
        person.click(f"tbody tr:nth-child({at}) [name=of]")
    person.follow("#compare button")
    assert text(browser, ".verdict") and person.sees(".verdict")
    # Run, save and share a query.
    person.visit("/cypher?query=MATCH+(p:Profile+{id:+$profile})+RETURN+p.step+AS+step")
    person.click("#parameters input")
    person.follow("form button", "Run")
    person.type("#save input", "mine")
    person.click("#save button", "Save")
    person.click("#copy")
    assert text(browser, "#saved a") == "mine"
    browser.run("localStorage.clear()")
    # See the front of a search, and a run against its instance.
    person.visit("/list/searches")
    person.follow(f"main a[href^='/searches/{known['search']}']")
    assert person.sees(".candidates .front")
    person.visit("/list/runs")
    person.follow("main a[href^='/runs/']")
    person.follow("a", "compare with its instance")
    assert "planned ops are in the run" in text(browser, ".verdict") and person.sees(".verdict")
    # Name and tag.
    person.visit(profile)
    person.follow("a.who")
    person.type("[name=token]", WRITER)
    person.follow("main form button")
    person.click("summary", "Name, tag")
    person.type(".writing [name=tags]", f"seen-{person.width}-{person.dark}")
    person.follow(".writing button", "Tag it")
    assert f"seen-{person.width}-{person.dark}" in text(browser, ".team")
