"""A profile's timeline goes to Perfetto: to a page of another server, which a test has in its place."""

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator

import pytest

from stagedb.api import Stagedb, views
from stagedb.api.results import Profile
from stagedb.serve import step_pages
from stagedb.serve.access import HEADERS
from stagedb.store import Store
from tests.browsing import Browser
from tests.ir.tiny import card
from tests.serve.served import serving

POLICY = "cross-origin-opener-policy"
PAGE = b"""<!doctype html><title>Perfetto</title><script>
addEventListener("message", async ({data, source, origin}) => {
  if (data === "PING") source.postMessage("PONG", origin);
  if (!data.perfetto) return;
  const {buffer, ...words} = data.perfetto;
  await fetch("/taken", {method: "POST", headers: {words: JSON.stringify({...words, origin})}, body: buffer});
});</script>"""
"""What Perfetto does with the messages of another page."""


class Perfetto(http.server.BaseHTTPRequestHandler):
    """A page in place of Perfetto, and what it was given."""

    taken: list[tuple[dict[str, str], bytes]]

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.taken.append((json.loads(self.headers["words"]), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@contextlib.contextmanager
def perfetto() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """The address of the page, and what it takes."""
    taken: list[tuple[dict[str, str], bytes]] = []
    handler = type("OnePerfetto", (Perfetto,), {"taken": taken})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}", taken
        server.shutdown()


@pytest.fixture
def made(embedded_store: Store) -> Profile:
    return Stagedb(embedded_store).profile(model=card("llama"), pp=2, global_batch_size=4)


def test_a_click_hands_the_timeline_over(
    embedded_store: Store, made: Profile, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perfetto() as (there, taken), serving(embedded_store) as served:
        monkeypatch.setattr(step_pages, "PERFETTO", there)
        visit = browser.visit(f"{served.address}/profiles/{made.info.id}", 400, dark=True)
        assert visit.elsewhere(served.address) == []
        box = browser.run(
            "(() => { const button = document.getElementById('perfetto'); button.scrollIntoView();"
            " const box = button.getBoundingClientRect(); return [box.left + 5, box.top + 5]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            browser.call("Input.dispatchMouseEvent", type=kind, **where)
        end = time.monotonic() + 300
        while not taken:
            assert time.monotonic() < end, browser.run("document.getElementById('perfetto-status').textContent")
            browser.run("new Promise((done) => setTimeout(done, 50))")
        ((words, trace),) = taken
        assert trace == views.perfetto_trace(embedded_store, made.info.id)
        assert words == {
            "title": f"{made.instance.name} on h100",
            "fileName": f"{made.instance.name}-{made.info.id[:12]}.pftrace",
            "origin": served.address,
        }
        assert browser.run("document.getElementById('perfetto-status').textContent").startswith("Perfetto has it")


def test_only_the_page_of_a_profile_may_talk_with_a_window_that_it_opens(embedded_store: Store, made: Profile) -> None:
    assert HEADERS[POLICY] == "same-origin"
    with serving(embedded_store) as served:
        page = f"/profiles/{made.info.id}"
        # The first answer comes in parts, the second one as a whole.
        for _ in range(2):
            found = served.get(page)
            assert found.headers[POLICY] == "same-origin-allow-popups"
            assert 'data-to="https://ui.perfetto.dev"' in found.text and f'href="{page}/trace" download' in found.text
        for path in ("/", f"/instances/{made.instance.id}", f"{page}/report", "/cypher"):
            assert served.get(path).headers[POLICY] == "same-origin", path
