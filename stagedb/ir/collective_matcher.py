"""The collective matcher: compares the layout that a producer leaves with the one its consumer wants.

Mesh axis by mesh axis: partial → replicated is an all-reduce, partial → partitioned a reduce-scatter, partitioned →
replicated an all-gather, partitioned → partitioned elsewhere an all-to-all, replicated → partitioned a local slice,
replicated → partial each rank's share. A reduction is issued right after its producer, everything else right before its
first consumer.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from stagedb.collectives import HeldAs, kind_between
from stagedb.ir.facts import Tag
from stagedb.ir.layouts import INNERMOST_FIRST, MESH_AXES, Layout, Partial, Partitioned, Placement
from stagedb.ir.operators import (
    COPIES,
    KV_HEADS,
    PAD,
    SHARE,
    SLICE,
    Add,
    CopyHeads,
    Einsum,
    JoinLast,
    Operator,
    Quantize,
    Redistribution,
    Rotary,
    SumCopies,
)
from stagedb.ir.tensors import Operation, Tensor
from stagedb.workflows import Template

# The order in which the placements of a tensor change, mesh axis by mesh axis.
#
# If several mesh axes cut one axis of a tensor, the inner one cuts the parts of the outer one. So only the innermost
# cut can be undone, and a new cut is made inside all existing ones. An outer axis that leaves, or comes, goes before an
# inner one comes, and cuts inside of it are gathered first.
#
# A weight that dp or cp cuts on the axis that its operator wants over tp would be gathered whole for that. Meanwhile tp
# cuts it on another axis (`by_way_of`): each rank gathers only its part there, and an all-to-all over tp does the rest.

UNORDERED = ("slots",)
"""Tensor axes whose parts may be in any order: the readers of experts' slots look up the places of their own slots."""


def next_move(have: Layout, want: Layout, order: Sequence[str]) -> tuple[str, Placement | None]:
    """The mesh axis to move on next, and its new placement. order: axes on which the layouts differ, as preferred."""
    for mesh_axis in order:
        if not _covered(have, want, mesh_axis) and not _ahead(have, want, mesh_axis):
            return mesh_axis, want.on(mesh_axis)
    # A cut inside of the place of another moving axis, or one that comes only after that axis, is gathered meanwhile.
    for mesh_axis in reversed(MESH_AXES):
        placement = have.on(mesh_axis)
        if isinstance(placement, Partitioned) and not _inside(have, mesh_axis, placement.axis):
            outer = (m for m in order if _outside(m, mesh_axis, placement.axis))
            if mesh_axis in order or any(placement.axis in _axes(have, want, m) for m in outer):
                return mesh_axis, None
    raise ValueError(f"no way leads from {have.texts()} to {want.texts()}")


MEANWHILE = Partitioned("hidden")
"""The cut over tp of a weight on its way."""


def by_way_of(have: Layout, want: Layout, axes: Sequence[str]) -> Placement | None:
    """The placement on tp that a weight, or its gradient, has on its way; None if it has no need of another one.

    axes: those of the tensor.
    """
    here, goal = have.on("tp"), want.on("tp")
    free = MEANWHILE.axis in axes and all(MEANWHILE not in (have.on(m), want.on(m)) for m in MESH_AXES)
    for cut in (here, goal) if free else ():
        if not isinstance(cut, Partitioned) or here not in (None, cut):
            continue
        leaving = [m for m in MESH_AXES if m != "tp" and have.on(m) == cut != want.on(m)]
        coming = [m for m in MESH_AXES if m != "tp" and have.on(m) != cut == want.on(m)]
        if here == goal:
            crossed = [m for m in (*leaving, *coming) if _outside(m, "tp", cut.axis)]
        else:
            crossed = coming if here == cut else leaving
        if crossed:
            return MEANWHILE
    return None


def _covered(have: Layout, want: Layout, mesh_axis: str) -> bool:
    """Whether there is a cut inside of a mesh axis's place, before its move or after it."""
    return any(_inside(have, mesh_axis, axis) for axis in _axes(have, want, mesh_axis))


def _ahead(have: Layout, want: Layout, mesh_axis: str) -> bool:
    """Whether an axis outside of this one's new place has still to come or to leave."""
    goal = want.on(mesh_axis)
    return isinstance(goal, Partitioned) and any(
        goal.axis in _axes(have, want, m)
        for m in MESH_AXES
        if have.on(m) != want.on(m) and _outside(m, mesh_axis, goal.axis)
    )


