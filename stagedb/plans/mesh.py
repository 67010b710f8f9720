"""The device mesh of a plan: rank to coordinates and back, and the communicator groups of each axis.

Every group is an arithmetic row of ranks, so that a store can make all groups of a mesh from a few numbers: group
`index` of an axis has the ranks `start(index) + k * step` for k in 0..members-1, where
`start(index) = index // stride * (stride * size) + index % stride`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stagedb.plans.plan import Plan

MESH_AXES = ("tp", "cp", "dp", "pp")
"""Axes along which coordinates differ."""

GROUP_AXES = (
    *("tp", "kv", "cp", "cpr", "cpa", "ep", "epn", "epr", "edp", "data", "dp", "dp_replicate", "dp_reshard"),
    *("pp", "embedding"),
)
"""Axes that have groups:

`dp`: the ranks that gradients are reduced over, those of cp included. With hybrid sharding, the neighbouring ranks that
share one copy of what is sharded. `dp_replicate`: the ranks with the same part of each copy. `dp_reshard`: neighbours
among those of `dp` that keep all parameters from the forward to the backward. `data`: the ranks of dp
alone, also if gradients are reduced over cp. `cpa`: neighbours on cp that exchange heads inside a ring over the others.
`cpr`: the ranks of that ring, with the same place among their neighbours. `ep`: neighbours among the ranks of dp and cp
(and of tp, if its ranks have whole experts), which divide the experts among them. `edp`: the ranks with the same
experts; with hybrid sharding, those of one copy. `epr`: neighbours on ep that are one node, where tokens are sent once
for each node. `epn`: the ranks of ep with the same place in their nodes. `kv`: the tensor-parallel ranks that hold the
same key/value head, if tp is above the number of heads. `embedding`: the first and the last stage, which hold the two
copies of a tied embedding."""


TOKEN_AXES = ("ep", "epn", "epr")
"""Axes along which tokens are sent to their experts and back."""

OWNED_AXES = ("dp", "edp")
"""Axes along which ranks may each update whole weights of their own."""


@dataclass(frozen=True)
class AxisGroups:
    """All groups of one axis. `first` is the id of group 0. The ids of the others follow.

    The axis has `size` ranks, `stride` apart. A group has `members` of them, `step` apart.
    """

    axis: str
    first: int
    count: int
    size: int
    stride: int
    members: int
    step: int

    def ranks(self, index: int) -> range:
        """The ranks of group `index`, in ring order."""
        start = index // self.stride * self.stride * self.size + index % self.stride
        return range(start, start + self.members * self.step, self.step)

    def index_of(self, rank: int) -> int | None:
        """The group of a rank; None for a rank that is in no group of the axis (the middle stages for `embedding`)."""
        along = rank // self.stride % self.size
        if along % (self.step // self.stride):
            return None
        return rank // (self.stride * self.size) * self.stride + rank % self.stride


@dataclass(frozen=True)
class Mesh:
    """Degrees of the mesh axes, innermost first. Ranks count the coordinates like the digits of a number."""

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, plan: Plan) -> "Mesh":
        """The mesh of a plan, in its rank order."""
        degrees = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
        return cls(tuple((axis, degrees[axis]) for axis in plan.rank_order))

    @property
    def world(self) -> int:
        """Number of ranks."""
        world = 1
        for _, size in self.axes:
            world *= size
        return world

    def size(self, axis: str) -> int:
        """Degree of a mesh axis."""
        return dict(self.axes)[axis]

    def stride(self, axis: str) -> int:
        """The distance between two ranks that differ by one along a mesh axis."""
        stride = 1
        for name, size in self.axes:
            if name == axis:
                return stride
            stride *= size
        raise KeyError(axis)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank on each mesh axis."""
        return {axis: rank // self.stride(axis) % size for axis, size in self.axes}

    def rank(self, **coordinates: int) -> int:
        """The rank with the given coordinates. Axes that are left out are 0."""
        return sum(at * self.stride(axis) for axis, at in coordinates.items())


def groups(plan: Plan, kv_heads: int, axes: Iterable[str]) -> tuple[AxisGroups, ...]:
    """Groups of those `axes` along which several ranks communicate. All ids have the same number of digits.

    The first id is the smallest power of ten from which that is possible, so that a rank's file can be patched in
    place. `kv_heads` is the model's number of key/value heads.
    """
    wanted = set(axes)
    shapes = [shape for shape in _shapes(plan, kv_heads) if shape.axis in wanted]
    first = first_id(sum(shape.count for shape in shapes))
    numbered = []
    for shape in shapes:
        numbered.append(AxisGroups(shape.axis, first, shape.count, shape.size, shape.stride, shape.members, shape.step))
        first += shape.count
    return tuple(numbered)


def first_id(count: int) -> int:
    """The smallest power of ten from which `count` consecutive ids have the same number of digits."""
    first = 1
    while count > 9 * first:
        first *= 10
    return first


def expert_axis(plan: Plan) -> str:
    """The innermost of the axes along which tokens go to experts. Ranks that share experts are next to each other."""
    axes = [axis for axis in plan.expert_axes if axis != "tp" or not plan.options.experts_of_tp]
    return min((axis for axis in axes if getattr(plan, axis) > 1), key=plan.rank_order.index, default="dp")


def member_axis(plan: Plan) -> str:
    """The innermost of the axes that experts are spread over, along which the coordinate on ep counts."""
    return min((axis for axis in plan.expert_axes if getattr(plan, axis) > 1), key=plan.rank_order.index, default="dp")


def members(plan: Plan) -> Counter[tuple[int, int, int]]:
    """The number of ranks of a stage by their coordinates (on cp, on ep, on dp).

    That on dp is 0 for all unless ranks of dp update weights of their own.
    """
    axes = sorted(plan.expert_axes, key=plan.rank_order.index)
    alike = 1 if "tp" in axes else plan.tp
    # The coordinates repeat along the ranks: one period is counted, and multiplied by the number of periods.
    inner = math.prod(getattr(plan, axis) for axis in axes[: axes.index("cp")]) if plan.cp > 1 else 1
    period = math.lcm(inner * plan.cp, plan.ep)
    times, rest = divmod(plan.expert_ranks, period)
    if rest or plan.options.owns_layers:  # no whole number of periods: a plan that is refused elsewhere
        times, period = 1, plan.expert_ranks
    alike *= times
    found: Counter[tuple[int, int, int]] = Counter()
    for number in range(period):
        at, rest = dict[str, int](), number
        for axis in axes:
            rest, at[axis] = divmod(rest, getattr(plan, axis))
        found[at["cp"], number % plan.ep, at["dp"] if plan.options.owns_layers else 0] += alike
    return found


def _shapes(plan: Plan, kv_heads: int) -> Iterator[AxisGroups]:
    """Groups of every axis, without ids. An axis on which each rank is alone has none."""
    mesh = Mesh.of(plan)
    shared = max(plan.tp // kv_heads, 1)
    copy = plan.dp // plan.hsdp
    together = plan.shards // copy
    along = {"tp": ("tp", 1, plan.tp), "kv": ("tp", 1, shared), "cp": ("cp", 1, plan.cp), "dp": ("dp", 1, copy)}
    along |= {"cpa": ("cp", 1, plan.ulysses), "cpr": ("cp", plan.ulysses, plan.cp // plan.ulysses)}
    along |= {"data": ("dp", 1, plan.dp), "dp_reshard": ("dp", 1, plan.options.reshard_to or 1)}
    inner, ep = expert_axis(plan), plan.exchanging
    near = plan.node_ranks
    along |= {"epr": (inner, 1, near), "epn": (inner, near, ep // near)}
    along |= {"ep": (inner, 1, ep), "edp": (inner, ep, plan.edp // plan.hsdp)}
    along |= {"dp_replicate": ("dp", copy, plan.hsdp), "pp": ("pp", 1, plan.pp), "embedding": ("pp", 1, plan.pp)}
    for axis in GROUP_AXES:
        if axis not in along:
            continue
        mesh_axis, apart, size = along[axis]
        stride = mesh.stride(mesh_axis) * apart
        if axis in ("dp", "dp_reshard") and together > 1:
            # The ranks of dp and cp, which are next to each other in the order of ranks.
            stride = min(stride, mesh.stride("cp"))
            size = plan.shards if axis == "dp" else size
        if size < 2:
            continue
        ends = axis == "embedding"
        members, step = (2, stride * (size - 1)) if ends else (size, stride)
        yield AxisGroups(axis, 0, mesh.world // size, size, stride, members, step)
