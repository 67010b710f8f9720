"""Profiles in the store: the lanes, ops, tasks and critical path of a step, as nodes linked to those of the instance.

The id of a profile is a digest of its inputs, so two equal profiles are one. A profile is written under a lease, and
readers see it when it is complete.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.files import check_unicode, shown
from stagedb.files.stored_values import json_list
from stagedb.lowering.columns import ONCE_A_STEP, TASK_KINDS, ClassColumns, Workload
from stagedb.mentions import Word, call
from stagedb.store import Input, Lease, Store, ask_again, building, delete, read_whole
from stagedb.store.contents.memory import analyse
from stagedb.store.contents.proofs import OWN_TIMES, profile_digest
from stagedb.store.failures import ReadOnlyError
from stagedb.systems import Durations, Measured, parse_system
from stagedb.timing.step_profile import JobProfile, ProfileInputs, Row, path_rows
from stagedb.timing.whatif import Scaling
from stagedb.traces.node_durations import NodeTiming, RankPart
from stagedb.traces.protobuf_columns import Ints

FORMAT = 1
"""Version of the contents of a profile; part of its id."""

AT_ONCE = 2_000
"""Nodes that one transaction writes, approximately."""

Progress = Callable[[int, int], None]


def profile_id(job: JobProfile) -> str:
    """The digest of all inputs of a profile: instance, system, measured durations, scalings, blocking axes.

    Without blocking axes the digest is that of versions that had no such option.
    """
    made_from = {
        "format": str(FORMAT),
        "instance": job.workload.instance,
        "system": job.system.to_dict(),
        "durations": _measured(job.measured),
        "scalings": sorted(exact_text(each) for each in job.scalings),
        **({"blocking": list(job.blocking)} if job.blocking else {}),
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:20]


def record_profile(
    store: Store,
    job: JobProfile,
    name: str | None = None,
    progress: Progress = lambda done, of: None,
    memory: int | None = None,
) -> tuple[str, bool]:
    """Write a profile of an instance. Returns its id, and whether this call wrote it.

    name: what it is called where nobody names it. An equal profile that exists becomes the newest of this user. One of
    another version is replaced if its step differs or its network bytes are missing, and gets its memory. `progress`
    gets the number of rows written and the number of all rows. memory: what the fullest rank holds, in bytes, if it is
    known already. Raises StagedbError if the instance is not in the store or is being deleted.
    """
    check_unicode(name or "", str(Word("name")))
    found = profile_id(job)
    there = store.read("profile/figures", profile=found)
    if there and there[0] != {**there[0], **_figures(job)}:
        name = name or there[0]["name"]
        delete(store, "Profile", found)
        there = []
    fit: Row = {}
    # `building` refuses a profile whose instance is missing.
    known = store.read("lifecycle/state_instance", id=job.workload.instance)
    if known and (not there or there[0]["memory"] is None):
        fit = {"memory": _fullest(store, job) if memory is None else memory, "room": job.system.accelerator.room}
    with building(store, "Profile", found, {**_properties(job, name), **fit}, inputs_of(job)) as lease:
        if lease is not None:
            _Writing(store, lease, found, job, progress).run()
    if lease is None:
        ask_again(store, "Profile", found)
    if there and fit:
        with suppress(ReadOnlyError):
            store.write("profile/fit", profile=found, **fit)
    return found, lease is not None


def _fullest(store: Store, job: JobProfile) -> int:
    """Bytes that the fullest rank holds at its peak."""
    classes = analyse(store, job.workload.instance, classes=job.workload.classes)
    return max(sum(each.usage.at(each.peak).values()) for each in classes)


def _figures(job: JobProfile) -> Row:
    """The row that `profile/figures` returns for a profile that is equal to this one."""
    dimensions = [each.name for each in job.system.dimensions]
    return {"step": job.step, "unscaled": job.unscaled, "mfu": job.merit.mfu, "dimensions": dimensions}


def inputs_of(job: JobProfile) -> list[Input]:
    """The inputs that a profile is made from, with digests."""
    measured = _measured(job.measured)
    return [
        Input("instance", job.workload.instance),
        Input.of("system", job.system.to_dict(), job.system.name),
        *([] if measured is None else [Input.of("durations", measured)]),
    ]


def _properties(job: JobProfile, name: str | None) -> dict[str, Any]:
    merit, coverage, system = job.merit, job.durations.coverage, job.system
    bandwidth, rates = system.accelerator.bandwidth, [each.bandwidth for each in system.dimensions]
    measured = _measured(job.measured)
    return {
        "instance": job.workload.instance,
        "name": name,
        "system": system.name,
        "system_json": json.dumps(system.to_dict()),
        "durations": None if measured is None else json.dumps(measured, sort_keys=True),
        "scalings": sorted(exact_text(each) for each in job.scalings),
        "blocking": list(job.blocking) or None,
        "format": FORMAT,
        "step": job.step,
        "unscaled": job.unscaled,
        "world": merit.world,
        "tokens": merit.tokens,
        "tokens_per_second": merit.tokens_per_second,
        "tokens_per_second_per_accelerator": merit.tokens_per_second_per_accelerator,
        "model_flops": float(merit.model_flops),
        "hardware_flops": float(merit.hardware_flops),
        "dtype": merit.dtype,
        "peak": merit.peak,
        "bandwidth": None if bandwidth == math.inf else float(bandwidth) * 1e9,
        "dimensions": [each.name for each in system.dimensions],
        # A list holds no nulls.
        "dimension_bandwidths": [0.0 if rate == math.inf else float(rate) * 1e9 for rate in rates],
        "mfu": merit.mfu,
        "hfu": merit.hfu,
        "measured_ops": coverage.share_of_ops,
        "measured_time": coverage.share_of_time,
    }


def _measured(measured: Durations | None) -> list[dict[str, Any]] | None:
    """Measured rows in a canonical order, without their places in a file."""
    if measured is None:
        return None
    rows = [{"ns": _exact(row.ns), **{name: getattr(row, name) for name in row.fields}} for row in measured.rows]
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def exact_text(scaling: Scaling) -> str:
    """A scaling as a text that parses to exactly the same scaling."""
    which = "" if scaling.which is None else f":{scaling.which}"
    return f"{scaling.what}{which}={_exact(scaling.factor)}"


def _exact(number: Fraction) -> str:
    """A number as a decimal where that is exact and short, else as a quotient."""
    decimal = f"{float(number):.9f}".rstrip("0").rstrip(".")
    return decimal if Fraction(decimal) == number else str(number)


@dataclass
class _Writing:
    """The statements of one profile, in the order of their dependencies."""

    store: Store
    lease: Lease
    profile: str
    job: JobProfile
    progress: Progress

    def run(self) -> None:
        lanes = [_lane(self.profile, self.job, lane.number) for lane in self.job.times.network.lanes]
        path = path_rows(self.profile, self.job, lanes)
        parts: dict[str, Sequence[Row]] = {
            "lane_times": list(_lanes(self.profile, self.job, lanes)),
            "op_times": list(_ops(self.profile, self.job)),
            "task_times": list(_tasks(self.profile, self.job, lanes)),
            "segments": path.segments,
            "legs": path.legs,
        }
        named = {statement: {"profile": self.profile} for statement in ("lane_times", "segments", "legs")}
        done, of = 0, sum(_size(row) for rows in parts.values() for row in rows)
        for statement, rows in parts.items():
            for batch in _batches(rows):
                self.lease.renew()
                self.store.write_rows(f"profile/{statement}", batch, **named.get(statement, {}))
                done += sum(map(_size, batch))
                self.progress(done, of)
        if path.legs:
            self.store.write("profile/chain_legs", profile=self.profile)
        times = [each for row in parts["op_times"] for each in _op_times(row)]
        digest = profile_digest({**parts, "op_times": times})
        self.lease.set_properties({"content": digest})


def _op_times(row: Row) -> Iterator[Row]:
    """One row an op, from a row of columns."""
    # Ops are in the order of their indices.
    for at, op in enumerate(row["ops"]):
        values = {name: row[name][at] for name in OWN_TIMES}
        yield {"id": f"{row['lane']}/{row['first'] + at}", "lane": row["lane"], "op": op, "values": values}


def _size(row: Row) -> int:
    """The number of nodes or edges that a row writes, approximately."""
    return max(1, len(row.get("ops", ())))


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows that one transaction writes."""
    batch: list[Row] = []
    for row in rows:
        if batch and sum(map(_size, batch)) + _size(row) > AT_ONCE:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _lanes(profile: str, job: JobProfile, lanes: Sequence[Row]) -> Iterator[Row]:
    for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True):
        yield {
            "id": f"{profile}/{lane.number}",
            "of": f"{job.workload.instance}/{lane.rank_class}",
            "values": {
                **lanes[lane.number],
                "ranks": lane.ranks,
                "busy": spent.busy,
                "exposed": spent.exposed,
                "bubble": spent.bubble,
                "idle": spent.idle,
                "communication": spent.communication,
            },
        }


