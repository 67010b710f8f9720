"""Steps with the durations of classes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stagedb.lowering.columns import Ints
from stagedb.timing import NodeGraph, Timeline, run_step
from stagedb.timing.timeline import step_length
from stagedb.timing.whatif import Scaling, scaled


def by_lane(network: NodeGraph, durations: Mapping[int, Ints]) -> list[Ints]:
    """The durations of each lane, which are those of its class."""
    return [durations[each.number] for each in network.columns]


def run_classes(
    network: NodeGraph,
    durations: Mapping[int, Ints],
    compute: str = "out-of-order",
    delays: Mapping[int, int] | None = None,
    blocking: Collection[str] = (),
) -> Timeline:
    found = run_step(network, by_lane(network, durations), compute, delays, blocking)
    if not delays:
        assert step_length(network, by_lane(network, durations), compute, blocking) == found.step
    return found


@dataclass(frozen=True)
class WhatIf:
    """A step without and with scalings. Each has the order that its own durations give."""

    before: Timeline
    after: Timeline

    @property
    def gain(self) -> int:
        """The ns by which the step would be shorter; below 0 where it would be longer."""
        return self.before.step - self.after.step


def what_if_classes(
    network: NodeGraph,
    durations: Mapping[int, Ints],
    scalings: Sequence[Scaling],
    compute: str = "out-of-order",
) -> WhatIf:
    """A step run again with durations scaled, as `profile_job` runs it."""
    own = by_lane(network, durations)
    return WhatIf(run_step(network, own, compute), run_step(network, scaled(network, own, scalings), compute))
