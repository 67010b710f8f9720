"""Numbered changes of the schema, and which of them a database has.

A migration is a tuple of schema statements that may be run again; a database remembers the newest one applied.
Add one at the end; never change one that was released.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.store.profile_labels import PROFILES
from stagedb.store.schema import FIRST, MEMORY, definitions


@dataclass(frozen=True)
class Migration:
    """One step from the version before to `version`."""

    version: int
    description: str
    statements: tuple[str, ...]


MIGRATIONS = (
    Migration(1, "graphs, instances, rank classes, ops, tasks, ranks, groups", definitions(FIRST)),
    Migration(2, "memory", definitions(MEMORY)),
    Migration(3, "profiles", definitions(PROFILES)),
)

NEWEST = MIGRATIONS[-1].version


def pending(version: int) -> tuple[Migration, ...]:
    """Migrations that a store of this version (0: none yet) lacks. Raises UsageError for one that is too new."""
    if version > NEWEST:
        raise UsageError(
            f"the store was written by a newer stagedb (its schema is version {version}, this stagedb knows {NEWEST}): "
            "upgrade stagedb, or name another store with --store"
        )
    return tuple(migration for migration in MIGRATIONS if migration.version > version)


def described(migrations: Iterable[Migration]) -> str:
    """`1 (graphs …), 2 (…)`"""
    return ", ".join(f"{migration.version} ({migration.description})" for migration in migrations)
