"""The degrees of parallelism of a job, from what its ranks communicate: with whom, how often, and when in the step.

Nothing else is known of the plan. Messages lead from stage to stage of a pipeline, or around a ring of context
parallelism. Which axis a group is on follows from what is called on it:

- Tensor parallelism reduces after every part of a layer, from the begin of the step on.
- Gradients are reduced once most of a micro-batch is computed, and parameters are gathered from its begin on. Their
  ranks are those of dp, and of cp. An all-reduce whose modules are known reduces gradients at any time.
- Keys and values are gathered in a layer's attention, at first two tensors at once, or exchanged two at once.
- Tokens are sent to their experts one call at a time.

What is left of the ranks is dp.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from stagedb.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from stagedb.runs.clocks import MESSAGES

SEND = MESSAGES[0]
REDUCING = (ALL_REDUCE.name, REDUCE_SCATTER.name)

EARLY = 0.25
"""Before this share of a step is computed, no gradient is reduced: the forward is a third of a micro-batch."""

SPREAD = 0.9
"""Calls of tp are spread over the step: before the first one comes at most this share of their mean distance."""

TOGETHER = 0.1
"""Ranks of a ring begin to send within this share of the usual time between what a rank sends."""

AT_ONCE = 0.2
"""Calls are made at once if less than this share of what is usual is computed between them."""


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A collective or message of a rank. group: ranks, ascending; of a message this rank and its peer. size: bytes.

    done: the share of the rank's computing that is before it. start: in ns from the begin of the run. gradients:
    whether it is known to reduce gradients of modules.
    """

    kind: str
    group: tuple[int, ...]
    size: int
    done: float
    start: int
    gradients: bool = False


@dataclass(frozen=True)
class FoundDegrees:
    """Degrees of parallelism. axes: by shape of a group (ranks, and their distance) the axis that it is on.

    ties: what stays open, as sentences.
    """

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    axes: Mapping["Shape", str] = field(default_factory=dict)
    ties: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(f"{axis} {getattr(self, axis)}" for axis in ("tp", "pp", "dp", "cp", "ep"))


Shape = tuple[int, int]
"""How many ranks a group has, and how far apart its first two are."""

Pair = tuple[int, int]
"""Two ranks that send each other messages, ascending."""

Calls = Mapping[int, Sequence[GroupCall]]
"""By rank, in the order of issue."""


