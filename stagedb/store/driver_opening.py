"""A driver that has reached its server."""

import neo4j
import neo4j.exceptions

from stagedb.files import printable
from stagedb.store.failures import translated, unreachable

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
