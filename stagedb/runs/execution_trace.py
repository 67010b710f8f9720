"""Execution traces of PyTorch: operators with the shapes of their inputs, collectives, and process groups.

Files of schema 1.0.1 to 1.1.1 are read. A node has the number of its call (`rf_id`), which is the `Record function id`
of the profile's event. Files have no number of their rank; collectives have it, as the place in their group.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stagedb.plans.plan import MOST_RANKS
from stagedb.runs.execution_nodes import CallNode, CallNodes, Operands, read_nodes
from stagedb.runs.gloo import CALL, FUNCTIONAL
from stagedb.runs.input_shapes import input_shapes
from stagedb.runs.process_groups import process_groups
from stagedb.runs.rank_trace import ProcessGroup, RecordedCollective
from stagedb.runs.recorded_calls import RECORD, RecordedCall, recorded_call

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


@dataclass(frozen=True)
class ExecutionTrace:
    """What an execution trace of PyTorch has of one rank.

    path: of the file. process: its number in the system. rank: None if no collective has it. groups: process groups.
    world: ranks of the largest group; None if none has its ranks or their number. The others are by the number of a
    call: calls, what a call of c10d asks for; names and shapes of operators; above, the operator around another one;
    records, collectives in the order of the calls.
    """

    path: Path
    process: int | None
    rank: int | None
    groups: tuple[ProcessGroup, ...]
    world: int | None
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


def read_execution_trace(path: Path) -> ExecutionTrace:
    """What a file has of collectives. Raises TraceFileError for a damaged one, or one of another version."""
    return execution_trace(path, read_nodes(path))


def execution_trace(path: Path, found: CallNodes) -> ExecutionTrace:
    """What a file has of collectives. path: of the file. found: its nodes."""
    nodes = {node.id: node for node in found.nodes}
    rows = _group_rows(found.nodes)
    groups = process_groups(rows, 0)
    names = {group.name for group in groups}
    numbered = {node.number: node for node in sorted(found.nodes, key=lambda node: node.id) if node.number is not None}
    records = {number: call for number, node in numbered.items() if (call := _collective(node, rows)) is not None}
    return ExecutionTrace(
        path,
        found.pid,
        _rank(records.values(), groups),
        groups,
        _world(rows, groups),
        calls={number: _asked(node, nodes, names) for number, node in numbered.items() if node.name.startswith(CALL)},
        names={number: node.name for number, node in numbered.items()},
        shapes={number: text for number, node in numbered.items() if (text := _shapes(node.read())) is not None},
        above=_above(numbered, nodes),
        records={number: call.collective for number, call in records.items()},
    )


def _world(rows: Sequence[Any], groups: Sequence[ProcessGroup]) -> int | None:
    """Ranks of the job, as far as the list of groups has them."""
    sizes = [row.get("group_size") for row in rows if isinstance(row, dict)]
    known = [size for size in sizes if type(size) is int and 0 < size <= MOST_RANKS]
    last = [max(group.ranks) + 1 for group in groups if group.ranks]
    return max((*known, *last), default=None)


def _above(numbered: Mapping[int, CallNode], nodes: Mapping[int, CallNode]) -> dict[int, int]:
    around = ((number, nodes.get(node.above)) for number, node in numbered.items())
    return {number: node.number for number, node in around if node is not None and node.number is not None}


def _shapes(operands: Operands) -> str | None:
    """The text of the shapes of tensors; what is none has no shape, as in a profile."""
    if not any(_TENSOR in str(kind) for kind in operands.types):
        return None
    pairs = zip(operands.shapes, operands.types, strict=False)
    return input_shapes(msgspec.json.encode([shape if _TENSOR in str(kind) else [] for shape, kind in pairs]))


def _collective(node: CallNode, groups: Sequence[Any]) -> RecordedCall | None:
    """The collective of a node of `record_param_comms`; None for other nodes, and for a wait."""
    if node.name != RECORD:
        return None
    inputs, outputs = node.read(), node.written()
    attributes = {each.name: each.value for each in node.attrs}
    sent, received = (_first_elements(operands) for operands in (inputs, outputs))
    dtype = next((found for kind in inputs.types if (found := dtype_of(str(kind)))), "")
    # The calls for a barrier and for the end of a group have no tensor.
    return recorded_call(inputs.values, attributes, groups, (sent, received, dtype))


def _first_elements(operands: Operands) -> int | None:
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


def _group_rows(nodes: Sequence[CallNode]) -> list[Any]:
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


def _asked(node: CallNode, nodes: Mapping[int, CallNode], groups: "set[str]") -> AskedCollective:
    """What a call's node has, and the group that the call around it names: it has the group itself as an object."""
    inputs = node.read()
    operands = [_elements(value) for value in inputs.values]
    sizes = [each for each in operands if each is not None]
    dtype = next((found for kind in inputs.types if (found := dtype_of(str(kind)))), "")
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


def _named_group(around: CallNode | None, groups: "set[str]") -> str:
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


def dtype_of(kind: str) -> str:
    """The dtype of the first tensor of a type, as profiles write it; empty if it has no tensor.

    kind: the type, such as `GenericList[Tensor(float)]`.
    """
    found = re.search(r"Tensor\(([^)]*)\)", kind)
    if found is None:
        return ""
    word = found[1].removeprefix("c10::")
    return _TYPES.get(word, word)
