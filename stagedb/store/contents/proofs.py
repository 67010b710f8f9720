"""What memory and profiles must have, by their digests and by what they are made from."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from stagedb.files import shown
from stagedb.store.dump_contents import End, ThingContent

# Nodes and relationships that are there, compared with those that must be there.

Row = Mapping[str, Any]


def differences(what: str, found: Mapping[Any, Row], expected: Mapping[Any, Row]) -> Iterator[str]:
    """What is wrong with nodes, as sentences. what: the nodes. found, expected: properties by id.

    Properties that the expected nodes do not have are not compared.
    """
    for id in expected.keys() - found.keys():
        yield f"{what} {shown(id)} is missing"
    for id in found.keys() - expected.keys():
        yield f"{what} {shown(id)} does not belong here"
    for id in expected.keys() & found.keys():
        for name, value in expected[id].items():
            if found[id].get(name) != value:
                yield f"{name} of {what} {shown(id)} is {shown(found[id].get(name))} and must be {shown(value)}"


def wrong_edges(type: str, found: Iterable[End], expected: Iterable[End]) -> Iterator[str]:
    """What is wrong with relationships of one type, as sentences.

    Each expected relationship is to be there once, and no other. type: of the relationships. found: in the store.
    expected: what is right.
    """
    there, wanted = Counter(map(_key, found)), Counter(map(_key, expected))
    for missing in sorted((wanted - there).keys()):
        yield f"{type} from {shown(missing[0])} to {shown(missing[1])} is missing or was changed"
    for extra in sorted((there - wanted).keys()):
        often = "is there twice" if extra in wanted else "does not belong here"
        yield f"{type} from {shown(extra[0])} to {shown(extra[1])} {often}"


def _key(end: End) -> tuple[str, str, str]:
    source, target, values = end
    return source, target, json.dumps(without_none(values), sort_keys=True)


def one_each(type: str, edges: Sequence[End], sources: Iterable[str]) -> Iterator[str]:
    """What is wrong if each source must have exactly one relationship of a type.

    type: of the relationships. edges: all relationships of that type. sources: ids of nodes.
    """
    counts = Counter(source for source, _, _ in edges)
    for source in sources:
        if counts[source] != 1:
            yield f"{shown(source)} has {counts[source]} {type} relationships and must have one"


def without_none(values: Row) -> dict[str, Any]:
    """The values that are not None, by name."""
    return {name: value for name, value in values.items() if value is not None}


# What the memory of rank classes must have, by its own digest and by its levels.


def memory_digest(row: Mapping[str, Any]) -> str:
    """sha256 of the memory of a class, for any order of its levels and tensors. row: as `memory/record` takes it."""
    levels = sorted((each["moment"], each["category"], each["bytes"]) for each in row["levels"])
    tensors = sorted((without_none(each) for each in row["tensors"]), key=lambda each: int(each["place"]))
    content = [row["class"], row["task"], row["op"], without_none(row["values"]), levels, tensors]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def memory_problems(section: ThingContent) -> Iterator[str]:
    """What is wrong with the memory of an instance."""
    tasks = _ends(section, "PEAKS_IN", "Memory", "Task")
    ops, syms = _ends(section, "PEAKS_AT", "Memory", "Op"), _ends(section, "COPY_OF", "MemoryTensor", "SymTensor")
    memories = section.nodes.get("Memory", {})
    yield from one_each("PEAKS_IN", section.edges.get(("PEAKS_IN", "Memory", "Task"), ()), memories)
    for found, kind in ((ops, ("PEAKS_AT", "Memory", "Op")), (syms, ("COPY_OF", "MemoryTensor", "SymTensor"))):
        yield from one_each(kind[0], section.edges.get(kind, ()), sorted(found))
    levels, tensors = _below(section, "MemoryLevel"), _below(section, "MemoryTensor")
    for id, (_, parent, values) in memories.items():
        held = sum(level["bytes"] for level in levels[id] if level["moment"] == "peak")
        if values["peak"] != held:
            yield f"peak of Memory {shown(id)} is {values['peak']}, and its levels give {held}"
        if f"{section.id}/{values['class']}" != parent:
            yield f"Memory {shown(id)} belongs to another class"
        if any(each["class"] != values["class"] for each in (*levels[id], *tensors[id])):
            yield f"a part of Memory {shown(id)} has another class"
        row = {
            "class": values["class"],
            "task": tasks[id],
            "op": ops.get(id),
            "values": {name: value for name, value in values.items() if name not in ("id", "content")},
            "levels": levels[id],
            "tensors": [_tensor(each, syms.get(each["id"])) for each in tensors[id]],
        }
        if values.get("content") not in (None, memory_digest(row)):
            yield f"the content of Memory {shown(id)} does not match its digest"


def _tensor(values: Row, sym: str | None) -> Row:
    own = ("name", "layer", "category", "count", "bytes")
    return {"place": int(values["id"].rpartition("/")[2]), "sym": sym, **{name: values.get(name) for name in own}}


def _below(section: ThingContent, label: str) -> Mapping[str, list[Row]]:
    """The properties of nodes by the id of the node that they belong to."""
    found = defaultdict[str, list[Row]](list)
    for _, parent, values in section.nodes.get(label, {}).values():
        found[str(parent)].append(values)
    return found


def _ends(section: ThingContent, type_: str, source: str, target: str) -> dict[str, str]:
    return {start: end for start, end, _ in section.edges.get((type_, source, target), ())}


# What a profile must have, by its own digest and by the ops and tasks that it timed.

OWN_TIMES = (
    *("layer", "duration", "count", "total", "exposed", "slack", "critical", "times_critical", "rule", "dimension"),
    *("wires", "wire_bytes"),
)
"""What a profile itself has of an op; the rest are copies of the op's properties."""


