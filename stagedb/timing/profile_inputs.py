"""The inputs of a timed step."""

from dataclasses import dataclass

from stagedb.systems import Durations, System
from stagedb.timing.whatif import Scaling


@dataclass(frozen=True)
class ProfileInputs:
    """The inputs of a profile: a system, measured durations that replace the model's, scalings, and blocking axes."""

    system: System
    measured: Durations | None = None
    scalings: tuple[Scaling, ...] = ()
    blocking: tuple[str, ...] = ()
