"""The page of a profile: the parts of its report are parts of it, each figure once, in pieces as they are made."""

import re
import socket
from collections.abc import Iterator

import pytest

from stagedb.api import Stagedb, views
from stagedb.api.results import Profile
from stagedb.errors import StagedbError
from stagedb.reports import PageParts
from stagedb.serve.memory_page import moment_links
from stagedb.serve.page_routes import Limits
from stagedb.store import Store
from tests.browsing import Browser
from tests.ir.tiny import card
from tests.serve.served import Served, serving

WIDTHS = (1280, 400)
SECTIONS = ("The pipeline", "The critical path", "Where the time goes", "Communication", "Roofline", "The plan")


@pytest.fixture
def made(embedded_store: Store) -> Profile:
    return Stagedb(embedded_store).profile(model=card("llama"), pp=2, dp=2, global_batch_size=4)


@pytest.fixture
def served(embedded_store: Store) -> Iterator[Served]:
    with serving(embedded_store, limits=Limits(working=1)) as found:
        yield found


def test_the_parts_of_the_report_are_parts_of_the_page(made: Profile, served: Served, embedded_store: Store) -> None:
    page = served.get(f"/profiles/{made.info.id}").text
    assert views.report_parts(embedded_store, made.info.id, moment_links(made.instance.id)).html in page
    report = Stagedb(embedded_store).report_page(made.info.id)
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
    with socket.create_connection((host, int(port)), timeout=30) as opened:

        def parts(store: Store, profile: str, link: object) -> PageParts:
            del store, profile, link
            while b"</h1>" not in b"".join(seen):
                seen.append(opened.recv(1 << 16))
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
    assert browser.run("getComputedStyle(document.querySelector('.bar .busy')).fill") == browser.run(
        "getComputedStyle(document.querySelector('.canvas path.forward')).fill"
    )
