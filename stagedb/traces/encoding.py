"""From columns of a class to bytes: numpy encodes every template's nodes as protobuf messages, once.

Ids, dependencies, tags and peers are varints of one width in a class, so that a template can be repeated with shifted
ids and a rank be patched in place; a parser reads them like the shortest form. All other bytes are those of the
protobuf library.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagedb.collectives import KINDS
from stagedb.errors import StagedbError
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, RECV, SEND, ClassColumns, Ops, Workload
from stagedb.lowering.issue_order import CTRL_DEPS, DATA_DEPS, NodeLayout, Sequence
from stagedb.mentions import call
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import protobuf_columns as wire
from stagedb.traces.encoded_class import EncodedClass, RankBytes
from stagedb.traces.protobuf_columns import ByteRows, Bytes, Ints

VERSION = "0.0.4"
"""The version of Chakra's schema."""

COMM_TYPES: Mapping[str, int] = {each.name: pb.CollectiveCommType.Value(each.comm_type) for each in KINDS.values()}
"""`comm_type` of each kind of collective."""

NODE_TYPES = (pb.COMP_NODE, pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE)
"""Node types by the type of the op (an index of `instance_columns.TYPES`)."""

_ATTR = pb.Node.DESCRIPTOR.fields_by_name["attr"].number
_DURATION = pb.Node.DESCRIPTOR.fields_by_name["duration_micros"].number
_VALUES = {field.name: field.number for field in pb.AttributeProto.DESCRIPTOR.fields}


NEIGHBOURS = ("next", "previous", "ring_next", "ring_previous")
"""Ranks that messages go to or come from: columns of RankTable. Those of `RankTable.others` follow."""


def other(place: int) -> str:
    """The name of the rank at a place of `RankTable.others`."""
    return f"other_{place}"


@dataclass(frozen=True)
class RankFields:
    """The layout of the bytes that differ between the ranks of a set.

    width: bytes of a varint. digits: characters of a group id. begins: by field, its place in a rank's own bytes.
    """

    width: int
    digits: int
    begins: Mapping[str, int]

    @classmethod
    def of(cls, workload: Workload) -> "RankFields":
        """`rank`, its neighbours and the ranks of another instance as varints, `group.<axis>` as decimal digits."""
        width = wire.varint_size(max(len(workload.ranks) - 1, 1))
        gids = workload.groups.gid
        lengths = {len(str(gid)) for gid in (gids.min(), gids.max())} if len(gids) else {1}
        if len(lengths) > 1:
            raise StagedbError(
                f"the ids of the instance's communicator groups have different lengths: remove it with {call('rm')} "
                "and make it again"
            )
        digits = lengths.pop()
        begins, at = {}, 0
        for name in ("rank", *NEIGHBOURS, *map(other, range(workload.ranks.others.shape[1]))):
            begins[name] = at
            at += width
        for axis in sorted(set(workload.groups.axis)):
            begins[f"group.{axis}"] = at
            at += digits
        return cls(width, digits, begins)


def rank_bytes(workload: Workload, fields: RankFields, ranks: Ints) -> RankBytes:
    """The bytes that differ between ranks, for these ranks."""
    table = workload.ranks
    columns = {"rank": np.arange(len(table)), **{name: getattr(table, name) for name in NEIGHBOURS}}
    columns |= {other(place): np.maximum(peers, 0) for place, peers in enumerate(table.others.T)}
    names = [name for name in fields.begins if name.startswith("group.")]
    values = np.empty((len(ranks), len(columns) * fields.width + len(names) * fields.digits), np.uint8)
    for name, column in columns.items():
        begin = fields.begins[name]
        values[:, begin : begin + fields.width] = wire.padded(column[ranks], fields.width)
    for name in names:
        gids = workload.groups.of_axis(name.removeprefix("group."), len(table))[ranks]
        # One digit after the other: all of a million ranks at once would take ten times the memory.
        for place in range(fields.digits):
            values[:, fields.begins[name] + place] = gids // 10 ** (fields.digits - 1 - place) % 10 + ord("0")
    return RankBytes(ranks, values)


