"""Modules of PyTorch around the launches of a rank, as profiles recorded with Python's calls have them (`with_stack`).

A forward is inside the calls of its modules. A backward is not: autograd's nodes have the sequence number of the
forward operator that they differentiate, and what they launch is of its module. Kernels that were launched before the
recording began are the end of the step before, and are compared with the end of the recorded one.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.runs.alignment import align
from stagedb.runs.nested_spans import NestedSpans
from stagedb.runs.rank_spans import Numbering, RankSpans
from stagedb.runs.rank_trace import NONE, Integers, Places

PREFIX = "nn.Module: "
"""Begin of the names of calls of modules; after it comes the class, with a number."""

ENGINE = "autograd::engine::evaluate_function"
"""Begin of the names of what autograd runs: its nodes."""

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
        found[left] = self.of_sequences(sequence)
        return self.of_calls(found)

    def of_calls(self, calls: Places) -> Places:
        """The places of the paths of modules. calls: places of calls of modules, or `NONE`, which remains."""
        places = np.full(len(calls), NONE, np.int32)
        known = calls != NONE
        places[known] = self._paths[calls[known]]
        return places

    def of_sequences(self, wanted: Integers) -> Places:
        """The modules whose forward operators have some sequence numbers, as places of their calls, or `NONE`.

        wanted: the numbers.
        """
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
"""Ops are those of the end of a step if this share of them is there in the same order."""


def of_step_before(ops: "Mapping[str, npt.NDArray[Any]]", computing: Places, communicating: Places) -> Places:
    """For ops launched before the recording began those of the recorded steps that they repeat, or `NONE`.

    Such ops are the end of the step before the first recorded one. On each stream they are aligned by name with as many
    of the last ops, and repeat them if a share of `ALIKE` is in the same order. Collectives have few names: all of them
    have to be in the same order, and what computes has to be the end of a recorded step.

    ops: columns of the ops, by start; `name`, `stream` and `launched` (ns; `NONE` if unknown) are read. computing,
    communicating: places of what computes or copies, and of collectives. Returns a column of places.
    """
    found = np.full(len(ops["name"]), NONE, np.int32)
    for chosen, least in ((computing, ALIKE), (communicating, 1.0)):
        if least == 1.0 and not (found != NONE).any():
            break
        for each in np.unique(ops["stream"][chosen]).tolist():
            mine = chosen[ops["stream"][chosen] == each]
            known = ops["launched"][mine] != NONE
            before = mine[: int(np.argmax(known)) if known.any() else 0]
            last = mine[len(before) :][-len(before) :] if len(before) else mine[:0]
            pairs = align(ops["name"][before].tolist(), ops["name"][last].tolist()).pairs
            if len(before) and len(pairs) >= least * len(before):
                left, right = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
                found[before[left]] = last[right]
    return found


def inner_module(paths: Sequence[str]) -> str:
    """The path of the innermost module that contains all of some; empty: none does. paths: of modules, one at least."""
    split = [each.split("/") for each in paths]
    common = 0
    while all(len(each) > common and each[common] == split[0][common] for each in split):
        common += 1
    return "/".join(split[0][:common])
