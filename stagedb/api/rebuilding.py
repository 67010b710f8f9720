"""Instances and profiles of an older schema are made again from their graph, plan and system.

They keep their ids, names and dates, and are hidden until then. The next program that opens the embedded store, or
`stagedb store migrate`, continues after an interruption.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stagedb.api import catalog
from stagedb.errors import StagedbError
from stagedb.inputs.stored_values import json_mapping
from stagedb.mentions import OPTIONS, Word, call, shown_in
from stagedb.plans import Plan
from stagedb.store import Store, connect, delete
from stagedb.store.naming import inherit

Notice = Callable[[str], None]
"""Called with a line for each thing that is done."""


def to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def outdated(store: Store) -> int:
    """The number of instances and profiles that are to be made again."""
    return len(store.read("catalog/outdated"))


def open_rebuilt(
    store: str | None = None,
    *,
    database: str | None = None,
    insecure: bool = False,
    option: str = str(Word("store")),
    holder: str | None = None,
) -> Store:
    """Open a store. Content of an older version in the embedded one is made again first.

    database, option, holder: as in `choose`.
    """
    opened = connect(store, database=database, insecure=insecure, option=option, holder=holder)
    try:
        if opened.engine == "embedded" and outdated(opened):
            rebuild(opened, to_stderr)
    except BaseException:
        opened.close()
        raise
    return opened


def rebuild(store: Store, notice: Notice) -> None:
    """Make all outdated instances and profiles again. What fails is reported with the reason, and stays hidden.

    Memory is not made again here: the next request for it computes it.
    """
    instances, profiles = (store.read(f"catalog/outdated_{kind}") for kind in ("instances", "profiles"))
    if instances or profiles:
        notice(
            f"an older stagedb wrote {len(instances)} instances and {len(profiles)} profiles of this store: "
            "they are made again now; memory is computed when it is next needed"
        )
    now: dict[str, str] = {}
    for row, outcome in _each(instances, lambda row: _instance(store, row, now)):
        notice(f"  instance {row['id'][: catalog.SHORT_ID]} {row['name']}: {outcome}")
    for row, outcome in _each(profiles, lambda row: _profile(store, row, now)):
        notice(f"  profile {row['id'][: catalog.SHORT_ID]} {row['name'] or ''}: {outcome}")


def _each(
    rows: list[dict[str, Any]], make: Callable[[Mapping[str, Any]], str]
) -> Iterator[tuple[Mapping[str, Any], str]]:
    for row in rows:
        try:
            yield row, make(row)
        except StagedbError as error:
            short = row["id"][: catalog.SHORT_ID]
            hidden = f"stays hidden, because it cannot be made again ({call('rm', short)} removes it): {error}"
            yield row, shown_in(OPTIONS, hidden)


def _instance(store: Store, row: Mapping[str, Any], now: dict[str, str]) -> str:
    """Make an instance again. `now` gets its id, which differs if the rules for ids have changed."""
    from stagedb.store.contents.instances import instantiate

    made = instantiate(store, row["graph"], Plan.from_mapping(json_mapping(row["plan"], "plan")), name=row["name"])
    now[row["id"]] = made
    if made == row["id"]:
        return "made again"
    inherit(store, "Instance", row["id"], made)
    delete(store, "Instance", row["id"])
    return f"made again as {made[: catalog.SHORT_ID]}"


def _profile(store: Store, row: Mapping[str, Any], now: Mapping[str, str]) -> str:
    from stagedb.store.contents.instance_reading import read_workload
    from stagedb.store.contents.profile_reading import inputs_of
    from stagedb.store.contents.profiles import record_profile
    from stagedb.timing import profile_job

    inputs = inputs_of(row)
    instance = now.get(row["instance"], row["instance"])
    if not store.read("lifecycle/state_instance", id=instance):
        delete(store, "Profile", row["id"])
        return "removed, because its instance is gone"
    workload = read_workload(store, instance)
    job = profile_job(workload, inputs.system, inputs.measured, inputs.scalings, inputs.blocking)
    made, _ = record_profile(store, job, row["name"])
    if made == row["id"]:
        return "made again"
    inherit(store, "Profile", row["id"], made)
    delete(store, "Profile", row["id"])
    return f"made again as {made[: catalog.SHORT_ID]}"
