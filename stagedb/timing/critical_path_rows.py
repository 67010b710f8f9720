"""The critical path of a profile as rows: legs, and the segments of ops that the legs consist of.

Most legs of a steady pipeline run the same ops for the same time, so a segment is stored once and legs share it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stagedb.timing.node_graph import Reason
from stagedb.timing.step_profile import JobProfile

Row = Mapping[str, Any]


@dataclass(frozen=True)
class PathRows:
    """The rows of a critical path that the statements `profile/segments` and `profile/legs` take."""

    segments: tuple[Row, ...]
    legs: tuple[Row, ...]


def path_rows(profile: str, job: JobProfile, lanes: Sequence[Mapping[str, Any]]) -> PathRows:
    """The rows of a job's critical path. lanes: by number, the properties that all rows of a lane have.

    profile: the id of the profile.
    """
    path, legs = job.times.path, job.times.path.legs()
    if not len(path):
        return PathRows((), ())
    op, length = path.op, path.length
    reasons = path.reason[legs.first].tolist()
    segments: dict[tuple[int, bytes, bytes], int] = {}
    made, places = [], []
    for number, (first, end) in enumerate(zip(legs.first, np.append(legs.first[1:], len(path)), strict=True)):
        at, ops, took = int(legs.lane[number]), op[first:end], length[first:end]
        key = (at, ops.tobytes(), took.tobytes())
        if key not in segments:
            segments[key] = len(segments)
            made.append(_segment(profile, segments[key], lanes[at], ops.tolist(), took.tolist()))
        start, finish = int(legs.start[number]), int(legs.finish[number])
        values = {"number": number, "start": start, "finish": finish, "ns": finish - start}
        places.append(
            {
                "id": f"{profile}/l{number}",
                "task": f"{profile}/{at}/t{int(legs.task[number])}",
                "segment": f"{profile}/s{segments[key]}",
                "values": {**lanes[at], **values, "reason": Reason(reasons[number]).name.lower()},
            }
        )
    return PathRows(tuple(made), tuple(places))


def _segment(profile: str, number: int, lane: Mapping[str, Any], ops: list[int], took: list[int]) -> Row:
    return {
        "id": f"{profile}/s{number}",
        "values": {**lane, "ops": len(ops), "ns": sum(took)},
        "lane": f"{profile}/{lane['lane']}",
        "ops": ops,
        "ns": took,
    }
