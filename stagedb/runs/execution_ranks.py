"""Execution traces of PyTorch with the profiles of their ranks, which lack shapes and groups, and without profiles.

A node has its place among all calls of the process in the order of their begins, and the node around it. So a call
lasts, in places, from its own to that of the last call inside it, and the ops of a rank follow as they do from times.
What an op depends on follows from tensors: those that an op reads were made, or written last, by another one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import path_text
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.execution_trace import (
    RECORD,
    USER_SCOPE,
    CallNode,
    CallNodes,
    ExecutionTrace,
    dtype_of,
    execution_trace,
    read_nodes,
)
from stagedb.runs.gloo import WAIT, kind_of_call
from stagedb.runs.joined_ops import RecordedRank
from stagedb.runs.kernel_names import SEND_RECV, UNKNOWN_COLLECTIVE
from stagedb.runs.kineto_events import integer
from stagedb.runs.rank_spans import Numbering
from stagedb.runs.rank_trace import (
    NONE,
    Places,
    ProcessGroup,
    RankTrace,
    RecordedCollective,
    RecordedOrder,
    in_group,
    rows_at,
    rows_of,
)

_OF_THE_PROFILER = ("[pytorch|profiler|", "## process_group:init ##")
"""How names of nodes begin that the profiler makes for a process, for a thread, and for the list of groups."""


def read_untimed(path: Path, digest: str) -> RankTrace:
    """The rank of an execution trace, whose ops are in order and have no times.

    digest: of the file. Raises TraceFileError for a damaged file, one of another version, and one without operators.
    """
    nodes = read_nodes(path)
    try:
        trace = _CallSpans(nodes, execution_trace(path, nodes)).trace(digest)
    except RecursionError:
        raise TraceFileError(
            f"the execution trace {path_text(path)} is damaged: operands are nested too deep"
        ) from None
    if trace is None:
        raise TraceFileError(
            f"the execution trace {path_text(path)} has no operator: record it over a step of the program"
        )
    return trace


@dataclass(frozen=True)
class _CallSpans:
    """The nodes of a file, and what it has of collectives. Nodes have their places in the order of their begins."""

    content: CallNodes
    one: ExecutionTrace

    @cached_property
    def _nodes(self) -> list[CallNode]:
        """The nodes in order. Raises TraceFileError if some have the same id."""
        found = sorted(self.content.nodes, key=lambda node: node.id)
        for one, other in pairwise(found):
            if one.id == other.id:
                raise TraceFileError(
                    f"the execution trace {path_text(self.one.path)} is damaged: several nodes have the id {one.id}"
                )
        return found

    @cached_property
    def _around(self) -> list[int]:
        """For each node the one around it, as the file has it, or `NONE`."""
        places = {node.id: place for place, node in enumerate(self._nodes)}
        found = (places.get(node.above, NONE) for node in self._nodes)
        # A node comes after the one around it.
        return [above if above < place else NONE for place, above in enumerate(found)]

    @cached_property
    def _above(self) -> list[int]:
        """For each node the one around it. A call that communicates is around no other one that does.

        A message that is asked for together with others ends after they were asked for, and would be around them.
        """
        found: list[int] = []
        for place, above in enumerate(self._around):
            lifted = above in self._communicates and place in self._communicates
            found.append(found[above] if lifted else above)
        return found

    @cached_property
    def _communicates(self) -> dict[int, RecordedCollective]:
        """What nodes communicate, by place."""
        found = ((place, self._collective(node)) for place, node in enumerate(self._nodes))
        return {place: each for place, each in found if each is not None}

    @cached_property
    def _last(self) -> list[int]:
        """For each node the last one that is inside it."""
        found = [*range(len(self._nodes))]
        for place in reversed(range(len(found))):
            if (above := self._above[place]) != NONE:
                found[above] = max(found[above], found[place])
        for place, (around, above) in enumerate(zip(self._around, self._above, strict=True)):
            if around != above:
                found[around] = min(found[around], place - 1)
        return found

    @cached_property
    def _groups(self) -> dict[str, ProcessGroup]:
        """The groups by name; one without a list of its ranks has all of them."""
        every = tuple(range(self.one.world or 0))
        return {each.name: each if each.ranks else replace(each, ranks=every) for each in self.one.groups}

    @cached_property
    def _recorded(self) -> set[int]:
        """The numbers of the calls around collectives that are recorded."""
        return {around for number in self.one.records for around in self.one.around(number)}

    def trace(self, digest: str) -> RankTrace | None:
        """The rank; None if it has no operator."""
        rank = RecordedRank(waiting=(WAIT,))
        for place in range(len(self._nodes)):
            self._add(rank, place)
        one = self.one
        found = rank.trace(
            digest,
            tool="execution trace",
            rank=one.rank,
            world=one.world,
            events={"node": len(self._nodes)},
            process=one.process,
            groups=tuple(self._groups.values()),
        )
        if found is None:
            return None
        none = np.full(len(found.ops), NONE, np.int64)
        places = [start // 2 for start in found.ops.start.tolist()]
        nodes = [self._nodes[place] for place in places]
        names = Numbering[str]()
        for name in found.names:
            names[name]
        callers = [self._caller(place) for place in places]
        order = RecordedOrder(
            tuple(next((dtype for kind in node.read().types if (dtype := dtype_of(str(kind)))), "") for node in nodes),
            tuple(NONE if caller is None else names[caller] for caller in callers),
            tuple(_dependencies(nodes)),
        )
        return replace(found, ops=replace(found.ops, launched=none, synchronised=none), names=tuple(names), order=order)

    def _add(self, rank: RecordedRank, place: int) -> None:
        """Add a node as the span of places that it lasts."""
        node = self._nodes[place]
        if node.name.startswith(_OF_THE_PROFILER):
            return
        span, thread = (2 * place, 2 * self._last[place] + 1), integer(node.property_of("tid"), NONE)
        if node.property_of("scope") == USER_SCOPE:
            rank.add_annotation(node.name, span, thread)
            return
        collective = self._communicates.get(place)
        if node.name == RECORD and collective is None:
            # A wait, or the making of a group: what it waits for is an op already.
            return
        shapes = None if node.number is None else self.one.shapes.get(node.number)
        rank.host.add(
            start=span[0],
            end=span[1],
            place=rank.threads[thread],
            name=rank.table[node.name],
            collective=rank.place(collective),
            shapes=NONE if shapes is None else rank.shapes[shapes],
            number=integer(node.number, NONE),
            sequence=integer(node.property_of("seq_id"), NONE),
        )

    def _collective(self, node: CallNode) -> RecordedCollective | None:
        """What a node communicates: one that records it, or a call of c10d in which nothing does."""
        number = node.number
        if number is None:
            return None
        found = self.one.records.get(number)
        asked = self.one.calls.get(number)
        if found is None and asked is not None and number not in self._recorded:
            kind = kind_of_call(asked.name)
            if kind is not None:
                found = RecordedCollective(
                    kind, asked.group, dtype=asked.dtype, sent=asked.sent, received=asked.received, peer=asked.peer
                )
        if found is None or found.group not in self._groups:
            return found
        return in_group(found, self._groups[found.group])

    def _caller(self, place: int) -> str | None:
        """The operator that called a node."""
        above = self._above[place]
        while above != NONE and self._nodes[above].property_of("scope") == USER_SCOPE:
            above = self._above[above]
        name = "" if above == NONE else self._nodes[above].name
        return None if not name or name.startswith(_OF_THE_PROFILER) else name


@dataclass
class _Tensors:
    """Which op made each tensor, and which one wrote each storage last; tensors and storages have numbers."""

    made: dict[tuple[int, int], int] = field(default_factory=dict)
    wrote: dict[int, int] = field(default_factory=dict)

    def before(self, read: Sequence[tuple[int, int]]) -> set[int]:
        """The ops that tensors come from."""
        found = (each for tensor in read for each in (self.made.get(tensor), self.wrote.get(tensor[1])))
        return {each for each in found if each is not None}

    def write(self, op: int, read: Sequence[tuple[int, int]], written: Sequence[tuple[int, int]]) -> None:
        """Add what an op returns: a tensor with the storage of another one is a view, and writes nothing."""
        storages = {storage for _, storage in read}
        for tensor in written:
            self.made[tensor] = op
            if tensor in read or tensor[1] not in storages:
                self.wrote[tensor[1]] = op


def _dependencies(nodes: Sequence[CallNode]) -> Iterator[tuple[int, int]]:
    """For each op those that it depends on, as places. nodes: of the ops, in order."""
    known = _Tensors()
    for op, node in enumerate(nodes):
        read, written = (list(_tensors(operands.values)) for operands in (node.read(), node.written()))
        yield from ((op, other) for other in sorted(known.before(read)))
        known.write(op, read, written + _written_in_place(node))


def _tensors(value: Any) -> Iterator[tuple[int, int]]:
    """The numbers of tensors and their storages in operands: a tensor is both, an offset, two sizes and a device."""
    if not isinstance(value, list):
        return
    if len(value) == 6 and isinstance(value[5], str) and all(type(each) is int for each in value[:2]):
        yield value[0], value[1]
        return
    for each in value:
        yield from _tensors(each)


def _written_in_place(node: CallNode) -> list[tuple[int, int]]:
    """The tensors among the inputs that the signature of an operator marks as written to, such as `Tensor(a!)[]`."""
    signature = str(node.property_of("op_schema") or "")
    arguments = _arguments(signature.partition("(")[2].rpartition(") -> ")[0])
    pairs = zip(arguments, node.read().values, strict=False)
    return [tensor for argument, value in pairs if "!" in argument for tensor in _tensors(value)]


def _arguments(text: str) -> list[str]:
    """The arguments of a signature, cut at the commas that are inside no bracket; a star is none."""
    found, depth, begin = [], 0, 0
    for at, each in enumerate(f"{text},"):
        depth += (each in "([") - (each in ")]")
        if each == "," and not depth:
            found.append(text[begin:at].strip())
            begin = at + 1
    return [each for each in found if each not in ("*", "")]


# Profiles together with the execution traces of their ranks: shapes, groups, bytes and types that a profile lacks.
#
# A node of an execution trace has the number of its call, which is the `Record function id` of the profile's operator.
# Older profiles have numbers that the profiler gives. In some programs these equal the numbers of calls: they are used
# if every number that is in both files has the same name in both. If numbers differ, only collectives are joined, in
# the order of their launches, and only if both files have equally many of the same kinds.
#
# A trace belongs to the profile of its process if nothing contradicts that. Where processes have other numbers, the
# rank decides together with the operators.


def with_execution_traces(traces: Sequence[RankTrace], found: Sequence[ExecutionTrace]) -> list[RankTrace]:
    """Profiles with what the execution traces of their ranks have.

    traces: of the profiles. found: the execution traces. Raises UsageError if one of these has no profile.
    """
    left = dict(enumerate(traces))
    done = {}
    for one in found:
        pairs = {place: _Pair(trace, one, len(traces) == 1) for place, trace in left.items()}
        belong = [place for place, pair in pairs.items() if pair.belongs]
        if not belong:
            raise UsageError(
                f"the execution trace {path_text(one.path)} has no profiler trace of its rank among the files: none "
                "has its process, operators and groups. Name the trace that was recorded with it, too, or leave it out"
            )
        # Ranks of several machines may have processes of one number. Those with the same groups and calls are alike.
        place = max(belong, key=lambda at: (pairs[at].is_rank, pairs[at].same_numbers, -at))
        done[place] = pairs[place].joined()
        del left[place]
    return [done.get(place, trace) for place, trace in enumerate(traces)]


@dataclass(frozen=True)
class _Pair:
    """A profile and an execution trace. alone: whether there is no other profile."""

    trace: RankTrace
    one: ExecutionTrace
    alone: bool

    @cached_property
    def names(self) -> Counter[bool]:
        """How many operators that launched something have the names of the nodes with their numbers, and other ones."""
        ops = self.trace.ops
        pairs = {row for row in rows_of(ops.operator, ops.launcher) if row[0] in self.one.names and row[1] != NONE}
        return Counter(self.one.names[number] == self.trace.names[name] for number, name in pairs)

    @property
    def same_numbers(self) -> bool:
        return self.names[True] > 0 and not self.names[False]

    @property
    def is_rank(self) -> bool:
        return self.one.rank is not None and self.one.rank == self.trace.rank

    @property
    def belongs(self) -> bool:
        """Whether both are of one rank."""
        if self._is_contradicted():
            return False
        if self.one.process is not None and self.one.process == self.trace.process:
            return True
        return self.same_numbers and (self.is_rank or (self.alone and self.trace.world in (None, 1)))

    def _is_contradicted(self) -> bool:
        trace, one = self.trace, self.one
        listed = {group.name: group.ranks for group in one.groups if group.ranks}
        calls = ((each.kind, one.calls.get(each.node)) for each in trace.collectives if each.node is not None)
        return (
            any(listed.get(group.name, group.ranks) != group.ranks for group in trace.groups)
            or (trace.rank is not None and one.rank is not None and trace.rank != one.rank)
            or (trace.numbered and self.names[False] > 0)
            or any(call is not None and kind_of_call(call.name) != kind for kind, call in calls)
            or any(not _agree(trace.collectives[at], record) for at, record in self._by_number)
        )

    @cached_property
    def _communicates(self) -> Places:
        """Ops of a device that communicate, in the order of their launches."""
        ops = self.trace.ops
        asked = np.array([each.node is not None for each in self.trace.collectives] or [False], bool)
        places = np.flatnonzero((ops.collective != NONE) & ~asked[ops.collective])
        return places[np.lexsort((ops.start[places], ops.launched[places]))]

    def _record_of(self, number: int) -> int | None:
        """The number of the record around an operator."""
        return next((each for each in self.one.around(number) if each in self.one.records), None)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """For ops that communicate, as places, the numbers of their records."""
        if not self.same_numbers:
            return {}
        rows = rows_at(self._communicates, self.trace.ops.operator)
        return {place: record for place, number in rows if (record := self._record_of(number)) is not None}

    @property
    def _by_number(self) -> list[tuple[int, RecordedCollective]]:
        collective = self.trace.ops.collective
        return [(int(collective[place]), self.one.records[number]) for place, number in self._numbers.items()]

    def _in_order(self) -> dict[int, int]:
        """The same by the order of launches; none if the collectives of both are not the same ones."""
        places, records = self._communicates.tolist(), self.one.records
        if len(places) != len(records) or any(self.trace.ops.launched[place] == NONE for place in places):
            return {}
        pairs = dict(zip(places, records, strict=True))
        kinds = ((self._own(place), records[number]) for place, number in pairs.items())
        return pairs if all(own.kind in (SEND_RECV, UNKNOWN_COLLECTIVE, found.kind) and _agree(own, found)
                            for own, found in kinds) else {}  # fmt: skip

    def _own(self, place: int) -> RecordedCollective:
        return self.trace.collectives[int(self.trace.ops.collective[place])]

    def joined(self) -> RankTrace:
        """The profile with what the execution trace has."""
        trace, one = self.trace, self.one
        groups = trace.groups or tuple(
            group if group.ranks else replace(group, ranks=tuple(range(trace.world or 0))) for group in one.groups
        )
        named = {group.name: group for group in groups}
        asked = [_asked(each, one, named) for each in trace.collectives]
        pairs = self._numbers or self._in_order()
        kernels = Counter(pairs.values())
        collectives: Numbering[RecordedCollective] = Numbering()
        column = trace.ops.collective.copy()
        for place in np.flatnonzero(column != NONE).tolist():
            each, number = asked[column[place]], pairs.get(place)
            if number is not None:
                each = _completed(each, one.records[number], named, alone=kernels[number] == 1)
            column[place] = collectives[each]
        shapes, texts = self._shapes()
        return replace(
            trace,
            groups=groups,
            collectives=tuple(collectives),
            ops=replace(trace.ops, collective=column, shapes=shapes),
            shapes=texts,
            left_out=(*trace.left_out, *self._left_out(pairs, kernels)),
        )

    def _shapes(self) -> tuple[Places, tuple[str, ...]]:
        """The shapes of ops, and their texts."""
        texts: Numbering[str] = Numbering()
        for text in self.trace.shapes:
            texts[text]
        found = self.trace.ops.shapes.copy()
        if self.same_numbers:
            known: dict[int, int] = {}
            for place, number in rows_at(np.flatnonzero(found == NONE), self.trace.ops.operator):
                if number not in known:
                    around = (each for each in self.one.around(number) if each in self.one.shapes)
                    known[number] = next((texts[self.one.shapes[each]] for each in around), NONE)
                found[place] = known[number]
        return found, tuple(texts)

    def _left_out(self, pairs: Mapping[int, int], kernels: Mapping[int, int]) -> tuple[str, ...]:
        """What of the execution trace is in no op, as sentences."""
        there, several = len(self._communicates), sum(count > 1 for count in kernels.values())
        reasons = []
        if self.one.records and len(pairs) < there:
            reasons.append(
                f"{there - len(pairs)} of {there} collectives are not among the {len(self.one.records)} of the "
                "execution trace, by their numbers or by their order"
            )
        if several:
            reasons.append(f"{several} collectives ran as several kernels, whose bytes are not known apart")
        if not self.same_numbers and self.one.shapes:
            reasons.append("numbers of operators are not those of the execution trace: its shapes are not used")
        return tuple(reasons)


def _asked(each: RecordedCollective, one: ExecutionTrace, named: Mapping[str, ProcessGroup]) -> RecordedCollective:
    """A collective of gloo with what its call asked for."""
    asked = None if each.node is None else one.calls.get(each.node)
    if asked is None:
        return each
    each = replace(each, dtype=asked.dtype, sent=asked.sent, received=asked.received, peer=asked.peer)
    return in_group(each, named[asked.group]) if asked.group in named else each


def _completed(
    own: RecordedCollective, record: RecordedCollective, named: Mapping[str, ProcessGroup], *, alone: bool
) -> RecordedCollective:
    """What a profile recorded of a collective, completed. alone: whether no other kernel is part of it."""
    if record.group in named:
        record = in_group(record, named[record.group])
    if not alone:
        record = replace(record, sent=None, received=None)
    kept = {name: value for name in _FIELDS if (value := getattr(own, name)) not in (None, "", ())}
    return replace(record, **kept, kind=own.kind if own.dtype else record.kind)


_FIELDS = ("group", "description", "ranks", "size", "dtype", "sent", "received", "sequence", "peer", "gradients")


def _agree(own: RecordedCollective, record: RecordedCollective) -> bool:
    """Whether nothing that a profile recorded of a collective is otherwise in an execution trace."""
    if not own.dtype:
        return True
    names = ("kind", "dtype", "sent", "received", "size")
    pairs = ((getattr(own, name), getattr(record, name)) for name in names)
    return all(mine == theirs or mine in (None, "") or theirs in (None, "") for mine, theirs in pairs)
