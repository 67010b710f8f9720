"""Plans tried in several processes at once, which are copies of this one.

A copy (`fork`) has the model, its graphs and the system without reading or importing anything, and what it returns is
two numbers or a message, as JSON. It opens and writes nothing. Other systems than Linux do not copy a process with
threads safely: there, plans are tried one after the other.
"""

import json
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from stagedb.advice.trials import Outcome, Trials
from stagedb.cores import usable_cores
from stagedb.errors import StagedbError, UsageError
from stagedb.plans import Plan


@dataclass(frozen=True)
class Trial:
    """A plan to try. name: its change in words. words: all words of the plan. fitting: only if its memory fits."""

    name: str
    words: Mapping[str, Any]
    fitting: bool = False


@dataclass(frozen=True)
class NoOutcome:
    """Why there is no outcome. message: that of the UsageError; empty for a plan that does not fit."""

    message: str = ""


Result = Outcome | NoOutcome


def results(trials: Trials, asked: Sequence[Trial]) -> Iterator[tuple[int, Result]]:
    """The place of each trial and its result, as they end.

    Raises StagedbError if a process ends before its trial does.
    """
    processes = min(usable_cores() if trials.processes is None else trials.processes, len(asked))
    if processes < 2 or sys.platform != "linux":
        yield from ((at, result(trials, each)) for at, each in enumerate(asked))
        return
    with _copies(trials, asked, processes) as copies:
        left = iter(range(len(asked)))
        tried = dict(zip(copies, left, strict=False))
        for channel, at in tried.items():
            _ask(channel, at)
        while tried:
            ready = wait(list(tried))
            for channel in [each for each in tried if each in ready]:
                at = tried.pop(channel)
                answer = _answer_of(channel)
                if answer is None:
                    raise _ended(copies[channel], asked[at])
                following = next(left, None)
                if following is not None:
                    tried[channel] = following
                    _ask(channel, following)
                # What fails with another error than a refusal fails here again, with that error.
                yield at, result(trials, asked[at]) if "failed" in answer else _result(answer)


def result(trials: Trials, trial: Trial) -> Result:
    """The result of a trial, in this process."""
    try:
        plan = Plan.from_mapping(trial.words)
        outcome = trials.outcome_that_fits(plan) if trial.fitting else trials.outcome(plan)
    except UsageError as error:
        return NoOutcome(error.message)
    return NoOutcome() if outcome is None else outcome


@contextmanager
def _copies(trials: Trials, asked: Sequence[Trial], count: int) -> Iterator[dict[Connection, ForkProcess]]:
    """Copies of this process that try plans, each with its channel. They end with the block, and with this process."""
    context = multiprocessing.get_context("fork")
    copies: dict[Connection, ForkProcess] = {}
    try:
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(trials, asked, there, [*copies, here]), daemon=True)
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


def _serve(trials: Trials, asked: Sequence[Trial], channel: Connection, others: Sequence[Connection]) -> None:
    """The loop of a copy: read the place of a trial, try it, write its result; until the channel ends.

    others: ends of the first process, copied with it. Closed here, they end with the first process, however it ends.
    """
    for each in others:
        each.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the first process, which ends its copies
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            at = int(channel.recv_bytes())
            channel.send_bytes(json.dumps(_answered(trials, asked[at])).encode())


def _answered(trials: Trials, trial: Trial) -> dict[str, Any]:
    """The result of a trial in plain values."""
    try:
        return asdict(result(trials, trial))
    except Exception:  # noqa: BLE001 - the first process runs into the same one, and raises it
        return {"failed": True}


def _ask(channel: Connection, at: int) -> None:
    """Give a trial to a copy. The answer of one that has ended is the end of its channel."""
    with suppress(BrokenPipeError):
        channel.send_bytes(str(at).encode())


def _answer_of(channel: Connection) -> dict[str, Any] | None:
    """The answer of a copy; None if it has ended."""
    try:
        found: dict[str, Any] = json.loads(channel.recv_bytes())
    except (EOFError, ConnectionResetError):
        return None
    return found


def _result(answer: Mapping[str, Any]) -> Result:
    return NoOutcome(**answer) if "message" in answer else Outcome(**answer)


def _ended(process: ForkProcess, trial: Trial) -> StagedbError:
    process.join()
    status = process.exitcode or 0
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return StagedbError(
        f"the process that tried {trial.name} ended with {how}, so that there is no advice; nothing was written. If "
        "the machine is short of memory, use fewer cores (`taskset -c 0` before the command for one)"
    )
