"""Steps with the durations of classes."""

from collections.abc import Collection, Mapping, Sequence

from stagedb.timing import Network, Timeline, WhatIf, run_step, what_if
from stagedb.timing.whatif import Scaling
from stagedb.workload.instance_columns import Ints


def by_lane(network: Network, durations: Mapping[int, Ints]) -> list[Ints]:
    """The durations of each lane, which are those of its class."""
    return [durations[each.number] for each in network.columns]


def run_classes(
    network: Network,
    durations: Mapping[int, Ints],
    compute: str = "out-of-order",
    delays: Mapping[int, int] | None = None,
    blocking: Collection[str] = (),
) -> Timeline:
    return run_step(network, by_lane(network, durations), compute, delays, blocking)


def what_if_classes(
    network: Network,
    durations: Mapping[int, Ints],
    scalings: Sequence[Scaling],
    compute: str = "out-of-order",
    before: Timeline | None = None,
) -> WhatIf:
    return what_if(network, by_lane(network, durations), scalings, compute, before)
