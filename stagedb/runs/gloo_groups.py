"""The groups of gloo's collectives and messages, which neither a profile nor an execution trace names for most calls.

A thread of gloo works for one group, and the threads of a group that is made later have higher numbers. So there are
few ways to give the threads of a rank to its groups, in order; those that fit the sizes of gathers and scatters, and
with which all members of each group have run the same, decide. Messages of a rank are those of one group, such that
each that is sent is received. Where ways differ that are possible, groups stay unknown.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from stagedb.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from stagedb.runs.clocks import MEETINGS, MESSAGES
from stagedb.runs.rank_trace import ProcessGroup, RankTrace, RecordedCollective, in_group

THREADS = 2
"""Threads of a group, as PyTorch makes them."""

MOST_WAYS = 4096
"""Ways to give threads to groups that are compared; of a rank with more, groups stay unknown."""

MEETINGS_NEEDED = 3
"""Collectives of a group whose times show whether its members met; those of fewer may fit by chance."""

_SAME_SIZES = frozenset((ALL_REDUCE.name, ALL_GATHER.name, REDUCE_SCATTER.name))
"""Kinds of which all members have operands of one size."""

Facts = Mapping[Any, Any]
"""What a rank has of a group, or has sent to and received from another rank, that the other members have, too."""


def with_groups(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Traces with the groups of their collectives and messages of gloo, as far as one way alone is possible."""
    found = [_of_rank(trace) for trace in traces]
    if not any(found):
        return list(traces)
    found = _chosen(traces, found, _threads_given, _shared)
    found = _chosen(traces, found, _messages_given, _flows)
    return [_finished(trace, calls) for trace, calls in zip(traces, found, strict=True)]


Calls = Mapping[int, RecordedCollective]
"""Collectives of gloo by their places, in the order of the calls that asked for them."""


def _of_rank(trace: RankTrace) -> Calls:
    places = [place for place, each in enumerate(trace.collectives) if each.node is not None]
    return {place: trace.collectives[place] for place in sorted(places, key=lambda at: trace.collectives[at].node or 0)}


def _chosen(
    traces: Sequence[RankTrace],
    found: Sequence[Calls],
    given: Callable[[RankTrace, Calls], Iterator[Calls]],
    facts: Callable[[RankTrace, Calls], Facts],
) -> list[Calls]:
    """The calls of each rank with the groups that all ways have which are possible together with those of other ranks.

    given: the ways of a rank. facts: those of a way, by what they are about.
    """
    ways: list[list[tuple[Calls, Facts]]] = []
    for trace, calls in zip(traces, found, strict=True):
        own = [(way, facts(trace, way)) for way in islice(given(trace, calls), MOST_WAYS + 1)]
        # A rank with more than `MOST_WAYS` ways counts as one with all ways: it rules out none of the others.
        ways.append(own if len(own) <= MOST_WAYS else [])
    while True:
        possible: dict[Any, set[Any]] = {}
        for of_rank in ways:
            for about in {about for _, known in of_rank for about in known}:
                mine = {known.get(about) for _, known in of_rank}
                possible[about] = possible[about] & mine if about in possible else mine
        left = [[way for way in own if all(fact in possible[about] for about, fact in way[1].items())] for own in ways]
        if list(map(len, left)) == list(map(len, ways)):
            break
        ways = left
    return _widest(traces, ways) or [
        {place: _common([way[place] for way, _ in own], each) for place, each in calls.items()}
        for own, calls in zip(ways, found, strict=True)
    ]


def _common(ways: Sequence[RecordedCollective], otherwise: RecordedCollective) -> RecordedCollective:
    return ways[0] if ways and all(each == ways[0] for each in ways) else otherwise


def _widest(traces: Sequence[RankTrace], ways: "list[list[tuple[Calls, Facts]]]") -> list[Calls] | None:
    """The way of each rank in which its groups have most members, if these did meet; None if they did not.

    A wide group claims more than a narrow one, and times refute it unless it is true.
    """
    if not all(ways):
        return None
    chosen = [max(own, key=lambda way: sum(len(each.ranks) for each in way[0].values())) for own in ways]
    known: dict[Any, Any] = {}
    if any(known.setdefault(about, fact) != fact for _, facts in chosen for about, fact in facts.items()):
        return None
    calls = [way for way, _ in chosen]
    unsure = {
        (each.group, each.ranks)
        for own, way in zip(ways, calls, strict=True)
        for place, each in way.items()
        if each != _common([other[place] for other, _ in own], replace(each, group=""))
    }
    return calls if all(_met(traces, calls, group) for group in unsure) else None


