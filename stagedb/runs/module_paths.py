"""Modules of PyTorch around the launches of a rank, as profiles recorded with Python's calls have them (`with_stack`).

A forward is inside the calls of its modules. A backward is not: autograd's nodes have the sequence number of the
forward operator that they differentiate, and what they launch is of its module. Kernels that were launched before the
recording began are the end of the step before, and are compared with the end of the recorded one.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from stagedb.runs.alignment import align
from stagedb.runs.nested_spans import NestedSpans
from stagedb.runs.rank_spans import Numbering, RankSpans
from stagedb.runs.rank_trace import NONE, Integers, Places

PREFIX = "nn.Module: "
"""Begin of the names of calls of modules; after it comes the class, with a number."""

LONGEST_PATH = 500


class ModulePaths:
    """Modules of a rank's launches. host: its operators. inside_autograd: which of them autograd calls."""

    def __init__(self, rank: RankSpans, host: NestedSpans, inside_autograd: "npt.NDArray[np.bool_]") -> None:
        self.rank, self.host, self.inside_autograd = rank, host, inside_autograd
        self.spans = NestedSpans(*(rank.modules.column(name) for name in ("start", "end", "place")))

    def around(self, moments: Integers, threads: Places, operators: Places) -> Places:
        """For each launch the place of its module's path in the rank's `paths`, or `NONE`.

        moments, threads: when and where it was. operators: places of the innermost operators around them.
        """
        if not len(self.spans.start):
            return np.full(len(moments), NONE, np.int32)
        found = self.spans.around(moments, threads)
        left = np.flatnonzero((found == NONE) & (operators != NONE))
        sequence = self.host.inherited(self.rank.host.column("sequence"), operators[left])
        found[left] = self._of_sequences(sequence)
        places = np.full(len(found), NONE, np.int32)
        known = found != NONE
        places[known] = self._paths[found[known]]
        return places

    def _of_sequences(self, wanted: Integers) -> Places:
        """The modules of the forward operators with some sequence numbers."""
        numbers = self.rank.host.column("sequence")
        forward = np.flatnonzero((numbers != NONE) & ~self.inside_autograd)
        # Several operators may have one sequence number: the last is the one that autograd recorded, and those before
        # it only read the counter.
        forward = forward[np.lexsort((self.rank.host.column("start")[forward], numbers[forward]))]
        last = np.flatnonzero(np.diff(numbers[forward], append=NONE))
        forward = forward[last]
        modules = self.spans.around(self.rank.host.column("start")[forward], self.rank.host.column("place")[forward])
        if not len(forward):
            return np.full(len(wanted), NONE, np.int32)
        at = np.minimum(np.searchsorted(numbers[forward], wanted), len(forward) - 1)
        return np.where((numbers[forward][at] == wanted) & (wanted != NONE), modules[at], NONE).astype(np.int32)

    @cached_property
    def _paths(self) -> Places:
        """For each call of a module the place of its path."""
        paths: Numbering[str] = self.rank.paths
        names = [*self.rank.table]
        texts: dict[int, str] = {}
        above, name = self.spans.above.tolist(), self.rank.modules.column("name").tolist()
        for place in self.spans.order.tolist():
            own = names[name[place]].removeprefix(PREFIX)
            outer = texts.get(above[place])
            texts[place] = (own if outer is None else f"{outer}/{own}")[-LONGEST_PATH:]
        return np.array([paths[texts[place]] for place in range(len(name))], np.int32)


ALIKE = 0.9
"""Kernels are those of the end of a step if this share of them is there in the same order."""


def of_step_before(name: Places, stream: Places, launched: Integers, module: Places, chosen: Places) -> Places:
    """The modules of ops, with those of kernels launched before the recording began, which its last kernels show.

    Such kernels are the end of the step before the first recorded one. On each stream they are aligned by name with as
    many of the last kernels, and get their modules if a share of `ALIKE` is in the same order. name, stream, launched
    (ns; `NONE` if unknown), module: columns of the ops, by start. chosen: places of kernels that compute. Returns the
    column `module`; modules that stay unknown are `NONE`.
    """
    found = module.copy()
    for each in np.unique(stream[chosen]).tolist():
        mine = chosen[stream[chosen] == each]
        before = mine[: int(np.argmax(launched[mine] != NONE)) if (launched[mine] != NONE).any() else 0]
        last = mine[len(before) :][-len(before) :] if len(before) else mine[:0]
        pairs = align(name[before].tolist(), name[last].tolist()).pairs
        if len(before) and len(pairs) >= ALIKE * len(before):
            ours, theirs = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
            found[before[ours]] = module[last[theirs]]
    return found
