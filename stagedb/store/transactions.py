"""What runs inside a managed transaction."""

from collections.abc import Mapping
from typing import Any

import neo4j
import neo4j.exceptions

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.store.failures import OutOfMemory, is_out_of_memory
from stagedb.store.statements import Statement


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
