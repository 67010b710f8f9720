"""Nodes as Parquet tables, for analysis: one file a rank class, and one that has every rank.

Ranks of a class run the same nodes with the same sizes. What differs is which communicator groups they are in, and
which ranks their messages go to and come from. So `NAME.class-KEY.parquet` has one row for each node of the class. A
group or a peer is a *role* in it, such as `group_tp` or `next`. `NAME.ranks.parquet` has one row for each rank, with a
column for each role. Work and space grow with classes; each rank adds only one row.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagedb.collectives import ALL_GATHER, ALL_REDUCE
from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.traces.formats.trace_format import ClassFiles, FoundTraces, TraceFormat

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from stagedb.traces.trace_reading import TraceColumns
    from stagedb.traces.trace_set import ClassTraces, TraceSet

RANKS = ".ranks.parquet"
"""The end of the name of the file of ranks, after the set's name."""

PEERS: Mapping[str, str] = {
    "next": "the rank of the next pipeline stage, around the end",
    "previous": "the rank of the previous pipeline stage, around the end",
    "ring_next": "the next rank on the ring of cp",
    "ring_previous": "the previous rank on the ring of cp",
}
"""Roles of peers, in the order of a rank's own bytes after the rank itself (see `encoding.RankFields`)."""

OTHER = "other_"
"""The beginning of the roles of ranks of another instance, which follow: `other_0` and so on."""

MOST_BYTES_OF_A_RANK = 200
"""Bytes of a row of the file of ranks before compression, approximately."""


@dataclass(frozen=True)
class ParquetColumn:
    """A column of a table. attribute: the node's attribute in it; empty if it holds no attribute."""

    name: str
    type: str
    what: str
    attribute: str = ""


NODE_COLUMNS = (
    ParquetColumn(
        "class",
        "string",
        "the key of the rank class: its number; with a profile `NUMBER.LANE`, the first lane",
    ),
    ParquetColumn("ranks", "int32", "how many ranks of this export run the node"),
    ParquetColumn("task", "string", "the kind of the task: forward, backward, …"),
    ParquetColumn("microbatch", "int32", "the task's micro-batch"),
    ParquetColumn("id", "int64", "the node's id, from 1 in issue order"),
    ParquetColumn("name", "string", "the node's name"),
    ParquetColumn("type", "string", "Chakra's type: COMP_NODE, COMM_COLL_NODE, COMM_SEND_NODE, COMM_RECV_NODE"),
    ParquetColumn("is_cpu_op", "bool", "false on every node", "is_cpu_op"),
    ParquetColumn("phase", "string", "forward, backward, recompute, optimizer", "phase"),
    ParquetColumn("kind", "string", f"matmul, attention, {ALL_REDUCE.name}, …", "kind"),
    ParquetColumn("flops", "int64", "FLOPs of a compute node; 0 where its trace has 1, which readers want", "num_ops"),
    ParquetColumn("bytes", "int64", "bytes that a compute node reads and writes; as `flops`", "tensor_size"),
    ParquetColumn("duration_us", "int64", "microseconds, null where unknown"),
    ParquetColumn("duration_ns", "int64", "exact nanoseconds, of an export with a profile", "duration_ns"),
    ParquetColumn(
        "comm_type",
        "string",
        f"Chakra's type of a collective: {ALL_REDUCE.comm_type}, {ALL_GATHER.comm_type}, …",
        "comm_type",
    ),
    ParquetColumn("comm_bytes", "int64", "bytes of a collective or message, as in the traces", "comm_size"),
    ParquetColumn("axis", "string", "the mesh axis of a communication", "axis"),
    ParquetColumn("dtype", "string", "the format of a communication's elements, or of the operands of FLOPs", "dtype"),
    ParquetColumn("comm_group", "string", "the role of a collective's group: a column of the file of ranks", "pg_name"),
    ParquetColumn("comm_src", "string", "the role of the rank that a receive is from", "comm_src"),
    ParquetColumn("comm_dst", "string", "the role of the rank that a send goes to", "comm_dst"),
    ParquetColumn("comm_tag", "int32", "a message's tag", "comm_tag"),
    ParquetColumn("data_deps", "list<int64>", "ids of the nodes that this one waits for because of data"),
    ParquetColumn("ctrl_deps", "list<int64>", "ids of the nodes that this one waits for because of order"),
)
"""The columns of a class's table, a row a node. A value that does not apply to a node is null."""

