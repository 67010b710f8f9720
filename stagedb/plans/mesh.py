"""The device mesh of a plan: rank to coordinates and back, the groups of each axis, and both as a few numbers.

Every group is an arithmetic row of ranks, so that a store can make all groups of a mesh from a few numbers: group
`index` of an axis has the ranks `start(index) + k * step` for k in 0..members-1, where
`start(index) = index // stride * (stride * size) + index % stride`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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


# All ranks and communicator groups of an instance as a few numbers: each rank and group follows by arithmetic.
#
# A store keeps these numbers with the instance. Readers compute ranks and groups from them; nodes of ranks and groups
# are written when a query asks for them.

Ints = npt.NDArray[np.int64]

_COLUMNS = ("group_firsts", "group_counts", "group_sizes", "group_strides", "group_members", "group_steps")
"""Properties with the numbers of each axis, in the order of the fields of `AxisGroups`."""


@dataclass(frozen=True)
class RankLayout:
    """The mesh of a plan, the class of each of its places, and its groups.

    classes: by stage and coordinates on cp, ep and dp, that of dp counted first; -1 where there is no rank. along_cp,
    along_ep, along_dp: how many coordinates `classes` has on these axes: 1 if all do the same work, else all of the
    plan.
    """

    plan: Plan
    classes: tuple[int, ...]
    along_cp: int
    along_ep: int
    along_dp: int
    groups: tuple[AxisGroups, ...]

    @classmethod
    def stored(cls, plan: Plan, row: Mapping[str, Any]) -> "RankLayout":
        """The layout of the properties of an instance.

        row: these properties by name. Raises ValueError unless all ranks and groups follow from it.
        """
        columns = [row["group_axes"], *(row[name] for name in _COLUMNS)]
        groups = tuple(AxisGroups(*numbers) for numbers in zip(*columns, strict=True))
        along = row["class_cp"], row["class_ep"], row.get("class_dp") or 1
        layout = cls(plan, tuple(row["class_table"]), *along, groups)
        layout._check()
        return layout

    def properties(self) -> dict[str, Any]:
        """The properties that an instance node keeps of the layout."""
        axes, *numbers = zip(*map(astuple, self.groups), strict=True) if self.groups else [()] * (1 + len(_COLUMNS))
        return {
            "class_table": list(self.classes),
            "class_cp": self.along_cp,
            "class_ep": self.along_ep,
            **({"class_dp": self.along_dp} if self.along_dp > 1 else {}),
            "group_axes": list(axes),
            **{name: list(column) for name, column in zip(_COLUMNS, numbers, strict=True)},
        }

    def _check(self) -> None:
        along = self.along_cp, self.along_ep, self.along_dp
        if any(
            each not in (1, size) for each, size in zip(along, (self.plan.cp, self.plan.ep, self.plan.dp), strict=True)
        ):
            raise ValueError("its table of classes has other coordinates than its plan")
        if len(self.classes) != self.plan.pp * math.prod(along):
            raise ValueError("its table of classes has another size than its plan")
        for each in self.groups:
            within = min(each.first, each.count, each.stride, each.members, each.step) > 0 and each.size > 1
            within = within and each.axis in GROUP_AXES and each.count * each.size == self.plan.world
            within = within and self.plan.world % (each.size * each.stride) == 0
            if not within or (each.members - 1) * each.step >= each.size * each.stride:
                raise ValueError(f"its groups on {each.axis} do not divide its ranks")
        if sum(each.count for each in self.groups) > self.plan.world * len(GROUP_AXES):
            raise ValueError("it has more groups than are possible")

    @property
    def group_count(self) -> int:
        """Number of groups of all axes."""
        return sum(each.count for each in self.groups)

    def axes(self) -> Mapping[str, Mapping[str, int]]:
        """Degree and stride of every mesh axis. `ep` numbers neighbours along the axes that experts use."""
        mesh = Mesh.of(self.plan)
        axes = {axis: {"size": size, "stride": mesh.stride(axis)} for axis, size in mesh.axes}
        return {**axes, "ep": {"size": self.plan.ep, "stride": mesh.stride(member_axis(self.plan))}}

    def coordinates(self) -> dict[str, Ints]:
        """The coordinates of all ranks, by axis."""
        ranks = np.arange(self.plan.world)
        return {axis: ranks // each["stride"] % each["size"] for axis, each in self.axes().items()}

    def numbers(self) -> Ints:
        """The class of each rank."""
        at, table = self.coordinates(), np.array(self.classes, np.int64)
        cp, ep, dp = at["cp"] % self.along_cp, at["ep"] % self.along_ep, at["dp"] % self.along_dp
        found: Ints = table[((at["pp"] * self.along_cp + cp) * self.along_ep + ep) * self.along_dp + dp]
        return found

    def class_of(self, rank: int) -> int:
        """The class of one rank."""
        return int(self.numbers()[rank])

    def group_axes(self) -> Mapping[str, Mapping[str, int]]:
        """For each axis with groups, the numbers from which a rank finds its group."""
        return {
            each.axis: {"first": each.first, "stride": each.stride, "span": each.stride * each.size}
            for each in self.groups
        }

    def rank_columns(self) -> Mapping[str, Sequence[int]]:
        """The ranks as `workload/ranks` returns them, by the arithmetic of `ranks/write`."""
        at = self.coordinates()
        columns = {"number": np.arange(self.plan.world), "class": self.numbers()}
        columns |= {axis: at[axis] for axis in ("tp", "cp", "dp", "pp")}
        return {name: column.tolist() for name, column in columns.items()}

    def group_columns(self) -> Mapping[str, Sequence[Any]]:
        """The groups as `workload/groups` returns them."""
        each = [
            (made.first + index, made.axis, list(made.ranks(index)))
            for made in self.groups
            for index in range(made.count)
        ]
        return {name: [row[place] for row in each] for place, name in enumerate(("gid", "axis", "members"))}

    def group_rows(self, first: int, most: int) -> list[dict[str, Any]]:
        """Ranges of groups from the one number `first` on, counted over all axes, with `most` members or one group."""
        rows: list[dict[str, Any]] = []
        left, passed = most, 0
        for made in self.groups:
            begin = max(first - passed, 0)
            passed += made.count
            count = min(made.count - begin, max(left // made.members, 0 if rows else 1))
            if count <= 0:
                if begin < made.count:
                    break
                continue
            left -= count * made.members
            rows.append(
                {
                    "axis": made.axis,
                    "first": made.first,
                    "first_index": begin,
                    "last_index": begin + count - 1,
                    "stride": made.stride,
                    "span": made.stride * made.size,
                    "members": made.members,
                    "step": made.step,
                }
            )
            if begin + count < made.count:
                break
        return rows
