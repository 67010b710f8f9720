"""What the engine's process does about the queries of readers: it ends those that take too much time or memory.

The engine notices that a query is to end where it reads the graph, and not within an expression, such as a `reduce`
over a long list. Then the thread itself is stopped. Nothing of stagedb is imported, as in `_engine.py`.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

POLL = 0.1
"""Seconds between two looks at the queries."""

SOON = 1.0
"""Seconds that a query has to end after it was asked to. Then its thread is stopped, and again after as many."""

LAST = 15.0
"""Seconds after which the process ends instead, if the query still computes. The files survive that as a power cut."""

FULL = 0.75
"""Share of the old generation that is used after its collection, above which the largest queries are ended."""

TIME, MEMORY, GONE = "stagedb: out of time", "stagedb: out of memory", "stagedb: its client has gone"
"""Why a query was ended. Its client gets these words."""

_THREAD = "BOLT-"
"""The beginning of the name of a thread that serves a client. The rest is the client's address."""

_MONITOR = "ArcadeDB-ServerMonitor"
"""A thread that only watches the engine, which goes on without it."""

Stop = Callable[[str, str], bool]
"""Stops the thread of a name, for a reason. False if there is none."""


class QueryWatch:
    """Looks at all running queries, in a thread of its own.

    queries: the engine's register of them. port: where it listens. reader: the beginning of the names of accounts that
    only read; the rest of a name is the longest time of a query in seconds. counted: the file with the number of
    queries that ran out of memory, by which a client whose connection was lost finds the reason.
    """

    def __init__(self, queries: Any, port: int, reader: str, counted: Path, stop: Stop) -> None:
        import jpype

        management = jpype.JClass("java.lang.management.ManagementFactory")
        self._queries, self._port, self._reader, self._counted, self._stop = queries, port, reader, counted, stop
        self._threads = jpype.JObject(management.getThreadMXBean(), "com.sun.management.ThreadMXBean")
        self._old = [each for each in management.getMemoryPoolMXBeans() if "Tenured" in str(each.getName())]
        self._collectors = list(management.getGarbageCollectorMXBeans())
        self._collections = 0
        self._asked: dict[str, tuple[float, float, str]] = {}
        """For queries that were asked to end: when, when their thread was stopped last, and why."""
        self._lost = 0

    def start(self) -> None:
        """Look from now on, until the process ends."""
        import jpype

        self._counted.write_text("0", encoding="utf-8")
        handler = jpype.JProxy("java.lang.Thread$UncaughtExceptionHandler", {"uncaughtException": self._died})
        jpype.JClass("java.lang.Thread").setDefaultUncaughtExceptionHandler(handler)
        threading.Thread(target=self._look_always, name="query watch", daemon=True).start()

    def _look_always(self) -> None:
        while True:
            time.sleep(POLL)
            try:
                self._look()
            except Exception:  # noqa: BLE001 - without the watch, a query would never end
                traceback.print_exc()

    def _look(self) -> None:
        running = {str(each.getId()): each for each in self._queries.getRunning()}
        for name in self._asked.keys() - running:
            del self._asked[name]
        readers = {name: each for name, each in running.items() if str(each.getUser()).startswith(self._reader)}
        gone = self._ports_of_gone() if readers else frozenset()
        for name, query in readers.items():
            seconds = int(str(query.getUser()).removeprefix(self._reader))
            if name in self._asked:
                self._insist(name, query)
            elif int(query.getElapsedMillis()) > 1000 * seconds:
                self._end(name, query, TIME)
            elif int(str(query.getClientAddress()).rpartition(":")[2]) in gone:
                self._end(name, query, GONE)
        if self._is_full():
            left = {name: each for name, each in readers.items() if name not in self._asked}
            sizes = self._allocated() if left else {}
            taken = {name: sizes.get(_thread_of(each), 0) for name, each in left.items()}
            # Queries half as large as the largest or more end with it: they would fill the freed memory before the next
            # check.
            for name in [name for name, size in taken.items() if 2 * size >= max(taken.values())]:
                self._end(name, left[name], MEMORY)

    def _end(self, name: str, query: Any, reason: str) -> None:
        now = time.monotonic()
        self._asked[name] = (now, now, reason)
        query.terminate(reason)

    def _insist(self, name: str, query: Any) -> None:
        """Stop the thread of a query that goes on although it was asked to end."""
        asked, stopped, reason = self._asked[name]
        now = time.monotonic()
        if now - asked > LAST:
            sys.stderr.write(f"query {name} does not end ({reason}): the engine ends\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if now - stopped > (SOON if reason != MEMORY else POLL):
            self._asked[name] = (asked, now, reason)
            try:
                there = self._stop(_thread_of(query), reason)
            except Exception:  # noqa: BLE001 - then the process ends, somewhat later
                traceback.print_exc()
                there = True
            if not there:
                query.close()  # the query's thread has ended with an error, and left the query in the register

    def _ports_of_gone(self) -> frozenset[int]:
        """The ports of clients that have closed their connection."""
        found = psutil.Process().net_connections("tcp")
        return frozenset(
            each.raddr.port
            for each in found
            if each.laddr.port == self._port and each.status == psutil.CONN_CLOSE_WAIT and each.raddr
        )

    def _is_full(self) -> bool:
        """Whether a collection since the last look has left too little room.

        Others than those of the old generation do not see what is free there: after a large query has ended, they
        would count it still.
        """
        if not self._old:
            return False
        pool = str(self._old[0].getName())
        own = [each for each in self._collectors if pool in map(str, each.getMemoryPoolNames())]
        count = sum(int(each.getCollectionCount()) for each in own)
        if count == self._collections:
            return False
        self._collections = count
        used = self._old[0].getCollectionUsage()
        return int(used.getUsed()) > FULL * int(used.getMax())

    def _allocated(self) -> dict[str, int]:
        """The bytes that each thread has allocated so far, by the thread's name."""
        ids = self._threads.getAllThreadIds()
        infos, sizes = self._threads.getThreadInfo(ids), self._threads.getThreadAllocatedBytes(ids)
        pairs = zip(infos, sizes, strict=True)
        return {str(info.getThreadName()): int(size) for info, size in pairs if info is not None}

    def _died(self, thread: Any, error: Any) -> None:
        """Called when a thread ends with an error that the engine does not handle.

        A client's thread has taken its transaction with it. Without one of its own threads the engine is not whole.
        """
        name, what = str(thread.getName()), str(error)
        sys.stderr.write(f"thread {name} ended: {what}\n")
        if "OutOfMemory" not in what:
            return
        self._lost += 1
        with suppress(OSError):
            self._counted.write_text(str(self._lost), encoding="utf-8")
        if not name.startswith((_THREAD, _MONITOR)):
            os.kill(os.getpid(), signal.SIGKILL)


def _thread_of(query: Any) -> str:
    return f"{_THREAD}{query.getClientAddress()}"
