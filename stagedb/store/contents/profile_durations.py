"""Durations of the nodes of traces from a stored profile."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.lowering.columns import ClassColumns, Workload
from stagedb.mentions import call
from stagedb.store import Store, read_whole
from stagedb.traces.node_durations import NodeTiming, RankPart
from stagedb.traces.protobuf_columns import Ints


def read_timing(store: Store, profile: str, workload: Workload) -> NodeTiming:
    """The durations of a profile of this workload.

    Raises UsageError if the store has no such profile, or if it is of another instance, and StagedbError if its
    durations do not fit the workload.
    """
    return read_whole(store, "Profile", profile, lambda: _read(store, profile, workload))


def _read(store: Store, profile: str, workload: Workload) -> NodeTiming:
    # Most exports need no profile, and start sooner without these modules.
    from stagedb.store.contents.profile_reading import read_profile
    from stagedb.timing.lanes import lane_numbers

    stored = read_profile(store, profile)
    if stored.instance != workload.instance:
        raise UsageError(f"profile {profile} is of instance {stored.instance}, not of {workload.instance}")
    system = stored.inputs.system
    lanes = lane_numbers(workload, system.network(len(workload.ranks)))
    parts = {}
    for columns in workload.classes:
        rows = store.read("profile/durations", **{"profile": profile, "class": columns.number})
        parts[columns.number] = _parts(profile, columns, rows, lanes, workload.ranks.number == columns.number)
    return NodeTiming(profile, system, stored.step, parts)


def _parts(
    profile: str, columns: ClassColumns, rows: Sequence[Mapping[str, Any]], lanes: Ints, mine: np.ndarray[Any, Any]
) -> tuple[RankPart, ...]:
    """The parts of a class, in the order of their first ranks."""
    ranks_of = {int(lane): np.flatnonzero(lanes == lane) for lane in np.unique(lanes[mine])}
    stored = {int(row["lane"]): (int(row["rank"]), int(row["ranks"])) for row in rows}
    if stored != {lane: (int(ranks[0]), len(ranks)) for lane, ranks in ranks_of.items()}:
        raise _unfit(profile, f"other lanes of class {columns.number}")
    by_time: dict[bytes, tuple[Ints, list[int]]] = {}
    for row in rows:
        ns = _in_order(profile, columns, row)
        by_time.setdefault(ns.tobytes(), (ns, []))[1].append(int(row["lane"]))
    parts = (
        RankPart(tuple(each), np.sort(np.concatenate([ranks_of[lane] for lane in each])), ns)
        for ns, each in by_time.values()
    )
    return tuple(sorted(parts, key=lambda part: int(part.ranks[0])))


def _in_order(profile: str, columns: ClassColumns, row: Mapping[str, Any]) -> Ints:
    """The durations of a lane in the order of its class's ops."""
    order = np.argsort(np.array(row["op"], np.int64))
    if [row["op"][at] for at in order] != [*range(len(columns.ops))] or (
        tuple(row["name"][at] for at in order) != columns.ops.name
    ):
        raise _unfit(profile, f"other operators of class {columns.number}")
    return np.array(row["duration"], np.int64)[order]


def _unfit(profile: str, what: str) -> StagedbError:
    return StagedbError(
        f"profile {profile} has {what} than its instance has: another version of stagedb made it; remove it with "
        f"{call('rm')} and profile again"
    )
