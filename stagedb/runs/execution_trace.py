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
from stagedb.files import open_regular, path_text
from stagedb.plans.plan import MOST_RANKS
from stagedb.runs.clocks import MEETINGS, MESSAGES
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.gloo import CALL, FUNCTIONAL
from stagedb.runs.kernel_names import collective_kind
from stagedb.runs.kineto_events import Arguments, recorded
from stagedb.runs.rank_trace import ProcessGroup, RecordedCollective, input_shapes, process_groups

# The nodes of execution traces of PyTorch, as files of schema 1.0.1 to 1.1.1 have them.

SCHEMAS = ((1, 0, 1), (1, 1, 1))
"""The first and the last version of the schema that are read."""

LARGEST = 4 << 30
"""Bytes of a trace, decompressed, at most: it is read as a whole."""

USER_SCOPE = 7
"""Scope of what the program names, which is an annotation in a profile; other scopes are those of operators."""

_BEGIN = re.compile(rb'^\s*\{\s*"schema"\s*:')


class Operands(msgspec.Struct):
    """What goes into a node, or comes out.

    values: numbers, texts and tensors. types: as the file has them. shapes: lists, nested as the values are.
    """

    values: list[Any] = []
    types: list[Any] = []
    shapes: list[Any] = []


class NodeAttribute(msgspec.Struct):
    """An attribute of a node: its name and its value."""

    name: str = ""
    value: Any = None


class CallNode(msgspec.Struct):
    """A node, which is a call. Those of schema 1.0.1 have lists of operands, and their numbers as properties.

    id: in the order in which calls begin. ctrl_deps, parent: the node around it. rf_id, tid, seq_id, scope, op_schema:
    in older schemas, the numbers of the call, of its thread and of autograd's sequence, what made it, and the signature
    of its operator.
    """

    id: int
    name: str = ""
    ctrl_deps: int | None = None
    parent: int | None = None
    rf_id: int | None = None
    tid: int | None = None
    seq_id: int | None = None
    scope: int | None = None
    op_schema: str | None = None
    inputs: Operands | list[Any] = msgspec.field(default_factory=Operands)
    outputs: Operands | list[Any] = msgspec.field(default_factory=Operands)
    input_types: list[Any] = []
    input_shapes: list[Any] = []
    output_types: list[Any] = []
    attrs: list[NodeAttribute] = []

    def read(self) -> Operands:
        """What goes in."""
        if isinstance(self.inputs, Operands):
            return self.inputs
        return Operands(self.inputs, self.input_types, self.input_shapes)

    def written(self) -> Operands:
        """What comes out."""
        return self.outputs if isinstance(self.outputs, Operands) else Operands(self.outputs, self.output_types)

    @property
    def above(self) -> int:
        """The node around it, -1 if there is none."""
        return next((each for each in (self.ctrl_deps, self.parent) if each is not None), -1)

    @property
    def number(self) -> int | None:
        """The number of its call. The profiler itself has 0."""
        found = self.property_of("rf_id")
        return found if type(found) is int and found > 0 else None

    def property_of(self, name: str) -> Any:
        """A property or an attribute; None if the node does not have it. name: `rf_id`, `tid`, `seq_id` …"""
        found = getattr(self, name)
        return next((each.value for each in self.attrs if each.name == name), None) if found is None else found


class CallNodes(msgspec.Struct):
    """The content of a file. schema: its version. pid: number of the process in its system."""

    schema: str
    nodes: list[CallNode]
    pid: int | None = None


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


def read_nodes(path: Path) -> CallNodes:
    """The nodes of a file. Raises TraceFileError for a damaged one, or one of another version."""
    found = _decoded(path)
    version = tuple(int(each) for each in re.findall(r"\d+", found.schema.partition("-")[0]))
    if not SCHEMAS[0] <= version <= SCHEMAS[1]:
        first, last = (".".join(map(str, each)) for each in SCHEMAS)
        raise TraceFileError(
            f"the execution trace {path_text(path)} has schema {found.schema[:40]!r}: schemas {first} to {last} are "
            "read. Import the profiler's traces without it"
        )
    return found


def _decoded(path: Path) -> CallNodes:
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
        return msgspec.json.decode(text, type=CallNodes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFileError(f"the execution trace {path_text(path)} is damaged: {error}") from None


# What a node of `record_param_comms` in an execution trace has of a collective, in files of all ages.
#
# Its inputs are tensors, then the sequence number, the group, a rank, the name, how the operands are split, and in
# newer files the group's first rank, stride and size. The newest have attributes with the names of these, too. A group
# is its name and description, or in older files a number, which the list of groups has as `backend_id`.

RECORD = "record_param_comms"


@dataclass(frozen=True)
class RecordedCall:
    """A collective or message. place: the rank's own in its group, None where the call has another rank."""

    collective: RecordedCollective
    place: int | None


def recorded_call(
    values: Sequence[Any],
    attributes: Mapping[str, Any],
    groups: Sequence[Any],
    operands: tuple[int | None, int | None, str],
) -> RecordedCall | None:
    """The collective of a node; None for what is none, such as a wait.

    values: its inputs. attributes: by name. groups: rows of the file's list. operands: elements of what goes in and of
    what comes out, and their type.
    """
    at = next((at for at, each in enumerate(values) if isinstance(each, str) and at >= 3), None)
    if at is None or collective_kind(str(values[at])) is None:
        return None
    sequence, group, rank = values[at - 3 : at]
    name, description = _group(group, groups)
    rest = values[at + 3 :]
    first, stride, size = rest if len(rest) == 3 else (None, None, rest[0] if len(rest) == 1 else None)
    sent, received, dtype = operands
    found = recorded(
        Arguments(
            collective=values[at],
            group=attributes.get("pg_name", name),
            description=attributes.get("pg_desc", description),
            first=attributes.get("global_rank_start", first),
            stride=attributes.get("global_rank_stride", stride),
            size=attributes.get("pg_size", size),
            dtype=attributes.get("dtype", dtype),
            sent=attributes.get("in_msg_nelems", sent),
            received=attributes.get("out_msg_nelems", received),
            # The newest files have a pair: whether it is a message is the other half.
            sequence=sequence[0] if isinstance(sequence, list) and sequence else sequence,
            source=rank,
            target=rank,
        )
    )
    if found is None:
        return None
    # In other calls the rank is the root, or the other end of a message.
    own = found.kind in MEETINGS and type(rank) is int and rank >= 0 and found.kind not in MESSAGES
    return RecordedCall(found, rank if own else None)


def _group(group: Any, rows: Sequence[Any]) -> tuple[str | None, str | None]:
    """Name and description of a group; None where the file does not have them."""
    if isinstance(group, list) and len(group) == 2 and group[0]:
        return str(group[0]), str(group[1])
    row = next((row for row in rows if isinstance(row, dict) and row.get("backend_id") == group), None)
    return (None, None) if row is None or group is None else (str(row.get("pg_name")), row.get("pg_desc"))


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
    """Number of ranks of the job, as far as the list of groups has them."""
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
