"""Drivers opened, transactions run, and their errors as advice. No message has a password or a query's values."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import neo4j
import neo4j.exceptions
import neo4j.exceptions as driver

from stagedb.errors import StagedbError, UsageError
from stagedb.files import printable, shown
from stagedb.mentions import Word
from stagedb.store.statements import Statement

LEAST_FREE = 16 << 20
"""Free bytes that the embedded engine needs to make an empty store."""

_FULL = ("no space left", "file size limit", "file too large", "disk full", "disk quota")
_READ_ONLY = ("WriteOnReadOnlyAccess", "ReadOnly", "NotALeader", "AccessMode", "Security.Forbidden")


class ReadOnlyError(UsageError):
    """The store, or the account, allows no writes."""


_ENDED_EARLY = ("TransactionTimedOut", "LockAcquisitionTimeout", "LockClientStopped", "Transaction.Terminated")


class UnreachableError(UsageError):
    """No store answers at an address."""


class RefusedError(UsageError):
    """The server answers, and refuses the account or has no such database."""


class OutOfMemory(StagedbError):
    """A transaction was too large for the server's memory. A smaller one may fit."""


class Collided(StagedbError):
    """Other transactions changed what one writes, each time that it was tried."""


_ENDED = "credentials of this connection are no longer valid"


class ConnectionLost(StagedbError):
    """The server went away during a request."""


class QueryEnded(StagedbError):
    """The store ended a user's query, or was lost while it ran. Nothing repeats the query, as it may be the cause."""


@contextmanager
def translated(uri: str, doing: str) -> Iterator[None]:
    """Turn the driver's errors into stagedb's. `doing` names what failed, such as `statement build/ops`.

    uri: of the store, for the errors.
    """
    try:
        yield
    except (driver.Neo4jError, driver.DriverError, OSError) as error:
        raise _translated(error, uri, doing) from error


def is_out_of_memory(error: driver.Neo4jError) -> bool:
    """Whether a transaction exceeded its memory limit. The driver would retry it unchanged. error: the driver's."""
    return "OutOfMemory" in (error.code or "") or "MemoryLimit" in (error.code or "")


def _translated(error: Exception, uri: str, doing: str) -> StagedbError:
    text = _message(error)
    code = error.code or "" if isinstance(error, driver.Neo4jError) else ""
    if any(word in text.lower() for word in _FULL):
        return UsageError(
            f"the store at {uri} cannot write, its disk is full ({text}): make room and run the command again; "
            f"that also clears unfinished work"
        )
    if "needs to be restarted" in text or "TransactionLogError" in code:
        return ConnectionLost(
            f"the database at {uri} has stopped after an error of its own, such as a full disk, during {doing}: look "
            "at the server's log, make room if its disk is full, and restart the server; then run the command again"
        )
    if text.startswith("Transaction error on commit"):
        # The embedded engine reports nothing more precise for a failed write of its files.
        return UsageError(
            f"the store at {uri} could not write the result of {doing}, and its old data is intact: check whether its "
            "disk is full, and run the command again"
        )
    # An AuthError with this text is no refused account: the embedded engine reports it if it ends during a connection.
    if isinstance(error, driver.AuthError) and _ENDED not in text:
        return RefusedError(
            f"the store at {uri} refused the account: check NEO4J_USERNAME and NEO4J_PASSWORD, or the store's entry in "
            "the configuration file"
        )
    if isinstance(error, driver.ServiceUnavailable | driver.SessionExpired | driver.AuthError | OSError):
        return ConnectionLost(
            f"the connection to the store at {uri} was lost during {doing}: run the command again, it "
            "clears unfinished work and completes"
        )
    if "DatabaseNotFound" in code:
        return RefusedError(f"the server at {uri} has no such database: set NEO4J_DATABASE to one that it has ({text})")
    if isinstance(error, driver.Neo4jError) and is_out_of_memory(error):
        return OutOfMemory(
            f"{doing} needs more memory than the store at {uri} gives a transaction: raise its limit ({text})"
        )
    if "DeadlockDetected" in code:
        return Collided(
            f"{doing} met other writers of the same nodes in the store at {uri}, each time that it was tried: run the "
            f"command again ({text})"
        )
    if any(word in code for word in _ENDED_EARLY):
        return StagedbError(
            f"the store at {uri} ended {doing}, which took too long: another client may hold what it needs, or the "
            f"server has too much to do. Run the command again; STAGEDB_WRITE_TIME allows more seconds ({code})"
        )
    if any(word in code for word in _READ_ONLY):
        return ReadOnlyError(
            f"the store at {uri} is read-only, or so is the account, and {doing} writes: name one that allows writing. "
            "What the store has can be listed, queried and exported"
        )
    return StagedbError(f"{doing} failed on the store at {uri}: {text} ({code or type(error).__name__})")


