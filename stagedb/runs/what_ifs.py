"""What a run would have taken if some of it were faster or slower, or if ops did not wait for something."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.collectives import ALL_GATHER
from stagedb.errors import UsageError
from stagedb.runs.clocks import MESSAGES
from stagedb.runs.dependencies import Floats, retimed
from stagedb.runs.stored_run import RunOpFacts, StoredRun
from stagedb.timing.whatif import Scaling

RUN_SELECTORS: Mapping[str, str] = {
    "compute": "what computes; of a kind, such as compute:matmul",
    "copy": "copies and fills of a device",
    "collective": f"collectives; of a group or a kind, such as collective:{ALL_GATHER.name}",
    "send": "messages from and to other ranks; of a group",
    "phase": "everything of a phase, such as phase:backward",
    "stage": "everything on a pipeline stage, such as stage:3",
    "rank": "everything on a rank, with its host, such as rank:2",
    "op": "ops of this name",
    "host": "what the host does between two ops or launches; of a rank, such as host:2",
}
"""The first word of a selector and what it chooses. `phase`, `stage`, `rank` and `op` need a value after the colon."""

_OWN_TYPES = {"compute": ("compute",), "copy": ("copy",), "collective": ("collective",), "send": MESSAGES}


@dataclass(frozen=True)
class RunWhatIf:
    """A run timed again. measured: its length; base: timed again as it was; step: with the changes; all in ns.

    gaps: ns by which it is shorter without the gaps that no dependency explains.
    """

    measured: int
    base: int
    step: int
    gaps: int


def what_if(run: StoredRun, scalings: Sequence[Scaling], without: Collection[str] = ()) -> RunWhatIf:
    """Time a run again. scalings: those that match an op are multiplied. without: kinds of dependencies to leave out.

    Raises UsageError for a scaling that chooses nothing, and for unknown kinds.
    """
    used: set[Scaling] = set()
    work = {rank: _factors(run, rank, scalings, used) for rank in run.timed}
    host = {rank: np.full(len(ops.start), _host_factor(rank, scalings, used)) for rank, ops in run.timed.items()}
    for each in scalings:
        if each not in used:
            raise UsageError(f"{each} chooses nothing in the run: {_there(run, each)}")
    gaps = {rank: np.zeros(len(ops.start)) for rank, ops in run.timed.items()}

    def again(
        work: Mapping[int, Floats] | None = None,
        host: Mapping[int, Floats] | None = None,
        gap: Mapping[int, Floats] | None = None,
        dropped: Collection[str] = (),
    ) -> int:
        found = retimed(run.timed, run.calls, run.dependencies, work, host, gap, dropped)
        return round(found.step)

    base = again()
    step = again(work, host, dropped=without) if scalings or without else base
    return RunWhatIf(run.step, base, step, base - again(gap=gaps))


def _factors(run: StoredRun, rank: int, scalings: Sequence[Scaling], used: set[Scaling]) -> Floats:
    lane = run.lane_of[rank]
    found = np.ones(len(lane.ops))
    for scaling in scalings:
        if scaling.what == "host":
            continue
        if scaling.what in ("rank", "stage"):
            here = np.full(len(found), int(scaling.which or 0) == (rank if scaling.what == "rank" else lane.stage))
        else:
            here = np.array([_is_chosen(scaling, op) for op in lane.ops], bool)
        if here.any():
            used.add(scaling)
        found[here] *= float(scaling.factor)
    return found


def _is_chosen(scaling: Scaling, op: RunOpFacts) -> bool:
    if scaling.what in ("phase", "op"):
        return scaling.which == (op.phase if scaling.what == "phase" else op.name)
    return op.type in _OWN_TYPES[scaling.what] and scaling.which in (None, op.kind, op.axis)


def _host_factor(rank: int, scalings: Sequence[Scaling], used: set[Scaling]) -> float:
    found = 1.0
    for scaling in scalings:
        if scaling.what in ("host", "rank") and scaling.which in (None, str(rank)):
            used.add(scaling)
            found *= float(scaling.factor)
    return found


def _there(run: StoredRun, scaling: Scaling) -> str:
    """What a selector could choose, in words."""
    ops = [op for lane in run.lanes for op in lane.ops]
    if scaling.what in ("rank", "host", "stage"):
        stages = {lane.stage for lane in run.lanes}
        words = {str(each) for each in (stages if scaling.what == "stage" else run.timed)}
    elif scaling.what in ("phase", "op"):
        words = {op.phase if scaling.what == "phase" else op.name for op in ops}
    else:
        chosen = [op for op in ops if op.type in _OWN_TYPES[scaling.what]]
        words = {word for op in chosen for word in (op.kind, op.axis) if word}
    shown = sorted(words)[:12]
    more = f" and {len(words) - len(shown)} more" if len(words) > len(shown) else ""
    return f"it has {', '.join(shown) or 'none'}{more}"
