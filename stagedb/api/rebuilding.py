"""Instances and profiles that an older schema wrote, made again from what decides them: graph, plan and system.

They keep their ids, names and dates. Until then they are hidden, so whoever is interrupted goes on where it stopped.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stagedb.api import catalog
from stagedb.errors import StagedbError
from stagedb.parallel import Plan
from stagedb.store import Store, delete

Notice = Callable[[str], None]
"""Told what is done, a line each."""


def to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def outdated(store: Store) -> int:
    """How many instances and profiles wait to be made again."""
    return sum(len(store.read(f"catalog/outdated_{kind}")) for kind in ("instances", "profiles"))


def rebuild(store: Store, notice: Notice) -> None:
    """Make all of them again. What cannot be made is named with its reason and stays hidden."""
    instances, profiles = (store.read(f"catalog/outdated_{kind}") for kind in ("instances", "profiles"))
    if instances or profiles:
        notice(
            f"an older stagedb wrote {len(instances)} instances and {len(profiles)} profiles of this store: "
            "they are made again"
        )
    for row, failure in _each(instances, lambda row: _instance(store, row)):
        notice(f"  instance {row['id'][: catalog.SHORT_ID]} {row['name']}: {failure or 'made again'}")
    for row, failure in _each(profiles, lambda row: _profile(store, row)):
        notice(f"  profile {row['id'][: catalog.SHORT_ID]} {row['name'] or ''}: {failure or 'made again'}")


def _each(
    rows: list[dict[str, Any]], make: Callable[[Mapping[str, Any]], None]
) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    for row in rows:
        try:
            make(row)
        except StagedbError as error:
            yield row, f"stays hidden, as it cannot be made again: {error}"
        else:
            yield row, None


def _instance(store: Store, row: Mapping[str, Any]) -> None:
    from stagedb.instance import instantiate

    made = instantiate(store, row["graph"], Plan.from_mapping(json.loads(row["plan"])), name=row["name"])
    if made != row["id"]:
        delete(store, "Instance", row["id"])


def _profile(store: Store, row: Mapping[str, Any]) -> None:
    from stagedb.issue.source import read_workload
    from stagedb.profile import profile_job, record_profile
    from stagedb.profile.asking import asked_of

    asked = asked_of(row)
    workload = read_workload(store, row["instance"])
    job = profile_job(workload, asked.system, asked.measured, asked.scalings, asked.blocking)
    made, _ = record_profile(store, job, row["name"])
    if made != row["id"]:
        delete(store, "Profile", row["id"])
