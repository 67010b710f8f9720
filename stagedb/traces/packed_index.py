"""Checks of the index of a packed set, before anything is made of it.

The author of the file chose its values. Each is checked against its type, and against the other values that it must
agree with. Checked values can become names of files and the rows of a manifest.
"""

import dataclasses
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from stagedb.collectives import KINDS
from stagedb.errors import UsageError
from stagedb.lowering.engine_pairs import pair_degrees
from stagedb.systems.system import System
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.rank_sets import format_ranks, parse_ranks
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import MESSAGE, Groups, SimulatedJob, Traffic
from stagedb.traces.trace_set import MANIFEST, groups_text, key_of

LARGEST_WORLD = 1 << 27
"""The largest number of ranks: as many as fit into memory on any machine."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


def parse_index(data: bytes) -> Any:
    """The JSON of an index. data: the bytes of the index. ValueError for other bytes."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def wrong_index(index: Mapping[str, Any], columns: Iterable[str]) -> str | None:
    """Why an index, of the format that this version knows, is wrong; or None. `columns` are those of a class.

    `wrong_files` checks the files in it, which can be large.
    """
    reason = _wrong_fields("it", index, _INDEX)
    if reason is not None:
        return reason
    described = index["set"]
    timed = "profile" in described
    more = {**(_TIMED_SET if timed else {}), **(_WINDOW_SET if "steps" in described else {})}
    more |= _PAIR_SET if "engines" in described else {}
    reason = _wrong_fields("the set", described, {**_SET, **more})
    if reason is not None:
        return reason
    if described["name"] != described["model"].replace("/", "_"):
        name, model = (reprlib.repr(described[word]) for word in ("name", "model"))
        return f"the set is called {name} and is of the model {model}"
    return (
        _wrong_degrees(described)
        or _wrong_system(described)
        or _wrong_classes(index["classes"], described["world"], timed)
        or _wrong_members(
            index["members"], [f"classes/{key_of(row)}/{name}" for row in index["classes"] for name in columns]
        )
    )


def groups_of(index: Mapping[str, Any]) -> Groups:
    """The communicator groups of a checked index."""
    groups: Groups = json.loads(index["files"][f"{index['set']['name']}.json"])
    return groups


def job_of(index: Mapping[str, Any]) -> SimulatedJob:
    """The job that a simulator's inputs follow from, of a checked index."""
    traffic = tuple(map(Traffic.from_dict, index["set"]["traffic"]))
    return dataclasses.replace(_job(index["set"]), groups=groups_of(index), traffic=traffic)


def _job(described: Mapping[str, Any]) -> SimulatedJob:
    """The job without what it communicates."""
    degrees, system = tuple(_mesh(described)), _system(described["system"])
    return SimulatedJob(described["name"], described["world"], degrees, system, "profile" in described)


def _system(content: object) -> System:
    # The processes that write traces need no systems.
    from stagedb.systems.system_files import parse_system

    return parse_system(json.dumps(content, ensure_ascii=False))


def _degrees(plan: Mapping[str, Any]) -> list[int]:
    return [plan[axis] for axis in plan["rank_order"]]


def _mesh(described: Mapping[str, Any]) -> Sequence[int]:
    """The degrees of the mesh of a set: those of its plan, or of two engines together."""
    if "engines" not in described:
        return _degrees(described["plan"])
    first, second = (_degrees(steps[0]["plan"]) for steps in described["engines"])
    return pair_degrees(first, second)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not of JSON")


