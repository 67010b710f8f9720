"""Process groups of a rank, as PyTorch's profiles and execution traces list them."""

from dataclasses import replace
from typing import Any

from stagedb.runs.rank_trace import ProcessGroup, RecordedCollective


def process_groups(rows: Any, world: int) -> tuple[ProcessGroup, ...]:
    """The groups of a list with `pg_name`, `pg_desc` and `ranks`, in its order, which is that of their making.

    rows: of a file, of any form. world: ranks of the job, which a group without a list has; 0: not known.
    """
    found = []
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or "pg_name" not in row:
            continue
        ranks = row.get("ranks")
        named = isinstance(ranks, list) and all(type(each) is int and each >= 0 for each in ranks)
        members = tuple(ranks) if named and ranks else tuple(range(world))
        description = str(row.get("pg_desc") or "")
        found.append(ProcessGroup(str(row["pg_name"]), "" if description == "undefined" else description, members))
    return tuple(found)


def in_group(collective: RecordedCollective, group: ProcessGroup) -> RecordedCollective:
    """A collective with the name, description and ranks of its process group."""
    size = len(group.ranks) or None
    return replace(collective, group=group.name, description=group.description, ranks=group.ranks, size=size)
