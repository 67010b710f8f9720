"""A slow, plain encoder: a rank's nodes one by one, with the protobuf library. What the fast one is compared with."""

import io
from dataclasses import dataclass, field

from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from stagedb.lowering.columns import (
    COLLECTIVE,
    COMPUTE,
    DATA,
    PROGRAM,
    RECV,
    RUNS,
    SEND,
    TASK_KINDS,
    TEMPLATES,
    WHENS,
    ClassColumns,
    Ops,
    Tasks,
    Workload,
)
from stagedb.traces import chakra_pb2 as pb

TYPES = (pb.COMP_NODE, pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE)
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}


@dataclass
class _Run:
    """A task while it is laid out: the id of each op that it runs."""

    kind: str
    microbatch: int
    ids: dict[int, int] = field(default_factory=dict)


def _opened(tasks: Tasks) -> list[bool]:
    """For each task whether its chunk has run a backward since its latest forward."""
    found, latest = [], dict[int, str]()
    for kind, chunk in zip(tasks.kind.tolist(), tasks.chunk.tolist(), strict=True):
        found.append(latest.get(chunk, "forward") != "forward")
        if TASK_KINDS[kind] != "weight_gradient":
            latest[chunk] = TASK_KINDS[kind]
    return found


def plain_dependencies(columns: ClassColumns) -> "Dependencies":
    """For each node: op, id, task, control and data dependencies."""
    ops, edges, tasks = columns.ops, columns.edges, columns.tasks
    into: dict[int, list[tuple[int, int]]] = {}
    for source, target, kind in zip(edges.source.tolist(), edges.target.tolist(), edges.kind.tolist(), strict=True):
        into.setdefault(target, []).append((source, kind))

    def talks(op: int) -> bool:
        return int(ops.type[op]) in (COLLECTIVE, SEND)

    runs: list[_Run] = []
    nodes = []
    ident = 0
    last_compute, last_talk = 0, 0
    opened = _opened(tasks)
    for task in range(len(tasks)):
        run = _Run(TASK_KINDS[int(tasks.kind[task])], int(tasks.microbatch[task]))
        chosen = [
            op
            for op in range(len(ops))
            if (ops.chunk[op] == tasks.chunk[task] or ops.template[op] == 3)
            and int(ops.template[op]) in RUNS[int(tasks.kind[task])]
            and {"every": True, "first": tasks.first[task], "last": tasks.last[task], "closed": not opened[task]}[
                WHENS[int(ops.when[op])]
            ]
        ]
        chosen.sort(key=lambda op: (int(ops.chunk[op]), int(ops.order[op])))
        for op in chosen:
            ident += 1
            run.ids[op] = ident
        runs.append(run)
        before_task = last_compute
        for op in chosen:
            data: set[int] = set()
            ctrl: set[int] = set()
            inside = False
            for source, kind in into.get(op, ()):
                if kind == PROGRAM and talks(source) and talks(op):
                    continue
                if source in run.ids:
                    found = run.ids[source]
                    inside = inside or ops.type[source] != RECV
                else:
                    found = _elsewhere(runs[:-1], run, source, TEMPLATES[ops.template[source]] == "step")
                if found:
                    (data if kind == DATA else ctrl).add(found)
            if not inside and ops.type[op] != RECV and before_task:
                ctrl.add(before_task)
            if talks(op):
                if last_talk:
                    ctrl.add(last_talk)
                last_talk = run.ids[op]
            nodes.append((op, run.ids[op], task, sorted(ctrl - data), sorted(data)))
        computes = [run.ids[op] for op in chosen if ops.type[op] == COMPUTE]
        last_compute = max(computes, default=last_compute)
    return nodes


def _elsewhere(runs: list[_Run], run: _Run, source: int, of_step: bool) -> int:
    """The id of an op as another task ran it: for the same microbatch, or else latest before."""
    if run.kind != "step" and not of_step:
        same = [each.ids[source] for each in runs if each.microbatch == run.microbatch and source in each.ids]
        if same:
            return same[-1]
    return next((each.ids[source] for each in reversed(runs) if source in each.ids), 0)


