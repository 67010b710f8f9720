"""Numbered changes of the schema, and those that a database has.

A migration first drops indexes, then runs statements of `cypher/schema` until they find nothing left to do, then makes
constraints and indexes. Each part is safe to repeat: a database remembers the newest migration that was completed.
Add a migration at the end. Never change what a released one does to data.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.mentions import Word


@dataclass(frozen=True)
class Migration:
    """One step from the previous version to `version`.

    description: what it brings, for people. drops: what is dropped, such as `INDEX name`. work: names of statements in
    `cypher/schema`; each runs until it returns 0 as `done`. defines: the labels whose constraints and indexes are made.
    oldest: the oldest schema whose programs can go on using the store, also while the migration runs; 0: only those of
    this version can.
    """

    version: int
    description: str
    drops: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    oldest: int = 0

    @property
    def creates(self) -> tuple[str, ...]:
        """Cypher that makes constraints and indexes. The first schema defines all labels."""
        # Commands compare versions, and few of them migrate.
        from stagedb.store.schema import LABELS, definitions

        return definitions(tuple(label for label in LABELS if self.version == FIRST or label.name in self.defines))


# Schemas 1 to 8 were never released.
FIRST = 9
MIGRATIONS = (
    Migration(FIRST, "graphs, instances, profiles, and what a team adds to them"),
    Migration(10, "searches and the plans that they tried", defines=("Search", "Candidate"), oldest=FIRST),
    Migration(
        11,
        "runs that a profiler recorded",
        defines=("Run", "RunRank", "RunLane", "RunOp", "RunCollective", "RunTask", "RunLeg"),
        oldest=FIRST,
    ),
    Migration(12, "runs matched with plans", defines=("Match", "Finding"), oldest=FIRST),
    Migration(13, "jobs that commands run", defines=("Job",), oldest=FIRST),
    Migration(14, "iterations of engines that serve", defines=("RunIteration",), oldest=FIRST),
    Migration(15, "memory of runs", defines=("RunMemory", "RunMemoryLevel"), oldest=FIRST),
    # An older program would take the length of each run for a number: a run without times has none.
    Migration(16, "runs without times"),
)
NEWEST = MIGRATIONS[-1].version


def oldest_user() -> int:
    """The oldest schema whose programs can use a store that has all migrations."""
    return max(migration.oldest or migration.version for migration in MIGRATIONS)


def pending(version: int) -> tuple[Migration, ...]:
    """The migrations that a store lacks.

    version: the store's schema; 0: it has none yet. Raises UsageError for a store of a newer stagedb, and for one that
    is older than all migrations.
    """
    if version > NEWEST:
        raise UsageError(
            f"the store was written by a newer stagedb (its schema is version {version}, this stagedb knows "
            f"{NEWEST}): upgrade stagedb, or name another store with {Word('store')}"
        )
    if is_older(version):
        raise older(version)
    return tuple(migration for migration in MIGRATIONS if migration.version > version)


def is_older(version: int) -> bool:
    """Whether a store with this schema is older than all migrations.

    version: of the schema.
    """
    return 0 < version < FIRST


def older(version: int) -> UsageError:
    """The refusal of a store that is older than all migrations.

    version: of the schema.
    """
    return UsageError(
        f"the store was written by an older stagedb (its schema is version {version}, this stagedb reads "
        f"{FIRST}{'' if NEWEST == FIRST else f' to {NEWEST}'}): name an empty store with {Word('store')}, or "
        "remove this one, and build there again what you need"
    )


def described(migrations: Iterable[Migration]) -> str:
    """Migrations in a line, such as `9 (graphs …), 10 (…)`. migrations: in the order in which they are applied."""
    return ", ".join(f"{migration.version} ({migration.description})" for migration in migrations)


# The version of the store's schema, apart from the schema: most commands need no more of it.

VERSION = 16
"""Version of the schema that this program writes. `Graph`, `Instance`, `Profile`, `Search` and `Run` nodes carry it."""

OLDEST_READABLE = 9
"""The oldest schema whose dumps are read: later ones only added labels, and left properties out."""
