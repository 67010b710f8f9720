"""A run whose files have no times: its ranks, its ops by lanes in their order, and its collectives.

Execution traces of PyTorch are such files, and Chakra's traces whose nodes have no durations. There is no clock, no
critical path and no timeline: nothing about a time is known, and no number takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.mentions import call
from stagedb.runs.clocks import calls_of
from stagedb.runs.measured_run import RecordedRun, lanes_of, numbered, types_of
from stagedb.runs.rank_trace import RankTrace, RecordedOrder


@dataclass(frozen=True)
class UntimedRun(RecordedRun):
    """A run without times.

    ranks, calls, lanes: as of a `RecordedRun`. types, kinds: of the ops of each rank, as of `RankTimeline`.
    orders: what the file of each rank has in place of times.
    """

    types: Mapping[int, tuple[str, ...]]
    kinds: Mapping[int, tuple[str, ...]]
    orders: Mapping[int, RecordedOrder]


def untimed_run(traces: Sequence[RankTrace]) -> UntimedRun:
    """The run of these ranks. traces: each with its `order`. Raises UsageError if they cannot be of one run."""
    ranks = numbered(traces)
    found = {rank: types_of(trace) for rank, trace in ranks.items()}
    types = {rank: each for rank, (each, _) in found.items()}
    kinds = {rank: each for rank, (_, each) in found.items()}
    orders = {rank: trace.order for rank, trace in ranks.items() if trace.order is not None}
    return UntimedRun(ranks, tuple(calls_of(ranks)), lanes_of(ranks, kinds), types, kinds, orders)


def without_times(run: str) -> UsageError:
    """The refusal of what needs times. run: id or name of a run that has none."""
    counted = " and ".join(str(call("query", name, run=run)) for name in COUNTING)
    return UsageError(
        f"run {run} has no times: its files are execution traces, or traces of Chakra without durations. Import the "
        "profiler's traces of the same ranks, together with their execution traces if there are some, or traces of "
        f"Chakra with durations. What it ran is counted by {counted}"
    )


COUNTING = ("collectives_by_group", "ops_by_module")
"""Named queries that count what a run has, and need no times."""