def _lane(profile: str, job: JobProfile, number: int) -> dict[str, Any]:
    lane = job.times.network.lanes[number]
    return {
        "profile": profile,
        "class": lane.rank_class,
        "stage": lane.stage,
        "rank": lane.rank,
        "lane": lane.number,
    }


def _ops(profile: str, job: JobProfile) -> Iterator[Row]:
    """Rows of columns, each with at most `AT_ONCE` ops of one lane: many small rows would be several times as slow."""
    net = job.times.network
    for lane, columns, timed, spent in zip(net.lanes, net.columns, job.durations.lanes, job.times.lanes, strict=True):
        times, total = spent.ops, len(columns.ops)
        listed: dict[str, Sequence[Any]] = {
            "ops": columns.origins.id,
            "layer": [columns.layer_in_model(op, lane.stage) for op in range(total)],
            "duration": timed.ns.tolist(),
            "count": times.runs.tolist(),
            "total": times.time.tolist(),
            "exposed": times.exposed.tolist(),
            "slack": times.slack.tolist(),
            "critical": times.critical.tolist(),
            "times_critical": times.critical_runs.tolist(),
            "rule": timed.rule,
            "dimension": timed.dimension,
            # Parallel lists; None for an op that sends nothing.
            "wires": [[name for name, _ in wires] or None for wires in timed.wires],
            "wire_bytes": [[sent for _, sent in wires] or None for wires in timed.wires],
        }
        for start in range(0, total, AT_ONCE):
            part = {name: list(column[start : start + AT_ONCE]) for name, column in listed.items()}
            yield {"lane": f"{profile}/{lane.number}", "first": start, **part}