def encode(
    columns: ClassColumns,
    nodes: Sequence,
    fields: RankFields,
    metadata: Mapping[str, str | int],
    ns: Ints | None = None,
) -> EncodedClass:
    """Encode a class. metadata: entries of the message at the beginning of each file, in addition to the rank.

    ns: how long each of the class's ops takes; without it nodes have no durations.
    """
    tags, own = columns.tasks.tags, nodes.ops.tags(columns.tasks)
    width = wire.varint_size(max(nodes.nodes, int(tags.max(initial=0)) + int(own.max(initial=1))))
    attributes = _Attributes.of(nodes.ops, fields, width, None if ns is None else nodes.with_sums(ns))
    beginning = _metadata(fields, metadata)
    templates = [beginning, *(_template(nodes.ops, layout, attributes, width, own) for layout in nodes.layouts)]
    # A reference is the first id of a task; the last one is the tag of the task's messages.
    bases = np.where(nodes.sources >= 0, nodes.base[nodes.sources], 0)
    references = np.concatenate([bases, tags[nodes.task][:, None]], axis=1)
    tag_ref = references.shape[1] - 1
    return EncodedClass(
        width=np.array([width], np.int64),
        data=np.concatenate([template.data for template in templates]),
        data_starts=_starts([len(template.data) for template in templates]),
        slots=np.concatenate([template.slots for template in templates]).astype(np.int32),
        slot_refs=np.concatenate([np.where(t.refs == _TAG, tag_ref, t.refs) for t in templates]).astype(np.int32),
        slot_offsets=np.concatenate([template.offsets for template in templates]).astype(np.int32),
        slot_starts=_starts([len(template.slots) for template in templates]),
        patches=np.concatenate([template.patches for template in templates]).astype(np.int32),
        patch_sources=np.concatenate([template.sources for template in templates]).astype(np.int32),
        patch_starts=_starts([len(template.patches) for template in templates]),
        tasks=np.concatenate([[0], nodes.layout + 1]).astype(np.int32),
        references=np.concatenate([np.zeros((1, references.shape[1]), np.int64), references]),
    )


_TAG = -1
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _Template:
    data: Bytes
    slots: Ints
    refs: Ints
    offsets: Ints
    patches: Ints
    sources: Ints


