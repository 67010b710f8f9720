"""A measured run as rows: its nodes and relationships, with the columns of profiles. Times are in ns from its begin."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stagedb.runs.clocks import JointCollective
from stagedb.runs.kernel_names import short_name
from stagedb.runs.measured_path import PathPiece
from stagedb.runs.measured_run import FORMAT, MeasuredLane, MeasuredRun
from stagedb.runs.rank_trace import BACKGROUND, CATEGORIES, HOST, NONE, PHASES, RankTrace, RecordedCollective

Row = Mapping[str, Any]

LONGEST_NAME = 1_000
"""Characters of the name of a kernel or an annotation that are kept; templates of C++ have longer ones."""

ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "UInt8", "Int8"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "ComplexHalf", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of an element of each of PyTorch's types of scalars."""

_LAYER = re.compile(r"\blayers?[ ._#\[]*(\d{1,6})\b", re.IGNORECASE)
_PIPELINE = re.compile(r"(?:^|[^a-z])(?:pp|pipeline\w*)(?:$|[^a-z])", re.IGNORECASE)


@dataclass
class RunRows:
    """Rows of a run. own: properties of its node. nodes: by label, each as the id of the node that it belongs to and
    its properties. edges: by type, source's label and target's label, each as two ids and properties."""

    own: dict[str, Any]
    nodes: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    edges: dict[tuple[str, str, str], list[tuple[str, str, dict[str, Any]]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def message_bytes(collective: RecordedCollective) -> int:
    """Bytes of the operand on one rank; 0 if they were not recorded."""
    elements = collective.received if collective.kind == "recv" else collective.sent
    return (elements or 0) * ELEMENT_BYTES.get(collective.dtype, 0)


def axis_of(collective: RecordedCollective) -> str | None:
    """What people call the group: the framework's description, else its name; None if nothing was recorded."""
    if collective.description:
        return collective.description[:LONGEST_NAME]
    return f"group {collective.group}"[:LONGEST_NAME] if collective.group else None


def run_rows(run: MeasuredRun, files: Mapping[int, str | None]) -> RunRows:
    """The rows of a run. files: names of files by rank, where they are to be kept."""
    rows = RunRows(_own(run))
    critical = _critical(run.path)
    _add_lanes(run, rows)
    for lane in run.lanes:
        _add_ops(run, lane, rows, critical)
    _add_ranks(run, rows, files)
    _add_collectives(run, rows)
    _add_legs(run, rows)
    rows.own["content"] = run_digest(
        rows.own,
        {label: [values for _, values in of] for label, of in rows.nodes.items()},
        rows.edges,
    )
    return rows


def run_digest(
    own: Row, nodes: Mapping[str, Iterable[Row]], edges: Mapping[Any, Iterable[tuple[str, str, Row]]]
) -> str:
    """sha256 of the content of a run, for any order of its rows. Names that users give do not count."""
    digest = hashlib.sha256(json.dumps({name: own.get(name) for name in _CONTENT}, sort_keys=True).encode())
    for label in sorted(nodes):
        lines = sorted(
            json.dumps({k: v for k, v in row.items() if v is not None}, sort_keys=True) for row in nodes[label]
        )
        digest.update("\n".join((label, *lines)).encode())
    for kind in sorted(edges):
        lines = sorted(json.dumps([source, target, values], sort_keys=True) for source, target, values in edges[kind])
        digest.update("\n".join((*kind, *lines)).encode())
    return digest.hexdigest()


_CONTENT = (
    "format",
    "world",
    "job_ranks",
    "step",
    "steps",
    "ops",
    "devices",
    "busy",
    "exposed",
    "begin",
    "unexplained",
    "launching",
)
"""Properties of a run that its digest covers."""


def _own(run: MeasuredRun) -> dict[str, Any]:
    traces = run.ranks.values()
    steps = {int(each) for trace in traces for each in np.unique(trace.ops.step).tolist()} - {NONE}
    formats: Counter[str] = Counter()
    for trace in traces:
        for place in trace.ops.collective.tolist():
            if place != NONE and trace.collectives[place].dtype:
                formats[trace.collectives[place].dtype] += message_bytes(trace.collectives[place])
    idle, launching = sum(each.idle for each in run.path), sum(each.launching for each in run.path)
    return {
        "tool": ", ".join(sorted({trace.tool for trace in traces})),
        "format": FORMAT,
        "world": len(run.ranks),
        "job_ranks": run.job_ranks,
        "step": run.window,
        "steps": len(steps),
        "ops": sum(len(trace.ops) for trace in traces),
        "devices": sorted({name for trace in traces for name in trace.devices if name}),
        "busy": _mean([each.spent.busy for each in run.ops.values()]),
        "exposed": _mean([each.spent.exposed + each.spent.bubble for each in run.ops.values()]),
        "begin": run.begin,
        "unexplained": idle - launching,
        "launching": launching,
        "left_out": [f"rank {rank}: {each}" for rank, trace in run.ranks.items() for each in trace.left_out],
        "dtype": max(formats, key=lambda each: (formats[each], each)) if formats else None,
    }


@dataclass
class _Critical:
    """What the critical path has of an op: its time, how often, idle time before it, and until its launch."""

    ns: int = 0
    times: int = 0
    idle: int = 0
    launching: int = 0


def _critical(path: Sequence[PathPiece]) -> Mapping[tuple[int, int], _Critical]:
    found: dict[tuple[int, int], _Critical] = defaultdict(_Critical)
    for piece in path:
        each = found[piece.rank, piece.op]
        each.ns += piece.end - piece.start
        each.times += 1
        each.idle += piece.idle
        each.launching += piece.launching
    return found


def _place(run: MeasuredRun, lane: MeasuredLane) -> dict[str, Any]:
    """Properties that all nodes of a lane have."""
    first = lane.ranks[0]
    return {
        "run": run.id,
        "lane": lane.number,
        "class": lane.number,
        "stage": stage_of(run.ranks[first], first),
        "rank": first,
    }


def stage_of(trace: RankTrace, rank: int) -> int:
    """The place of a rank in its group of pipeline stages, which has its name from the framework; 0 without one."""
    for each in trace.collectives:
        if _PIPELINE.search(each.description) and rank in each.ranks:
            return each.ranks.index(rank)
    return 0


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)


def _add_lanes(run: MeasuredRun, rows: RunRows) -> None:
    for lane in run.lanes:
        spent = [run.ops[rank].spent for rank in lane.ranks]
        times = {name: _mean([getattr(each, name) for each in spent]) for name in ("busy", "exposed", "bubble")}
        rows.nodes["RunLane"].append(
            (
                run.id,
                {
                    "id": f"{run.id}/{lane.number}",
                    **_place(run, lane),
                    "ranks": len(lane.ranks),
                    "members": list(lane.ranks),
                    **times,
                    # Means are rounded down; what is left over is idle, so that the times add up.
                    "idle": run.window - sum(times.values()),
                    "communication": _mean([each.communication for each in spent]),
                },
            )
        )


def _add_ops(
    run: MeasuredRun, lane: MeasuredLane, rows: RunRows, critical: Mapping[tuple[int, int], _Critical]
) -> None:
    first = lane.ranks[0]
    trace, columns = run.ranks[first], run.ranks[first].ops
    lane_id, place = f"{run.id}/{lane.number}", _place(run, lane)
    tasks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    before: dict[int, str] = {}
    starts = [run.ops[rank].timed.start for rank in lane.ranks]
    ends = [run.ops[rank].timed.end for rank in lane.ranks]
    for index in range(len(columns)):
        id = f"{lane_id}/{index}"
        on_path = [critical.get((rank, index), _Critical()) for rank in lane.ranks]
        durations = [int(end[index] - start[index]) for start, end in zip(starts, ends, strict=True)]
        values = {
            "id": id,
            **place,
            "ranks": len(lane.ranks),
            "index": index,
            **_described(trace, run.ops[first].types[index], run.ops[first].kinds[index], index),
            "start": int(starts[0][index]),
            "duration": _mean(durations),
            "starts": [int(each[index]) for each in starts],
            "durations": durations,
            "launches": [int(run.ops[rank].timed.launched[index]) for rank in lane.ranks],
            "synchronised": [int(run.ops[rank].timed.synchronised[index]) for rank in lane.ranks],
            "count": 1,
            "total": _mean(durations),
            "exposed": _mean([int(run.ops[rank].exposed[index]) for rank in lane.ranks]),
            "slack": min(int(run.ops[rank].slack[index]) for rank in lane.ranks),
            "critical": sum(each.ns for each in on_path),
            "times_critical": sum(each.times for each in on_path),
            "idle_before": sum(each.idle for each in on_path),
            "launching": sum(each.launching for each in on_path),
            "rule": "measured",
        }
        rows.nodes["RunOp"].append((lane_id, values))
        tasks.setdefault((int(columns.step[index]), int(columns.phase[index])), []).append(values)
        stream = int(columns.stream[index])
        if stream in before:
            rows.edges["NEXT", "RunOp", "RunOp"].append((before[stream], id, {}))
        before[stream] = id
    for number, ((step, phase), ops) in enumerate(tasks.items()):
        rows.nodes["RunTask"].append((lane_id, _task(f"{lane_id}/t{number}", place, number, step, phase, ops)))


def _task(id: str, place: Row, number: int, step: int, phase: int, ops: Sequence[Row]) -> dict[str, Any]:
    return {
        "id": id,
        **place,
        "index": number,
        "kind": PHASES[phase],
        "step_number": None if step == NONE else step,
        "chunk": 0,
        "start": min(each["start"] for each in ops),
        "finish": max(each["start"] + each["durations"][0] for each in ops),
        "slack": min(each["slack"] for each in ops),
        "critical": sum(each["critical"] for each in ops),
    }


def _described(trace: RankTrace, type: str, kind: str, index: int) -> dict[str, Any]:
    """Properties of an op that do not depend on the rank of its lane."""
    ops = trace.ops
    collective = trace.collectives[ops.collective[index]] if ops.collective[index] != NONE else None
    block = trace.annotations[ops.annotation[index]].name if ops.annotation[index] != NONE else ""
    layer = _LAYER.search(block)
    launcher = int(ops.launcher[index])
    step = int(ops.step[index])
    return {
        "name": short_name(trace.names[ops.name[index]]),
        "symbol": trace.names[ops.name[index]][:LONGEST_NAME],
        "type": type,
        "processor": category if (category := CATEGORIES[ops.category[index]]) in (HOST, BACKGROUND) else "device",
        "kind": kind,
        "phase": PHASES[ops.phase[index]],
        "axis": None if collective is None else axis_of(collective),
        "block": block[:LONGEST_NAME],
        "layer": None if layer is None else int(layer[1]),
        "chunk": 0,
        "stream": trace.streams[ops.stream[index]],
        "launcher": None if launcher == NONE else trace.names[launcher][:LONGEST_NAME],
        "step_number": None if step == NONE else step,
        "dtype": (collective.dtype or None) if collective is not None else None,
        "bytes": int(ops.bytes[index]) if ops.bytes[index] != NONE else None,
        "message": 0 if collective is None else message_bytes(collective),
        "group_size": None if collective is None else collective.size,
        "sequence": None if collective is None else collective.sequence,
    }


def _add_ranks(run: MeasuredRun, rows: RunRows, files: Mapping[int, str | None]) -> None:
    for rank, trace in run.ranks.items():
        timed, spent, clock = run.ops[rank].timed, run.ops[rank].spent, run.clocks[rank]
        id = f"{run.id}/r{rank}"
        values = {
            "id": id,
            "run": run.id,
            "rank": rank,
            "source": trace.digest,
            "file": files.get(rank),
            "offset": clock.offset,
            "spread": clock.spread,
            "synchronised": clock.collectives,
            "ops": len(trace.ops),
            "categories": list(trace.events),
            "events": list(trace.events.values()),
            "streams": list(trace.streams),
            "start": int(timed.start.min()),
            "finish": int(timed.end.max()),
            "busy": spent.busy,
            "copying": spent.copying,
            "exposed": spent.exposed,
            "bubble": spent.bubble,
            "idle": spent.idle,
        }
        rows.nodes["RunRank"].append((run.id, values))
        rows.edges["IN_LANE", "RunRank", "RunLane"].append((id, f"{run.id}/{run.lane_of[rank].number}", {}))


def _add_collectives(run: MeasuredRun, rows: RunRows) -> None:
    def span(call: JointCollective) -> list[tuple[int, int, int]]:
        ends = ((run.ops[rank].timed, rank, place) for rank, place in call.members.items())
        return sorted((int(ops.start[place]), rank, int(ops.end[place])) for ops, rank, place in ends)

    spans = [(span(call), call) for call in run.calls]
    for number, (members, call) in enumerate(sorted(spans, key=lambda each: each[0])):
        ready, last, _ = members[-1]
        id = f"{run.id}/c{number}"
        values = {
            "id": id,
            "run": run.id,
            "number": number,
            "kind": call.collective.kind,
            "axis": axis_of(call.collective),
            "sequence": call.collective.sequence,
            "group_size": call.collective.size,
            "members": [rank for _, rank, _ in members],
            "message": message_bytes(call.collective),
            "by_order": call.by_order,
            "start": members[0][0],
            "ready": ready,
            "finish": max(end for _, _, end in members),
            "last": last,
            "waited": sum(ready - start for start, _, _ in members),
        }
        rows.nodes["RunCollective"].append((run.id, values))
        for start, rank, _ in members:
            op = f"{run.id}/{run.lane_of[rank].number}/{call.members[rank]}"
            rows.edges["HAS_MEMBER", "RunCollective", "RunOp"].append((id, op, {"rank": rank, "waits": ready - start}))


def _add_legs(run: MeasuredRun, rows: RunRows) -> None:
    """Legs: pieces of the path that follow each other in the same task of the same rank."""
    tasks = {
        (values["lane"], values["step_number"], values["kind"]): values["id"] for _, values in rows.nodes["RunTask"]
    }
    legs: list[tuple[str, list[PathPiece]]] = []
    for piece in run.path:
        columns, lane = run.ranks[piece.rank].ops, run.lane_of[piece.rank]
        step = int(columns.step[piece.op])
        task = tasks[lane.number, None if step == NONE else step, PHASES[columns.phase[piece.op]]]
        if legs and legs[-1][0] == task and legs[-1][1][-1].rank == piece.rank:
            legs[-1][1].append(piece)
        else:
            legs.append((task, [piece]))
    for number, (task, pieces) in enumerate(legs):
        lane, first = run.lane_of[pieces[0].rank], pieces[0]
        id = f"{run.id}/l{number}"
        start, finish = first.start - first.idle, pieces[-1].end
        values = {
            "id": id,
            **_place(run, lane),
            "rank": first.rank,
            "number": number,
            "start": start,
            "finish": finish,
            "ns": finish - start,
            "idle": sum(each.idle for each in pieces),
            "reason": first.reason,
        }
        rows.nodes["RunLeg"].append((run.id, values))
        if number == 0:
            rows.edges["FIRST_LEG", "Run", "RunLeg"].append((run.id, id, {}))
        else:
            rows.edges["NEXT_LEG", "RunLeg", "RunLeg"].append((f"{run.id}/l{number - 1}", id, {}))
        rows.edges["IN_TASK", "RunLeg", "RunTask"].append((id, task, {}))
        for at, piece in enumerate(pieces):
            op = f"{run.id}/{lane.number}/{piece.op}"
            values = {"number": at, "ns": piece.end - piece.start}
            rows.edges["CONTAINS", "RunLeg", "RunOp"].append((id, op, values))
