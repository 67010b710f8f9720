"""What bounds a step: the accelerator's memory, a loss such as the bubble, or computing itself."""

from collections import Counter
from dataclasses import dataclass

from stagedb.timing import StepTimes

LARGE = 0.1
"""A loss below this share of the step does not bound it: computing does."""

WORDS = {
    "tp": "activations over tp",
    "kv": "key/value heads over tp",
    "cp": "sequences over cp",
    "cpr": "sequences over cp",
    "cpa": "heads over cp",
    "ep": "tokens of experts over ep",
    "epn": "tokens of experts between nodes",
    "epr": "tokens of experts inside nodes",
    "edp": "gradients of experts over edp",
    "data": "gradients over dp",
    "dp": "gradients and parameters over dp",
    "dp_replicate": "gradients over copies of dp",
    "dp_reshard": "parameters over neighbours of dp",
    "pp": "messages between stages",
    "embedding": "gradients of the tied embedding",
}
"""What the ranks of an axis exchange."""


@dataclass(frozen=True)
class Bound:
    """What bounds a step, in words, and its share of the step (mean of all ranks); for memory, of the capacity.

    kind: `memory`, `compute`, `bubble`, `idle`, or the axis whose communication is exposed. busy: the share in which a
    rank computes.
    """

    kind: str
    share: float
    busy: float

    @property
    def words(self) -> str:
        """What bounds the step, in words such as `communication of tp`."""
        if self.kind == "memory":
            return "memory"
        named = {"compute": "computing", "bubble": "the bubble", "idle": "waiting for ranks of the same stage"}
        return named.get(self.kind) or f"communication of {WORDS.get(self.kind, self.kind)}"


def ns_of_losses(times: StepTimes) -> tuple[int, Counter[str]]:
    """The ns in which ranks compute, and those that they lose, by `bubble`, `idle` or the axis whose communication is
    exposed. All are sums over the ranks.
    """
    busy, lost = 0, Counter[str]()
    for lane, columns, spent in zip(times.network.lanes, times.network.columns, times.lanes, strict=True):
        busy += spent.busy * lane.ranks
        lost["bubble"] += spent.bubble * lane.ranks
        lost["idle"] += spent.idle * lane.ranks
        # The time in which several axes communicate at once is divided among them.
        exposed = {axis: 0 for axis in columns.ops.axis if axis}
        for axis, ns in zip(columns.ops.axis, spent.ops.exposed.tolist(), strict=True):
            if axis:
                exposed[axis] += ns
        whole = max(sum(exposed.values()), 1)
        for axis, ns in exposed.items():
            lost[axis] += spent.exposed * ns * lane.ranks // whole
    return busy, lost


def bound_of(times: StepTimes, peak: int | None = None, room: int | None = None) -> Bound:
    """What bounds a step. peak: bytes of its fullest rank. room: bytes of an accelerator, if it has a limit."""
    busy, lost = ns_of_losses(times)
    total = max(times.step * len(times.network.workload.ranks), 1)
    computing = busy / total
    if peak is not None and room is not None and peak > room:
        return Bound("memory", peak / room, computing)
    kind, most = max(sorted(lost.items()), key=lambda each: each[1], default=("compute", 0))
    return Bound(kind, most / total, computing) if most / total >= LARGE else Bound("compute", computing, computing)
