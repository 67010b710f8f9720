"""A server on a port of this machine, in a thread, for tests that ask it as a browser would."""

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import uvicorn

from stagedb.api import Stagedb
from stagedb.serve import Limits, application
from stagedb.serve.access import AccessRules, names_of
from stagedb.serve.listening import bound
from stagedb.store import Store


@dataclass(frozen=True)
class Answer:
    """The answer to a request: its status, headers in lower case, and text."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """A server's address."""

    address: str

    def get(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """The answer to one request. `sec_fetch_site` is the header `sec-fetch-site`."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=120)
        try:
            plain = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, plain)
            found = connection.getresponse()
            text = found.read().decode()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, text)
        finally:
            connection.close()


class KeptOpen(Stagedb):
    """The connection of a test, which outlives a server."""

    def __init__(self, store: Store) -> None:
        other = Store.__new__(Store)
        other.__dict__ |= store.__dict__  # so that the test itself may still write
        super().__init__(other)

    def close(self) -> None:
        """Leave it open."""


@contextlib.contextmanager
def serving(
    store: Store, token: str | None = None, limits: Limits | None = None, writer: str | None = None
) -> Iterator[Served]:
    """A server over a store. writer: the token of those who may write."""
    with serving_opened(lambda: KeptOpen(store), token, limits, writer) as served:
        yield served


@contextlib.contextmanager
def serving_opened(
    connect: Callable[[], Stagedb],
    token: str | None = None,
    limits: Limits | None = None,
    writer: str | None = None,
) -> Iterator[Served]:
    """A server that opens its store itself, and again when it was lost. Without limits it makes each page anew."""
    rules = AccessRules(token, names_of("127.0.0.1", ()), writer=writer)
    app = application(connect, rules, limits or Limits(recent=0.0))
    opened = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    end = time.monotonic() + 300
    while not server.started:
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.02)
    try:
        yield Served(f"http://127.0.0.1:{opened.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join(timeout=300)
        opened.close()