def profile_digest(parts: Mapping[str, Iterable[Row]]) -> str:
    """sha256 of the content of a profile, for any order of its rows.

    parts: `lane_times`, `op_times` (one row an op: id, lane, op, values), `task_times`, `segments` and `legs`, as
    `cypher/profile` takes them.
    """
    found = hashlib.sha256()
    for name in sorted(parts):
        rows = [{**row, "values": without_none(row["values"])} for row in parts[name]]
        for row in sorted(rows, key=lambda row: str(row["id"])):
            found.update(f"{name} {json.dumps(row, sort_keys=True)}\n".encode())
    return found.hexdigest()


def profile_problems(section: ThingContent, instance: ThingContent) -> Iterator[str]:
    """What is wrong with a profile of an instance."""
    yield from _needed_once(section)
    yield from _copies(section, instance)
    legs = sorted(section.values("Leg"), key=lambda leg: int(leg["number"]))
    first: list[End] = [(section.id, leg["id"], {}) for leg in legs[:1]]
    yield from wrong_edges("FIRST_LEG", _edges(section, "FIRST_LEG", "Profile", "Leg"), first)
    following: list[End] = [(leg["id"], after["id"], {}) for leg, after in pairwise(legs)]
    yield from wrong_edges("NEXT_LEG", _edges(section, "NEXT_LEG", "Leg", "Leg"), following)
    step = section.own["step"]
    for lane in section.values("LaneTime"):
        if sum(lane[name] for name in ("busy", "exposed", "bubble", "idle")) != step:
            yield f"the times of LaneTime {shown(lane['id'])} do not add up to the step"
    at = 0
    for leg in legs:
        if leg["start"] != at or leg["finish"] - leg["start"] != leg["ns"]:
            yield f"Leg {shown(leg['id'])} does not begin where the one before it ends"
        at = leg["finish"]
    if legs and at != step:
        yield "its critical path is not as long as the step"
    if section.own.get("content") not in (None, profile_digest(_parts(section))):
        yield "its content does not match its digest"


def _needed_once(section: ThingContent) -> Iterator[str]:
    """Relationships that each node must have exactly once."""
    for type_, source, target in (
        ("OF", "LaneTime", "RankClass"),
        ("OF", "OpTime", "Op"),
        ("OF", "TaskTime", "Task"),
        ("IN_TASK", "Leg", "TaskTime"),
        ("FILLED_BY", "Leg", "Segment"),
    ):
        yield from one_each(type_, _edges(section, type_, source, target), section.nodes.get(source, {}))
    contained = defaultdict[str, list[int]](list)
    for segment, _, values in _edges(section, "CONTAINS", "Segment", "OpTime"):
        contained[segment].append(values["number"])
    for row in section.values("Segment"):
        if sorted(contained[row["id"]]) != [*range(row["ops"])]:
            yield f"Segment {shown(row['id'])} does not contain its {row['ops']} ops, each once"


