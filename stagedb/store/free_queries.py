"""Free Cypher queries: checked, run without the right to write, ended after their time, their values plain data."""

import itertools
import queue
import threading
from collections.abc import Mapping
from typing import Any

import neo4j
import neo4j.exceptions

from stagedb.errors import StagedbError, UsageError
from stagedb.inputs import check_unicode, shown
from stagedb.store.cypher_tokens import returned, tokens
from stagedb.store.failures import is_out_of_memory, translated
from stagedb.store.plain_values import Table, plain
from stagedb.store.readonly import check

__all__ = ["check", "run"]

LONGEST = 604_800
"""Seconds of the longest time-out: a week."""

GRACE = 1.0
"""Seconds that the server has to end a query itself. After that the caller gives up."""


def run(
    driver: neo4j.Driver,
    database: str,
    uri: str,
    text: str,
    params: Mapping[str, Any],
    timeout: float,
    most: int | None = None,
) -> Table:
    """The answer to a text that only reads (see `check`). Raises the errors of `Store.query`."""
    if most is not None and most < 1:
        raise UsageError(f"a query's number of rows is at least 1, not {most}")
    if not 0 < timeout <= LONGEST:
        raise UsageError(f"a query's time-out is a number of seconds above 0, at most {LONGEST:,}, not {timeout}")
    for name, value in params.items():
        check_unicode(name, "the name of a parameter")
        if isinstance(value, str):
            check_unicode(value, f"the parameter {shown(name)}")
    answers: queue.SimpleQueue[Table | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            with driver.session(database=database, default_access_mode=neo4j.READ_ACCESS) as session:
                answers.put(_answer(session, uri, text, params, timeout, most))
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            answers.put(error)

    # A server that ignores the time-out must not block the caller. The thread ends with the server's answer.
    threading.Thread(target=work, name="query", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout + GRACE)
    except queue.Empty:
        raise _too_long(timeout) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _answer(
    session: neo4j.Session, uri: str, text: str, params: Mapping[str, Any], timeout: float, most: int | None
) -> Table:
    try:
        with translated(uri, "the query"), session.begin_transaction(timeout=timeout) as transaction:
            result = transaction.run(text, dict(params))
            # One row more than are wanted shows whether the answer is cut.
            records = itertools.islice(result, None if most is None else most + 1)
            rows = tuple(tuple(plain(value) for value in record.values()) for record in records)
            # One engine does not name the columns of an answer without rows.
            columns = tuple(result.keys()) or _columns(text)
            transaction.rollback()
            return Table(columns, rows[:most], cut=most is not None and len(rows) > most)
    except StagedbError as error:
        raise _explained(error, timeout) from error.__cause__


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
    if "TimedOut" in code or "Terminated" in code:
        return _too_long(timeout)
    if is_out_of_memory(cause):
        return StagedbError(
            f"the query needs more memory than the store gives it: narrow it with WHERE or LIMIT ({code})"
        )
    if "AccessMode" in code or "Forbidden" in code:
        return UsageError("a query can only read, and this one writes: the store refused it")
    if "ParameterMissing" in code and cause.message is not None:
        missing = cause.message.partition(":")[2].strip() or "a parameter"
        return UsageError(f"the query's parameters have no values: {missing} (--param KEY=VALUE)")
    if code.startswith("Neo.ClientError.Statement"):
        return UsageError(f"the store does not understand the query: {cause.message}")
    return error


def _too_long(timeout: float) -> StagedbError:
    return StagedbError(f"the query was ended after {timeout:g} s: narrow it, or allow more time with --timeout")
