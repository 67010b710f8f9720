"""The page of a profile: the parts of its report are parts of it, each figure once, in pieces as they are made."""

import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagedb.api import Stagedb, views
from stagedb.api.results import Profile
from stagedb.errors import StagedbError
from stagedb.reports import PageParts
from stagedb.serve.memory_page import moment_links
from stagedb.serve.page_routes import Limits
from stagedb.store import Store
from tests.browsing import Browser
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.serve.served import Served, serving

WIDTHS = (1280, 400)
SECTIONS = ("The pipeline", "The critical path", "Where the time goes", "Communication", "Roofline", "The plan")


def stock(store: Store) -> Profile:
    return Stagedb(store).profile(model=card("llama"), pp=2, dp=2, global_batch_size=4)


@pytest.fixture
def reading(fill_embedded: Fill) -> Store:
    return fill_embedded(stock).store


@pytest.fixture
def made(fill_embedded: Fill) -> Profile:
    return fill_embedded(stock).made


@pytest.fixture
def served(reading: Store) -> Iterator[Served]:
    with serving(reading, limits=Limits(working=1)) as found:
        yield found


def test_the_parts_of_the_report_are_parts_of_the_page(made: Profile, served: Served, reading: Store) -> None:
    page = served.get(f"/profiles/{made.info.id}").text
    assert views.report_parts(reading, made.info.id, moment_links(made.instance.id)).html in page
    report = Stagedb(reading).report_page(made.info.id)
    for title in SECTIONS:
        assert page.count(f"<h2>{title}</h2>") == report.count(f"<h2>{title}</h2>") == 1
    assert page.count("<h1>") == page.count("Step time") == page.count("MFU<") == 1
    # The policy of pages lets no inline code or style work.
    assert not re.search(r"<iframe|<style|\sstyle=|\son\w+=|<script>", page)


