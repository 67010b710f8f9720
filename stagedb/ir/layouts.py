"""Layouts of a tensor on the device mesh: for each mesh axis replicated, partitioned on a tensor axis, or partial.

The words are those of PyTorch's DTensor (`Replicate`, `Shard`, `Partial`) and of GSPMD; tensor axes have names.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from stagedb.files import shown

MESH_AXES = ("dp", "edp", "ep", "epn", "epr", "cp", "cpr", "cpa", "tp")
"""The axes of layouts, outermost first: a tensor axis partitioned over several is cut in this order.

Experts see the ranks of dp and cp (and of tp, if each has whole experts) as two other axes: `ep`, over which experts
are partitioned, and `edp`, whose ranks hold the same experts. A layout is on one pair or on the other. If a ring and
all-to-alls share a sequence, the ranks of cp are those of `cpr`, the places of the ring, times those of `cpa`,
neighbours that exchange heads. In the same way the ranks of ep are the nodes `epn` times their ranks `epr`, where
tokens are sent once for each node.
"""

INNERMOST_FIRST = (
    *("heads", "kv_heads", "kv_copies", "experts"),
    *("scan_groups", "scan_inner", "delta_groups", "recurrence_blocks", "kda_heads", "lightning_heads"),
    "short_channels",
)
"""Tensor axes that are cut in the reverse order of the mesh.

Tensor parallelism deals heads (of scans: groups of heads, or channels), and context parallelism deals those of one
tensor-parallel rank. Experts are dealt in the same way, where ranks of tp have others and each has only tokens for its
own to exchange.
"""

Reduction = Literal["sum", "max"]


@dataclass(frozen=True)
class Partitioned:
    """Each member of the mesh axis holds one contiguous part of the tensor's axis."""

    axis: str


@dataclass(frozen=True)
class Partial:
    """Each member holds a whole-sized share; the value is the sum (or maximum) over members."""

    reduction: Reduction = "sum"


Placement = Partitioned | Partial


@dataclass(frozen=True)
class Layout:
    """Placements by mesh axis, outermost first; an axis that is not named is replicated."""

    placements: tuple[tuple[str, Placement], ...] = ()

    @classmethod
    def of(cls, placements: Mapping[str, Placement]) -> "Layout":
        """A layout from a mapping, in the order of the mesh.

        placements: by mesh axis; an axis that is left out replicates the tensor.
        """
        return cls(tuple((axis, placements[axis]) for axis in MESH_AXES if axis in placements))

    def on(self, mesh_axis: str) -> Placement | None:
        """The placement on one mesh axis; None where replicated. mesh_axis: such as `tp`."""
        return dict(self.placements).get(mesh_axis)

    def with_(self, mesh_axis: str, placement: Placement | None) -> "Layout":
        """This layout with another placement on one mesh axis.

        mesh_axis: such as `tp`. placement: the new one; None: replicated.
        """
        changed = dict(self.placements)
        changed.pop(mesh_axis, None)
        if placement is not None:
            changed[mesh_axis] = placement
        return Layout.of(changed)

    def along(self, axes: Iterable[str]) -> "Layout":
        """The layout of a tensor that has only these of the axes."""
        own = {*axes}
        return Layout(tuple((m, p) for m, p in self.placements if not isinstance(p, Partitioned) or p.axis in own))

    def renamed(self, names: Mapping[str, str]) -> "Layout":
        """This layout for a tensor whose axes have other names."""
        return Layout(
            tuple(
                (m, Partitioned(names.get(p.axis, p.axis)) if isinstance(p, Partitioned) else p)
                for m, p in self.placements
            )
        )

    def cuts(self, tensor_axis: str) -> tuple[str, ...]:
        """The mesh axes that partition one axis of the tensor, in the order in which they cut it.

        tensor_axis: the name of that axis, such as `hidden`.
        """
        found = tuple(m for m, p in self.placements if isinstance(p, Partitioned) and p.axis == tensor_axis)
        return found[::-1] if tensor_axis in INNERMOST_FIRST else found

    def partials(self) -> tuple[str, ...]:
        """The mesh axes on which the tensor is partial."""
        return tuple(m for m, p in self.placements if isinstance(p, Partial))

    def texts(self) -> tuple[str, ...]:
        """The stored form: `tp:partitioned(hidden)`, `dp:partial(sum)`."""
        return tuple(
            f"{m}:partitioned({p.axis})" if isinstance(p, Partitioned) else f"{m}:partial({p.reduction})"
            for m, p in self.placements
        )


_TEXT = re.compile(r"(\w+):(partitioned|partial)\((\w+)\)")


def parse_layout(texts: Iterable[str]) -> Layout:
    """The layout of a stored tensor; ValueError where a text is not one of `Layout.texts`."""
    placements: dict[str, Placement] = {}
    for text in texts:
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not a layout: {shown(text)}")
        mesh_axis, word, argument = match.groups()
        if word == "partitioned":
            placements[mesh_axis] = Partitioned(argument)
        else:
            placements[mesh_axis] = Partial("max" if argument == "max" else "sum")
    return Layout.of(placements)