def _axes(have: Layout, want: Layout, mesh_axis: str) -> set[str]:
    """The tensor axes that a mesh axis cuts before its move, or after it."""
    placements = (have.on(mesh_axis), want.on(mesh_axis))
    return {p.axis for p in placements if isinstance(p, Partitioned)} - set(UNORDERED)


def _inside(layout: Layout, mesh_axis: str, tensor_axis: str) -> bool:
    return any(_outside(mesh_axis, m, tensor_axis) for m in layout.cuts(tensor_axis))


def _outside(outer: str, inner: str, tensor_axis: str) -> bool:
    """Whether one mesh axis cuts a tensor axis before another does."""
    first, second = MESH_AXES.index(outer), MESH_AXES.index(inner)
    return first > second if tensor_axis in INNERMOST_FIRST else first < second


_SEQUENCE, _HEADS, _COPIES = Partitioned("seq"), Partitioned(KV_HEADS), Partitioned(COPIES)

Rules = Mapping[str, Mapping[str, tuple[str, ...]]]
"""A sharding strategy: region of the model → logical axis → the mesh axes that partition it."""


@dataclass(frozen=True)
class Matching:
    """Choices of redistribution of a recipe.

    share: one redistribution of a tensor serves all its consumers, and partial gradients are added before they are
        reduced; False: each matmul of the forward has its own (and so has each of its gradients).
    regather: the backward does not keep a tensor that the forward gathered; it gathers again.
    whole_backward: a partial input gradient is reduced when its operator's weight gradient has been issued, too;
        False: at once.
    joins_shares: a partial gradient is joined with a whole one without being reduced: of that each rank takes a share.
        The linear layer that made what was split has partial gradients then, and so have the sums of them with others.
    copies_heads: the K/V heads that all-to-alls move from parts of the sequence go to all ranks that compute with
        them, as copies where these are more than the heads.
    late: by region, the mesh axis over which partial results and gradients are passed on; they are reduced behind it.
    """

    share: bool = True
    regather: bool = False
    whole_backward: bool = False
    joins_shares: bool = False
    copies_heads: bool = False
    late: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Matched:
    """Operations with their redistributions in issue order, and the layout of every tensor."""

    operations: tuple[Operation, ...]
    layouts: Mapping[str, Layout]


def wanted(axes: tuple[str, ...], rules: Mapping[str, tuple[str, ...]], labels: tuple[str, ...] = ()) -> Layout:
    """The layout that a region's rules give a tensor with these axes, which the operator may call by other names.

    axes: of the tensor, by their own names. rules: for each name of an axis, the mesh axes that partition it. labels:
    the operator's names for these axes, in their order; empty: their own names.
    """
    named = zip(axes, labels or axes, strict=True)
    return Layout.of({m: Partitioned(axis) for axis, label in named for m in rules.get(label, ())})


def left(op: Operation, inputs: list[Layout]) -> Layout:
    """The layout of an output that does not keep the partitioned axes of its inputs: partial."""
    cut = {m for layout in inputs for m, p in layout.placements if isinstance(p, Partitioned)}
    if op.operator.deals:
        summed = [Partitioned(axis) for axis in op.operator.sums_over]
        cut = {m for layout in inputs for m, p in layout.placements if p in summed}
    return Layout.of({m: Partial(op.operator.reduction) for m in cut})


