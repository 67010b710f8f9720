"""Rows of lists that were just read: pages that need a list at the same time, or a moment later, read it once."""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

LARGEST = 20_000
"""Rows of a list that is kept. A longer one serves those who asked for it at the same time."""
SHARED = "catalog/"
"""Statements whose rows are shared: those of lists, which are long, and which one page reads after the other."""

Row = dict[str, Any]


@dataclass(frozen=True)
class _SharedRead:
    """A list that is read, or was. began: when its reader asked [s]."""

    began: float
    rows: Future[list[Row]] = field(default_factory=Future)


class RecentRows:
    """Rows by statement and parameters. Each is as old as its reader's question, at most `seconds` ago."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._readings: dict[Hashable, _SharedRead] = {}

    def get(self, name: str, params: Mapping[str, Any], read: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a statement, read if nobody did so just now. Each caller has rows of its own.

        name: of the statement. params: values of its parameters, by name. read: asks the store; what it raises is for
        its own caller alone.
        """
        key, now = (name, repr(sorted(params.items()))), self._clock()
        with self._lock:
            self._forget(now)
            known = self._readings.get(key)
            if known is None:
                mine = self._readings[key] = _SharedRead(now)
        if known is None:
            return self._read(key, mine, read)
        try:
            rows = known.rows.result()
        except Exception:  # noqa: BLE001 - the one who read it has the error; the next try may succeed
            return read()
        return [dict(row) for row in rows]

    def clear(self) -> None:
        """Forget all, as the store has changed: what is being read now, too, which may have read what was before."""
        with self._lock:
            self._readings.clear()

    def _read(self, key: Hashable, mine: _SharedRead, read: Callable[[], list[Row]]) -> list[Row]:
        try:
            rows = read()
        except BaseException as error:
            self._drop(key, mine)
            mine.rows.set_exception(error)
            raise
        if len(rows) > LARGEST:
            self._drop(key, mine)
        mine.rows.set_result(rows)
        return [dict(row) for row in rows]

    def _drop(self, key: Hashable, mine: _SharedRead) -> None:
        with self._lock:
            if self._readings.get(key) is mine:
                del self._readings[key]

    def _forget(self, now: float) -> None:
        """Forget what is too old, even while it is read: who asks now may ask about what was written since."""
        old = [key for key, each in self._readings.items() if now - each.began >= self._seconds]
        for key in old:
            del self._readings[key]
