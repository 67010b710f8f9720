"""Execution traces of PyTorch next to its profiles: the groups, bytes and types that a profile lacks.

A node has the number of its call (`rf_id`), which is the `Record function id` of the profile's event. Files of schema
1.0.2 to 1.1.1 are read. They have no number of their rank: a trace belongs to the profile of the same process, with the
same groups and calls.
"""

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from stagedb.errors import UsageError
from stagedb.inputs import open_regular
from stagedb.outputs import path_text
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.gloo import CALL, FUNCTIONAL, kind_of_call
from stagedb.runs.process_groups import in_group, process_groups
from stagedb.runs.rank_trace import ProcessGroup, RankTrace

SCHEMAS = ((1, 0, 2), (1, 1, 1))
"""The first and the last version of the schema that are read."""

LARGEST = 4 << 30
"""Bytes of a trace, decompressed, at most: it is read as a whole."""

_BEGIN = re.compile(rb'^\s*\{\s*"schema"\s*:')
_GROUPS = "## process_group:init ##"

_TYPES: Mapping[str, str] = {
    "float": "Float",
    "double": "Double",
    "int": "Int",
    "long": "Long",
    "long int": "Long",
    "short": "Short",
    "short int": "Short",
    "bool": "Bool",
    "char": "Char",
    "signed char": "Char",
    "unsigned char": "Byte",
}
"""Types of C++ in execution traces, and PyTorch's names of them in profiles."""


class _Operands(msgspec.Struct):
    values: list[Any] = []
    types: list[Any] = []


class _NodeAttribute(msgspec.Struct):
    name: str = ""
    value: Any = None


class _CallNode(msgspec.Struct):
    id: int
    name: str = ""
    ctrl_deps: int | None = None
    inputs: _Operands = msgspec.field(default_factory=_Operands)
    attrs: list[_NodeAttribute] = []


class _TraceFile(msgspec.Struct):
    schema: str
    nodes: list[_CallNode]
    pid: int | None = None


@dataclass(frozen=True)
class ExecutionTrace:
    """What a file has of collectives. process: of the rank. calls: by number, what each call of c10d asks for."""

    path: Path
    process: int | None
    groups: tuple[ProcessGroup, ...]
    calls: Mapping[int, "AskedCollective"]


@dataclass(frozen=True)
class AskedCollective:
    """What a node has of a collective. group: its name, empty if the node has none. peer: the other end of a message.

    sent, received: elements. dtype: as profiles write it.
    """

    name: str
    group: str
    dtype: str
    sent: int | None
    received: int | None
    peer: int | None


def is_execution_trace(path: Path) -> bool:
    """Whether a file is one, by its begin. Raises UsageError if it cannot be read."""
    try:
        with open_regular(path) as file:
            begin = file.read(512)
        if begin.startswith(b"\x1f\x8b"):
            begin = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(begin, 512)
    except OSError as error:
        raise UsageError(f"cannot read the trace {path_text(path)}: {error.strerror or error}") from None
    except zlib.error:
        return False
    return _BEGIN.match(begin) is not None


def read_execution_trace(path: Path) -> ExecutionTrace:
    """What a file has of collectives. Raises TraceFileError for a damaged one, or one of another version."""
    found = _decoded(path)
    version = tuple(int(each) for each in re.findall(r"\d+", found.schema.partition("-")[0]))
    if not SCHEMAS[0] <= version <= SCHEMAS[1]:
        first, last = (".".join(map(str, each)) for each in SCHEMAS)
        raise TraceFileError(
            f"the execution trace {path_text(path)} has schema {found.schema[:40]!r}: schemas {first} to {last} are "
            "read. Import the profiler's traces without it"
        )
    nodes = {node.id: node for node in found.nodes}
    groups = process_groups(_group_rows(found.nodes), 0)
    names = {group.name for group in groups}
    calls = {}
    for node in found.nodes:
        number = next((each.value for each in node.attrs if each.name == "rf_id"), None)
        if node.name.startswith(CALL) and type(number) is int:
            calls[number] = _asked(node, nodes, names)
    return ExecutionTrace(path, found.pid, groups, calls)


