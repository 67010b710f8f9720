"""Messages that hosts send: how long they took, where a recording has only when the program waited for them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stagedb.runs.clocks import MESSAGES, JointCollective
from stagedb.runs.measured_path import TimedOps
from stagedb.runs.rank_trace import BACKGROUND, CATEGORIES, RankTrace


def received_by_then(
    ranks: Mapping[int, RankTrace], timed: Mapping[int, TimedOps], calls: Sequence[JointCollective]
) -> dict[int, TimedOps]:
    """Ops of hosts whose sends end when the other rank has received the message.

    A program may wait for what it sends much later, and until then the recording has the send as not ended. ranks:
    recorded. timed: their ops. calls: the messages with both ends.
    """
    ends = {rank: ops.end.copy() for rank, ops in timed.items()}
    kinds = {rank: [each.kind for each in trace.collectives] for rank, trace in ranks.items()}
    for call in calls:
        if call.collective.kind not in MESSAGES or len(call.members) != len(MESSAGES):
            continue
        of = {kinds[rank][ranks[rank].ops.collective[at]]: (rank, at) for rank, at in call.members.items()}
        if sorted(of) != sorted(MESSAGES):
            continue
        (source, sent), (target, received) = (of[kind] for kind in MESSAGES)
        if CATEGORIES[ranks[source].ops.category[sent]] == BACKGROUND:
            done = max(int(timed[target].end[received]), int(timed[source].start[sent]) + 1)
            ends[source][sent] = min(int(ends[source][sent]), done)
    return {rank: replace(ops, end=ends[rank]) for rank, ops in timed.items()}