Dependencies = list[tuple[int, int, int, list[int], list[int]]]


def class_of(workload: Workload, rank: int) -> ClassColumns:
    return next(each for each in workload.classes if each.number == workload.ranks.number[rank])


def plain_nodes(
    workload: Workload, rank: int, granularity: str = "op", known: dict[int, Dependencies] | None = None
) -> list[pb.Node]:
    """The nodes of a rank. `known` keeps what the ranks of a class have in common from one call to the next."""
    columns = class_of(workload, rank)
    known = {} if known is None else known
    if columns.number not in known:
        known[columns.number] = plain_dependencies(columns)
    nodes = plain_op_nodes(workload, rank, known[columns.number])
    if granularity == "op":
        return nodes
    places = [(op, task) for op, _, task, _, _ in known[columns.number]]
    parts = [_Part(node, *place) for node, place in zip(nodes, places, strict=True)]
    return merged(parts, columns.ops)


@dataclass
class _Part:
    """A node with its op and task."""

    node: pb.Node
    op: int
    task: int


def merged(parts: list[_Part], ops: Ops) -> list[pb.Node]:
    """What is computed in a row in one task and phase, as one node that waits for all that its parts wait for."""
    blocks: list[list[_Part]] = []
    last: tuple[int, str] | None = None
    for part in parts:
        mine = (part.task, ops.phase[part.op]) if part.node.type == pb.COMP_NODE else None
        if mine is None or mine != last:
            blocks.append([])
        blocks[-1].append(part)
        last = mine
    number = {part.node.id: index + 1 for index, block in enumerate(blocks) for part in block}
    out = []
    for index, block in enumerate(blocks):
        one = pb.Node()
        one.CopyFrom(block[0].node)
        one.id = index + 1
        data = {number[each] for part in block for each in part.node.data_deps} - {index + 1}
        ctrl = {number[each] for part in block for each in part.node.ctrl_deps} - {index + 1} - data
        one.ctrl_deps[:], one.data_deps[:] = sorted(ctrl), sorted(data)
        if len(block) > 1:
            first, end = (part.node.name.removesuffix(" COMP_NODE") for part in (block[0], block[-1]))
            one.name = f"{first} .. {end} COMP_NODE"
            for attribute in one.attr:
                if attribute.name == "num_ops":
                    attribute.int64_val = max(1, sum(int(ops.flops[part.op]) for part in block))
                if attribute.name == "tensor_size":
                    attribute.uint64_val = max(1, sum(int(ops.bytes[part.op]) for part in block))
                if attribute.name == "kind":
                    attribute.string_val = "block"
            formats = {ops.dtype[part.op] for part in block if ops.dtype[part.op]}
            kept = [attribute for attribute in one.attr if attribute.name != "dtype"]
            del one.attr[:]
            one.attr.extend(kept)
            if len(formats) == 1:
                one.attr.add(name="dtype", string_val=formats.pop())
        out.append(one)
    return out