def check_disk(home: Path, error: StagedbError) -> None:
    """Raise UsageError if the disk of the embedded store is full. The engine's own error does not name that.

    error: what the engine reported.
    """
    try:
        free = shutil.disk_usage(home).free
    except OSError:
        return
    if free < LEAST_FREE:
        raise UsageError(
            f"the disk of the embedded store is full: {home} has {free:,} bytes free, and the store needs "
            f"{LEAST_FREE:,}. Make room there, or set STAGEDB_HOME to a directory on another disk"
        ) from error


def unreachable(error: Exception, uri: str, source: str) -> UsageError:
    """The error for a store that does not answer when it is opened.

    error: the driver's. uri: of the store. source: where the address comes from.
    """
    if "CertVerificationError" in _message(error):
        return UsageError(
            f"this machine does not trust the certificate of {uri} (from {source}): set SSL_CERT_FILE to a file with "
            "the certificate of its CA, and name the server as its certificate does. `+ssc` in place of `+s` trusts "
            "any certificate: it encrypts, and does not prove who answers"
        )
    return UnreachableError(
        f"no store answers at {uri} (from {source}): {_message(error)}. Start the server, or name another with "
        f"{Word('store')}; `{Word('store', 'embedded')}` needs none"
    )


def _message(error: Exception) -> str:
    text = error.message if isinstance(error, driver.Neo4jError) and error.message else str(error)
    return " ".join(text.split())[:500]


# A driver that has reached its server.

CONNECT_TIMEOUT = 10.0

RETRY_TIME = 20.0
EMBEDDED_RETRY_TIME = 8.0
"""Seconds for which a transaction is tried again, after a conflict with another one or the loss of its server. An
embedded engine that has ended does not come back at the same address."""


def open_driver(
    uri: str, auth: tuple[str, str] | None, source: str, retry_time: float = EMBEDDED_RETRY_TIME
) -> neo4j.Driver:
    """A driver that has reached its server.

    uri: of the server. auth: user and password; None: no account. source: where the address comes from, for errors.
    retry_time: seconds for which the driver repeats a transaction. Raises UsageError if that fails.
    """
    driver = neo4j.GraphDatabase.driver(
        uri,
        auth=auth,
        connection_timeout=CONNECT_TIMEOUT,
        max_transaction_retry_time=retry_time,
        notifications_min_severity="OFF",
        keep_alive=True,
    )
    try:
        with translated(uri, "connecting"):
            try:
                driver.verify_connectivity()
            except (neo4j.exceptions.ServiceUnavailable, OSError) as error:
                raise unreachable(error, uri, source) from None
    except BaseException:
        driver.close()
        raise
    return driver


def product_of(driver: neo4j.Driver, uri: str) -> str:
    """What a server calls itself, with its version, such as Neo4j/5.26.0. Control characters are written out.

    driver: has reached the server. uri: of the server, for errors.
    """
    with translated(uri, "asking what the server is"):
        return printable(str(driver.get_server_info().agent)[:80], kept="")


# What runs inside a managed transaction.


def written(
    transaction: neo4j.ManagedTransaction, statement: Statement, params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Run a statement that writes in a transaction, and return its rows.

    params: values of the statement's parameters, by name.
    """
    return rows_of(transaction, statement.text, params)


def rows_of(transaction: neo4j.ManagedTransaction, text: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a text, in a transaction that the driver may run again.

    params: values of the text's parameters, by name.
    """
    try:
        result = transaction.run(text, dict(params))
        keys = result.keys()
        return [dict(zip(keys, record, strict=True)) for record in result]
    except UnicodeEncodeError as error:
        # A name from a command line or a path may hold bytes that are not UTF-8. No store has such a text.
        raise UsageError(f"the text {shown(error.object)} is not Unicode, and no store holds it") from None
    except neo4j.exceptions.Neo4jError as error:
        if is_out_of_memory(error):
            # The driver would run it again unchanged until its time is over.
            raise OutOfMemory(f"a transaction needs more memory than the server gives it ({error.code})") from error
        raise
