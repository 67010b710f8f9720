"""Work shared among processes that are copies of this one.

A copy (`fork`) has the models, their graphs and the system without reading or importing anything. What it returns is a
mapping of plain values, as JSON. It opens and writes nothing. Other systems than Linux do not copy a process with
threads safely: there, the work is done piece by piece.
"""

import json
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from stagedb.cores import usable_cores
from stagedb.errors import StagedbError

Answer = Mapping[str, Any]
"""What a piece of work returns: values that JSON can express."""

Work = Callable[[int], Answer]
"""Does a piece of work, by its place."""


def shared(work: Work, names: Sequence[str], processes: int | None = None) -> Iterator[tuple[int, Answer]]:
    """The place of each piece of work and its answer, as they end.

    names: of the pieces, for errors. processes: those that work; None for one on each core. Raises StagedbError if a
    process ends before its work does, and what the work raises.
    """
    processes = min(usable_cores() if processes is None else processes, len(names))
    if processes < 2 or sys.platform != "linux":
        yield from ((at, work(at)) for at in range(len(names)))
        return
    with _copies(work, processes) as copies:
        left = iter(range(len(names)))
        tried = dict(zip(copies, left, strict=False))
        for channel, at in tried.items():
            _ask(channel, at)
        while tried:
            ready = wait(list(tried))
            for channel in [each for each in tried if each in ready]:
                at = tried.pop(channel)
                answer = _answer_of(channel)
                if answer is None:
                    raise _ended(copies[channel], names[at])
                following = next(left, None)
                if following is not None:
                    tried[channel] = following
                    _ask(channel, following)
                # What fails in a copy fails here again, with its error.
                yield at, work(at) if "failed" in answer else answer["answer"]


@contextmanager
def _copies(work: Work, count: int) -> Iterator[dict[Connection, ForkProcess]]:
    """Copies of this process that work, each with its channel. They end with the block, and with this process."""
    context = multiprocessing.get_context("fork")
    copies: dict[Connection, ForkProcess] = {}
    try:
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(work, there, [*copies, here]), daemon=True)
            with warnings.catch_warnings():
                # Python warns of threads, whose locks stay closed in a copy: what it runs takes none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            # With the other end closed here, a copy that ends also ends its channel.
            there.close()
            copies[here] = process
        yield copies
    finally:
        for channel, process in copies.items():
            process.kill()
            process.join()
            channel.close()


def _serve(work: Work, channel: Connection, others: Sequence[Connection]) -> None:
    """The loop of a copy: read the place of a piece of work, do it, write its answer; until the channel ends.

    others: ends of the first process, copied with it. Closed here, they end with the first process, however it ends.
    """
    for each in others:
        each.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the first process, which ends its copies
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            at = int(channel.recv_bytes())
            channel.send_bytes(json.dumps(_answered(work, at)).encode())


def _answered(work: Work, at: int) -> dict[str, Any]:
    """The answer to a piece of work."""
    try:
        return {"answer": work(at)}
    except Exception:  # noqa: BLE001 - the first process runs into the same one, and raises it
        return {"failed": True}


def _ask(channel: Connection, at: int) -> None:
    """Give a piece of work to a copy. The answer of one that has ended is the end of its channel."""
    with suppress(BrokenPipeError):
        channel.send_bytes(str(at).encode())


def _answer_of(channel: Connection) -> dict[str, Any] | None:
    """The answer of a copy; None if it has ended."""
    try:
        found: dict[str, Any] = json.loads(channel.recv_bytes())
    except (EOFError, ConnectionResetError):
        return None
    return found


def _ended(process: ForkProcess, name: str) -> StagedbError:
    process.join()
    status = process.exitcode or 0
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return StagedbError(
        f"the process that tried {name} ended with {how}, so that there is no answer; nothing was written. If "
        "the machine is short of memory, use fewer cores (`taskset -c 0` before the command for one)"
    )
