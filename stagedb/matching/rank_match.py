"""The ops of one rank of a run matched with those of its plan, and what is left on either side.

Both sequences are aligned as a whole, so that an op is known by what is around it. What is left is then looked for in
the same gap, and elsewhere: it was moved, has another size, is of another kind, is missing, or is extra.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from stagedb.matching.planned_ops import ATTENTION, MATMUL, WORK, PlannedOp
from stagedb.matching.seen_ops import SeenOp, is_packed
from stagedb.matching.task_order import in_seen_order
from stagedb.runs.alignment import Alignment, Gap, align
from stagedb.runs.clocks import MESSAGES


@dataclass(frozen=True)
class Known:
    """What the recording has: dims of most matmuls, ranks of groups, bytes of collectives.

    Kernels of a graph that is replayed have no shapes, and those around it do. packed: attentions are of requests of
    several lengths, and have the sizes of heads alone.
    """

    dims: bool
    groups: bool
    sizes: bool
    packed: bool = False

    @classmethod
    def of(cls, seen: Sequence[SeenOp]) -> "Known":
        """The facts that the recording has of these ops."""
        communicates = [each for each in seen if each.kind not in WORK]
        works = [bool(each.dims) for each in seen if each.kind in WORK]
        return cls(
            2 * sum(works) > len(works),
            any(each.group for each in communicates),
            any(each.sent for each in communicates),
            any(map(is_packed, seen)),
        )

    def planned(self, op: PlannedOp) -> Hashable:
        """The key of a planned op: it is the same as that of the recorded op which it may be matched with."""
        if op.kind == ATTENTION and self.packed:
            _, heads, kv_heads, _, _, head, *_ = op.dims
            return op.kind, (0, heads, kv_heads, 0, 0, head)
        if op.kind in WORK:
            return op.kind, op.dims if self.dims else None
        return op.kind, self._group(op.group), (op.sent if op.kind != "recv" else op.received) * self.sizes

    def seen(self, op: SeenOp) -> Hashable:
        """The key of a recorded op: it is the same as that of the planned op which it may be matched with."""
        if op.kind == ATTENTION and self.packed and op.dims is not None:
            return op.kind, op.dims[:6]
        if op.kind in WORK:
            return op.kind, op.dims if self.dims else None
        return op.kind, self._group(op.group), (op.sent or 0) * self.sizes

    def _group(self, group: tuple[int, ...] | None) -> Hashable:
        if not self.groups or group is None:
            return None
        return tuple(sorted(group))


@dataclass(frozen=True, slots=True)
class OpPair:
    """A planned and a seen op that are the same, by places in both lists. moved: it is somewhere else in the order."""

    planned: int
    seen: int
    moved: bool = False


@dataclass
class RankMatch:
    """The ops that one rank ran in a step, matched with those that its plan has.

    planned, seen: both lists of ops, in the order of issue. matched: pairs of the same op. changed: pairs of one op
    with another size, type, group or kind. missing, extra: places of planned and of seen ops without a counterpart.
    reordered: the tasks of micro-batches ran in another order, in which `planned` is.
    """

    planned: Sequence[PlannedOp]
    seen: Sequence[SeenOp]
    matched: list[OpPair] = field(default_factory=list)
    changed: list[OpPair] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    reordered: bool = False

    @property
    def pairs(self) -> list[OpPair]:
        """All pairs, in the order of the run."""
        return sorted((*self.matched, *self.changed), key=lambda each: each.seen)

    def beyond_plan(self, early_stop: bool) -> list[int]:
        """Places of the extra ops that count.

        Barriers, sums of one number, and matmuls in which a recomputation stops do not. early_stop: whether
        recomputations end as soon as all that the backward reads is there.
        """
        stopped = self.stopped(early_stop)
        return [place for place in self.extra if not self.seen[place].scalar and place not in stopped]

    def stopped(self, early_stop: bool) -> set[int]:
        """Extra matmuls in which a recomputation stopped: a profiler has such an operator, and it computed nothing.

        early_stop: whether recomputations end so. PyTorch stops as soon as all tensors for the backward are saved, in
        the operator that saves the last one.
        """
        phases = {pair.seen: self.planned[pair.planned].phase for pair in self.pairs}
        ends = sorted(phases)
        found = set()
        for place in self.extra if early_stop else ():
            at = bisect_left(ends, place)
            before, after = ([phases[each] for each in ends[of]] for of in (slice(at - 1, at), slice(at, at + 1)))
            if self.seen[place].kind == MATMUL and before == ["recompute"] and after != ["recompute"]:
                found.add(place)
        return found


def match_rank(planned: Sequence[PlannedOp], seen: Sequence[SeenOp], known: Known) -> RankMatch:
    """Match the ops of a step of a rank, both in the order of issue.

    planned: of the plan. seen: of the recording.
    """
    keys = [known.planned(each) for each in planned], [known.seen(each) for each in seen]
    work = [key for key, each in zip(keys[1], seen, strict=True) if each.kind in WORK]
    order = in_seen_order(planned, keys[0], work)
    if order is not None:
        planned, keys = [planned[place] for place in order], ([keys[0][place] for place in order], keys[1])
    found = RankMatch(planned, seen, reordered=order is not None)
    return _Matching(found, *keys, align(*keys)).done()


@dataclass
class _Matching:
    found: RankMatch
    planned_keys: Sequence[Hashable]
    seen_keys: Sequence[Hashable]
    aligned: Alignment

    def done(self) -> RankMatch:
        found, gaps = self.found, self.aligned.gaps
        found.matched += [OpPair(*pair) for pair in self.aligned.pairs]
        left = [_Left(gap) for gap in gaps]
        for each in left:
            # The order of matmuls between two messages does not count.
            found.matched += each.paired(lambda one, other: self.planned_keys[one] == self.seen_keys[other])
            found.matched += each.paired(self._lacks_dims)
        found.matched += self._moved(left)
        found.changed = [each for each in found.matched if self._has_other_dims(each)]
        found.matched = [each for each in found.matched if not self._has_other_dims(each)]
        for fits in (self._resized, self._replaced):
            for each in left:
                found.changed += each.paired(fits)
        found.missing = sorted(place for each in left for place in each.planned)
        found.extra = sorted(place for each in left for place in each.seen)
        return found

    def _moved(self, left: "Sequence[_Left]") -> Iterator[OpPair]:
        """Ops that are left in one gap, and their counterparts that are left in another one, in their order."""
        elsewhere: dict[Hashable, deque[tuple[_Left, int]]] = defaultdict(deque)
        for each in left:
            for place in each.seen:
                elsewhere[self.seen_keys[place]].append((each, place))
        between = _Between(self.found, self.aligned)
        for each in left:
            for place in list(each.planned):
                if waiting := elsewhere[self.planned_keys[place]]:
                    other, seen = waiting.popleft()
                    each.planned.remove(place)
                    other.seen.remove(seen)
                    yield OpPair(place, seen, moved=between.differs(place, seen))

    def _has_other_dims(self, pair: OpPair) -> bool:
        """Whether a recorded op has another size than the planned one, where most have none."""
        planned, seen = self.found.planned[pair.planned], self.found.seen[pair.seen]
        return planned.kind == MATMUL and bool(seen.dims) and planned.dims != seen.dims

    def _lacks_dims(self, one: int, other: int) -> bool:
        """Whether a recorded op is of the kind of a planned one, and has no size."""
        planned, seen = self.found.planned[one], self.found.seen[other]
        return planned.kind in WORK and planned.kind == seen.kind and not seen.dims

    def _resized(self, one: int, other: int) -> bool:
        """Whether a planned and a recorded op have one kind, so that they differ in size or ranks alone."""
        planned, seen = self.found.planned[one], self.found.seen[other]
        return planned.kind == seen.kind and not seen.scalar

    def _replaced(self, one: int, other: int) -> bool:
        """Another collective on the same ranks."""
        planned, seen = self.found.planned[one], self.found.seen[other]
        if seen.scalar or any(each.kind in (*WORK, *MESSAGES) for each in (planned, seen)):
            return False
        return seen.group is None or sorted(planned.group) == sorted(seen.group)


class _Left:
    """A gap between matched ops: the places in both lists that have no partner."""

    def __init__(self, gap: Gap) -> None:
        self.planned = list(range(gap.first[0], gap.last[0]))
        self.seen = list(range(gap.first[1], gap.last[1]))

    def paired(self, fits: Callable[[int, int], bool]) -> list[OpPair]:
        """Pairs of those that fit, in their order; they are left no more."""
        found = []
        for place in list(self.planned):
            other = next((each for each in self.seen if fits(place, each)), None)
            if other is not None:
                self.planned.remove(place)
                self.seen.remove(other)
                found.append(OpPair(place, other))
        return found


class _Between:
    """How many aligned messages are before each place of both lists."""

    def __init__(self, found: RankMatch, aligned: Alignment) -> None:
        messages = [pair for pair in aligned.pairs if found.planned[pair[0]].kind not in WORK]
        work = [pair for pair in aligned.pairs if found.planned[pair[0]].kind in WORK]
        self.found = found
        self.ends = [[pair[side] for pair in messages] for side in (0, 1)]
        self.work_ends = [[pair[side] for pair in work] for side in (0, 1)]

    def differs(self, planned: int, seen: int) -> bool:
        """Whether an op is between other messages, or a message between other work, than planned."""
        works = self.found.planned[planned].kind in WORK
        ends = self.ends if works else self.work_ends
        return bisect_left(ends[0], planned) != bisect_left(ends[1], seen)