RANK_COLUMNS = (
    ParquetColumn("rank", "int32", "the rank"),
    ParquetColumn("class", "string", "its class, which names the file of its nodes"),
    *(ParquetColumn(name, "int32", what) for name, what in PEERS.items()),
)
"""The columns of the ranks' table, a row a rank.

For every axis with collectives a column `group_AXIS` follows (int64, a communicator group's id). Between two instances
columns `other_0`, `other_1` … (int32) come before these: the ranks that caches go to or come from.

A role is null where the class has no node that uses it.
"""

_AT_LEAST_1 = ("num_ops", "tensor_size")
"""Attributes that a trace has as 1 where there is nothing to count; a table has 0 there."""

_ROLES = ("pg_name", "comm_src", "comm_dst")


def class_file(prefix: str, key: str) -> str:
    """The name of the file of a class.

    prefix: the begin of all names of the set. key: the class.
    """
    return f"{prefix}.class-{key}.parquet"


def write(traces: "TraceSet", directory: Path, written: Callable[[int], None]) -> None:
    """Write the tables of a set.

    directory: of the set. written: called with the number of ranks whose tables are there. Raises OSError as the system
    does.
    """
    import pyarrow.parquet as pq

    roles: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for of_class in traces.classes:
        table, roles[of_class.key] = _class_table(traces.name, of_class)
        pq.write_table(table, directory / class_file(traces.name, of_class.key), compression="zstd")
        written(len(of_class.ranks.ranks))
    pq.write_table(_rank_table(traces, roles), directory / f"{traces.name}{RANKS}", compression="zstd")


def size(traces: "TraceSet") -> int:
    """The most bytes that the tables take: a trace a class before compression, and a row a rank."""
    return sum(of_class.encoded.size for of_class in traces.classes) + MOST_BYTES_OF_A_RANK * traces.count


def _class_table(prefix: str, each: "ClassTraces") -> "tuple[pa.Table, dict[str, np.ndarray[Any, Any]]]":
    """The nodes of a class; and by role the values of its ranks, in the order of `each.ranks.ranks`."""
    from stagedb.traces import chakra_pb2 as pb
    from stagedb.traces.encoded_class import rank_files
    from stagedb.traces.trace_reading import parse_trace

    _, buffer = next(rank_files(each.encoded, each.ranks))
    data = buffer.tobytes()
    trace = parse_trace(Path(class_file(prefix, each.key)), data)
    if trace.mistyped or trace.repeated:
        raise StagedbError(
            f"class {each.key}: its nodes have attributes that a table cannot hold: use {Word('format', 'et')}"
        )
    role_of, roles = _roles(each, trace, data)
    kinds, microbatches = _tasks(each.facts["tasks"])
    columns: dict[str, Any] = {
        "class": repeat(each.key, len(trace)),
        "ranks": repeat(len(each.ranks.ranks), len(trace)),
        "task": kinds,
        "microbatch": microbatches,
        "id": trace.ids,
        "name": trace.names,
        "type": map(pb.NodeType.Name, trace.types),
        "duration_us": (micros or None for micros in trace.micros),
        "data_deps": trace.data_deps,
        "ctrl_deps": trace.ctrl_deps,
    }
    for column in NODE_COLUMNS:
        if column.attribute in _ROLES:
            values = trace.attributes[column.attribute]
            columns[column.name] = (
                None if value is None else role for value, role in zip(values, role_of, strict=True)
            )
        elif column.attribute == "comm_type":
            types = trace.attributes["comm_type"]
            columns[column.name] = (None if value is None else pb.CollectiveCommType.Name(value) for value in types)
        elif column.attribute in _AT_LEAST_1:
            columns[column.name] = (0 if value == 1 else value for value in trace.attributes[column.attribute])
        elif column.attribute:
            columns[column.name] = trace.attributes[column.attribute]
    return _table(NODE_COLUMNS, columns, {"chakra": trace.version}), roles


