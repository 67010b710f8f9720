"""A connection to the store for all requests that read or for all that write, and results that are worth keeping."""

import logging
import os
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from stagedb.api import Stagedb
from stagedb.errors import StagedbError
from stagedb.store.failures import ConnectionLost, QueryEnded, RefusedError
from stagedb.store.recent_rows import RecentRows
from stagedb.store.store_settings import config_file, known_secrets, without_secrets

# Errors for readers that may be anybody: without the passwords that this process has.


def hidden(text: str) -> str:
    """A text without the passwords that this process has."""
    return without_secrets(text, known_secrets(sys.argv, os.environ, config_file(os.environ)))


def traceback_of(error: Exception) -> str:
    """An unexpected error with its traceback, for the log of a server."""
    return hidden("".join(traceback.format_exception(error)))


Result = TypeVar("Result")

_log = logging.getLogger("stagedb.serve")


class SharedStore:
    """A store that only reads. Threads share it, and it is opened again after its engine was started anew.

    writes: one that may write, which is for writing alone. recent: rows that pages share; None: each reads its own.
    """

    def __init__(
        self, connect: Callable[[], Stagedb], *, writes: bool = False, recent: RecentRows | None = None
    ) -> None:
        self._connect, self._writes, self._recent = connect, writes, recent
        self._lock = threading.Lock()
        self._open: Stagedb | None = None

    def read(self, read: Callable[[Stagedb], Result]) -> Result:
        """The result of `read`, which is called a second time if the connection was lost.

        A query that the store ended is not asked again.
        """
        opened = self._current()
        try:
            return read(opened)
        except QueryEnded:
            raise
        except StagedbError as error:
            if not isinstance(error, ConnectionLost | RefusedError) and opened is self._open:
                raise
            self._drop(opened)
        return read(self._current())

    def write(self, write: Callable[[Stagedb], Result]) -> Result:
        """The result of `write`, which is called once: whether a write that was interrupted is done is not known."""
        opened = self._current()
        try:
            return write(opened)
        except (ConnectionLost, RefusedError) as error:
            self._drop(opened)
            raise _away(error) from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._open is not None:
                self._open.close()
            self._open = None

    def _current(self) -> Stagedb:
        """The connection. Raises ConnectionLost if the store cannot be opened."""
        with self._lock:
            if self._open is None:
                try:
                    opened = self._connect()
                except StagedbError as error:
                    raise _away(error) from error
                if not self._writes:
                    opened.store.only_read()
                if self._recent is not None:
                    opened.store.share_rows(self._recent)
                self._open = opened
            return self._open

    def _drop(self, lost: Stagedb) -> None:
        """Close a connection that was lost, unless another thread did so."""
        with self._lock:
            if self._open is lost:
                self._open = None
                lost.close()


def _away(error: StagedbError) -> ConnectionLost:
    """The error of a page that does not reach the store. The reason, with its addresses, is for the server's log."""
    _log.error("the store is away: %s", hidden(str(error)))
    return ConnectionLost("the store of this server is away")


class KeptResults:
    """The last results by key, such as reports. Requests for one key at the same time compute it once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._busy: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """The result of this key, computed if it is not there. A failure is not kept.

        compute: makes the result; one thread at a time calls it.
        """
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            with self._lock:
                there = key in self._results
                if there:
                    self._results.move_to_end(key)
                    kept: Result = self._results[key]
            return kept if there else self._make(key, compute)

    def has(self, key: Hashable) -> bool:
        """Whether the result of this key is kept."""
        with self._lock:
            return key in self._results

    def _make(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        try:
            made = compute()
            with self._lock:
                self._results[key] = made
                while len(self._results) > self._most:
                    self._results.popitem(last=False)
            return made
        finally:
            with self._lock:
                self._busy.pop(key, None)
