"""The nodes of execution traces of PyTorch, as files of schema 1.0.1 to 1.1.1 have them."""

import gzip
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec

from stagedb.errors import UsageError
from stagedb.files import open_regular, path_text
from stagedb.runs.event_stream import TraceFileError

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
    of the call, its thread, autograd's sequence, what made it and the signature of its operator, in files of before.
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
