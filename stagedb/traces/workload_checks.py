"""Cheap rules of traces, checked on the columns of classes before a file is written.

Ids, dependencies and attribute types hold by construction. Rules that depend on the instance are checked here.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from stagedb.collectives import KINDS, SIMULATED
from stagedb.errors import StagedbError
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, RECV, SEND, ClassColumns, Workload
from stagedb.lowering.issue_order import Sequence
from stagedb.lowering.stage_blocks import BUCKET
from stagedb.mentions import Word
from stagedb.plans.graph_options import DEALT_KEYS
from stagedb.traces.protobuf_columns import Ints

_MOST = 5


def check_workload(workload: Workload, nodes: Mapping[int, Sequence]) -> None:
    """Raise StagedbError, with the first faults, if traces of this instance would break a rule.

    nodes: by class, the nodes of a rank in order.
    """
    faults = [*_sizes(workload), *_groups(workload), *_order(workload, nodes), *_pairs(workload, nodes)]
    faults += _handed(workload)
    if faults:
        more = f"; and {len(faults) - _MOST} more" if len(faults) > _MOST else ""
        raise StagedbError(
            f"traces of instance {workload.instance} would break rules, so none were written: "
            f"{'; '.join(faults[:_MOST])}{more}"
        )


def _sizes(workload: Workload) -> Iterator[str]:
    shared = workload.plan.get("cp_kind") == DEALT_KEYS
    for columns in workload.classes:
        ops = columns.ops
        if not len(ops) or not len(columns.tasks):
            yield f"class {columns.number} has nothing to run"
        for row in np.flatnonzero((ops.type != COMPUTE) & (ops.size < 1)).tolist():
            yield f"{_op(columns, row)} moves {ops.size[row]} bytes"
        for row in np.flatnonzero(ops.type == COLLECTIVE).tolist():
            kind = KINDS.get(ops.kind[row])
            if kind is None or kind.simulated is None:
                runs = ", ".join(each.name for each in SIMULATED.values())
                yield f"{_op(columns, row)} is a {ops.kind[row]}: simulators run {runs} only"
            elif 1 <= ops.size[row] < kind.smallest:
                yield (
                    f"{_op(columns, row)} gathers {ops.size[row]} bytes a rank over {ops.axis[row]}, which below "
                    f"{kind.smallest} never ends in a simulator: {_larger(_block(columns, row), ops.axis[row], shared)}"
                )


def _block(columns: ClassColumns, row: int) -> str:
    """The block of an op; empty for columns that have no origins."""
    return columns.origins.block[row] if columns.origins.block else ""


def _larger(block: str, axis: str, shared: bool) -> str:
    """What an error suggests to make a gathered part larger: the size of parameters depends on the degree alone, that
    of activations on the sequence too, and that of log-sum-exps on the requests and the heads of a rank.

    shared: ranks of cp share the cache of each request.
    """
    if axis == "cp" and shared:
        return f"take more requests at once or a lower {Word('tp')}, as a rank gathers 4 bytes for each head of a token"
    if block == BUCKET or "dp" in axis:
        return f"take a lower {Word('dp')}, {Word('zero', 0)}, or a larger model"
    return f"take longer sequences or a lower {axis}"


def _groups(workload: Workload) -> Iterator[str]:
    alone = {workload.groups.axis[group] for group in np.flatnonzero(workload.groups.sizes < 2)}
    for axis in sorted(_axes(workload)):
        gids = workload.groups.of_axis(axis, len(workload.ranks))
        for columns in workload.classes:
            if axis in _axes_of(columns) and not gids[workload.ranks.number == columns.number].all():
                yield f"class {columns.number} has collectives on axis {axis}, along which it has no group"
        if axis in alone:
            yield f"a group of axis {axis} has one member, which stalls"


def _order(workload: Workload, nodes: Mapping[int, Sequence]) -> Iterator[str]:
    """Members of a group issue the same collectives. Those of one class always do; those of others are compared."""
    for axis in sorted(_axes(workload)):
        chosen = np.array([each == axis for each in workload.groups.axis], bool)
        sizes = workload.groups.sizes[chosen]
        members = workload.groups.ranks[np.repeat(chosen, workload.groups.sizes)]
        first = np.repeat(workload.ranks.number[members[np.cumsum(sizes) - sizes]], sizes)
        for one, other in _distinct(first, workload.ranks.number[members]):
            if one == other:
                continue
            theirs, ours = (_collectives(nodes[number], axis) for number in (one, other))
            if theirs != ours:
                yield f"classes {one} and {other} share groups of axis {axis} and issue different collectives there"


def _distinct(ones: Ints, others: Ints) -> list[tuple[int, int]]:
    """The pairs of classes that are next to each other in two columns, each once, without sorting millions of them."""
    count = 1 + int(max(ones.max(initial=0), others.max(initial=0)))
    return [divmod(pair, count) for pair in np.flatnonzero(np.bincount(ones * count + others)).tolist()]


def _collectives(nodes: Sequence, axis: str) -> list[tuple[str, int]]:
    ops = nodes.ops
    chosen = (ops.type == COLLECTIVE) & np.array([each == axis for each in ops.axis], bool)
    rows = _rows(nodes, chosen)
    return [(ops.kind[row], int(ops.size[row])) for row in rows.tolist()]


def _rows(nodes: Sequence, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
    """The chosen ops of all tasks, in issue order."""
    by_layout = [layout.ops[chosen[layout.ops]] for layout in nodes.layouts]
    return np.concatenate([by_layout[layout] for layout in nodes.layout])


def _pairs(workload: Workload, nodes: Mapping[int, Sequence]) -> Iterator[str]:
    """A class receives the messages that its neighbours (stages or ring ranks) send: equal tags, sizes and numbers."""
    ranks = workload.ranks
    number = ranks.number
    for hop, neighbour, ring in (
        (1, ranks.next, False),
        (-1, ranks.previous, False),
        (1, ranks.ring_next, True),
        (-1, ranks.ring_previous, True),
    ):
        for one, other in _distinct(number, number[neighbour]):
            sent = _messages(workload.classes[one], nodes[one], SEND, hop, ring)
            received = _messages(workload.classes[other], nodes[other], RECV, -hop, ring)
            if sent != received:
                yield (
                    f"class {one} sends {len(sent)} messages to class {other}, which receives {len(received)}"
                    if len(sent) != len(received)
                    else f"class {one} sends messages of other sizes or tags than class {other} receives"
                )
        alone = set(number[neighbour == np.arange(len(number))].tolist())
        if any(_messages(workload.classes[each], nodes[each], SEND, hop, ring) for each in alone):
            yield "a rank sends messages to itself"


def _handed(workload: Workload) -> Iterator[str]:
    """The caches that ranks send are those that others wait for: the same ends and bytes."""
    ends: dict[int, list[tuple[int, int, int]]] = {SEND: [], RECV: []}
    for columns in workload.classes:
        ops = columns.ops
        rows = np.flatnonzero(ops.handed).tolist()
        for rank in np.flatnonzero(workload.ranks.number == columns.number).tolist() if rows else ():
            for row in rows:
                other = int(workload.ranks.others[rank, ops.peer[row]])
                both = (rank, other) if ops.type[row] == SEND else (other, rank)
                ends[int(ops.type[row])].append((*both, int(ops.size[row])))
    if sorted(ends[SEND]) != sorted(ends[RECV]):
        yield "ranks send other caches than ranks of the other instance wait for"
    if any(source == target for source, target, _ in ends[SEND]):
        yield "a rank sends a cache to itself"


def _messages(columns: ClassColumns, nodes: Sequence, type_: int, hop: int, ring: bool) -> list[tuple[int, int]]:
    """Tag and size of the messages with the stage, or rank of a ring, `hop` further, by tag and then in issue order."""
    ops = nodes.ops
    chosen = (ops.type == type_) & (ops.towards == hop) & (ops.rings == ring)
    by_layout = [layout.ops[chosen[layout.ops]] for layout in nodes.layouts]
    own = ops.tags(columns.tasks)
    messages = [
        (tag + int(own[row]), int(ops.size[row]))
        for layout, tag in zip(nodes.layout.tolist(), columns.tasks.tags[nodes.task].tolist(), strict=True)
        for row in by_layout[layout].tolist()
    ]
    return sorted(messages, key=lambda message: message[0])


def _axes(workload: Workload) -> set[str]:
    return {axis for columns in workload.classes for axis in _axes_of(columns)}


def _axes_of(columns: ClassColumns) -> set[str]:
    return {axis for axis, type_ in zip(columns.ops.axis, columns.ops.type, strict=True) if type_ == COLLECTIVE}


def _op(columns: ClassColumns, row: int) -> str:
    return f"{columns.ops.name[row]} of class {columns.number}"