def _met(traces: Sequence[RankTrace], found: Sequence[Calls], group: tuple[str, tuple[int, ...]]) -> bool:
    """Whether some difference of clocks lets no member of a group leave a collective before another one begins it."""
    spans = []
    for trace, calls in zip(traces, found, strict=True):
        op = {place: at for at, place in enumerate(trace.ops.collective.tolist())}
        mine = [op[place] for place, each in calls.items() if (each.group, each.ranks) == group and _meets(each)]
        spans.append((trace.ops.start[mine], trace.ops.end[mine]))
    spans = [(start, end) for start, end in spans if len(start)]
    return len(spans[0][0]) >= MEETINGS_NEEDED and all(
        (start - spans[0][1]).max() <= (end - spans[0][0]).min() for start, end in spans[1:]
    )


def _meets(collective: RecordedCollective) -> bool:
    return collective.worker is not None and collective.kind in MEETINGS


def _threads_given(trace: RankTrace, calls: Calls) -> Iterator[Calls]:
    """The ways to give the threads of a rank to its groups."""
    workers = sorted({each.worker for each in calls.values() if each.worker is not None})
    sizes: dict[int, list[RecordedCollective]] = defaultdict(list)
    for each in calls.values():
        if each.worker is not None:
            sizes[each.worker].append(each)

    def extend(given: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(given) == len(workers):
            yield given
            return
        for place in range(given[-1] if given else 0, len(trace.groups)):
            group, ran = trace.groups[place], sizes[workers[len(given)]]
            if given.count(place) < THREADS and all(_fits(each, group) for each in ran):
                yield from extend((*given, place))

    for given in extend(()):
        group = {worker: trace.groups[place] for worker, place in zip(workers, given, strict=True)}
        yield {
            place: each if each.worker is None else in_group(each, group[each.worker]) for place, each in calls.items()
        }


def _fits(collective: RecordedCollective, group: ProcessGroup) -> bool:
    """Whether a collective may be one of a group, by what is known of it."""
    if collective.group:
        return collective.group == group.name
    sent, received, size = collective.sent, collective.received, len(group.ranks)
    if sent is None or received is None:
        return True
    if collective.kind == ALL_GATHER.name:
        return received == sent * size
    return collective.kind != REDUCE_SCATTER.name or sent == received * size


def _shared(trace: RankTrace, calls: Calls) -> Facts:
    """What a rank ran of each of its groups; nothing of a group is a fact, too."""
    ran: dict[tuple[str, tuple[int, ...]], list[Any]] = {(group.name, group.ranks): [] for group in trace.groups}
    for each in calls.values():
        if each.worker is not None:
            sizes = (each.sent, each.received) if each.kind in _SAME_SIZES else ()
            ran.setdefault((each.group, each.ranks), []).append((each.kind, each.dtype, *sizes))
    return {about: tuple(each) for about, each in ran.items()}


def _messages_given(trace: RankTrace, calls: Calls) -> Iterator[Calls]:
    """The groups in which the messages of a rank may be."""
    peers = {each.peer for each in calls.values() if each.kind in MESSAGES and not each.group}
    if not peers or None in peers:
        yield calls
        return
    for group in trace.groups:
        if all(peer < len(group.ranks) and group.ranks[peer] != trace.rank for peer in peers if peer is not None):
            yield {
                place: in_group(each, group) if each.kind in MESSAGES and not each.group else each
                for place, each in calls.items()
            }


def _flows(trace: RankTrace, calls: Calls) -> Facts:
    """What a rank sent to each other rank, and received from it, by both; nothing is a fact, too."""
    flows: dict[tuple[int | None, int | None], list[Any]] = {
        ends: []
        for group in trace.groups
        for other in group.ranks
        for ends in ((trace.rank, other), (other, trace.rank))
        if other != trace.rank
    }
    for each in calls.values():
        if each.kind in MESSAGES and each.group and each.peer is not None:
            ends = (trace.rank, each.ranks[each.peer])
            flows[ends if each.kind == MESSAGES[0] else ends[::-1]].append((each.group, each.dtype, each.sent))
    return {about: tuple(each) for about, each in flows.items()}


def _finished(trace: RankTrace, calls: Calls) -> RankTrace:
    """A trace with the groups, and the number in its group of each collective of a known one."""
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    collectives = list(trace.collectives)
    for place, each in calls.items():
        if each.worker is not None and each.group:
            number = seen[each.group, each.ranks]
            seen[each.group, each.ranks] += 1
            each = replace(each, sequence=number)
        collectives[place] = replace(each, node=None, worker=None)
    return replace(trace, collectives=tuple(collectives))
