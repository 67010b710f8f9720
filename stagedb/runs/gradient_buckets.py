"""Which gradients an all-reduce of a data-parallel backward has: a bucket of PyTorch's DDP, or of hooks like its own.

DDP reduces gradients in buckets (torch/csrc/distributed/c10d/reducer.cpp): autograd's node `AccumulateGrad` of a weight
runs when its gradient is complete, and the one that completes a bucket launches its all-reduce. Each weight is in one
bucket, and a bucket has only weights whose nodes ran before. So the weights of a bucket are those that became ready
since the bucket before, if their elements add up to its elements. If they do not, since weights that are ready belong
to a later bucket, the bucket has modules only if one choice of them alone adds up.

A node `AccumulateGrad` runs right after the node that made the gradient, as no other one has precedence over it
(torch/csrc/autograd/engine.cpp). So its weight is of the module whose forward that node differentiates.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, groupby
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stagedb.collectives import ALL_REDUCE
from stagedb.runs.module_paths import ENGINE, ModulePaths
from stagedb.runs.rank_spans import NestedSpans, RankSpans
from stagedb.runs.rank_trace import NONE, Places

ACCUMULATES = "torch::autograd::AccumulateGrad"
"""End of the names of autograd's node of a weight, and of the call that autograd's engine makes of it."""

REDUCER = "torch.distributed.ddp.reducer::"
"""Begin of the names of operators of DDP's reducer."""

_COPIES = "ddp.reducer::copy_bucket_to_grad"
_REDUCES = "c10d::allreduce_"

MOST_SUMS = 1 << 14
"""Different sums of weights that are tried to find the ones of a bucket; with more of them it has no modules."""

UNKNOWN_BUCKET = -2
"""Place of a bucket whose modules are not known, or that has no gradients."""

Weight = tuple[str, int]
"""A module and the elements of one of its weights."""

Bucket = tuple[Weight, ...]
"""Modules with the elements of their gradients, in the order in which these became ready."""

Chosen = npt.NDArray[np.bool_]
"""Which of some operators."""


def elements_of(shapes: str) -> int | None:
    """Elements of the first tensor of an operator's inputs, or of the first one of a list of tensors.

    shapes: as `input_shapes` writes them. None if they are not known.
    """
    try:
        first: Any = msgspec.json.decode(shapes)[0]
    except (msgspec.DecodeError, IndexError):
        return None
    while first and isinstance(first[0], list):
        first = first[0]
    size: int = prod(first)
    return size


def buckets_of(events: Sequence[Weight | int]) -> list[Bucket | None]:
    """The weights of the buckets of one backward.

    events: in the order of time weights that became ready, and for each bucket that was reduced the number of its
    elements. Returns a bucket for each number; None: no choice of weights, or more than one, has as many elements. A
    bucket without weights reduces no gradients, as all before it were reduced.
    """
    found: list[Bucket | None] = []
    ready: list[Weight] = []
    lost = 0
    launching = False
    for event in events:
        if not isinstance(event, int):
            ready.append(event)
            launching = True
            continue
        if not ready:
            # Such as the map of the weights that a step used, which DDP reduces with `find_unused_parameters`.
            found.append(())
            continue
        # A weight right before completes the bucket. One that was ready earlier may follow at once.
        chosen = None if lost else _chosen(ready, event, int(launching))
        launching = False
        found.append(None if chosen is None else tuple(chosen))
        if chosen is None:
            lost += event
        left = Counter(ready) - Counter(chosen or ())
        # Several buckets without modules have all weights before them together, and the next one starts anew.
        ready, lost = ([], 0) if lost == _size(ready) else ([each for each in ready if _take(left, each)], lost)
    return found


def _size(weights: Sequence[Weight]) -> int:
    return sum(elements for _, elements in weights)


def _take(left: Counter[Weight], weight: Weight) -> bool:
    """Take a weight of those that are left; False if none is."""
    if not left[weight]:
        return False
    left[weight] -= 1
    return True


def _chosen(ready: Sequence[Weight], elements: int, last: int) -> list[Weight] | None:
    """Those of some weights that have as many elements, if that is one choice alone. last: how many of the last ones
    are surely among them."""
    rest = _size(ready) - elements
    if not elements or rest < 0:
        return None
    left = _only_choice(Counter(ready[: len(ready) - last]), rest)
    return None if left is None else [each for each in ready if not _take(left, each)]


