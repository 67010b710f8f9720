"""What a step would gain if some of it were faster or slower: durations scaled by selectors such as `stage:3=1.2`."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from stagedb.collectives import ALL_GATHER
from stagedb.errors import UsageError
from stagedb.files import did_you_mean, nearest, shown
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, SEND, ClassColumns, Ints
from stagedb.timing.lanes import Lane
from stagedb.timing.node_graph import NodeGraph
from stagedb.timing.op_durations import whole_ns

SELECTORS: Mapping[str, str] = {
    "compute": "what computes; of a kind, such as compute:matmul",
    "collective": f"collectives; of an axis or a kind, such as collective:tp or collective:{ALL_GATHER.name}",
    "send": "messages between stages and around rings; of an axis, such as send:pp",
    "phase": "everything of a phase, such as phase:backward",
    "stage": "everything on a pipeline stage, such as stage:3",
    "class": "everything of a rank class, such as class:0",
    "op": "ops of this name, such as op:layer.0.attn.core",
}
"""The first word of a selector and what it chooses. The last four need a value after the colon."""

_TYPES = {"compute": COMPUTE, "collective": COLLECTIVE, "send": SEND}
_NAMED = ("phase", "stage", "class", "op", "rank")
"""Words that choose nothing without a value."""

_NUMBERED = ("stage", "class", "rank")
_FORM = re.compile(
    r"(?P<what>[a-z]+)(?::(?P<which>[^=]+))?=(?P<factor>[0-9]{1,6}(?:\.[0-9]{1,9})?|[0-9]{1,9}/[0-9]{1,9})"
)


@dataclass(frozen=True)
class Scaling:
    """The chosen ops take `factor` times as long. `what`: a word of `SELECTORS`; `which`: its value, or all."""

    what: str
    which: str | None
    factor: Fraction

    @classmethod
    def parse(cls, text: str, selectors: Collection[str] = tuple(SELECTORS)) -> "Scaling":
        """Parse `WHAT[:WHICH]=FACTOR`. FACTOR is a decimal such as 0.5, or a quotient such as 2/3. 0 makes ops free.

        selectors: the words that WHAT may be.

        text: the what-if. Raises UsageError, with the known words, for anything else.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"{shown(text)} is no what-if: write WHAT[:WHICH]=FACTOR, such as collective:tp=0.5, with one of "
                f"{', '.join(selectors)} and a factor of 0 or more"
            )
        what, which = match["what"], match["which"]
        if what not in selectors:
            meant = did_you_mean(what, selectors, "{}")
            hint = meant or f"an axis or a kind goes behind one, as in collective:{what}"
            raise UsageError(f"{shown(text)} chooses by {shown(what)}; known are {', '.join(selectors)}: {hint}")
        if which is None and what in _NAMED:
            raise UsageError(f"{shown(text)} does not name the {what}: write {what}:WHICH=FACTOR")
        if what in _NUMBERED and not (which or "").isdigit():
            raise UsageError(f"{shown(text)}: a {what} is a number, not {shown(which)}")
        try:
            return cls(what, which, Fraction(match["factor"]))
        except ZeroDivisionError:
            raise UsageError(f"{shown(text)} divides by zero") from None

    def __str__(self) -> str:
        which = "" if self.which is None else f":{self.which}"
        return f"{self.what}{which}={float(self.factor):g}"

    def chosen(self, lane: Lane, columns: ClassColumns) -> npt.NDArray[np.bool_]:
        """For each op of a lane's class whether it is scaled there."""
        ops = columns.ops
        if self.what in ("stage", "class"):
            on_lane = int(self.which or 0) == (lane.stage if self.what == "stage" else lane.rank_class)
            return np.full(len(ops), on_lane)
        if self.what in ("phase", "op"):
            return np.array([each == self.which for each in (ops.phase if self.what == "phase" else ops.name)], bool)
        chosen_ops: npt.NDArray[np.bool_] = ops.type == _TYPES[self.what]
        if self.which is not None:
            chosen_ops = chosen_ops & np.array(
                [self.which in pair for pair in zip(ops.kind, ops.axis, strict=True)], bool
            )
        return chosen_ops


def scaled(network: NodeGraph, durations: Sequence[Ints], scalings: Sequence[Scaling]) -> list[Ints]:
    """For each lane the durations of its class's ops [ns], scaled by all matching scalings, to the nearest ns."""
    used: set[Scaling] = set()
    scaled_lanes = []
    for lane, columns, took in zip(network.lanes, network.columns, durations, strict=True):
        factors = [Fraction(1)] * len(columns.ops)
        for scaling in scalings:
            for op in np.flatnonzero(scaling.chosen(lane, columns)).tolist():
                factors[op] *= scaling.factor
                used.add(scaling)
        scaled_lanes.append(whole_ns([round(ns * by) for ns, by in zip(took.tolist(), factors, strict=True)], columns))
    for scaling in scalings:
        if scaling not in used:
            raise UsageError(f"{scaling} chooses nothing: there is {_there(network, scaling)}")
    return scaled_lanes


def _there(network: NodeGraph, scaling: Scaling) -> str:
    """The choices of a selector in a network: those near its word, or the first ones."""
    what = scaling.what
    if what in ("stage", "class"):
        numbers = {lane.stage if what == "stage" else lane.rank_class for lane in network.lanes}
        return f"{what} {', '.join(map(str, sorted(numbers)))}"
    words: set[str] = set()
    for columns in network.columns:
        ops = columns.ops
        if what in ("phase", "op"):
            words.update(ops.phase if what == "phase" else ops.name)
        else:
            rows = np.flatnonzero(ops.type == _TYPES[what]).tolist()
            words.update(ops.kind[row] for row in rows)
            words.update(ops.axis[row] for row in rows if ops.axis[row])
    near = nearest(scaling.which or "", words, 4)
    few = near or sorted(words)[:12]
    more = f" and {len(words) - len(few)} more" if len(words) > len(few) else ""
    return f"{what}: {', '.join(few)}{more}" if few else f"no {what}"
