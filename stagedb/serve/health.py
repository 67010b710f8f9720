"""Whether the server and its store answer: for the health check of a container or a proxy, which has no token."""

import threading
import time

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from stagedb.errors import StagedbError
from stagedb.serve.shared_store import SharedStore

PATH = "/health"
ASKED_AGAIN = 5.0
"""Seconds after which the store is asked again: whoever has no token cannot keep it busy."""


class StoreHealth:
    """Whether a store answers, asked at most once in `ASKED_AGAIN` seconds."""

    def __init__(self, shared: SharedStore) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._answers = False

    def answer(self, request: Request) -> Response:
        """200 `ok`, or 503 if the store does not answer. Nothing of the store, and no error, is shown."""
        del request
        with self._lock:
            now = time.monotonic()
            if self._asked is None or now - self._asked > ASKED_AGAIN:
                self._answers = self._ask()
                self._asked = time.monotonic()
            answers = self._answers
        if answers:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the store does not answer\n", 503)

    def _ask(self) -> bool:
        try:
            self._shared.read(lambda db: db.store.version())
        except StagedbError:
            return False
        return True