def _only_choice(weights: Mapping[Weight, int], elements: int) -> Counter[Weight] | None:
    """The weights that have so many elements; None if none have, several choices have, or there are too many sums."""
    sums: dict[int, Counter[Weight] | None] = {0: Counter()}
    for weight, count in weights.items():
        if not weight[1]:
            continue
        for before, choice in [*sums.items()]:
            for taken in range(1, count + 1):
                after = before + taken * weight[1]
                if after > elements:
                    break
                several = after in sums or choice is None
                sums[after] = None if several or choice is None else choice + Counter({weight: taken})
        if len(sums) > MOST_SUMS:
            return None
    return sums.get(elements)


@dataclass
class ReducedGradients:
    """What is known of the gradients of a rank.

    module: for each operator of the host the place of the path of the module whose gradient it accumulates or copies,
    or `NONE`. bucket: for each operator that reduces something meanwhile a place in `buckets`, or `UNKNOWN_BUCKET`, and
    for others `NONE`. unknown: how many reduced gradients of modules that do not follow from their sizes.
    """

    module: Places
    bucket: Places
    buckets: list[Bucket] = field(default_factory=list)
    unknown: int = 0


@dataclass
class _Backward:
    """What one thread does in one backward, as places of operators by start."""

    nodes: list[int] = field(default_factory=list)
    reduces: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class GradientBuckets:
    """The gradients of a rank's weights, and how they are reduced.

    rank: its spans. host: its operators. modules: those around its operators.
    """

    rank: RankSpans
    host: NestedSpans
    modules: ModulePaths

    def found(self) -> ReducedGradients:
        """The modules of gradients, and of the buckets in which they are reduced."""
        none = np.full(len(self.host.start), NONE, np.int32)
        found = ReducedGradients(none, none.copy())
        if not len(self.rank.modules) or not len(self._nodes):
            return found
        found.module[self._nodes] = self.modules.of_calls(self._producers)
        for backward in self._backwards():
            self._add(found, backward)
        return found

    def _named(self, which: list[bool]) -> Chosen:
        found: Chosen = np.array(which or [False])[self.rank.host.column("name")]
        return found

    @cached_property
    def _names(self) -> list[str]:
        return list(self.rank.table)

    @cached_property
    def _nodes(self) -> Places:
        """Calls of the nodes of weights."""
        wanted = [name.startswith(ENGINE) and name.endswith(ACCUMULATES) for name in self._names]
        return np.flatnonzero(self._named(wanted)).astype(np.int32)

    @cached_property
    def _producers(self) -> Places:
        """For each node of a weight the module of the node that ran before it on its thread, as a place of its call."""
        sequence, thread = self.rank.host.column("sequence"), self.host.thread
        makes = self._named([name.startswith(ENGINE) and not name.endswith(ACCUMULATES) for name in self._names])
        makers = np.flatnonzero(makes & (sequence != NONE))
        found = np.full(len(self._nodes), NONE, np.int32)
        for each in np.unique(thread[self._nodes]).tolist():
            mine = makers[thread[makers] == each]
            mine = mine[np.argsort(self.host.start[mine], kind="stable")]
            here = np.flatnonzero(thread[self._nodes] == each)
            last = np.searchsorted(self.host.start[mine], self.host.start[self._nodes[here]]) - 1
            known = last >= 0
            found[here[known]] = self.modules.of_operators(mine[last[known]])
        return found

    @cached_property
    def _elements(self) -> dict[int, int]:
        """Elements of the gradients of nodes, those that were recorded."""
        texts = list(self.rank.shapes)
        calls = np.flatnonzero(self._named([name.endswith(ACCUMULATES) for name in self._names]))
        shapes, above = self.rank.host.column("shapes"), self.host.above
        found = {}
        for call in calls.tolist():
            size = elements_of(texts[shapes[call]]) if shapes[call] != NONE else None
            if size is not None:
                found[int(above[call]) if above[call] != NONE else call] = size
        return found

    @cached_property
    def _reduces(self) -> Places:
        """Outermost operators that reduce something while the node of a weight runs."""
        collective = self.rank.host.column("collective")
        kinds = np.array([each.kind == ALL_REDUCE.name for each in self.rank.numbers] or [False])
        wanted = self._named([name == _REDUCES for name in self._names])
        wanted |= (collective != NONE) & kinds[collective]
        there = np.flatnonzero(wanted).astype(np.int32)
        there = there[self.host.inherited(self._only(there), self.host.above[there]) == NONE]
        found: Places = there[self.host.inherited(self._only(self._nodes), there) != NONE]
        return found

    def _only(self, places: Places) -> Places:
        """For each operator its own place if this is one of some, else `NONE`."""
        found = np.full(len(self.host.start), NONE, np.int32)
        found[places] = places
        return found

    @cached_property
    def _reduced(self) -> dict[int, int]:
        """Elements that operators reduce, those that were recorded."""
        texts, numbers = list(self.rank.shapes), list(self.rank.numbers)
        shapes, collective = self.rank.host.column("shapes"), self.rank.host.column("collective")
        inside = np.flatnonzero(collective != NONE).astype(np.int32)
        outer = self.host.inherited(self._only(self._reduces), inside)
        found = {}
        for place, at in zip(inside.tolist(), outer.tolist(), strict=True):
            if at != NONE and (sent := numbers[collective[place]].sent) is not None:
                found[at] = sent
        for at in self._reduces.tolist():
            size = elements_of(texts[shapes[at]]) if shapes[at] != NONE else None
            if size is not None:
                found.setdefault(at, size)
        return found

    def _backwards(self) -> Iterator[_Backward]:
        """The backwards: what a thread does between two calls of a model."""
        spans = self.modules.spans
        outermost = np.flatnonzero(spans.above == NONE)
        around = self.host.around(spans.start[outermost], spans.thread[outermost])
        inside = np.where(around == NONE, False, self.modules.inside_autograd[around])
        begins = np.sort(spans.start[outermost[~inside]])
        copies = np.flatnonzero(self._named([_COPIES in name for name in self._names]))
        kinds = (self._nodes, self._reduces, copies)
        places = np.concatenate(kinds).astype(np.int64)
        kind = np.repeat(np.arange(len(kinds)), [len(each) for each in kinds])
        start, thread = self.host.start[places], self.host.thread[places]
        number = np.searchsorted(begins, start, side="right")
        order = np.lexsort((start, number, thread))
        rows = zip(*(each[order].tolist() for each in (thread, number, kind, places)), strict=True)
        for _, group in groupby(rows, key=lambda row: row[:2]):
            backward = _Backward()
            lists = backward.nodes, backward.reduces, backward.copies
            for _, _, which, place in group:
                lists[which].append(place)
            yield backward

    def _add(self, found: ReducedGradients, backward: _Backward) -> None:
        """Add what follows from the sizes of one backward."""
        if not backward.reduces:
            return
        buckets = self._buckets(found, backward)
        for place, bucket in zip(backward.reduces, buckets, strict=True):
            found.unknown += bucket is None
            found.bucket[place] = len(found.buckets) if bucket else UNKNOWN_BUCKET
            found.buckets += [bucket] if bucket else []
        self._add_copies(found, backward, buckets)

    def _buckets(self, found: ReducedGradients, backward: _Backward) -> list[Bucket | None]:
        """The buckets that a backward reduces; None: not known.

        DDP does something with each of its gradients, and nothing with those of the inputs of a checkpoint. It does
        nothing either with gradients that are views of their buckets, where a hook divides them.
        """
        hooked = self._hooked[backward.nodes]
        buckets: list[Bucket | None] = [None] * len(backward.reduces)
        for nodes in (backward.nodes, [*compress(backward.nodes, hooked)]):
            events = self._events(found, nodes, backward.reduces)
            buckets = buckets if events is None else buckets_of(events)
            if None not in buckets:
                break
        return buckets

    @cached_property
    def _hooked(self) -> Chosen:
        """Which operators call others than that of a node of a weight."""
        above = self.host.above
        others = ~self._named([name.endswith(ACCUMULATES) for name in self._names]) & (above != NONE)
        found = np.zeros(len(above), np.bool_)
        found[above[others]] = True
        return found

    def _events(self, found: ReducedGradients, nodes: list[int], reduces: list[int]) -> list[Weight | int] | None:
        """Weights and buckets in the order of time; None if a size or a module is not known."""
        paths, start = list(self.rank.paths), self.host.start
        events: list[tuple[int, Weight | int]] = []
        for place in nodes:
            module, size = int(found.module[place]), self._elements.get(place)
            if module == NONE or size is None:
                return None
            events.append((int(start[place]), (paths[module], size)))
        for place in reduces:
            if place not in self._reduced:
                return None
            events.append((int(start[place]), self._reduced[place]))
        return [event for _, event in sorted(events, key=lambda each: each[0])]

    def _add_copies(self, found: ReducedGradients, backward: _Backward, buckets: Sequence[Bucket | None]) -> None:
        """Add the modules of gradients that are copied out of their buckets, if all copies are as the buckets are."""
        if None in buckets:
            return
        texts, shapes = list(self.rank.shapes), self.rank.host.column("shapes")
        sizes = [elements_of(texts[shapes[at]]) if shapes[at] != NONE else None for at in backward.copies]
        weights = [weight for bucket in buckets for weight in bucket or ()]
        if sizes == [elements for _, elements in weights]:
            found.module[backward.copies] = [self.rank.paths[path] for path, _ in weights]