def is_int(value: object) -> TypeGuard[int]:
    """Whether a JSON value is a whole number; `true` is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> TypeGuard[int]:
    return is_int(value) and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _is_plan(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_plain(each) or (isinstance(each, list) and all(map(_is_plain, each))) for each in value.values()
    )


def _is_step(value: object) -> bool:
    return (
        isinstance(value, dict)
        and {*value} == {"instance", "plan"}
        and _is_text(value["instance"])
        and _is_plan(value["plan"])
    )


def _is_list(value: object, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_size(value: object) -> bool:
    return _is_count(value) and value < 1 << 63


def is_traffic(value: object) -> bool:
    """Whether a value is a row of traffic. Its group and ends are checked with the groups."""
    if not isinstance(value, dict) or not all(_is_size(value.get(name)) for name in ("bytes", "count")):
        return False
    if value.get("kind") == MESSAGE:
        return {*value} == {"kind", "ends", "bytes", "count"} and _is_list(value["ends"], is_int)
    return {*value} == {"kind", "group", "bytes", "count"} and value["kind"] in KINDS and _is_text(value["group"])


_Fields = Mapping[str, Callable[[Any], bool]]

_INDEX: _Fields = {
    "format": is_int,
    "what": _is_text,
    "set": lambda value: isinstance(value, dict),
    "classes": lambda value: _is_list(value, lambda row: isinstance(row, dict)) and bool(value),
    "files": lambda value: isinstance(value, dict),
    "members": lambda value: isinstance(value, dict),
}
_SET: _Fields = {
    "traffic": lambda value: _is_list(value, is_traffic),
    "name": _is_name,
    "instance": _is_text,
    "graph": _is_text,
    "model": _is_text,
    "plan": _is_plan,
    "world": lambda value: _is_count(value) and value <= LARGEST_WORLD,
    "granularity": lambda value: value in ("op", "block"),
    "system": lambda value: isinstance(value, dict),
    "versions": lambda value: (
        isinstance(value, dict) and {*value} == {"stagedb", "chakra"} and all(map(_is_text, value.values()))
    ),
}
_TIMED_SET: _Fields = {
    "profile": lambda value: (
        isinstance(value, dict)
        and {*value} == {"id", "system", "step"}
        and _is_text(value["id"])
        and _is_text(value["system"])
        and is_int(value["step"])
        and value["step"] >= 0
    ),
}
_WINDOW_SET: _Fields = {"steps": lambda value: _is_list(value, _is_step) and len(value) > 1}
_PAIR_SET: _Fields = {
    "engines": lambda value: (
        _is_list(value, lambda steps: _is_list(steps, _is_step) and bool(steps)) and len(value) == 2
    )
}
_CLASS: _Fields = {
    "class": lambda value: is_int(value) and value >= 0,
    "digest": _is_sha256,
    "stages": lambda value: _is_list(value, lambda stage: is_int(stage) and stage >= 0),
    "ranks": _is_text,
    "nodes": _is_count,
    "bytes": _is_count,
    "encoding": _is_sha256,
    "tasks": lambda value: _is_list(value, _is_text),
}
_TIMED_CLASS: _Fields = {
    "lanes": lambda value: _is_list(value, lambda lane: is_int(lane) and lane >= 0) and bool(value),
}
_MEMBER: _Fields = {
    "sha256": _is_sha256,
    "bytes": lambda value: is_int(value) and value >= 0,
    "columns": lambda value: value is None or _is_count(value),
}


def _wrong_fields(what: str, row: Mapping[str, Any], fields: _Fields) -> str | None:
    """Why an object is wrong, or None: it needs exactly these keys, each with a valid value."""
    missing = [name for name in fields if name not in row]
    if missing:
        return f"{what} has no {', '.join(missing)}"
    unknown = [name for name in row if name not in fields]
    if unknown:
        return f"{what} has {reprlib.repr(unknown[0])}, which this format does not know"
    wrong = next((name for name, right in fields.items() if not right(row[name])), None)
    return None if wrong is None else f"{what} states that {wrong} is {reprlib.repr(row[wrong])}"


def _wrong_degrees(described: Mapping[str, Any]) -> str | None:
    world, product = described["world"], 1
    for plan in (described["plan"], *(steps[0]["plan"] for steps in described.get("engines", ()))):
        order: Any = plan.get("rank_order")
        if not _is_list(order, _is_text) or not all(_is_count(plan.get(axis)) for axis in order):
            return f"the plan's rank_order {reprlib.repr(order)} names no degrees"
    for degree in _mesh(described):
        product *= degree
    return None if product == world else f"the plan is of {product} ranks, and the world has {world}"


def _wrong_system(described: Mapping[str, Any]) -> str | None:
    """Why a system is wrong, or None: it must be in the one form of `to_dict`, and give what a simulator needs."""
    try:
        system = _system(described["system"])
        if json.dumps(system.to_dict()) != json.dumps(described["system"]):
            return "its system is not in the form of systems"
        if described.get("profile", {"system": system.name})["system"] != system.name:
            return "its profile is of another system"
        DEFAULT_SIMULATOR.inputs(_job(described))
    except UsageError as error:
        return str(error)
    except RecursionError:
        return "its system is nested too deeply"
    return None


def _wrong_classes(rows: list[dict[str, Any]], world: int, timed: bool) -> str | None:
    fields = {**_CLASS, **_TIMED_CLASS} if timed else _CLASS
    for row in rows:
        reason = _wrong_fields(f"class {reprlib.repr(row.get('class'))}", row, fields)
        if reason is not None:
            return reason
    if timed:
        lanes = [lane for row in rows for lane in row["lanes"]]
        if len({*lanes}) < len(lanes):
            return "a lane is there twice"
    # The parts of a class share its number and digest; other classes have others.
    known = (
        {(row["class"], row["digest"]) for row in rows} if timed else [(row["class"], row["digest"]) for row in rows]
    )
    for at, word in enumerate(("number", "digest")):
        stated = [each[at] for each in known]
        if len({*stated}) < len(stated):
            return f"two classes have one {word}"
    taken: list[Ints] = []
    for row in rows:
        try:
            ranks = parse_ranks(row["ranks"], world)
        except UsageError:
            return f"class {row['class']} states that its ranks are {reprlib.repr(row['ranks'])}, of {world}"
        if format_ranks(ranks) != row["ranks"]:
            return f"class {row['class']} writes its ranks in another form than {format_ranks(ranks)}"
        taken.append(ranks)
    every = np.concatenate(taken)
    return None if len(np.unique(every)) == len(every) else "a rank is in two classes"


def _wrong_members(members: Mapping[str, Any], names: list[str]) -> str | None:
    missing = [name for name in names if name not in members]
    if missing:
        return f"it does not state {missing[0]}"
    unknown = members.keys() - set(names)
    if unknown:
        return f"it has the member {reprlib.repr(min(unknown))}, which no class has"
    for name, member in members.items():
        reason = _wrong_fields(name, member, _MEMBER) if isinstance(member, dict) else f"{name} is no object"
        if reason is not None:
            return reason
    return None


def wrong_files(index: Mapping[str, Any]) -> str | None:
    """Why the files of an index are wrong, or None.

    The file of communicator groups is taken as it is. Every other file must have the text that follows from the set.
    """
    described, files = index["set"], index["files"]
    groups = f"{described['name']}.json"
    if groups in (MANIFEST, *DEFAULT_SIMULATOR.files) or groups not in files:
        return f"it has no communicator groups in a file {groups}"
    if not _are_groups(files[groups], described["world"]):
        return f"its {groups} holds no communicator groups"
    reason = wrong_traffic(described.get("traffic", ()), groups_of(index), described["world"])
    if reason is not None:
        return reason
    inputs = DEFAULT_SIMULATOR.inputs(job_of(index))
    for name, text in files.items():
        if name == groups:
            continue
        if name not in inputs:
            return f"it has a file {reprlib.repr(name)}, which no trace set has"
        if text != inputs[name]:
            return f"its {name} is not the one that belongs to such a set"
    return None


def wrong_traffic(rows: Iterable[Mapping[str, Any]], groups: Groups, world: int) -> str | None:
    """Why rows of traffic, each of the right form, are in no place of the set, or None.

    world: ranks of the job.
    """
    for row in rows:
        if row["kind"] == MESSAGE:
            ends = row["ends"]
            right = len(ends) == len({*ends}) == 2 and all(0 <= rank < world for rank in ends)
        else:
            right = row["group"] in groups
        if not right:
            return f"its traffic {reprlib.repr(row)} has no such place"
    return None


def _are_groups(text: object, world: int) -> bool:
    """Whether a text is the result of `groups_text` for groups of ranks of the world."""
    if not isinstance(text, str):
        return False
    try:
        groups = json.loads(text)
        return (
            isinstance(groups, dict)
            and all(_NUMBER.fullmatch(gid) is not None for gid in groups)
            and all(_is_list(members, lambda rank: is_int(rank) and 0 <= rank < world) for members in groups.values())
            and all(len({*members}) == len(members) > 0 for members in groups.values())
            and groups_text(groups) == text
        )
    except (ValueError, RecursionError):
        return False
