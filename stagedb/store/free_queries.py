"""Free Cypher queries: checked, run without the right to write, ended after their time, their values plain data."""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import neo4j
import neo4j.exceptions

from stagedb.errors import StagedbError, UsageError
from stagedb.files import check_unicode, shown
from stagedb.mentions import Word
from stagedb.store.answer_parts import FoundGraph, plan_of
from stagedb.store.cypher_tokens import returned, tokens
from stagedb.store.failures import ConnectionLost, QueryEnded, is_out_of_memory, translated
from stagedb.store.plain_values import Table, plain
from stagedb.store.readonly import check

__all__ = ["Readers", "check", "one_query", "run"]

LONGEST = 604_800
"""Seconds of the longest time-out: a week."""

GRACE = 1.0
"""Seconds that the server has to end a query itself. After that the caller gives up."""


RECKONING = 2.0
"""Seconds for which an engine may take to count a query that ran out of memory, after its connection was lost."""

_TOO_LARGE = ("stagedb: out of memory", "Java heap space", "OutOfMemory", "queryMaxHeap", "heap budget")
"""Words with which the embedded engine ends a query that would hold too much."""


@dataclass(frozen=True)
class Readers:
    """How the embedded engine serves free queries.

    driver: opens a connection of an account that only reads, for queries of so many seconds. ran_out: how many queries
    have run out of memory.
    """

    driver: Callable[[float], neo4j.Driver]
    ran_out: Callable[[], int]


@contextmanager
def one_query(driver: neo4j.Driver) -> Iterator[neo4j.Driver]:
    """A driver that is closed at the end, even while the thread of a query that has taken too long still uses it.

    The driver's own `close` fails if that thread is writing a message at this moment, and leaves the socket open, so
    that the query would go on.
    """
    try:
        yield driver
    finally:
        connections = [each for of_address in list(driver._pool.connections.values()) for each in list(of_address)]
        try:
            driver.close()
        except BufferError:
            for each in connections:
                each.kill()
            driver.close()


def _never() -> int:
    return 0


def run(
    driver: neo4j.Driver,
    database: str,
    uri: str,
    text: str,
    params: Mapping[str, Any],
    timeout: float,
    most: int | None = None,
    ran_out: Callable[[], int] = _never,
    graph: bool = False,
) -> Table:
    """The answer to a text that only reads (see `check`). Raises the errors of `Store.query`.

    graph: the answer also has the nodes and relationships in its rows. ran_out: as in Readers. If the connection is
    lost, it shows whether the query was the cause.
    """
    if most is not None and most < 1:
        raise UsageError(f"a query's number of rows is at least 1, not {most}")
    if not 0 < timeout <= LONGEST:
        raise UsageError(f"a query's time-out is a number of seconds above 0, at most {LONGEST:,}, not {timeout}")
    for name, value in params.items():
        check_unicode(name, "the name of a parameter")
        if isinstance(value, str):
            check_unicode(value, f"the parameter {shown(name)}")
    before = ran_out()
    answers: queue.SimpleQueue[Table | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            with driver.session(database=database, default_access_mode=neo4j.READ_ACCESS) as session:
                answers.put(_answer(session, uri, text, params, timeout, most, graph))
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            answers.put(error)

    # A server that ignores the time-out must not block the caller. The thread ends with the server's answer.
    threading.Thread(target=work, name="query", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout + GRACE)
    except queue.Empty:
        raise _too_long(timeout) from None
    if isinstance(answer, _Lost):
        raise _reason(answer, uri, before, ran_out) from answer.__cause__
    if isinstance(answer, BaseException):
        raise answer
    return answer


class _Lost(Exception):
    """The connection was lost while the query ran."""


def _reason(lost: _Lost, uri: str, before: int, ran_out: Callable[[], int]) -> QueryEnded:
    """Why a connection was lost, from the count of queries that ran out of memory before the query and now."""
    end = time.monotonic() + (0 if ran_out is _never else RECKONING)
    while ran_out() == before and time.monotonic() < end:
        time.sleep(0.05)
    if ran_out() != before:
        return _too_large("the engine's heap is full")
    return QueryEnded(
        f"the connection to the store at {uri} was lost while the query ran, and it is not run again by itself, as it "
        "may be the cause: narrow it with WHERE or LIMIT, or try it once more"
    )


def _answer(
    session: neo4j.Session,
    uri: str,
    text: str,
    params: Mapping[str, Any],
    timeout: float,
    most: int | None,
    graph: bool,
) -> Table:
    try:
        with translated(uri, "the query"):
            transaction = session.begin_transaction(timeout=timeout)
    except StagedbError as error:
        raise _explained(error, timeout) from error.__cause__
    try:
        with translated(uri, "the query"), transaction:
            result = transaction.run(text, dict(params))
            # One row more than are wanted shows whether the answer is cut.
            records = itertools.islice(result, None if most is None else most + 1)
            found = FoundGraph() if graph else None
            rows = tuple(_row(record, found) for record in itertools.islice(records, most))
            cut = most is not None and next(records, None) is not None
            # One engine does not name the columns of an answer without rows.
            columns = tuple(result.keys()) or _columns(text)
            plan = None if cut else plan_of(result.consume())
            transaction.rollback()
            return Table(columns, rows, cut=cut, graph=found, plan=plan)
    except ConnectionLost as error:
        raise _Lost from error.__cause__
    except StagedbError as error:
        raise _explained(error, timeout) from error.__cause__


def _row(record: neo4j.Record, graph: FoundGraph | None) -> tuple[Any, ...]:
    if graph is not None:
        graph.add(record.values())
    return tuple(plain(value) for value in record.values())


def _columns(text: str) -> tuple[str, ...]:
    """Names of the columns that a text returns: after AS, or the expression itself."""
    items = next(returned(list(tokens(text))), [])
    return tuple(
        item[-1].text.strip("`")
        if len(item) == 1 or item[-2].text.upper() == "AS"
        else "".join(token.text for token in item)
        for item in items
        if item
    )


def _explained(error: StagedbError, timeout: float) -> StagedbError:
    cause = error.__cause__
    if not isinstance(cause, neo4j.exceptions.Neo4jError):
        return error
    code = cause.code or ""
    message = cause.message or ""
    if is_out_of_memory(cause) or any(words in message for words in _TOO_LARGE):
        words = "the engine's heap was nearly full" if "stagedb: " in message else "its bound for what queries hold"
        return _too_large(code if is_out_of_memory(cause) else words)
    if "TimedOut" in code or "Terminated" in code or "stagedb: out of time" in message:
        return _too_long(timeout)
    if "AccessMode" in code or "Forbidden" in code:
        return UsageError("a query can only read, and this one writes: the store refused it")
    if "ParameterMissing" in code and cause.message is not None:
        missing = cause.message.partition(":")[2].strip() or "a parameter"
        return UsageError(f"the query's parameters have no values: {missing} ({Word('param', 'KEY=VALUE')})")
    if code.startswith("Neo.ClientError.Statement"):
        return UsageError(f"the store does not understand the query: {cause.message}")
    return error


def _too_large(why: str) -> QueryEnded:
    return QueryEnded(
        f"the query was ended, as it needs more memory than the store has for it ({why}): narrow it with WHERE or "
        "LIMIT. It is not run again by itself. STAGEDB_HEAP sets the memory of the embedded engine when it starts"
    )


def _too_long(timeout: float) -> QueryEnded:
    return QueryEnded(f"the query was ended after {timeout:g} s: narrow it, or allow more time with {Word('timeout')}")
