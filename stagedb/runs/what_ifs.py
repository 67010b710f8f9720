"""What a run would have taken if some of it were faster or slower, or if ops did not wait for something."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.collectives import ALL_GATHER
from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
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

HELD = 1e-3
"""The share of a run below which changes make next to no difference."""

_LAUNCHES = "host"
"""The kind of dependency on launches of the host."""

_NUMBERED = ("rank", "host", "stage")
"""Selectors with a number behind the colon."""

_OWN_TYPES = {"compute": ("compute",), "copy": ("copy",), "collective": ("collective",), "send": MESSAGES}


@dataclass(frozen=True)
class RunWhatIf:
    """A run timed again. measured: its length; base: timed again as it was; step: with the changes; all in ns.

    gaps: ns by which it is shorter without the gaps that no dependency explains. held: the changes make next to no
    difference, since the host launches each op when it did: without its launches they would. launching: ns by which
    they would make it shorter in addition without its launches; 0: less than a difference that counts.
    """

    measured: int
    base: int
    step: int
    gaps: int
    held: bool = False
    launching: int = 0


_FORM = re.compile(r"[^:=]+(:[^=]+)?=[0-9]+(\.[0-9]+|/[0-9]+)?")
"""What looks like a scaling."""


def scaling_of(text: str, run: StoredRun) -> Scaling:
    """The scaling that a text names for a run. text: `WHAT[:WHICH]=FACTOR`.

    Raises UsageError, with an example that the run has.
    """
    text = text.strip()
    head, _, factor = text.partition("=")
    what = head.partition(":")[0]
    known = ", ".join(RUN_SELECTORS)
    if _FORM.fullmatch(text) is None:
        raise UsageError(
            f"{shown(text)} is no what-if: write WHAT[:WHICH]=FACTOR, such as {_example(run)}, with one of {known} "
            "and a factor of 0 or more"
        )
    if what not in RUN_SELECTORS:
        way = next((f"write {each}:{what}={factor}" for each in _choosing(run, what)), None)
        hint = way or did_you_mean(what, RUN_SELECTORS, "{}") or f"write for example {_example(run)}"
        raise UsageError(f"{shown(text)} chooses by {shown(what)}, and it must be one of {known}: {hint}")
    return Scaling.parse(text, tuple(RUN_SELECTORS))


def _example(run: StoredRun) -> str:
    """A scaling that chooses something in the run."""
    for what in ("collective", "compute"):
        words = _words(run, what)
        if words:
            return f"{what}:{words[0]}=0.5"
    return "host=0.5"


def _choosing(run: StoredRun, word: str) -> Iterator[str]:
    """The selectors under which a run has a word."""
    return (what for what in (*_OWN_TYPES, "phase", "op") if word in _words(run, what))


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
    held, launching = False, 0
    if scalings and _LAUNCHES not in without:
        free = {*without, _LAUNCHES}
        saved = again(dropped=free) - again(work, host, dropped=free)
        held = abs(step - base) <= HELD * base and abs(saved) > HELD * base
        launching = more if (more := saved - max(base - step, 0)) > HELD * base else 0
    return RunWhatIf(run.step, base, step, base - again(gap=gaps), held, launching)


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
    words = _words(run, scaling.what)
    first = words[:12]
    more = f" and {len(words) - len(first)} more" if len(words) > len(first) else ""
    numbers = f"{scaling.what} " if scaling.what in _NUMBERED else ""
    return f"it has {numbers}{', '.join(first) or 'none'}{more}"


def _words(run: StoredRun, what: str) -> list[str]:
    """What may be behind the colon of a selector in a run, sorted."""
    ops = [op for lane in run.lanes for op in lane.ops]
    if what in _NUMBERED:
        numbers = {lane.stage for lane in run.lanes} if what == "stage" else {*run.timed}
        return [str(each) for each in sorted(numbers)]
    if what in ("phase", "op"):
        return sorted({op.phase if what == "phase" else op.name for op in ops})
    chosen = [op for op in ops if op.type in _OWN_TYPES[what]]
    return sorted({word for op in chosen for word in (op.kind, op.axis) if word})
