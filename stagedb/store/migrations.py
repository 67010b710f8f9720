"""Numbered changes of the schema, and those that a database has.

A migration first drops indexes, then runs statements of `cypher/schema` until they find nothing left to do, then makes
constraints and indexes. Each part is safe to repeat: a database remembers the newest migration that was completed.
Add a migration at the end. Never change what a released one does to data.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from stagedb.errors import UsageError
from stagedb.mentions import Word

_INDEXES_OF_3 = (
    *("symtensor_graph", "symop_graph", "instance_graph", "rankclass_instance", "op_instance", "op_instance_class"),
    *("task_instance", "task_instance_class", "rank_instance", "group_instance", "memory_instance"),
    *("memorylevel_instance", "memorylevel_instance_class", "memorytensor_instance", "memorytensor_instance_class"),
    *("profile_instance", "lanetime_profile", "lanetime_profile_class", "optime_profile", "optime_profile_class"),
    *("tasktime_profile", "tasktime_profile_class"),
)


@dataclass(frozen=True)
class Migration:
    """One step from the previous version to `version`.

    drops: what is dropped, such as `INDEX name`. work: names of statements in `cypher/schema`; each runs until it
    returns 0 as `done`. defines: the labels whose constraints and indexes are made. oldest: the oldest schema whose
    programs can go on using the store, also while the migration runs; 0: only those of this version can.
    """

    version: int
    description: str
    drops: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    defines: Literal["", "all", "team", "profiles"] = ""
    oldest: int = 0

    @property
    def creates(self) -> tuple[str, ...]:
        """Cypher that makes constraints and indexes."""
        # Commands compare versions, and few of them migrate.
        from stagedb.store.profile_labels import PROFILE_LABELS
        from stagedb.store.schema import LABELS, definitions
        from stagedb.store.team_labels import TEAM_LABELS

        labels = {"": (), "all": LABELS, "team": TEAM_LABELS, "profiles": PROFILE_LABELS}
        return definitions(labels[self.defines])


MIGRATIONS = (
    # Versions 1 to 3 made only indexes, and 4 replaces them.
    Migration(1, "graphs, instances, rank classes, ops, tasks, ranks, groups"),
    Migration(2, "memory"),
    Migration(3, "profiles"),
    Migration(
        4,
        "relationships in place of membership properties; instances and profiles are made again",
        (*(f"INDEX {name}" for name in _INDEXES_OF_3), "CONSTRAINT rank_id"),
        ("outdate_v3", "clear_v3", "connect_ops_v3", "connect_tensors_v3"),
        "all",
    ),
    # Instances that were made before have no digests and stay as they are: to read all of them takes too long.
    Migration(5, "digests of what rank classes have"),
    Migration(
        6,
        "names, tags, notes, events, saved queries",
        work=("name_instances_v5", "name_profiles_v5"),
        defines="team",
        oldest=5,
    ),
    # Profiles that were made before have no memory until somebody asks for them again: to compute it takes too long.
    Migration(7, "the memory of profiles, and an index to find them", defines="profiles", oldest=5),
    # Programs before 7 find no ranks where nobody asked for them, and call the instance damaged.
    Migration(8, "nodes of ranks and groups are written when somebody asks for them", oldest=7),
)

NEWEST = MIGRATIONS[-1].version


def oldest_user() -> int:
    """The oldest schema whose programs can use a store that has all migrations."""
    return max(migration.oldest or migration.version for migration in MIGRATIONS)


def pending(version: int) -> tuple[Migration, ...]:
    """The migrations that a store of this version (0: none yet) lacks. Raises UsageError for a newer store."""
    if version > NEWEST:
        raise UsageError(
            f"the store was written by a newer stagedb (its schema is version {version}, this stagedb knows "
            f"{NEWEST}): upgrade stagedb, or name another store with {Word('store')}"
        )
    return tuple(migration for migration in MIGRATIONS if migration.version > version)


def described(migrations: Iterable[Migration]) -> str:
    """`1 (graphs …), 2 (…)`"""
    return ", ".join(f"{migration.version} ({migration.description})" for migration in migrations)
