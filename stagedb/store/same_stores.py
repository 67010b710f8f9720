"""Whether two connections lead to one store."""

import secrets

from stagedb.errors import UsageError
from stagedb.store.connection import Store


def check_different(source: Store, target: Store) -> None:
    """Raise UsageError if two connections lead to the same store, by whichever addresses.

    A copy of a database has all that its original has. So the target gets a new text if they look alike, and it is
    looked for in the source. A source that only reads is enough.
    """
    if _created(source) != _created(target):
        return
    probe = secrets.token_hex(16)
    target.write("schema/write_probe", probe=probe)
    if any(row["probe"] == probe for row in source.read("schema/probe")):
        raise UsageError(
            f"{source.uri} and {target.uri} are the same store, so that there is nothing to send: name another one"
        )


def _created(store: Store) -> int | None:
    rows = store.read("schema/probe")
    return rows[0]["created"] if rows else None
