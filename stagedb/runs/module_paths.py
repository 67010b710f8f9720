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
from stagedb.runs.rank_spans import NestedSpans, Numbering, RankSpans
from stagedb.runs.rank_trace import NONE, Integers, Places

PREFIX = "nn.Module: "
"""Begin of the names of calls of modules; after it comes the class, with a number."""

ENGINE = "autograd::engine::evaluate_function"
"""Begin of the names of what autograd runs: its nodes."""

LONGEST_PATH = 500


_CHECKPOINT = "CheckpointFunctionBackward"
"""The node of a checkpoint whose backward runs inside it (`use_reentrant=True`), after the forward that it repeats."""


class ModulePaths:
    """Modules of a rank's launches. host: its operators."""

    def __init__(self, rank: RankSpans, host: NestedSpans) -> None:
        self.rank, self.host = rank, host
        self.spans = NestedSpans(*(rank.modules.column(name) for name in ("start", "end", "place")))

    def around(self, moments: Integers, threads: Places, operators: Places) -> Places:
        """For each launch the place of its module's path in the rank's `paths`, or `NONE`.

        moments, threads: when and where it was. operators: places of the innermost operators around them.
        """
        if not len(self.spans.start):
            return np.full(len(moments), NONE, np.int32)
        found = self.spans.around(moments, threads)
        left = np.flatnonzero((found == NONE) & (operators != NONE))
        found[left] = self.of_operators(operators[left])
        return self.of_calls(found)

    def of_calls(self, calls: Places) -> Places:
        """The places of the paths of modules. calls: places of calls of modules, or `NONE`, which remains."""
        places = np.full(len(calls), NONE, np.int32)
        known = calls != NONE
        places[known] = self._paths[calls[known]]
        return places

    def of_operators(self, operators: Places) -> Places:
        """The modules whose forward operators some operators differentiate, as places of their calls, or `NONE`.

        operators: places of autograd's nodes, or of what they call.
        """
        none = np.full(len(operators), NONE, np.int32)
        numbers, forward = self.rank.host.column("sequence"), self._forward
        if not len(forward):
            return none
        numbered = np.where(numbers != NONE, np.arange(len(numbers)), NONE)
        wanted = self.host.inherited(numbered.astype(np.int32), operators)
        there = np.flatnonzero(wanted != NONE)
        # A node and the call in it have one number: inside a checkpoint only the node is of the graph around that.
        wanted[there] = np.where(self._repeats_above[wanted[there]], self.host.above[wanted[there]], wanted[there])
        both = np.concatenate((forward, wanted[there]))
        number = np.unique(numbers[both], return_inverse=True)[1].astype(np.int64)
        keys = (self._checkpoint[both].astype(np.int64) + 1) * (len(both) + 1) + number
        known, asked = keys[: len(forward)], keys[len(forward) :]
        # Several operators may have one sequence number: the last is the one that autograd recorded, and those before
        # it only read the counter.
        order = np.lexsort((self.host.start[forward], known))
        last = order[np.flatnonzero(np.diff(known[order], append=NONE))]
        modules = self.spans.around(self.host.start[forward[last]], self.host.thread[forward[last]])
        at = np.minimum(np.searchsorted(known[last], asked), len(last) - 1)
        none[there] = np.where(known[last][at] == asked, modules[at], NONE)
        return none

    def _of_names(self, which: "list[bool]") -> "npt.NDArray[np.bool_]":
        found: npt.NDArray[np.bool_] = np.array(which or [False])[self.rank.host.column("name")]
        return found

    @cached_property
    def _nodes(self) -> "npt.NDArray[np.bool_]":
        return self._of_names([name.startswith(ENGINE) for name in self.rank.table])

    @cached_property
    def inside_autograd(self) -> "npt.NDArray[np.bool_]":
        """Which operators autograd calls: those inside the span of one of its nodes, and the nodes."""
        own = np.where(self._nodes, 1, NONE).astype(np.int8)
        found: npt.NDArray[np.bool_] = self.host.inherited(own, np.arange(len(self.host.start))) != NONE
        return found

    @cached_property
    def _repeats_above(self) -> "npt.NDArray[np.bool_]":
        """Which operators are the calls of the nodes around them, and have their numbers."""
        numbers, above = self.rank.host.column("sequence"), self.host.above
        found: npt.NDArray[np.bool_] = (above != NONE) & self._nodes[above] & (numbers[above] == numbers)
        return found

    @cached_property
    def _checkpoint(self) -> Places:
        """For each operator the node of the checkpoint around it, whose graph has numbers of its own, or `NONE`."""
        checkpoints = self._nodes & self._of_names([_CHECKPOINT in name for name in self.rank.table])
        places = np.arange(len(self.host.start), dtype=np.int32)
        return self.host.inherited(np.where(checkpoints, places, np.int32(NONE)), self.host.above)

    @cached_property
    def _forward(self) -> Places:
        """Operators that autograd may differentiate: it calls none of them, but in the forward of a checkpoint."""
        places = np.arange(len(self.host.start), dtype=np.int32)
        node = self.host.inherited(np.where(self._nodes, places, np.int32(NONE)), places)
        free = (node == self._checkpoint) & ~self._repeats_above
        return np.flatnonzero((self.rank.host.column("sequence") != NONE) & free)

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