def degrees_of(calls: Calls, world: int) -> FoundDegrees:
    """The degrees of parallelism of a job of `world` ranks. calls: what some or all of its ranks communicate."""
    stages, rings = _messages(calls)
    pp, ring = _largest(stages, world), _largest(rings, world)
    stage_of = _connected(stages, world)
    first_sent = _first_sent(calls, stages, stage_of)
    families = _families(calls)
    axes: dict[Shape, str] = {}
    with_experts: set[Shape] = set()
    ties: list[str] = []
    for shape, family in families.items():
        if any(len({stage_of[rank] for rank in group}) < len(group) for group in family.groups):
            axes[shape] = "embedding"
            continue
        axes[shape] = _axis(family, first_sent)
        if (axes[shape] == "cp" and family.sends_tokens) or (
            axes[shape] == "heads" and family.exchanges_more_than_heads
        ):
            with_experts.add(shape)

    def ranks_on(*names: str) -> int:
        groups = [group for shape, family in families.items() if axes[shape] in names for group in family.groups]
        return _largest([(group[0], rank) for group in groups for rank in group[1:]], world)

    tp, cp, ep = ranks_on("tp"), ranks_on("cp", "heads") * ring, ranks_on("ep")
    ep = max([ep, *(shape[0] for shape in with_experts)])
    ep = max(ep, _by_gradients(families, axes))
    if world % (tp * pp * cp):
        ties.append(f"groups of tp {tp}, pp {pp} and cp {cp} do not divide {world} ranks: cp is counted as dp")
        cp = 1
    dp = max(world // (tp * pp * cp), 1)
    reducing = any(family.reduces for shape, family in families.items() if axes[shape] == "dp")
    if not reducing and any(axes[shape] in ("dp", "cp") for shape in families):
        ties.append("groups that only gather, and reduce nothing, may be of dp or of cp")
    if not families and not stages and world > 1:
        ties.append("the ranks do not communicate: they are copies, or each is a run of its own")
    return FoundDegrees(tp, pp, dp, cp, ep, axes, tuple(ties))


def _messages(calls: Calls) -> tuple[list[Pair], list[Pair]]:
    """Pairs of ranks that are neighbours in a pipeline, and pairs on a ring.

    Around a ring all ranks begin to send together. A stage of a pipeline has to wait for the one before it.
    """
    sent: dict[Pair, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, every in calls.items():
        for call in every:
            if call.kind in MESSAGES:
                sender = rank if call.kind == SEND else next(each for each in call.group if each != rank)
                # A rank that was not recorded has sent what another one received.
                if call.kind == SEND or sender not in calls:
                    sent[call.group[0], call.group[1]][sender].append(call.start)
    both = {pair for pair, ends in sent.items() if len(ends) == 2}
    rings = [pair for pair in both if _begin_alike(sent[pair].values())]
    one_way = [pair for pair in sent if pair not in both]
    linked = _connected(one_way, 1 + max((pair[1] for pair in sent), default=0))
    for component in {linked[pair[0]] for pair in one_way}:
        its = [pair for pair in one_way if linked[pair[0]] == component]
        senders = [each for pair in its for each in sent[pair].values()]
        if len(its) == len({rank for pair in its for rank in pair}) and _begin_alike(senders):
            rings += its
    return sorted(sent.keys() - {*rings}), sorted(rings)


def _begin_alike(senders: Collection[list[int]]) -> bool:
    """Whether all begin to send at about the same time. senders: when each of them sends, in ns."""
    first = [min(each) for each in senders]
    usual = median((max(each) - min(each)) / max(len(each) - 1, 1) for each in senders)
    return max(first) - min(first) <= TOGETHER * usual


@dataclass
class _Family:
    """Calls on the groups of one shape, by rank."""

    groups: set[tuple[int, ...]] = field(default_factory=set)
    calls: dict[int, list[GroupCall]] = field(default_factory=lambda: defaultdict(list))

    def of(self, *kinds: str) -> list[list[GroupCall]]:
        """The calls of some kinds, for each rank that has some."""
        found = ([call for call in own if call.kind in kinds] for own in self.calls.values())
        return [each for each in found if each]

    @property
    def reduced(self) -> dict[int, list[GroupCall]]:
        """What each rank reduces, if it does."""
        found = {rank: [call for call in own if call.kind in REDUCING] for rank, own in self.calls.items()}
        return {rank: each for rank, each in found.items() if each}

    @property
    def reduces(self) -> bool:
        return bool(self.of(*REDUCING))

    @property
    def sends_tokens(self) -> bool:
        """Whether it exchanges one tensor at a time, which is how tokens are sent to experts."""
        exchanged = self.of(ALL_TO_ALL.name)
        return bool(exchanged) and not _mostly([_two_at_once(each) for each in exchanged])

    @property
    def exchanges_more_than_heads(self) -> bool:
        """Whether the first exchanges follow each other one at a time, several in a row.

        Ulysses exchanges queries, keys and values at once, and what attention makes of them in an exchange of its own.
        """
        return _mostly([_one_at_a_time(each) for each in self.of(ALL_TO_ALL.name)])

    @property
    def first_reduction(self) -> float:
        """The share of computing before the first reduction; 2 without one."""
        return median([each[0].done for each in self.of(*REDUCING)] or [2.0])

    @property
    def gathered(self) -> list[list[GroupCall]]:
        """What each rank gathers before it reduces anything."""
        before = self.first_reduction
        found = ([call for call in each if call.done < before] for each in self.of(ALL_GATHER.name))
        return [each for each in found if each]


def _families(calls: Calls) -> dict[Shape, _Family]:
    found: dict[Shape, _Family] = defaultdict(_Family)
    for rank, own in calls.items():
        for call in own:
            if call.kind not in MESSAGES and len(call.group) > 1:
                family = found[len(call.group), call.group[1] - call.group[0]]
                family.groups.add(call.group)
                family.calls[rank].append(call)
    return dict(found)


def _first_sent(calls: Calls, stages: Sequence[Pair], stage_of: Sequence[int]) -> dict[int, int]:
    """When the rank of each pipeline that sends first does so, in ns: at the end of the first forward of its stage."""
    pairs = {*stages}
    first: dict[int, tuple[int, int]] = {}
    for rank, own in calls.items():
        sends = [call.start for call in own if call.kind == SEND and call.group[:2] in pairs]
        if sends:
            pipeline = stage_of[rank]
            first[pipeline] = min(first.get(pipeline, (sends[0], rank)), (sends[0], rank))
    return {rank: start for start, rank in first.values()}


def _axis(family: _Family, first_sent: Mapping[int, int]) -> str:
    """The axis of the groups of a shape: tp, cp, heads (of Ulysses), ep or dp.

    first_sent: by rank of a first stage, when it first sends, in ns.
    """
    exchanged, gathered = family.of(ALL_TO_ALL.name), family.gathered
    later = [[call for call in each if call.done > 0] for each in gathered]
    pairs = [_two_at_once(each) and each[0].size == each[1].size for each in later]
    if exchanged:
        begin = median([each[0].done for each in exchanged])
        first = median([each[0].done for each in gathered] or [2.0])
        if first < begin and (_mostly(pairs) or first > 0):
            return "cp"
        return "ep" if family.sends_tokens else "heads"
    reduced = family.of(*REDUCING)
    in_forward = [own[0].start < first_sent[rank] for rank, own in family.reduced.items() if rank in first_sent]
    if any(call.gradients for own in reduced for call in own):
        return "dp"
    if in_forward:
        return "tp" if _mostly(in_forward) else "cp" if _mostly(pairs) else "dp"
    if reduced and family.first_reduction < EARLY and median(each[0].done * len(each) for each in reduced) < SPREAD:
        return "tp"
    return "cp" if _mostly(pairs) else "dp"


def _two_at_once(calls: Sequence[GroupCall]) -> bool:
    """Whether next to nothing is computed between the first two calls."""
    if len(calls) < 2:
        return False
    usual = (calls[-1].done - calls[0].done) / (len(calls) - 1)
    return calls[1].done - calls[0].done <= AT_ONCE * usual


def _one_at_a_time(calls: Sequence[GroupCall]) -> bool:
    """Whether three of the first calls follow each other with something computed between them."""
    usual = (calls[-1].done - calls[0].done) / max(len(calls) - 1, 1)
    apart = [after.done - before.done > AT_ONCE * usual for before, after in pairwise(calls)]
    return any(apart[at] and apart[at + 1] and apart[at + 2] for at in range(min(len(apart) - 2, 6)))


def _mostly(found: Sequence[bool]) -> bool:
    return 2 * sum(found) > len(found)


def _by_gradients(families: Mapping[Shape, _Family], axes: Mapping[Shape, str]) -> int:
    """The degree of ep by gradients: those of experts are reduced over fewer ranks than all others."""
    reducing = [family for shape, family in families.items() if axes[shape] == "dp" and family.reduces]
    found = 1
    for whole in reducing:
        for part in reducing:
            groups = {rank: {*group} for group in whole.groups for rank in group}
            if part is not whole and all({*group} < groups.get(group[0], set()) for group in part.groups):
                size, of = len(next(iter(part.groups))), len(next(iter(whole.groups)))
                found = max(found, of // size)
    return found


def _connected(pairs: Iterable[tuple[int, int]], world: int) -> list[int]:
    """For each rank the first one of those that pairs connect it with."""
    above = list(range(world))

    def root(rank: int) -> int:
        while above[rank] != rank:
            above[rank] = above[above[rank]]
            rank = above[rank]
        return rank

    for one, other in pairs:
        one, other = sorted((root(one), root(other)))
        above[other] = one
    return [root(rank) for rank in range(world)]


def _largest(pairs: Iterable[tuple[int, int]], world: int) -> int:
    """How many ranks the largest set that pairs connect has."""
    return max(Counter(_connected(pairs, world)).values())