@dataclass
class _Matcher:
    rules: Rules
    choices: Matching
    layouts: dict[str, Layout]
    issued: list[Operation] = field(default_factory=list)
    copies: dict[tuple[str, Layout, str], Tensor] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    gathered: dict[str, Operation] = field(default_factory=dict)
    marks: dict[str, frozenset[Tag]] = field(default_factory=dict)
    matmuls: set[str] = field(default_factory=set)
    shares: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)

    def scope(self, op: Operation) -> str:
        """Operations of one scope share redistributions. Tokens sent to experts serve all operations of the experts."""
        if Tag.EXPERT in op.tags:
            return ""
        backward = self.choices.regather and op.template.differentiates
        own = not self.choices.share and op.origin in self.matmuls
        return ("backward " if backward else "") + (op.origin if own else "")

    def passes(self, op: Operation) -> tuple[str, ...]:
        """Mesh axes on which a linear operation reads partial sums and makes one."""
        partial = any("tp" in self.layouts[t.name].partials() for t in op.inputs) and op.template.differentiates
        if partial and isinstance(op.operator, Rotary):
            return ("tp",)
        if partial and self.choices.joins_shares and isinstance(op.operator, JoinLast):
            self.shares.update(t.name for t in op.outputs)
            return ("tp",)
        if self.choices.share and isinstance(op.operator, Add) and any(t.name in self.parts for t in op.inputs):
            return ("tp",)
        if self.reads_shares(op):
            return tuple(m for t in op.inputs if t.name in self.shares for m in self.layouts[t.name].partials())
        if not op.operator.linear:
            return ()
        # A tensor-parallel plan redistributes what is not shared. Sums over data wait in any case.
        axes = MESH_AXES if self.choices.share or Tag.EXPERT in op.tags else tuple(m for m in MESH_AXES if m != "tp")
        return tuple(m for m in axes if all(m in self.layouts[t.name].partials() for t in op.inputs))

    def late(self, op: Operation) -> tuple[str, frozenset[int], frozenset[int]]:
        """The mesh axis on which an operation waits with a reduction, the places of inputs that are partial over it,
        and of outputs that are then: in a region that reduces late, or (over tp) for an operator that passes shares.

        A gradient is linear in the gradient that arrives, its first input.
        """
        mesh_axis = self.choices.late.get(op.region, "tp")
        read = frozenset(i for i, t in enumerate(op.inputs) if mesh_axis in self.layouts[t.name].partials())
        linear = op.template.differentiates or op.operator.keeps_shares
        waits = op.region in self.choices.late or op.operator.passes_shares
        if not waits or not linear or isinstance(op.operator, Add):
            return mesh_axis, frozenset(), frozenset()
        made = range(len(op.outputs)) if 0 in read else op.operator.outputs_of_shares
        return mesh_axis, read, frozenset(made if read else ())

    def reads_shares(self, op: Operation) -> bool:
        """Whether a gradient of a linear layer reads shares: it is linear in them, and makes shares."""
        return op.template.differentiates and any(t.name in self.shares for t in op.inputs)

    def issue(self, op: Operation) -> None:
        if isinstance(op.operator, Einsum) and not op.template.differentiates:
            self.matmuls.add(op.origin)
        rules, passed, mixed = self.rules[op.region], self.passes(op), self.reads_shares(op)
        inputs, (late_axis, late_read, late_made) = [], self.late(op)
        read, made = op.operator.labels(op.inputs, op.outputs)
        for place, (tensor, labels) in enumerate(zip(op.inputs, read, strict=True)):
            want = wanted(tensor.axes, rules, labels)
            if place in late_read:
                want = want.with_(late_axis, Partial())
            for mesh_axis in passed if not mixed or tensor.name in self.shares else ():
                want = want.with_(mesh_axis, Partial())
            inputs.append(self.redistributed(self.narrowed(tensor, op), want, op))
        moved = inputs[0] is not op.inputs[0] if inputs else False
        again = self.choices.regather and Tag.EXPERT not in op.tags
        if moved and again and not op.template.differentiates and isinstance(op.operator, Quantize):
            self.gathered[op.outputs[0].name] = op
        self.issued.append(dataclasses.replace(op, inputs=tuple(inputs)))
        self.marks.update((output.name, op.marks) for output in op.outputs)
        if mixed:
            self.parts.update(output.name for output in op.outputs)
        consumed = [self.layouts[t.name] for t in inputs]
        for place, (output, labels) in enumerate(zip(op.outputs, made, strict=True)):
            layout = wanted(output.axes, rules, labels)
            partial = left(op, consumed)
            for mesh_axis, placement in partial.placements:
                if layout.on(mesh_axis) is None:
                    layout = layout.with_(mesh_axis, placement)
            for mesh_axis in (*passed, *((late_axis,) if place in late_made else ())):
                layout = layout.with_(mesh_axis, Partial())
            self.layouts[output.name] = layout

    def narrowed(self, tensor: Tensor, consumer: Operation) -> Tensor:
        """The tensor. A backward that gathers again gets, for a narrow copy, a narrow copy of the new gather."""
        cast = self.gathered.get(tensor.name)
        if cast is None or not consumer.template.differentiates:
            return tensor
        key = (tensor.name, self.layouts[tensor.name], self.scope(consumer))
        if key not in self.copies:
            again = Tensor(f"{tensor.name}.again", tensor.axes, tensor.dtype, tensor.role)
            self.copies[key] = again
            self.issue(
                dataclasses.replace(
                    cast, name=again.name, outputs=(again,), template=consumer.template, origin=consumer.origin
                )
            )
        return self.copies[key]

    def redistributed(self, tensor: Tensor, want: Layout, consumer: Operation) -> Tensor:
        """The tensor in the wanted layout. It is moved there unless an earlier consumer of the scope moved it."""
        if self.layouts[tensor.name] == want:
            return tensor
        scope = self.scope(consumer)
        kept = (tensor.name, want, scope.removeprefix("backward "))
        if self.kept_by_forward(tensor, want) and kept in self.copies:
            return self.copies[kept]
        if tensor.role == "weight" and consumer.template.differentiates:
            scope = f"backward {scope}"  # the result of a weight's parts is not kept from the forward
        key = (tensor.name, want, scope)
        if key not in self.copies:
            self.copies[key] = self.move(tensor, want, consumer)
        return self.copies[key]

    def kept_by_forward(self, tensor: Tensor, want: Layout) -> bool:
        """Whether a sum is reduced, or it becomes partitioned on another axis: the result is no larger, so that the
        forward keeps it and no rank makes it again."""
        have = self.layouts[tensor.name]
        return any(
            isinstance(p, Partial) or isinstance(want.on(m), Partitioned) for m, p in have.placements if p != want.on(m)
        )

    def move(self, tensor: Tensor, want: Layout, consumer: Operation) -> Tensor:
        current = tensor
        while turns := _turns(self.layouts[current.name], want):
            mesh_axis, goal = next_move(self.layouts[current.name], want, turns)
            way = by_way_of(self.layouts[current.name], want, current.axes) if tensor.role == "weight" else None
            if way is not None:
                mesh_axis, goal = "tp", way
            have = self.layouts[current.name].on(mesh_axis)
            if self.choices.copies_heads and {have, goal} == {_SEQUENCE, _HEADS}:
                current = self.exchange_copies(current, mesh_axis, consumer)
            else:
                current = self.moved(current, redistribution(mesh_axis, have, goal), goal, consumer)
        return current

    def moved(self, tensor: Tensor, operator: Redistribution, goal: Placement | None, consumer: Operation) -> Tensor:
        """The tensor behind its move on one mesh axis. goal: its placement there."""
        have = self.layouts[tensor.name]
        reduces = isinstance(have.on(operator.mesh_axis), Partial)
        at = self.after(tensor.name) if reduces else len(self.issued)
        made_by = self.issued[at - 1] if reduces else consumer
        name = f"{tensor.name}.{operator.move}.{operator.mesh_axis}"
        return self.put(at, made_by, tensor, operator, name, have.with_(operator.mesh_axis, goal), consumer)

    def exchange_copies(self, tensor: Tensor, mesh_axis: str, consumer: Operation) -> Tensor:
        """The tensor behind an all-to-all of parts of its sequence for K/V heads, or back: the axis that it has on the
        side of the sequence are copies of the heads, made before it or summed behind it."""
        source, end, copies, heads = tensor.name, len(self.issued), {KV_HEADS: COPIES}, {COPIES: KV_HEADS}
        there = self.layouts[tensor.name].on(mesh_axis) == _SEQUENCE
        if there:
            layout = self.layouts[tensor.name].renamed(copies)
            name = f"{source}.copies"
            tensor = self.put(end, consumer, tensor, CopyHeads(), name, layout, consumer, copies)
        operator = redistribution(mesh_axis, *((_SEQUENCE, _COPIES) if there else (_HEADS, _SEQUENCE)))
        layout = self.layouts[tensor.name].renamed(heads if there else copies)
        layout = layout.with_(mesh_axis, _HEADS if there else _SEQUENCE)
        name, names = f"{source}.{operator.move}.{mesh_axis}", heads if there else copies
        tensor = self.put(len(self.issued), consumer, tensor, operator, name, layout, consumer, names)
        if there:
            return tensor
        layout = layout.renamed(heads)
        return self.put(len(self.issued), consumer, tensor, SumCopies(), f"{tensor.name}.sum", layout, consumer, heads)

    def put(
        self,
        at: int,
        made_by: Operation,
        tensor: Tensor,
        operator: Operator,
        name: str,
        layout: Layout,
        consumer: Operation,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> Tensor:
        """The result, in this layout, of an operator on a tensor, which is issued at a place for a consumer.

        made_by: the operation whose task it is in. names: of axes that have another name in the result.
        """
        name = self.unique(name)
        axes = tuple(names.get(axis, axis) for axis in tensor.axes)
        made = Tensor(name, axes, tensor.dtype, "activation" if tensor.role == "weight" else tensor.role)
        marks = self.marks.get(tensor.name, frozenset())
        op = Operation(
            name, operator, (tensor,), (made,), consumer.region, made_by.template, consumer.origin, marks=marks
        )
        self.issued.insert(at, op)
        self.layouts[name], self.marks[name] = layout, marks
        return made

    def after(self, name: str) -> int:
        """The place after the operation that makes a tensor (the end, if the tensor comes from outside the block)."""
        for place in range(len(self.issued) - 1, -1, -1):
            if any(output.name == name for output in self.issued[place].outputs):
                return place + 1 + (self.twins(place) if self.choices.whole_backward else 0)
        raise ValueError(f"{name} is partial and no operation of the block makes it")

    def twins(self, place: int) -> int:
        """How many operations right after an operation are weight gradients of the same origin."""
        origin, count = self.issued[place].origin, 0
        for op in self.issued[place + 1 :]:
            if op.origin != origin or op.template.gradients != "weights":
                break
            count += 1
        return count

    def unique(self, name: str) -> str:
        candidate, count = name, 2
        while candidate in self.names:
            candidate, count = f"{name}.{count}", count + 1
        self.names.add(candidate)
        return candidate


def _turns(have: Layout, want: Layout) -> list[str]:
    """The mesh axes to move on, as preferred: innermost first. Tokens go to their experts before they are gathered
    over tp, and come back after they have been partitioned over it again.
    """
    axes = [m for m in reversed(MESH_AXES) if have.on(m) != want.on(m)]
    if want.on("ep") == Partitioned("experts"):
        return sorted(axes, key=lambda m: (not isinstance(have.on(m), Partial), m != "ep"))
    return sorted(axes, key=lambda m: m == "ep") if have.on("ep") == Partitioned("experts") else axes


def redistribution(mesh_axis: str, have: Placement | None, goal: Placement | None) -> Redistribution:
    """The collective, or local slice, that changes one placement on a mesh axis into another.

    mesh_axis: the axis whose ranks take part. have, goal: the placements; None: each rank holds a whole copy.
    ValueError for two placements between which no collective leads.
    """
    source = have.axis if isinstance(have, Partitioned) else None
    target = goal.axis if isinstance(goal, Partitioned) else None
    if have is None and goal is not None:
        return Redistribution(SHARE if target is None else SLICE, mesh_axis, target=target)
    if isinstance(have, Partitioned) and isinstance(goal, Partial):
        return Redistribution(PAD, mesh_axis, source)
    try:
        kind = kind_between(_held(have), _held(goal))
    except LookupError:
        raise ValueError(f"no redistribution on {mesh_axis} from {have} to {goal}") from None
    reduces = have.reduction if isinstance(have, Partial) else "sum"
    return Redistribution(kind.name, mesh_axis, source, target, reduces)


def _held(placement: Placement | None) -> HeldAs:
    """What each rank of a mesh axis has of a tensor."""
    if placement is None:
        return HeldAs.WHOLE
    return HeldAs.PART if isinstance(placement, Partitioned) else HeldAs.SHARE


def _gradient_templates(operations: list[Operation]) -> list[Operation]:
    """A backward redistribution, copies of heads and their sums among them, is an input gradient's if one of them needs
    it, else a weight gradient's."""
    needed: dict[str, Template] = {}
    settled = []
    for op in reversed(operations):
        template = op.template
        if isinstance(op.operator, Redistribution | CopyHeads | SumCopies) and template.differentiates:
            template = needed.get(op.outputs[0].name, template)
        for tensor in op.inputs:
            reader = needed.get(tensor.name)
            if reader is None or reader.gradients != "inputs":
                needed[tensor.name] = template
        settled.append(dataclasses.replace(op, template=template))
    return settled[::-1]


def match(
    operations: list[Operation],
    rules: Rules,
    choices: Matching,
    given: Mapping[str, Layout],
    leave: Mapping[str, Layout],
) -> tuple[Matched, dict[str, Tensor]]:
    """Lay out a block's operations and put the redistributions where layouts differ.

    given: layouts of tensors that come from outside (weights, inputs, gradients that arrive). leave: tensors that the
    block passes on, with the layout they must have. Returns the matched operations and, for each name in `leave`, the
    tensor that holds it.
    """
    matcher = _Matcher(rules, choices, dict(given), names={op.name for op in operations})
    pending = dict(leave)
    handed: dict[str, Tensor] = {}
    last_forward = max(
        (i for i, op in enumerate(operations) if not op.template.differentiates), default=len(operations) - 1
    )
    for place, op in enumerate(operations):
        matcher.issue(op)
        if place in (last_forward, len(operations) - 1):
            # The outputs of the forward are laid out before the backward begins.
            for tensor in [t for o in operations[: place + 1] for t in o.outputs if t.name in pending]:
                handed[tensor.name] = matcher.redistributed(tensor, pending.pop(tensor.name), op)
    return Matched(tuple(_gradient_templates(matcher.issued)), matcher.layouts), handed
