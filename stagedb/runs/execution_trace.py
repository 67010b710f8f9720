"""Execution traces of PyTorch: operators with the shapes of their inputs, collectives, and process groups.

Files of schema 1.0.1 to 1.1.1 are read. A node has the number of its call (`rf_id`), which is the `Record function id`
of the profile's event. Files have no number of their rank; collectives have it, as the place in their group.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stagedb.errors import UsageError
from stagedb.inputs import open_regular
from stagedb.outputs import path_text
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.gloo import CALL, FUNCTIONAL
from stagedb.runs.input_shapes import input_shapes
from stagedb.runs.process_groups import process_groups
from stagedb.runs.rank_trace import ProcessGroup, RecordedCollective
from stagedb.runs.recorded_calls import RECORD, RecordedCall, recorded_call

SCHEMAS = ((1, 0, 1), (1, 1, 1))
"""The first and the last version of the schema that are read."""

LARGEST = 4 << 30
"""Bytes of a trace, decompressed, at most: it is read as a whole."""

_BEGIN = re.compile(rb'^\s*\{\s*"schema"\s*:')
_GROUPS = "## process_group:init ##"
_TENSOR = "Tensor("

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
    shapes: list[Any] = []


class _NodeAttribute(msgspec.Struct):
    name: str = ""
    value: Any = None


class _CallNode(msgspec.Struct):
    """A node. Those of schema 1.0.1 have lists of operands, and their numbers as properties of their own."""

    id: int
    name: str = ""
    ctrl_deps: int | None = None
    parent: int | None = None
    rf_id: int | None = None
    inputs: _Operands | list[Any] = msgspec.field(default_factory=_Operands)
    outputs: _Operands | list[Any] = msgspec.field(default_factory=_Operands)
    input_types: list[Any] = []
    input_shapes: list[Any] = []
    output_types: list[Any] = []
    attrs: list[_NodeAttribute] = []

    def read(self) -> _Operands:
        """What goes in."""
        if isinstance(self.inputs, _Operands):
            return self.inputs
        return _Operands(self.inputs, self.input_types, self.input_shapes)

    def written(self) -> _Operands:
        """What comes out."""
        return self.outputs if isinstance(self.outputs, _Operands) else _Operands(self.outputs, self.output_types)

    @property
    def above(self) -> int:
        """The node around it, -1 if there is none."""
        return next((each for each in (self.ctrl_deps, self.parent) if each is not None), -1)

    @property
    def number(self) -> int | None:
        """The number of its call. The profiler itself has 0."""
        found = self.rf_id or next((each.value for each in self.attrs if each.name == "rf_id"), None)
        return found if type(found) is int and found > 0 else None


class _TraceFile(msgspec.Struct):
    schema: str
    nodes: list[_CallNode]
    pid: int | None = None


@dataclass(frozen=True)
class ExecutionTrace:
    """What an execution trace of PyTorch has of one rank.

    path: of the file. process: its number in the system. rank: None if no collective has it. groups: process groups.
    The others are by the number of a call: calls, what a call of c10d asks for; names and shapes of operators; above,
    the operator around another one; records, collectives in the order of the calls.
    """

    path: Path
    process: int | None
    rank: int | None
    groups: tuple[ProcessGroup, ...]
    calls: Mapping[int, "AskedCollective"]
    names: Mapping[int, str]
    shapes: Mapping[int, str]
    above: Mapping[int, int]
    records: Mapping[int, RecordedCollective]

    def around(self, number: int) -> Iterator[int]:
        """The number of an operator, and of those around it, the innermost one first."""
        seen: set[int] = set()
        at: int | None = number
        while at is not None and at not in seen:
            seen.add(at)
            yield at
            at = self.above.get(at)


@dataclass(frozen=True)
class AskedCollective:
    """What a call of c10d asks for, as a node of an execution trace has it.

    name: of the call. group: name of the process group, empty if the node has none. dtype: as profiles write it. sent,
    received: elements. peer: the other end of a message.
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
    rows = _group_rows(found.nodes)
    groups = process_groups(rows, 0)
    names = {group.name for group in groups}
    numbered = {node.number: node for node in sorted(found.nodes, key=lambda node: node.id) if node.number is not None}
    records = {number: call for number, node in numbered.items() if (call := _recorded(node, rows)) is not None}
    return ExecutionTrace(
        path,
        found.pid,
        _rank(records.values(), groups),
        groups,
        calls={number: _asked(node, nodes, names) for number, node in numbered.items() if node.name.startswith(CALL)},
        names={number: node.name for number, node in numbered.items()},
        shapes={number: text for number, node in numbered.items() if (text := _shapes(node.read())) is not None},
        above=_above(numbered, nodes),
        records={number: call.collective for number, call in records.items()},
    )