def _starts(sizes: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def attribute(name: str, value: str, values: ByteRows) -> ByteRows:
    """An attribute of a node, a row each: `value` names the field of AttributeProto that has its type.

    `values` is the encoded field without its tag; it is at the end of each row. name: of the attribute.
    """
    wire_type = wire.LENGTH if value == "string_val" else wire.VARINT
    count = len(values)
    named = wire.constant(wire.tag(1, wire.LENGTH) + bytes([len(name)]) + name.encode(), count)
    # A string's value begins with its length.
    head = wire.varints(values.lengths) if wire_type == wire.LENGTH else wire.constant(b"", count)
    message, _ = wire.join(named, wire.constant(wire.tag(_VALUES[value], wire_type), count), head, values)
    return wire.bytes_fields(_ATTR, message)


@dataclass(frozen=True)
class _Attributes:
    """Encoded attributes of every op: those that are equal on all ranks; then the group or peer, then the tag.

    The duration comes before all of them, because its field number is the lowest.

    `source`: the place of the group or peer in a rank's bytes. `length`: the number of its bytes, at the row's end.
    """

    fixed: ByteRows
    ranked: ByteRows
    tagged: ByteRows
    source: Ints
    length: Ints

    @classmethod
    def of(cls, ops: Ops, fields: RankFields, width: int, ns: Ints | None) -> "_Attributes":
        axes = {axis: fields.begins.get(f"group.{axis}", -1) for axis in set(ops.axis)}
        collective, message = ops.type == COLLECTIVE, (ops.type == SEND) | (ops.type == RECV)
        source = np.array([axes[axis] for axis in ops.axis], np.int64)
        onwards, back = (
            np.where(ops.rings, fields.begins[f"ring_{name}"], fields.begins[name]) for name in ("next", "previous")
        )
        peers = np.where(ops.towards > 0, onwards, back)
        others = [
            fields.begins[other(place)] if handed else 0 for place, handed in zip(ops.peer, ops.handed, strict=True)
        ]
        peers = np.where(ops.handed, np.array(others, np.int64), peers)
        source = np.where(message, peers, source)
        groups = attribute("pg_name", "string_val", wire.constant(b"0" * fields.digits, len(ops)))
        zero = wire.constant(bytes(wire.padded(np.zeros(1, np.int64), fields.width)), len(ops))
        to, by = attribute("comm_dst", "int32_val", zero), attribute("comm_src", "int32_val", zero)
        ranked, _ = wire.join(groups.where(collective), to.where(ops.type == SEND), by.where(ops.type == RECV))
        tags = attribute("comm_tag", "int32_val", wire.constant(bytes(width), len(ops)))
        length = np.where(collective, fields.digits, np.where(message, fields.width, 0))
        return cls(_fixed_attributes(ops, ns), ranked, tags.where(message), source, length)


def _fixed_attributes(ops: Ops, ns: Ints | None) -> ByteRows:
    """The attributes that are equal on all ranks. Layers repeat each other: each distinct one is encoded once."""
    keys: dict[tuple[object, ...], int] = {}
    rows = zip(
        ops.type.tolist(), ops.kind, ops.phase, ops.axis, ops.dtype,
        ops.flops.tolist(), ops.bytes.tolist(), ops.size.tolist(),
        *([] if ns is None else [ns.tolist(), whole_micros(ns, ops.type == COMPUTE).tolist()]),
        strict=True,
    )  # fmt: skip
    key_of = np.fromiter((keys.setdefault(key, len(keys)) for key in rows), np.int64, len(ops))
    chosen = np.zeros(len(keys), np.int64)
    chosen[key_of[::-1]] = np.arange(len(ops) - 1, -1, -1)
    texts = [[column[i] for i in chosen] for column in (ops.kind, ops.phase, ops.axis, ops.dtype)]
    kind, phase, axis, dtype = (wire.texts(column) for column in texts)
    types = ops.type[chosen]
    compute, communicates = types == COMPUTE, types != COMPUTE
    kinds = np.array([COMM_TYPES.get(each, 0) for each in texts[0]], np.int64)
    columns = [
        attribute("is_cpu_op", "bool_val", wire.constant(b"\0", len(chosen))),
        attribute("num_ops", "int64_val", wire.varints(np.maximum(ops.flops[chosen], 1))).where(compute),
        attribute("tensor_size", "uint64_val", wire.varints(np.maximum(ops.bytes[chosen], 1))).where(compute),
        attribute("comm_type", "int64_val", wire.varints(kinds)).where(types == COLLECTIVE),
        attribute("comm_size", "int64_val", wire.varints(ops.size[chosen])).where(communicates),
        attribute("phase", "string_val", phase),
        attribute("kind", "string_val", kind),
        attribute("axis", "string_val", axis).where(communicates & (axis.lengths > 0)),
        attribute("dtype", "string_val", dtype).where(dtype.lengths > 0),
    ]
    if ns is not None:
        micros = whole_micros(ns, ops.type == COMPUTE)[chosen]
        columns = [
            wire.number_fields(_DURATION, micros).where(micros > 0),
            *columns,
            attribute("duration_ns", "int64_val", wire.varints(ns[chosen])),
        ]
    return wire.join(*columns)[0].take(key_of)


def whole_micros(ns: Ints, compute: npt.NDArray[np.bool_]) -> Ints:
    """Durations in whole microseconds, for ops in their order.

    Those of compute add up to the nearest microsecond: each begins at the end of the one before it, rounded half up. A
    simulator takes nothing finer, and the error of each short op would be that of the step. Others have the nearest
    one, at least 1 for a time above 0. ns: the duration of each op. compute: whether it computes.
    """
    micros: Ints = np.maximum((ns + 500) // 1000, ns > 0)
    micros[compute] = np.diff((np.cumsum(ns[compute]) + 500) // 1000, prepend=0)
    return micros


def node_name(name: str, type_: int) -> str:
    """A node's name: the op's name without the separators of readers' formats, then the type, which readers need.

    type_: of `NODE_TYPES`.
    """
    return f"{name.replace(',', ';').replace('=', ':')} {pb.NodeType.Name(NODE_TYPES[type_])}"


def op_name(name: str, type_: int) -> str:
    """A node's name without the type that `node_name` added; any other name unchanged.

    type_: the node's type in Chakra's schema. Separators that `node_name` replaced remain replaced.
    """
    return name.removesuffix(f" {pb.NodeType.Name(type_)}") if type_ in NODE_TYPES else name


def _template(ops: Ops, layout: NodeLayout, attributes: _Attributes, width: int, tags: Ints) -> _Template:
    rows, count = layout.ops, len(layout.ops)
    types = ops.type[rows]
    names = wire.texts([node_name(ops.name[row], int(kind)) for row, kind in zip(rows, types, strict=True)])
    blank = wire.constant(bytes(width), count)
    ids, _ = wire.join(wire.constant(wire.tag(1, wire.VARINT), count), blank)
    kinds = wire.number_fields(3, np.array(NODE_TYPES, np.int64)[types])
    waits = {field: np.bincount(layout.row[layout.field == field], minlength=count) for field in (CTRL_DEPS, DATA_DEPS)}
    deps = {field: _packed(4 + (field == DATA_DEPS), waits[field] * width) for field in waits}
    fixed, ranked = attributes.fixed.take(rows), attributes.ranked.take(rows)
    tagged = attributes.tagged.take(rows)
    parts = [ids, wire.bytes_fields(2, names), kinds, deps[CTRL_DEPS], deps[DATA_DEPS], fixed, ranked, tagged]
    sizes = wire.varints(np.sum([part.lengths for part in parts], axis=0, dtype=np.int64))
    body, begins = wire.join(sizes, *parts)
    ends = [begin + part.lengths for begin, part in zip(begins[1:], parts, strict=True)]

    tagged_rows = np.flatnonzero(tagged.lengths)
    waiting = []
    for field, end in ((CTRL_DEPS, ends[3]), (DATA_DEPS, ends[4])):
        first = end - waits[field] * width
        waiting.append(wire.spread(np.zeros(count, np.int64), waits[field]) * width + np.repeat(first, waits[field]))
    by_field = [layout.field == CTRL_DEPS, layout.field == DATA_DEPS]
    patched = attributes.length[rows]
    return _Template(
        body.data,
        slots=np.concatenate([ends[0] - width, *waiting, ends[7][tagged_rows] - width]),
        refs=np.concatenate(
            [np.zeros(count, np.int64), *(layout.ref[each] for each in by_field), np.full(len(tagged_rows), _TAG)]
        ),
        offsets=np.concatenate(
            [np.arange(count), *(layout.offset[each] for each in by_field), tags[rows[tagged_rows]]]
        ),
        patches=wire.spread(ends[6] - patched, patched),
        sources=wire.spread(attributes.source[rows], patched),
    )


def _packed(field: int, sizes: Ints) -> ByteRows:
    """A packed field of this many bytes, all zeros for now; no field for 0 bytes."""
    count = len(sizes)
    blank = ByteRows(np.zeros(int(sizes.sum()), np.uint8), sizes)
    return wire.join(wire.constant(wire.tag(field, wire.LENGTH), count), wire.varints(sizes), blank)[0].where(sizes > 0)


def _metadata(fields: RankFields, metadata: Mapping[str, str | int]) -> _Template:
    """The message at the beginning of each file: the schema's version, the entries of `metadata`, then the rank."""
    message = pb.GlobalMetadata(version=VERSION)
    for name, value in metadata.items():
        if isinstance(value, int):
            message.attr.add(name=name, int64_val=value)
        else:
            message.attr.add(name=name, string_val=value)
    rank = attribute("rank", "int32_val", wire.constant(bytes(fields.width), 1)).data
    rank[0] = wire.tag(2, wire.LENGTH)[0]
    head = message.SerializeToString()
    size = wire.varints(np.array([len(head) + len(rank)], np.int64)).data
    data = np.concatenate([size, np.frombuffer(head, np.uint8), rank])
    patches = np.arange(len(data) - fields.width, len(data))
    return _Template(data, _NONE, _NONE, _NONE, patches, np.arange(fields.width) + fields.begins["rank"])
