"""Profiles in the store: a step's lanes, ops, tasks and critical path as nodes beside the instance's.

A profile's id is a digest of what it was made from, so the same twice is one. It is written under a lease, and seen
when it is whole.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from stagedb.errors import StagedbError
from stagedb.faults import fault_point
from stagedb.issue.columns import STEP, TASK_KINDS, TEMPLATES, TYPES, ClassColumns, Ints
from stagedb.profile.network import Reason
from stagedb.profile.profiling import JobProfile
from stagedb.profile.whatif import Scaling
from stagedb.store import Store, building, delete
from stagedb.systems import Durations, Wires

FORMAT = 1
"""Version of what a profile holds; part of its id."""

AT_ONCE = 2_000
"""Rows that one transaction writes."""

Progress = Callable[[int, int], None]

Row = Mapping[str, Any]


def profile_id(job: JobProfile) -> str:
    """The digest of all that a profile is made from: instance, system, measured durations, scalings, and what blocks.

    Without anything that blocks it is what it was before there was such a word.
    """
    made_from = {
        "format": str(FORMAT),
        "instance": job.workload.instance,
        "system": job.system.to_dict(),
        "durations": _measured(job.measured),
        "scalings": sorted(_spoken(each) for each in job.scalings),
        **({"blocking": list(job.blocking)} if job.blocking else {}),
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:20]


def record_profile(
    store: Store, job: JobProfile, name: str | None = None, progress: Progress = lambda done, of: None
) -> tuple[str, bool]:
    """Write a profile beside its instance. Returns its id, and whether this call wrote it.

    The same again is the newest again, and keeps its name unless it is given another. One that another version wrote,
    with another step or without what is sent into the network, is replaced. Progress is told how many of so many rows
    are written. Raises StagedbError where the instance is not in the store, or is being deleted.
    """
    found = profile_id(job)
    there = store.read("profile/figures", profile=found)
    if there and there[0] != {**_figures(job), "name": there[0]["name"]}:
        name = name or there[0]["name"]
        delete(store, "Profile", found)
    with building(store, "Profile", found, _properties(job, name)) as lease:
        if lease is not None:
            places = {each.number: _places(store, job.workload.instance, each) for each in job.workload.classes}
            parts = {
                "lane_times": list(_lanes(found, job)),
                "op_times": list(_ops(found, job, places)),
                "task_times": list(_tasks(found, job, places)),
                "critical": list(_critical(found, job)),
            }
            done, of = 0, sum(len(rows) for rows in parts.values())
            for statement, rows in parts.items():
                for start in range(0, len(rows), AT_ONCE):
                    lease.renew()
                    store.write_rows(f"profile/{statement}", rows[start : start + AT_ONCE])
                    done += len(rows[start : start + AT_ONCE])
                    progress(done, of)
                fault_point(f"profile.{statement}")
    if lease is None:
        store.write("profile/touch", profile=found, name=name)
    return found, lease is not None


def _figures(job: JobProfile) -> Row:
    """What `profile/figures` tells of a profile that is as this one."""
    dimensions = [each.name for each in job.system.dimensions]
    return {"step": job.step, "unscaled": job.unscaled, "mfu": job.merit.mfu, "dimensions": dimensions}


@dataclass(frozen=True)
class _Places:
    """Of a class's ops and tasks, in the order of its columns, what the store says of them besides.

    ids, block, layer (on its stage; -1 outside layers) of ops; tasks: ids of tasks. stages and first_layers: the
    class's, which make a layer its number in the model.
    """

    ids: tuple[str, ...]
    block: tuple[str, ...]
    layer: Ints
    tasks: tuple[str, ...]
    stages: tuple[int, ...]
    first_layers: tuple[int, ...]

    def layer_in_model(self, op: int, chunk: int, stage: int) -> int | None:
        """The number of an op's layer in the model, on one of the class's stages; None outside layers."""
        if self.layer[op] < 0:
            return None
        chunks = len(self.first_layers) // len(self.stages)
        return self.first_layers[self.stages.index(stage) * chunks + chunk] + int(self.layer[op])


def _places(store: Store, instance: str, columns: ClassColumns) -> _Places:
    where = {"instance": instance, "class": columns.number}
    ops, tasks = store.read("profile/ops", **where)[0], store.read("profile/tasks", **where)[0]
    layers = next(row for row in store.read("profile/layers", instance=instance) if row["class"] == columns.number)
    template = np.array([TEMPLATES.index(each) for each in ops["template"]], np.int64)
    # As the columns are sorted.
    order = np.lexsort((np.array(ops["order"], np.int64), template, np.array(ops["chunk"], np.int64)))
    by_index = np.argsort(np.array(tasks["index"], np.int64))
    if len(order) != len(columns.ops) or len(by_index) != len(columns.tasks):
        raise StagedbError(
            f"instance {instance} is not what was profiled: it was removed or made again meanwhile; profile it again"
        )
    return _Places(
        ids=tuple(ops["id"][at] for at in order),
        block=tuple(ops["block"][at] for at in order),
        layer=np.array(ops["layer"], np.int64)[order],
        tasks=tuple(tasks["id"][at] for at in by_index),
        stages=tuple(layers["stages"]),
        first_layers=tuple(layers["first_layers"]),
    )


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
        "scalings": sorted(_spoken(each) for each in job.scalings),
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
    """Measured rows in an order of their own, without where they stood."""
    if measured is None:
        return None
    rows = [{"ns": _exact(row.ns), **{name: getattr(row, name) for name in row.fields}} for row in measured.rows]
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def _spoken(scaling: Scaling) -> str:
    """A scaling as it can be said again, exactly."""
    which = "" if scaling.which is None else f":{scaling.which}"
    return f"{scaling.what}{which}={_exact(scaling.factor)}"


def _exact(number: Fraction) -> str:
    """As a decimal where that is exact and short, else as a quotient."""
    decimal = f"{float(number):.9f}".rstrip("0").rstrip(".")
    return decimal if Fraction(decimal) == number else str(number)


def _lanes(profile: str, job: JobProfile) -> Iterator[Row]:
    for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True):
        yield {
            "id": f"{profile}/{lane.number}",
            "values": {
                **_lane(profile, job, lane.number),
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


def _ops(profile: str, job: JobProfile, places: Mapping[int, _Places]) -> Iterator[Row]:
    net = job.times.network
    for lane, columns, timed, spent in zip(net.lanes, net.columns, job.durations.lanes, job.times.lanes, strict=True):
        ops, place, times = columns.ops, places[lane.rank_class], spent.ops
        common = {**_lane(profile, job, lane.number), "instance": job.workload.instance, "ranks": lane.ranks}
        numbers = {
            "chunk": ops.chunk,
            "flops": ops.flops,
            "bytes": ops.bytes,
            "message": ops.size,
            "duration": timed.ns,
            "count": times.runs,
            "total": times.time,
            "exposed": times.exposed,
            "slack": times.slack,
            "critical": times.critical,
            "times_critical": times.critical_runs,
        }
        listed = {name: column.tolist() for name, column in numbers.items()}
        for op, (type_, chunk) in enumerate(zip(ops.type.tolist(), listed["chunk"], strict=True)):
            yield {
                "id": f"{profile}/{lane.number}/{op}",
                "of": place.ids[op],
                "values": {
                    **common,
                    "op": place.ids[op],
                    "name": ops.name[op],
                    "type": TYPES[type_],
                    "kind": ops.kind[op],
                    "phase": ops.phase[op],
                    "axis": ops.axis[op] or None,
                    "block": place.block[op],
                    "layer": place.layer_in_model(op, chunk, lane.stage),
                    "dtype": ops.dtype[op] or None,
                    "rule": timed.rule[op],
                    "dimension": timed.dimension[op],
                    **_sent(timed.wires[op]),
                    **{name: column[op] for name, column in listed.items()},
                },
            }


def _sent(wires: Wires) -> Row:
    """Lists side by side; nothing of what sends nothing."""
    return {"wires": [name for name, _ in wires], "wire_bytes": [sent for _, sent in wires]} if wires else {}


def _tasks(profile: str, job: JobProfile, places: Mapping[int, _Places]) -> Iterator[Row]:
    net, legs = job.times.network, job.times.path.legs()
    reasons = _reasons(job)
    on_path: dict[tuple[int, int], list[int]] = {}
    for number, key in enumerate(zip(legs.lane.tolist(), legs.task.tolist(), strict=True)):
        on_path.setdefault(key, []).append(number)
    starts, finishes = legs.start.tolist(), legs.finish.tolist()
    for lane, columns, spent in zip(net.lanes, net.columns, job.times.lanes, strict=True):
        tasks, times, place = columns.tasks, spent.tasks, places[lane.rank_class]
        common = _lane(profile, job, lane.number)
        for index in range(len(tasks)):
            kind, mine = int(tasks.kind[index]), on_path.get((lane.number, index), [])
            yield {
                "id": f"{profile}/{lane.number}/t{index}",
                "of": place.tasks[index],
                "values": {
                    **common,
                    "index": index,
                    "kind": TASK_KINDS[kind],
                    "microbatch": None if TASK_KINDS[kind] == TEMPLATES[STEP] else int(tasks.microbatch[index]),
                    "chunk": int(tasks.chunk[index]),
                    "start": int(times.start[index]),
                    "finish": int(times.finish[index]),
                    "slack": int(times.slack[index]),
                    "critical": int(times.critical[index]),
                    "legs": mine,
                    "leg_starts": [starts[each] for each in mine],
                    "leg_finishes": [finishes[each] for each in mine],
                    "leg_reasons": [reasons[each] for each in mine],
                },
            }


def _reasons(job: JobProfile) -> Sequence[str]:
    """Why the first node of each leg of the critical path began no earlier."""
    path = job.times.path
    fresh = np.ones(len(path), bool)
    fresh[1:] = (path.lane[1:] != path.lane[:-1]) | (path.task[1:] != path.task[:-1])
    return [Reason(each).name.lower() for each in path.reason[fresh].tolist()]


def _critical(profile: str, job: JobProfile) -> Iterator[Row]:
    legs, reasons = job.times.path.legs(), _reasons(job)
    ids = [f"{profile}/{lane}/t{task}" for lane, task in zip(legs.lane.tolist(), legs.task.tolist(), strict=True)]
    took, finish = (legs.finish - legs.start).tolist(), legs.finish.tolist()
    for number, (source, target) in enumerate(pairwise(ids)):
        yield {
            "source": source,
            "target": target,
            "number": number,
            "time": finish[number],
            "source_ns": took[number],
            "target_ns": took[number + 1],
            "reason": reasons[number + 1],
        }