def _decoded(path: Path) -> _TraceFile:
    try:
        with open_regular(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            text = (gzip.GzipFile(fileobj=file) if packed else file).read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFileError(f"cannot read the execution trace {path_text(path)}: {error}") from None
    if len(text) > LARGEST:
        raise TraceFileError(f"the execution trace {path_text(path)} has more than the {LARGEST:,} bytes that are read")
    try:
        return msgspec.json.decode(text, type=_TraceFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFileError(f"the execution trace {path_text(path)} is damaged: {error}") from None


def _group_rows(nodes: Sequence[_CallNode]) -> list[Any]:
    """The rows of the node that lists the groups, which it has as a text."""
    for node in nodes:
        if node.name == _GROUPS and node.inputs.values and isinstance(node.inputs.values[0], str):
            try:
                rows = msgspec.json.decode(node.inputs.values[0])
            except msgspec.DecodeError:
                continue
            return rows if isinstance(rows, list) else []
    return []


def _asked(node: _CallNode, nodes: Mapping[int, _CallNode], groups: "set[str]") -> AskedCollective:
    """What a call's node has, and the group that the call around it names: it has the group itself as an object."""
    operands = [_elements(value) for value in node.inputs.values]
    sizes = [each for each in operands if each is not None]
    dtype = next((found for kind in node.inputs.types if (found := _dtype(str(kind)))), "")
    numbers = [value for value in node.inputs.values if type(value) is int]
    message = node.name.removeprefix(CALL).startswith(("send", "recv"))
    return AskedCollective(
        node.name,
        _named_group(nodes.get(-1 if node.ctrl_deps is None else node.ctrl_deps), groups),
        dtype,
        # What comes out is the first operand, and what goes in the second one, if it is not the same.
        sent=sizes[min(1, len(sizes) - 1)] if sizes else None,
        received=sizes[0] if sizes else None,
        peer=numbers[0] if message and numbers and numbers[0] >= 0 else None,
    )


def _named_group(around: _CallNode | None, groups: "set[str]") -> str:
    if around is None or not around.name.startswith(FUNCTIONAL):
        return ""
    return next((each for each in reversed(around.inputs.values) if isinstance(each, str) and each in groups), "")


def _elements(value: Any) -> int | None:
    """The elements of a tensor, or of a list of tensors; None for other values.

    A tensor is its id, its storage, an offset, the elements, the bytes of each, and the device.
    """
    if not isinstance(value, list) or not value:
        return None
    if len(value) == 6 and isinstance(value[5], str):
        return value[3] if type(value[3]) is int and value[3] >= 0 else None
    sizes = [_elements(each) for each in value]
    return None if None in sizes else sum(each or 0 for each in sizes)


def _dtype(kind: str) -> str:
    """The type of the first tensor that a type such as `GenericList[Tensor(float)]` has; empty if it has none."""
    found = re.search(r"Tensor\(([^)]*)\)", kind)
    if found is None:
        return ""
    word = found[1].removeprefix("c10::")
    return _TYPES.get(word, word)


def with_execution_traces(traces: Sequence[RankTrace], found: Sequence[ExecutionTrace]) -> list[RankTrace]:
    """Profiles with what the execution traces of their ranks have. Raises UsageError if one of these has no profile."""
    left = dict(enumerate(traces))
    done = {}
    for one in found:
        place = next((each for each, trace in left.items() if _belong(trace, one)), None)
        if place is None:
            raise UsageError(
                f"the execution trace {path_text(one.path)} has no profiler trace of its rank among the files: name "
                "the trace that was recorded with it, too, or leave it out"
            )
        done[place] = _completed(left.pop(place), one)
    return [done.get(place, trace) for place, trace in enumerate(traces)]


def _belong(trace: RankTrace, one: ExecutionTrace) -> bool:
    """Whether both are of one rank: the same process, the same groups, and calls that agree.

    Ranks of several machines may have processes of one number. Those with the same groups and calls are alike here.
    """
    if trace.process is None or one.process != trace.process:
        return False
    listed = {group.name: group.ranks for group in one.groups if group.ranks}
    if any(listed.get(group.name, group.ranks) != group.ranks for group in trace.groups):
        return False
    asked = ((each.kind, one.calls.get(each.node)) for each in trace.collectives if each.node is not None)
    return all(call is None or kind_of_call(call.name) == kind for kind, call in asked)


def _completed(trace: RankTrace, one: ExecutionTrace) -> RankTrace:
    groups = trace.groups or tuple(
        group if group.ranks else replace(group, ranks=tuple(range(trace.world or 0))) for group in one.groups
    )
    named = {group.name: group for group in groups}
    collectives = []
    for each in trace.collectives:
        asked = None if each.node is None else one.calls.get(each.node)
        if asked is not None:
            each = replace(each, dtype=asked.dtype, sent=asked.sent, received=asked.received, peer=asked.peer)
            each = in_group(each, named[asked.group]) if asked.group in named else each
        collectives.append(each)
    return replace(trace, groups=groups, collectives=tuple(collectives))
