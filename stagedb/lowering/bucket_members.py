"""Buckets: the parameters of a stage, or their gradients, dealt to collectives by the graph's bucket policies."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from stagedb.frameworks import BucketPolicy
from stagedb.lowering.stage_blocks import ExpertSpan, ExpertUnits, IssueOrder, Stage
from stagedb.workflows import TEMPLATES, Template


@dataclass(frozen=True)
class OpPlace:
    """An op of a block: its place in the issue order of its template."""

    op: str
    block: str
    order: int
    template: Template


@dataclass(frozen=True)
class Weight:
    """A weight under a plan.

    name, block: in the graph. order: of its registration in the block. elements: on this rank. shard: elements of one
    rank's part, if dp shards something of it. gradients: the ops that make its gradient. buckets: the bucket ops that
    reduce the gradient, in turn. gathers: the bucket ops that gather its parts for its `readers`. part: the number of
    the part of its block that it is in, if that is an FSDP unit.
    """

    name: str
    block: str
    order: int
    elements: int
    shard: int
    gradients: tuple[OpPlace, ...]
    buckets: tuple[str, ...]
    gathers: tuple[str, ...] = ()
    readers: tuple[OpPlace, ...] = ()
    part: int | None = None


@dataclass(frozen=True)
class BucketOp:
    """A symbolic collective of a graph. An instance has one copy of it for each bucket.

    policy: assigns weights to buckets. order: in the issue order of its block. template: when it runs. gathers: it
    gathers parameters; otherwise it reduces gradients. parts: the number of ranks that have a part each. bytes: bytes
    of operand and result for (elements, elements of a part). apart: only weights of experts pass it that ranks divide
    among them, or that are units of their own. again: it runs where a backward computes a forward again.
    """

    name: str
    policy: BucketPolicy
    order: int
    template: Template
    gathers: bool
    parts: int
    bytes: Callable[[int, int], tuple[int, int]]
    apart: bool = False
    again: bool = False


@dataclass(frozen=True)
class BucketMember:
    """A weight in a bucket: position of its block on the stage, and name.

    turn: how many buckets the gradient has passed before this one. gradients: position and name of each op that the
    bucket waits for. readers: position and name of each op that waits for the bucket. chunk: of the stage, where the
    weight and these ops are; None: that of the bucket.
    """

    position: int
    weight: str
    turn: int
    gradients: tuple[tuple[int, str], ...]
    readers: tuple[tuple[int, str], ...] = ()
    chunk: int | None = None

    def chunk_of(self, bucket: int) -> int:
        """The chunk of the weight. bucket: that of its bucket."""
        return bucket if self.chunk is None else self.chunk


@dataclass(frozen=True)
class Bucket:
    """One collective of a stage that reduces the gradients, or gathers the parameters, in a bucket.

    op: the symbolic collective. gathers: it gathers parameters. index: among the buckets of this op. bytes_in,
    bytes_out: bytes of operand and result on one rank. position: the position on the stage where it is issued. base:
    the issue number of the op that it follows. members: the weights. after: ops that it waits for without reading their
    results. slot: its place among the buckets that follow the same op, from 1.
    """

    op: str
    gathers: bool
    index: int
    bytes_in: int
    bytes_out: int
    position: int
    base: int
    members: tuple[BucketMember, ...]
    after: tuple[tuple[int, str], ...] = ()
    slot: int = 0


@dataclass(frozen=True)
class Part:
    """A part of a block outside layers whose weights are a unit: a layer of multi-token prediction.

    first, end: by phase, the lowest and the highest order of its ops. last: by phase, the op that computes last.
    opened: the order in its block at which a backward reaches the model.
    """

    first: Mapping[str, int]
    end: Mapping[str, int]
    last: Mapping[str, str]
    opened: int


@dataclass(frozen=True)
class Registered:
    """A weight at its place on a stage. `unit` is its layer's position, None outside layers.

    The parts of a block that are units count on from its position.
    """

    position: int
    unit: int | None
    weight: Weight


def fill(
    stage: Stage,
    weights: Mapping[str, Sequence[Weight]],
    ops: Sequence[BucketOp],
    orders: int,
    last: Mapping[tuple[str, str], str] | None = None,
    room: int = 2,
    parts: Mapping[str, Sequence[Part]] | None = None,
    experts: Mapping[str, ExpertSpan] | None = None,
    again: Collection[int] = (),
) -> tuple[tuple[Bucket, ...], IssueOrder]:
    """The buckets of a stage, and the issue order that has room for them.

    weights: by block, in order of registration. orders: one more than the largest `SymOp.order`. last: by block and
    phase, the op that computes last. room: the fewest numbers that an op needs, for its loop. parts: by block, those
    that are units. experts: by block, its experts, if they are units of their own. again: positions of layers that the
    backward computes again.
    A bucket of gradients is issued right after the last op that makes one of them, and never before the bucket that was
    closed before it. A bucket of one unit is issued where the unit's backward ends, or after the whole backward. A
    bucket of a step comes before everything else. The parameters of a unit are gathered before its forward, and again
    before the backward of the unit that runs before it (FSDP2 prefetches one unit). Parameters that a step has updated
    are gathered at its end.
    """
    layers = {place.position for place in stage.places if place.layer is not None}
    registered = [
        Registered(place.position, _unit(place.position, place.position in layers, weight), weight)
        for place in stage.places
        for weight in weights.get(place.block, ())
    ]
    order = IssueOrder(len(stage.places), orders, 1)
    named = {op.name: op for op in ops}
    apart = frozenset(op.name for op in ops if op.gathers and op.apart)
    again = again if any(op.again for op in ops) else ()
    units = None if experts is None else _expert_units(stage, order, layers, experts, again)
    filling = _Filling(stage, order, last or {}, apart, _inner(stage, parts or {}), units)
    buckets = [bucket for op in ops for bucket in filling.fill(registered, op)]
    depths = {op: depth for each in registered for depth, op in enumerate(each.weight.buckets)}
    # Each phase has numbers of its own.
    phases = list(dict.fromkeys(template.phase for template in TEMPLATES.values()))
    phase = {op.name: phases.index(op.template.phase) for op in ops}

    def turn(bucket: Bucket) -> tuple[int | str, ...]:
        return filling.turn(bucket, named[bucket.op], depths.get(bucket.op, 0))

    buckets.sort(key=lambda bucket: (phase[bucket.op], bucket.base, turn(bucket), bucket.index))
    ties = [list(tied) for _, tied in groupby(buckets, key=lambda bucket: (phase[bucket.op], bucket.base))]
    slots = max([2, room, *(1 + len(tied) for tied in ties)])
    placed = tuple(
        replace(each, base=each.base * slots, slot=slot) for tied in ties for slot, each in enumerate(tied, start=1)
    )
    return placed, IssueOrder(len(stage.places), orders, slots)


def _unit(position: int, layer: bool, weight: Weight) -> int | None:
    return position if layer else None if weight.part is None else position + weight.part


def _expert_units(
    stage: Stage, order: IssueOrder, layers: Collection[int], experts: Mapping[str, ExpertSpan], again: Collection[int]
) -> ExpertUnits:
    spans = {place.position: experts[place.block] for place in stage.places if place.block in experts}
    return ExpertUnits(order, spans, frozenset(layers), frozenset(again))


def _inner(stage: Stage, parts: Mapping[str, Sequence[Part]]) -> dict[int, tuple[int, Part]]:
    return {
        place.position + number: (place.position, part)
        for place in stage.places
        for number, part in enumerate(parts.get(place.block, ()))
    }


@dataclass(frozen=True)
class _Filling:
    """The tables for deciding the buckets of a stage.

    apart: the gathers of experts that ranks divide among them. inner: the parts of blocks that are units, by unit, each
    with its position. units: those of layers, if experts are some of them.
    """

    stage: Stage
    order: IssueOrder
    last: Mapping[tuple[str, str], str]
    apart: frozenset[str]
    inner: Mapping[int, tuple[int, Part]]
    units: ExpertUnits | None = None

    def position(self, unit: int) -> int:
        """The position of the block that a unit is, or is a part of."""
        return self.inner[unit][0] if unit in self.inner else unit

    def begins(self, unit: int, op: BucketOp) -> int:
        """The number of the first operator of a unit in the direction of a bucket's template."""
        first = self.inner[unit][1].first.get(op.template.phase, 0) if unit in self.inner else 0
        towards = self.order.upward if op.template.upward else self.order.downward
        return towards(self.position(unit)) + first

    def fill(self, registered: Sequence[Registered], op: BucketOp) -> list[Bucket]:
        passed = [each for each in registered if self.passes(op, each)]
        sizes = [op.bytes(each.weight.elements, each.weight.shard)[0] for each in passed]
        buckets: list[Bucket] = []
        due = (0, 0)
        for index, chosen in enumerate(op.policy.deal(sizes, [each.unit for each in passed])):
            own = [passed[at] for at in chosen]
            after: tuple[tuple[int, str], ...] = ()
            if op.gathers:
                due = self.gathered(op, own, registered)
                after = self.limits(op, own[0].unit)
            elif op.template.once:
                due = (op.order, 0)
            elif op.policy.by_unit:
                due = self.reduced(op, own[0].unit)
            else:
                due = max([due, *self.issued(own)], key=lambda each: each[0])
            members = tuple(self.member(op, each) for each in own)
            bytes_in, bytes_out = _bytes(op, [each.weight for each in own])
            buckets.append(Bucket(op.name, op.gathers, index, bytes_in, bytes_out, due[1], due[0], members, after))
        return buckets

    def passes(self, op: BucketOp, each: Registered) -> bool:
        """Whether a weight, or its gradient, passes a bucket op."""
        if op.name not in (each.weight.gathers if op.gathers else each.weight.buckets):
            return False
        return (
            self.units is None or not (op.gathers and op.apart) or self.units.passes(each.unit, op.template, op.again)
        )

    def reduced(self, op: BucketOp, found: int | None) -> tuple[int, int]:
        """The number after which the gradients of a unit are reduced, and the position there."""
        unit = -1 if found is None else found
        position = max(self.position(unit), 0)
        if op.policy.at_end:
            # Free issue numbers, after those of the message at the stage's first end (position -1), one for each unit.
            return self.order.downward(-3 - unit) + self.order.orders - 1, position
        if self.units is not None and op.apart:
            return self.units.reduced(unit, op.template), position
        if unit in self.inner:
            return self.order.downward(position) + self.inner[unit][1].end[op.template.phase], position
        return self.order.downward(unit) + self.order.orders - 1, position

    def turn(self, bucket: Bucket, op: BucketOp, depth: int) -> tuple[int | str, ...]:
        """The order of buckets that are due at one point: gradients before parameters.

        The unit whose backward runs first is gathered first. In a unit experts are before other weights, as hooks run
        in a backward; not in one that is gathered where its own backward begins, or reduced after all backwards. Those
        that are a unit of their own come after it.
        """
        if self.units is not None and not op.template.once:
            unit = max(each.position if each.position in self.units.layers else -1 for each in bucket.members)
            unit = (unit if op.template.upward else -unit) if op.gathers else 0
            return op.gathers, unit, op.apart, depth, op.order, op.name
        down = (op.policy.by_unit or op.gathers) and not (op.template.upward or op.template.once)
        unit = max(each.position for each in bucket.members) if down and op.gathers else 0
        alone = op.policy.at_end or (op.gathers and self.stage.has_next and unit == self.order.positions - 1)
        return op.gathers, -unit, not op.apart if down and not alone else 0, depth, op.order, op.name

    def opened(self, unit: int, registered: Sequence[Registered]) -> int:
        """Where the backward reaches the model. The loss, which comes after the model, reads no weight."""
        if any(each.unit is not None and each.unit > unit for each in registered):
            return 0
        if unit in self.inner:
            position, part = self.inner[unit]
            return self.order.downward(position) + part.opened
        numbers = [
            self.order.downward(place) + reader.order
            for each in registered
            if each.unit is None
            for reader in (*each.weight.gradients, *each.weight.readers)
            if reader.template.differentiates
            for place in self.places(reader, each)
            if place > unit
        ]
        return min(numbers, default=0)

    def gathered(self, op: BucketOp, own: Sequence[Registered], registered: Sequence[Registered]) -> tuple[int, int]:
        """The number after which parameters are gathered, and the position there."""
        if op.template.once:
            return self.order.upward(self.order.positions) + self.order.orders - 1, self.order.positions - 1
        unit = own[0].unit
        number = None
        if self.units is not None and unit is not None:
            number = self.units.gathered(unit, op.template, op.apart, op.again)
        if number is not None and unit is not None:
            return number, self.position(unit)
        if op.template.upward:
            # First the stage receives its input, then weights outside layers are gathered, then those of the first
            # layer.
            return (self.order.upward(0) - 2, 0) if unit is None else (self.begins(unit, op) - 1, self.position(unit))
        following = 0 if unit is None else unit
        position = self.position(following)
        if following + 1 == self.order.positions and self.stage.has_next:
            # The gather comes after the gradient of the next stage has arrived, and before that of the unit gathered
            # ahead.
            return self.order.downward(following) - 2, following
        if (
            self.units is None
            and not op.apart
            and self.divided(unit, registered)
            and not self.divided(following + 1, registered)
        ):
            # A unit whose weights are all in one group of ranks prefetches only the unit that ended last in the
            # forward: experts.
            return self.begins(following, op) - 1, position
        begun = 0 if following in self.inner and following + 1 not in self.inner else self.begins(following + 1, op)
        return max(begun, self.opened(following, registered)) - 1, position

    def divided(self, unit: int | None, registered: Sequence[Registered]) -> bool:
        """Whether a unit has experts that other ranks share than its other weights, so that it has two gathers."""
        return any(
            unit is not None and each.unit == unit and not self.apart.isdisjoint(each.weight.gathers)
            for each in registered
        )

    def limits(self, op: BucketOp, unit: int | None) -> tuple[tuple[int, str], ...]:
        """A gather waits until the unit two before it has computed: at most two units are whole at a time."""
        if unit is None or op.template.once:
            return ()
        position = unit - 2 if op.template.upward else unit + 2
        if position in self.inner:
            position, part = self.inner[position]
            return ((position, part.last[op.template.phase]),)
        name = next((place.block for place in self.stage.places if place.position == position), None)
        last_op = self.last.get((name or "", op.template.phase))
        return () if last_op is None else ((position, last_op),)

    def issued(self, own: Sequence[Registered]) -> list[tuple[int, int]]:
        """Number and position of every op that makes one of the weights' gradients."""
        return [
            (self.order.downward(place) + gradient.order, place)
            for each in own
            for gradient in each.weight.gradients
            for place in self.places(gradient, each)
        ]

    def member(self, op: BucketOp, each: Registered) -> BucketMember:
        weight = each.weight
        if not op.gathers:
            return BucketMember(
                each.position, weight.name, weight.buckets.index(op.name), self.all_places(weight.gradients, each)
            )
        mine = [reader for reader in weight.readers if reader.template.phase == op.template.phase]
        readers = self.all_places(mine, each)
        if op.template.once:
            # This gather distributes what the optimizer has updated, so that it waits for all readers of the weight.
            return BucketMember(each.position, weight.name, 0, readers)
        return BucketMember(each.position, weight.name, 0, (), readers)

    def all_places(self, ops: Sequence[OpPlace], each: Registered) -> tuple[tuple[int, str], ...]:
        return tuple((place, op.op) for op in ops for place in self.places(op, each))

    def places(self, op: OpPlace, each: Registered) -> tuple[int, ...]:
        """The positions of an op: that of its weight, or that of a block of its own (a tied weight's head)."""
        if op.block == each.weight.block:
            return (each.position,)
        single = self.stage.single_blocks()
        return (single[op.block],) if op.block in single else ()


def _bytes(op: BucketOp, weights: Sequence[Weight]) -> tuple[int, int]:
    if op.policy.extent is not None:
        elements = op.policy.extent([weight.elements for weight in weights], op.parts)
        return op.bytes(elements, elements // op.parts)
    sizes = [op.bytes(weight.elements, weight.shard) for weight in weights]
    return sum(size for size, _ in sizes), sum(size for _, size in sizes)
