"""All ranks and communicator groups of an instance as a few numbers: each rank and group follows by arithmetic.

A store keeps these numbers with the instance. Readers compute ranks and groups from them; nodes of ranks and groups are
written when a query asks for them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.plans.mesh import GROUP_AXES, AxisGroups, Mesh, member_axis
from stagedb.plans.plan import Plan

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
