"""The result of `simulate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stagedb.api.results import Rows


@dataclass(frozen=True)
class Simulated:
    """A simulated set next to its profile; times in ns.

    path: the set. step: of the profile. makespan: when the simulator's last rank finished. compute: where the
    simulator's compute comes from, `durations` or `roofline`. ranks: the terms of both, a row for ranks with the same
    times. differences: what explains the difference, a row each with the step that the profile has with it, and with
    all before it. finishes: when each rank ends in the simulator.
    """

    path: Path
    system: str
    compute: str
    step: int
    makespan: int
    ranks: Rows
    differences: Rows
    finishes: Mapping[int, int]

    @property
    def ratio(self) -> float:
        """The simulator's makespan over the profile's step."""
        return self.makespan / self.step if self.step else float("inf")
