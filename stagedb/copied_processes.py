"""Copies of this process that work in parallel: each gets a question and returns an answer.

A copy (`fork`) has all that this process has read and built. It opens and writes nothing, and keeps what it learns for
the next question. Other systems than Linux do not copy a process with threads safely: there, this process answers.
"""

import multiprocessing
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from stagedb.errors import StagedbError

Answer = Callable[[Any], Any]
"""Answers a question; both are plain data."""


@dataclass
class Copies:
    """Processes that answer questions. Without any, this process answers when an answer is awaited.

    name: of a question, for errors. lost: what an error adds if a process ends.
    """

    answer: Answer
    name: Callable[[Any], str]
    lost: str
    channels: dict[Connection, ForkProcess] = field(default_factory=dict)
    _asked: dict[Connection, Any] = field(default_factory=dict)
    _here: deque[Any] = field(default_factory=deque)

    @property
    def idle(self) -> int:
        """Number of questions that can be asked now without waiting."""
        return len(self.channels) - len(self._asked) if self.channels else 1 - len(self._here)

    @property
    def busy(self) -> int:
        """Number of questions without an answer."""
        return len(self._asked) + len(self._here)

    def ask(self, question: Any) -> None:
        """Give a question to an idle process."""
        if not self.channels:
            self._here.append(question)
            return
        channel = next(each for each in self.channels if each not in self._asked)
        self._asked[channel] = question
        with suppress(BrokenPipeError):  # the answer of a process that has ended is the end of its channel
            channel.send(question)

    def answers(self, until: float | None = None) -> Iterator[tuple[Any, Any]]:
        """Questions with their answers, as soon as there is one. until: nothing if there is none at that time
        (`time.monotonic`); without copies there always is one.

        Raises StagedbError if a process ends before it answers. What fails there fails here again, with its own error.
        """
        if self._here:
            question = self._here.popleft()
            yield question, self.answer(question)
        timeout = None if until is None else max(0.0, until - time.monotonic())
        ready = wait(list(self._asked), timeout) if self._asked else []
        for channel in [each for each in self._asked if each in ready]:
            question = self._asked.pop(channel)
            try:
                found = channel.recv()
            except (EOFError, ConnectionResetError):
                raise self._ended(self.channels[channel], question) from None
            yield question, self.answer(question) if "failed" in found else found["answer"]

    def given_up(self) -> list[Any]:
        """The questions without an answer, which are no longer asked. No others are, after that."""
        left = [*self._asked.values(), *self._here]
        self._asked.clear()
        self._here.clear()
        return left

    def _ended(self, process: ForkProcess, question: Any) -> StagedbError:
        process.join()
        status = process.exitcode or 0
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return StagedbError(
            f"the process for {self.name(question)} ended with {how}, {self.lost}. If "
            "the machine is short of memory, use fewer cores (`taskset -c 0` before the command for one)"
        )


@contextmanager
def copies(answer: Answer, count: int, name: Callable[[Any], str], lost: str) -> Iterator[Copies]:
    """`count` processes that answer questions. They end with the block, and with this process.

    answer: makes the answer to a question. name, lost: as in `Copies`.
    """
    found = Copies(answer, name, lost)
    if count < 2 or sys.platform != "linux":
        yield found
        return
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(answer, there, [*found.channels, here]), daemon=True)
            with warnings.catch_warnings():
                # Python warns of threads, whose locks stay closed in a copy: what it runs takes none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            # With the other end closed here, a copy that ends also ends its channel.
            there.close()
            found.channels[here] = process
        yield found
    finally:
        for channel, process in found.channels.items():
            process.kill()
            process.join()
            channel.close()


def _serve(answer: Answer, channel: Connection, others: Sequence[Connection]) -> None:
    """The loop of a copy. others: ends of the first process, copied with it: closed here, they end with that one."""
    for each in others:
        each.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the first process, which ends its copies
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            question = channel.recv()
            try:
                found = {"answer": answer(question)}
            except Exception:  # noqa: BLE001 - the first process runs into the same one, and raises it
                found = {"failed": True}
            channel.send(found)