def plain_op_nodes(workload: Workload, rank: int, dependencies: Dependencies) -> list[pb.Node]:
    """The nodes of a rank, one an operator."""
    columns = class_of(workload, rank)
    ops = columns.ops
    groups = {axis: _group(workload, axis, rank) for axis in set(ops.axis) & set(workload.groups.axis)}
    nodes = []
    for op, ident, task, ctrl, data in dependencies:
        type_ = int(ops.type[op])
        node_type = TYPES[type_]
        name = ops.name[op].replace(",", ";").replace("=", ":")
        node = pb.Node(id=ident, name=f"{name} {pb.NodeType.Name(node_type)}", type=node_type)
        node.ctrl_deps.extend(ctrl)
        node.data_deps.extend(data)
        node.attr.add(name="is_cpu_op", bool_val=False)
        if type_ == COMPUTE:
            node.attr.add(name="num_ops", int64_val=max(1, int(ops.flops[op])))
            node.attr.add(name="tensor_size", uint64_val=max(1, int(ops.bytes[op])))
        if type_ == COLLECTIVE:
            node.attr.add(name="comm_type", int64_val=COLLECTIVES[ops.kind[op]])
        if type_ != COMPUTE:
            node.attr.add(name="comm_size", int64_val=int(ops.size[op]))
        node.attr.add(name="phase", string_val=ops.phase[op])
        node.attr.add(name="kind", string_val=ops.kind[op])
        if type_ != COMPUTE:
            node.attr.add(name="axis", string_val=ops.axis[op])
        if ops.dtype[op]:
            node.attr.add(name="dtype", string_val=ops.dtype[op])
        if type_ == COLLECTIVE:
            node.attr.add(name="pg_name", string_val=str(groups[ops.axis[op]]))
        if type_ in (SEND, RECV) and ops.axis[op] in ("cp", "cpr"):
            neighbours = workload.ranks.ring_next if ops.peer[op] > 0 else workload.ranks.ring_previous
            node.attr.add(name="comm_dst" if type_ == SEND else "comm_src", int32_val=int(neighbours[rank]))
            # Those of one end in a task are numbered; each number has tags for all tasks.
            tasks, backward = columns.tasks, int(_backward(ops, op))
            alike = [
                int(ops.order[at])
                for at in range(len(ops))
                if ops.type[at] == type_ and ops.axis[at] == ops.axis[op] and ops.chunk[at] == ops.chunk[op]
                if int(_backward(ops, at)) == backward
            ]
            chunks = 1 + int(tasks.chunk.max())
            every = 2 * (int(tasks.microbatch.max()) + 1) * chunks
            which = int(tasks.microbatch[task]) * chunks + int(tasks.chunk[task])
            number = 1 + sum(order < ops.order[op] for order in alike)
            node.attr.add(name="comm_tag", int32_val=2 * which + backward + every * number)
        elif type_ in (SEND, RECV):
            backward = _backward(ops, op)
            onward = (type_ == SEND) != backward
            neighbours = workload.ranks.next if onward else workload.ranks.previous
            node.attr.add(name="comm_dst" if type_ == SEND else "comm_src", int32_val=int(neighbours[rank]))
            # The chunk that receives: another one where the message goes from one end of the stages to the other.
            chunk, around = int(columns.tasks.chunk[task]), (ops.peer[op] > 0) != onward
            if type_ == SEND and around:
                chunk += 1 if onward else -1
            which = int(columns.tasks.microbatch[task]) * (1 + int(columns.tasks.chunk.max())) + chunk
            node.attr.add(name="comm_tag", int32_val=2 * which + int(backward))
        nodes.append(node)
    return nodes


def _group(workload: Workload, axis: str, rank: int) -> int:
    at = 0
    for gid, name, size in zip(
        workload.groups.gid.tolist(), workload.groups.axis, workload.groups.sizes.tolist(), strict=True
    ):
        if name == axis and rank in workload.groups.ranks[at : at + size].tolist():
            return int(gid)
        at += size
    return 0


def parse(data: bytes) -> tuple[pb.GlobalMetadata, list[pb.Node]]:
    """A trace by the protobuf library."""
    stream = io.BytesIO(data)
    metadata = parse_length_prefixed(pb.GlobalMetadata, stream)
    assert metadata is not None
    nodes = []
    while (node := parse_length_prefixed(pb.Node, stream)) is not None:
        nodes.append(node)
    return metadata, nodes


def serialize(metadata: pb.GlobalMetadata, nodes: list[pb.Node]) -> bytes:
    """The trace as the protobuf library writes it."""
    stream = io.BytesIO()
    for message in (metadata, *nodes):
        serialize_length_prefixed(message, stream)
    return stream.getvalue()


def _backward(ops: Ops, op: int) -> bool:
    """Whether an op's messages go to the stage before."""
    return TEMPLATES[ops.template[op]] in ("input_gradient", "weight_gradient")