def test_the_head_of_a_page_comes_before_its_parts(
    made: Profile, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    host, port = served.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=300) as opened:

        def parts(store: Store, profile: str, link: object) -> PageParts:
            del store, profile, link
            # The other thread reads: with two readers, each may wait for what the other one has.
            until = time.monotonic() + 240
            while b"</h1>" not in b"".join(seen) and time.monotonic() < until:
                time.sleep(0.01)
            return PageParts("<p>figures</p>", "", ())

        monkeypatch.setattr(views, "report_parts", parts)
        opened.sendall(f"GET /profiles/{made.info.id} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        while part := opened.recv(1 << 16):
            seen.append(part)
    text = b"".join(seen).decode()
    assert text.index("</h1>") < text.index("<p>figures</p>") < text.index("/static/parts.js")


def test_parts_that_fail_leave_the_rest_of_the_page(
    made: Profile, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(store: Store, profile: str, link: object) -> PageParts:
        del store, link
        raise StagedbError(f"another version of <b> made {profile}")

    with monkeypatch.context() as broken:
        broken.setattr(views, "report_parts", parts)
        # There is one turn, which each request gives back.
        for _ in range(3):
            page = served.get(f"/profiles/{made.info.id}").text
        assert f"another version of &lt;b&gt; made {made.info.id}" in page
        assert f"a step of {made.info.step / 1e6:,.3f} ms" in page
        assert "what happened to it" in page
    assert "<h2>Roofline</h2>" in served.get(f"/profiles/{made.info.id}").text, "a failure is not kept"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_has_one_scroll_bar(made: Profile, served: Served, browser: Browser, width: int) -> None:
    visit = browser.visit(f"{served.address}/profiles/{made.info.id}", width, dark=width < 500)
    assert visit.console == []
    assert visit.elsewhere(served.address) == []
    assert browser.run(
        "[...document.querySelectorAll('body, body *')].filter((each) => {"
        " const way = getComputedStyle(each).overflowY;"
        " return each.scrollHeight > each.clientHeight + 1 && (way === 'auto' || way === 'scroll'); }).length"
    ) == 0  # fmt: skip
    assert browser.run("document.querySelector('.canvas path.forward').getBoundingClientRect().width > 50")
    assert browser.run("getComputedStyle(document.querySelector('.bar .m0')).fill") == browser.run(
        "getComputedStyle(document.querySelector('.canvas path.forward')).fill"
    )


def test_the_timeline_opens_in_perfetto(made: Profile, served: Served, reading: Store, tmp_path: Path) -> None:
    page = served.get(f"/profiles/{made.info.id}").text
    assert f'href="/profiles/{made.info.id}/trace" download' in page
    file = Stagedb(reading).timeline(made.info.id, out=tmp_path / "step.pftrace").path
    address = f"{served.address}/profiles/{made.info.id}/trace"
    with urllib.request.urlopen(address, timeout=300) as answer:  # noqa: S310 - the test's own server
        assert answer.headers["content-disposition"].endswith('.pftrace"')
        assert answer.read() == file.read_bytes()


KEY = """(key) => document.querySelector(".gantt .scroll").dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}))"""


def pressed(browser: Browser, *keys: str) -> str:
    """The detail of the span that is chosen after some keys."""
    browser.run(f"{list(keys)!r}.forEach({KEY})")
    found: str = browser.run("document.querySelector('.detail').textContent")
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_the_timeline_has_keys_a_wheel_and_details(made: Profile, served: Served, browser: Browser, width: int) -> None:
    browser.visit(f"{served.address}/profiles/{made.info.id}", width)
    zoom = "Number(document.querySelector('.canvas').style.getPropertyValue('--zoom') || 1)"
    left = "document.querySelector('.gantt .scroll').scrollLeft"
    assert pressed(browser, "ArrowRight").startswith("stage 0: forward, micro-batch 0; ")
    assert pressed(browser, "ArrowRight").startswith("stage 0: ")
    assert pressed(browser, "ArrowDown").startswith("stage 1: ")
    assert re.search(r"; [\d.]+ (s|ms|us|ns), from [\d.]+ (s|ms|us|ns)", pressed(browser, "Home"))
    # Along the critical path, from its begin to its end and back.
    browser.visit(f"{served.address}/profiles/{made.info.id}", width)
    seen = [pressed(browser, "c")]
    while (found := pressed(browser, "c")) != seen[-1]:
        seen.append(found)
    assert len(seen) > 3
    assert all(each.endswith("on the critical path") for each in seen)
    assert pressed(browser, "C") == seen[-2]
    pressed(browser, "w", "w", "+", "+")
    assert browser.run(zoom) == 4
    pressed(browser, *["a"] * 20)
    assert browser.run(left) == 0
    pressed(browser, "d")
    assert browser.run(left) > 30
    pressed(browser, "s", "-")
    assert browser.run(zoom) == 2
    pressed(browser, "0")
    assert browser.run(zoom) == 1
    # The wheel zooms with Ctrl, at the place of the pointer, and else scrolls the page.
    browser.run("document.querySelector('.gantt').scrollIntoView({block: 'center'})")
    x, y = browser.run(
        "(() => { const box = document.querySelector('.gantt .scroll').getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + 10]; })()"
    )
    scrolled = browser.run("scrollY")
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -200}
    browser.call("Input.dispatchMouseEvent", **wheel, modifiers=2)
    assert browser.run(zoom) == 2
    assert browser.run("scrollY") == scrolled
    browser.call("Input.dispatchMouseEvent", **{**wheel, "deltaY": 200})
    browser.run("new Promise((done) => setTimeout(done, 300))")
    assert browser.run(zoom) == 2
    assert browser.run("scrollY") > scrolled
    # A pointer has the details next to it.
    browser.run("document.querySelector('.gantt').scrollIntoView({block: 'center'})")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert browser.run("document.querySelector('#tip').textContent").startswith("stage 0")