def _above(numbered: Mapping[int, _CallNode], nodes: Mapping[int, _CallNode]) -> dict[int, int]:
    around = ((number, nodes.get(node.above)) for number, node in numbered.items())
    return {number: node.number for number, node in around if node is not None and node.number is not None}


def _shapes(operands: _Operands) -> str | None:
    """The text of the shapes of tensors; what is none has no shape, as in a profile."""
    if not any(_TENSOR in str(kind) for kind in operands.types):
        return None
    pairs = zip(operands.shapes, operands.types, strict=False)
    return input_shapes(msgspec.json.encode([shape if _TENSOR in str(kind) else [] for shape, kind in pairs]))


def _recorded(node: _CallNode, groups: Sequence[Any]) -> RecordedCall | None:
    """The collective of a node of `record_param_comms`; None for other nodes, and for a wait."""
    if node.name != RECORD:
        return None
    inputs, outputs = node.read(), node.written()
    attributes = {each.name: each.value for each in node.attrs}
    sent, received = (_first_elements(operands) for operands in (inputs, outputs))
    dtype = next((found for kind in inputs.types if (found := _dtype(str(kind)))), "")
    # The calls for a barrier and for the end of a group have no tensor.
    return recorded_call(inputs.values, attributes, groups, (sent, received, dtype))


def _first_elements(operands: _Operands) -> int | None:
    """The elements of the first operand."""
    return _elements(operands.values[0]) if operands.values else None


def _rank(calls: Iterable[RecordedCall], groups: Sequence[ProcessGroup]) -> int | None:
    """The rank that all calls have in groups whose ranks are known."""
    members = {group.name: group.ranks for group in groups}
    found = set()
    for call in calls:
        if call.place is None:
            continue
        name = call.collective.group
        # A group of a list that names none has all ranks.
        ranks = members.get(name) or call.collective.ranks
        if name in members and not members[name]:
            found.add(call.place)
        elif call.place < len(ranks):
            found.add(ranks[call.place])
    return found.pop() if len(found) == 1 else None


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
        values = node.read().values if node.name == _GROUPS else []
        if values and isinstance(values[0], str):
            try:
                rows = msgspec.json.decode(values[0])
            except msgspec.DecodeError:
                continue
            return rows if isinstance(rows, list) else []
    return []


def _asked(node: _CallNode, nodes: Mapping[int, _CallNode], groups: "set[str]") -> AskedCollective:
    """What a call's node has, and the group that the call around it names: it has the group itself as an object."""
    inputs = node.read()
    operands = [_elements(value) for value in inputs.values]
    sizes = [each for each in operands if each is not None]
    dtype = next((found for kind in inputs.types if (found := _dtype(str(kind)))), "")
    numbers = [value for value in inputs.values if type(value) is int]
    message = node.name.removeprefix(CALL).startswith(("send", "recv"))
    return AskedCollective(
        node.name,
        _named_group(nodes.get(node.above), groups),
        dtype,
        # A call lists its output first and its input second, or one tensor that is both.
        sent=sizes[min(1, len(sizes) - 1)] if sizes else None,
        received=sizes[0] if sizes else None,
        peer=numbers[0] if message and numbers and numbers[0] >= 0 else None,
    )


def _named_group(around: _CallNode | None, groups: "set[str]") -> str:
    if around is None or not around.name.startswith(FUNCTIONAL):
        return ""
    return next((each for each in reversed(around.read().values) if isinstance(each, str) and each in groups), "")


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
