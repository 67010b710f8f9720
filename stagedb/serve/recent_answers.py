"""Pages that were just made: readers who ask for one at the same time, or a moment later, get the same."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from starlette.responses import FileResponse, Response, StreamingResponse

MOST = 256
"""Pages that are kept."""
LARGEST = 2_000_000
"""Bytes of a page that is kept."""


class RecentAnswers:
    """Answers by key, each shown to other readers for some seconds. Concurrent requests for one key make it once."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._kept: OrderedDict[Hashable, tuple[float, Response]] = OrderedDict()
        self._making: dict[Hashable, asyncio.Task[Response]] = {}

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[Response]]) -> Response:
        """The answer of a key, computed if it is not kept.

        An error or a streamed answer is for the one who asked alone. compute: makes the answer.
        """
        kept = self._kept.get(key)
        if kept is not None and self._clock() - kept[0] < self._seconds:
            return kept[1]
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(key, compute))
            # A reader who leaves does not end what others wait for.
            return await asyncio.shield(making)
        try:
            answer = await asyncio.shield(making)
        except Exception:  # noqa: BLE001 - the one who asked first has it; the next one may succeed
            return await compute()
        if isinstance(answer, StreamingResponse):
            # A streamed page serves one reader. Its parts are kept soon, so that this reader gets a whole page.
            return await self.get(key, compute)
        return answer if _shareable(answer) else await compute()

    def clear(self) -> None:
        """Forget all, as the store has changed: what is being made now, too, which may have read what was before."""
        self._kept.clear()
        self._making.clear()

    async def _make(self, key: Hashable, compute: Callable[[], Awaitable[Response]]) -> Response:
        me = asyncio.current_task()
        try:
            answer = await compute()
            if _shareable(answer) and self._making.get(key) is me:
                self._kept[key] = (self._clock(), answer)
                self._kept.move_to_end(key)
                while len(self._kept) > MOST:
                    self._kept.popitem(last=False)
            return answer
        finally:
            if self._making.get(key) is me:
                del self._making[key]


def _shareable(answer: Response) -> bool:
    """Whether an answer can be sent more than once, and is worth it."""
    whole = not isinstance(answer, StreamingResponse | FileResponse)
    return whole and answer.status_code in (200, 303) and len(answer.body) <= LARGEST
