"""Profiles together with the execution traces of their ranks: shapes, groups, bytes and types that a profile lacks.

A node of an execution trace has the number of its call, which is the `Record function id` of the profile's operator.
Profiles of before have the numbers of the profiler, which are the same for some programs: they count if all operators
that both have with one number have one name. Where they are others, collectives are the same if there are equally many
and of the same kinds, in the order of their launches; nothing else is joined then.

A trace belongs to the profile of its process if nothing contradicts that. Where processes have other numbers, the rank
decides together with the operators.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import path_text
from stagedb.runs.execution_trace import ExecutionTrace
from stagedb.runs.gloo import kind_of_call
from stagedb.runs.kernel_names import SEND_RECV, UNKNOWN_COLLECTIVE
from stagedb.runs.process_groups import in_group
from stagedb.runs.rank_spans import Numbering
from stagedb.runs.rank_trace import NONE, Places, ProcessGroup, RankTrace, RecordedCollective, rows_at, rows_of


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
