"""A browser that tests drive: Chromium without a window, over its debugging pipe, which needs no further package."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOW = "no browser to open the pages: install Chromium (Debian: apt-get install chromium)"
PATIENCE = 300
"""Seconds that a page may take."""
LEFT = "Inspected target navigated or closed"


class PageLeftError(Exception):
    """A page was left for the next one while a command was on its way to it: the command has no result."""


@dataclass
class Visit:
    """What happened while a page was open: lines of its console, addresses that it asked for, its status."""

    console: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    status: int = 0

    def elsewhere(self, address: str) -> list[str]:
        """What it asked other servers for."""
        own = urlsplit(address).netloc
        return [each for each in self.asked if urlsplit(each).netloc not in (own, "")]


class Browser:
    """One tab. `visit` opens an address at a width; `run` evaluates an expression in the page."""

    def __init__(self, receive: int, send: int) -> None:
        self._receive, self._send = receive, send
        self._number = 0
        self._left = b""
        self._session: str | None = None
        self._visit = Visit()
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the browser."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        number = self._number
        while True:
            found = self._next()
            if found.get("id") == number:
                if found.get("error", {}).get("message") == LEFT:
                    raise PageLeftError
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result

    def visit(self, address: str, width: int, dark: bool = False) -> Visit:
        """Open an address, and wait until its scripts ran."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self._visit, self._loaded = Visit(), False
        self.call("Page.navigate", url=address)
        self.settle()
        return self._visit

    def settle(self) -> None:
        """Wait until the page and its scripts are there."""
        end = time.monotonic() + PATIENCE
        while not (self._loaded and self.holds("document.documentElement?.dataset.ready === 'yes'")):
            assert time.monotonic() < end, "the page did not become ready"
            self._take(0.05)
        self._take(0.1)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def holds(self, expression: str) -> bool:
        """Whether an expression is true in the page; it is not while the page is being left."""
        try:
            return bool(self.run(f"!!({expression})"))
        except PageLeftError:
            return False

    def picture(self, file: Path) -> None:
        """Save the whole page as a picture."""
        made = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(made["data"]))

    def _take(self, seconds: float) -> None:
        """Read what happens within a time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if b"\0" not in self._left and not select.select([self._receive], [], [], left)[0]:
                return
            self._next()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            assert select.select([self._receive], [], [], PATIENCE)[0], "the browser does not answer"
            part = os.read(self._receive, 1 << 16)
            assert part, "the browser has ended"
            self._left += part
        line, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self._visit.console.append(" ".join(str(each.get("value")) for each in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self._visit.console.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            entry = params["entry"]
            # Chromium reports the status of the page itself as a failed resource.
            # Before it has asked for anything, an entry is one of the page before.
            own, asked = entry.get("url"), self._visit.asked
            if asked and ("Failed to load resource" not in entry["text"] or own != asked[0]):
                self._visit.console.append(f"{entry['text']} ({entry.get('url')})")
        elif method == "Network.requestWillBeSent":
            self._visit.asked.append(params["request"]["url"])
        elif method == "Network.responseReceived" and params["type"] == "Document":
            self._visit.status = self._visit.status or params["response"]["status"]
        elif method == "Page.loadEventFired":
            self._loaded = True


def browser_path() -> str:
    """A browser's command; skips (or fails) where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("STAGEDB_REQUIRE_BROWSER") == "1":
            pytest.fail(f"STAGEDB_REQUIRE_BROWSER is set, and there is {HOW}")
        pytest.skip(HOW)
    return found


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, which ends with the block."""
    path = browser_path()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    # The browser reads commands from its file 3, and writes answers to its file 4.
    wrapper = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    command = ["bash", "-c", wrapper, "bash", str(theirs_in), str(theirs_out), path, "--remote-debugging-pipe", *flags]
    process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        os.close(ours_out)
        process.terminate()
        process.wait(timeout=300)
        os.close(ours_in)