def _roles(
    each: "ClassTraces", trace: "TraceColumns", data: bytes
) -> "tuple[list[str | None], dict[str, np.ndarray[Any, Any]]]":
    """Each node's role (`group_tp`, or one of `PEERS`; None without group and peer), and each role's value by rank.

    The traces of a class differ between ranks only in the bytes of groups and peers. The offset of such bytes among
    the rank's own bytes identifies the role.
    """
    import numpy as np

    positions, sources = each.encoded.patched()
    order = np.argsort(positions, kind="stable")
    positions, sources = positions[order], sources[order]
    node = np.searchsorted(np.array(list(_message_starts(data))), positions, side="right") - 2  # after the metadata
    nodes, first, lengths = np.unique(node, return_index=True, return_counts=True)
    role_of: list[str | None] = [None] * len(trace)
    places: dict[str, tuple[int, int]] = {}
    values: dict[str, np.ndarray[Any, Any]] = {}
    for row, begin, length in zip(nodes.tolist(), sources[first].tolist(), lengths.tolist(), strict=True):
        if row < 0:
            continue  # the rank itself, in the metadata
        grouped = trace.attributes["pg_name"][row] is not None
        if grouped:
            role = f"group_{trace.attributes['axis'][row]}"
        else:
            role = _peer(begin // length - 1) if begin % length == 0 else ""
        if not role or places.setdefault(role, (begin, length)) != (begin, length):
            raise StagedbError(f"class {each.key}: node {row + 1} has no role of its own: use {Word('format', 'et')}")
        role_of[row] = role
        if role not in values:
            own = each.ranks.values[:, begin : begin + length].astype(np.int64)
            powers = 10 ** np.arange(length - 1, -1, -1) if grouped else 1 << (7 * np.arange(length))
            values[role] = (own - ord("0") if grouped else own & 0x7F) @ powers
    return role_of, values


def _peer(place: int) -> str:
    """The role of the peer at a place of a rank's own bytes: one of `PEERS`, or a rank of another instance."""
    return [*PEERS][place] if 0 <= place < len(PEERS) else f"{OTHER}{place - len(PEERS)}" if place >= 0 else ""


def _message_starts(data: bytes) -> Iterator[int]:
    """The start of each message, including its length prefix. The messages are complete: the parser has read them."""
    at = 0
    while at < len(data):
        yield at
        length = shift = 0
        while True:
            byte = data[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        at += length


def _tasks(texts: list[str]) -> tuple[list[str], list[int]]:
    """The kind and the micro-batch of each node's task, from the manifest's `forward 0: 1-120`."""
    kinds: list[str] = []
    microbatches: list[int] = []
    for text in texts:
        task, _, span = text.rpartition(": ")
        kind, _, microbatch = task.rpartition(" ")
        first, _, last = span.partition("-")
        count = int(last) - int(first) + 1
        kinds += [kind] * count
        microbatches += [int(microbatch)] * count
    return kinds, microbatches


def _rank_table(traces: "TraceSet", roles: "Mapping[str, Mapping[str, np.ndarray[Any, Any]]]") -> "pa.Table":
    import numpy as np

    more = {role for found in roles.values() for role in found} - {*PEERS}
    groups = sorted(role for role in more if not role.startswith(OTHER))
    others = sorted(more - {*groups}, key=lambda role: int(role.removeprefix(OTHER)))
    ranks = np.concatenate([each.ranks.ranks for each in traces.classes])
    order = np.argsort(ranks)
    columns: dict[str, Any] = {"rank": ranks[order].tolist()}
    keys = [key for each in traces.classes for key in repeat(each.key, len(each.ranks.ranks))]
    columns["class"] = [keys[at] for at in order]
    for role in (*PEERS, *others, *groups):
        values: list[int | None] = []
        for each in traces.classes:
            own = roles[each.key].get(role)
            values += repeat(None, len(each.ranks.ranks)) if own is None else own.tolist()
        columns[role] = [values[at] for at in order]
    axes = tuple(
        ParquetColumn(role, "int64", f"the id of its communicator group of {role.removeprefix('group_')}")
        for role in groups
    )
    ends = tuple(ParquetColumn(role, "int32", "a rank of another instance, one end of a cache") for role in others)
    return _table((*RANK_COLUMNS, *ends, *axes), columns, {})


def _table(columns: tuple[ParquetColumn, ...], values: Mapping[str, Any], about: Mapping[str, str]) -> "pa.Table":
    """A table of these columns; the field of each column has its description."""
    import pyarrow as pa

    types = {"list<int64>": pa.list_(pa.int64()), "bool": pa.bool_(), "string": pa.string()}
    types |= {"int32": pa.int32(), "int64": pa.int64()}
    fields = [pa.field(each.name, types[each.type], metadata={"description": each.what}) for each in columns]
    arrays = [pa.array(list(values[each.name]), types[each.type]) for each in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=dict(about) or None))


def find(directory: Path) -> FoundTraces | None:
    """The traces of a directory of tables. UsageError where they have several names."""
    files = sorted(directory.glob(f"*{RANKS}"))
    if not files:
        return None
    if len(files) > 1:
        names = ", ".join(file.name.removesuffix(RANKS) for file in files)
        raise UsageError(f"{directory} holds traces of several names: {names}")
    prefix = files[0].name.removesuffix(RANKS)
    rows = {row["rank"]: row for row in _read(files[0]).to_pylist()}
    classes: dict[str, TraceColumns] = {}
    return FoundTraces(prefix, {rank: partial(_trace, directory, prefix, row, classes) for rank, row in rows.items()})


def _trace(directory: Path, prefix: str, row: Mapping[str, Any], classes: "dict[str, TraceColumns]") -> "TraceColumns":
    """The trace of a rank: its class's nodes, with the rank's own groups and peers. `classes` caches tables."""
    key = row["class"]
    if key not in classes:
        classes[key] = _class_columns(directory / class_file(prefix, key))
    shared = classes[key]
    own = {
        name: [None if role is None else _value(shared, name, row, role) for role in shared.attributes[name]]
        for name in _ROLES
    }
    return replace(shared, attributes={**shared.attributes, **own})


def _value(shared: "TraceColumns", attribute: str, row: Mapping[str, Any], role: str) -> int | str:
    from stagedb.traces.trace_reading import TraceError

    value = row.get(role)
    if value is None:
        raise TraceError(f"{shared.path} has the role {shown(role)}, and rank {row['rank']} has no value for it")
    return str(value) if attribute == "pg_name" else int(value)


def _class_columns(path: Path) -> "TraceColumns":
    """The nodes of a class, with roles where ranks differ."""
    from stagedb.traces import chakra_pb2 as pb
    from stagedb.traces.trace_reading import ATTRIBUTE_FIELDS, TraceColumns, TraceError

    table = _read(path)
    missing = [each.name for each in NODE_COLUMNS if each.name not in table.column_names]
    if missing:
        raise TraceError(f"{path} has no column {missing[0]}")
    rows: dict[str, list[Any]] = {each.name: table[each.name].to_pylist() for each in NODE_COLUMNS}
    attributes: dict[str, list[Any]] = {name: [None] * table.num_rows for name in ATTRIBUTE_FIELDS}
    attributes |= {each.attribute: rows[each.name] for each in NODE_COLUMNS if each.attribute}
    for name in _AT_LEAST_1:
        attributes[name] = [1 if value == 0 else value for value in attributes[name]]
    try:
        attributes["comm_type"] = [
            None if name is None else pb.CollectiveCommType.Value(name) for name in rows["comm_type"]
        ]
        types = [pb.NodeType.Value(name) for name in rows["type"]]
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None
    version = (table.schema.metadata or {}).get(b"chakra", b"").decode()
    return TraceColumns(
        path,
        version,
        rows["id"],
        rows["name"],
        types,
        [tuple(each) for each in rows["data_deps"]],
        [tuple(each) for each in rows["ctrl_deps"]],
        attributes,
        [],
        [],
        [micros or 0 for micros in rows["duration_us"]],
    )


def _read(path: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stagedb.traces.trace_reading import TraceError

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"cannot read {path}: {error}") from None


PARQUET = TraceFormat(
    name="parquet",
    help="tables of nodes for analysis, one a rank class",
    what="one table of nodes a rank class, and one of ranks: {name}.class-<key>.parquet, {name}.ranks.parquet",
    files=ClassFiles(write, size, lambda prefix, rank: f"rank {rank} of {prefix}{RANKS}"),
    takes=frozenset({"format"}),
    refusal=f"{Word('format', 'parquet')} writes compressed tables that no simulator reads, in one go",
    way=f", or use {Word('format', 'et')}",
    simulated=False,
    find=find,
)