def _copies(section: ThingContent, instance: ThingContent) -> Iterator[str]:
    """Properties of op times that differ from those of their ops, and ops or tasks without a time."""
    ops = {values["id"]: values for values in instance.values("Op")}
    tasks = {values["id"]: values for values in instance.values("Task")}
    of = {source: target for source, target, _ in _edges(section, "OF", "OpTime", "Op")}
    lanes = {values["id"]: values for values in section.values("LaneTime")}
    expected = {}
    for id, (_, parent, values) in section.nodes.get("OpTime", {}).items():
        op, lane = ops[of[id]], lanes[str(parent)]
        same = ("index", "class", "name", "type", "kind", "phase", "axis", "block", "chunk", "dtype", "flops")
        expected[id] = {
            **{name: op.get(name) for name in same},
            **{name: lane[name] for name in ("lane", "stage", "rank", "ranks")},
            "op": op["id"],
            "bytes": op["bytes_read"] + op["bytes_written"],
            "message": op.get("comm_bytes", 0),
            "id": f"{section.id}/{values['lane']}/{op['index']}",
        }
    yield from differences("OpTime", {values["id"]: values for values in section.values("OpTime")}, expected)
    times = {values["id"]: values for values in section.values("TaskTime")}
    for source, target, _ in _edges(section, "OF", "TaskTime", "Task"):
        named = ("class", "index", "kind")
        if any(times[source].get(name) != tasks[target].get(name) for name in named):
            yield f"TaskTime {shown(source)} is that of another task"
    for label, what in (("OpTime", "Op"), ("TaskTime", "Task")):
        wanted = defaultdict[int, int](int)
        for values in instance.values(what):
            wanted[values["class"]] += 1
        there = defaultdict[int, int](int)
        for values in section.values(label):
            there[values["lane"]] += 1
        for lane in lanes.values():
            if there[lane["lane"]] != wanted[lane["class"]]:
                found, of_class = there[lane["lane"]], wanted[lane["class"]]
                yield f"LaneTime {shown(lane['id'])} has {found} of its {of_class} {label} nodes"


def _parts(section: ThingContent) -> dict[str, list[dict[str, Any]]]:
    """The rows from which the profile was written."""
    ends = {
        (type_, source): {start: end for start, end, _ in edges}
        for (type_, source, _), edges in section.edges.items()
        if type_ != "CONTAINS"
    }
    of, lane_of, task_of = ends["OF", "OpTime"], ends["OF", "LaneTime"], ends["OF", "TaskTime"]
    index = {values["id"]: values["index"] for values in section.values("OpTime")}
    contained = defaultdict[str, list[tuple[int, int, int]]](list)
    for segment, op, values in _edges(section, "CONTAINS", "Segment", "OpTime"):
        contained[segment].append((values["number"], index[op], values["ns"]))
    in_task, filled = ends.get(("IN_TASK", "Leg"), {}), ends.get(("FILLED_BY", "Leg"), {})
    return {
        "lane_times": [
            {"id": id, "of": lane_of[id], "values": _own(row)} for id, _, row in _nodes(section, "LaneTime")
        ],
        "op_times": [
            {"id": id, "lane": lane, "op": of[id], "values": {name: row.get(name) for name in OWN_TIMES}}
            for id, lane, row in _nodes(section, "OpTime")
        ],
        "task_times": [
            {"id": id, "lane": lane, "of": task_of[id], "values": _own(row)}
            for id, lane, row in _nodes(section, "TaskTime")
        ],
        "segments": [
            {
                "id": id,
                "values": _own(row),
                "lane": f"{section.id}/{row['lane']}",
                "ops": [op for _, op, _ in sorted(contained[id])],
                "ns": [ns for _, _, ns in sorted(contained[id])],
            }
            for id, _, row in _nodes(section, "Segment")
        ],
        "legs": [
            {"id": id, "task": in_task[id], "segment": filled[id], "values": _own(row)}
            for id, _, row in _nodes(section, "Leg")
        ],
    }


def _nodes(section: ThingContent, label: str) -> Iterator[tuple[str, str, Row]]:
    """The id of each node, that of the node above it, and its properties."""
    return ((id, str(parent), values) for id, (_, parent, values) in section.nodes.get(label, {}).items())


def _own(values: Row) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "id"}


def _edges(section: ThingContent, type_: str, source: str, target: str) -> Sequence[End]:
    return section.edges.get((type_, source, target), ())