def _tasks(profile: str, job: JobProfile, lanes: Sequence[Row]) -> Iterator[Row]:
    net = job.times.network
    for lane, columns, spent in zip(net.lanes, net.columns, job.times.lanes, strict=True):
        tasks, times = columns.tasks, spent.tasks
        for index in range(len(tasks)):
            kind = int(tasks.kind[index])
            yield {
                "id": f"{profile}/{lane.number}/t{index}",
                "lane": f"{profile}/{lane.number}",
                "of": columns.origins.tasks[index],
                "values": {
                    **lanes[lane.number],
                    "index": index,
                    "kind": TASK_KINDS[kind],
                    "microbatch": None if ONCE_A_STEP[kind] else int(tasks.microbatch[index]),
                    "chunk": int(tasks.chunk[index]),
                    "start": int(times.start[index]),
                    "finish": int(times.finish[index]),
                    "slack": int(times.slack[index]),
                    "critical": int(times.critical[index]),
                },
            }


# The inputs of a stored profile.


@dataclass(frozen=True)
class StoredProfile:
    """A profile of the store: its inputs, its instance, and the ns of its step."""

    inputs: ProfileInputs
    instance: str
    step: int


def read_profile(store: Store, profile: str) -> StoredProfile:
    """A profile of the store by its id. UsageError where there is none."""
    rows = store.read("profile/inputs", profile=profile)
    if not rows:
        raise UsageError(f"no profile {shown(profile)} in the store; {call('ls', 'profiles')} lists them")
    (row,) = rows
    return StoredProfile(inputs_of_row(row), row["instance"], row["step"])


def inputs_of_row(row: Mapping[str, Any]) -> ProfileInputs:
    """The inputs of a profile. row: system and durations as JSON, scalings and blocking as lists."""
    return ProfileInputs(
        parse_system(row["system"], "the profile's system"),
        None if row["durations"] is None else _read_measured(row["durations"]),
        tuple(Scaling.parse(each) for each in row["scalings"]),
        tuple(row["blocking"] or ()),
    )


def _read_measured(text: str) -> Durations:
    """Rows as `recording` writes them."""
    return Durations(
        Measured(f"row {number} of the profile", Fraction(row.pop("ns")), **row)
        for number, row in enumerate(json_list(text, "durations"), 1)
    )


# Durations of the nodes of traces from a stored profile.


def read_timing(store: Store, profile: str, workload: Workload) -> NodeTiming:
    """The durations of a profile of this workload.

    Raises UsageError if the store has no such profile, or if it is of another instance, and StagedbError if its
    durations do not fit the workload.
    """
    return read_whole(store, "Profile", profile, lambda: _read(store, profile, workload))


def _read(store: Store, profile: str, workload: Workload) -> NodeTiming:
    # Most exports need no profile, and start sooner without these modules.
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
