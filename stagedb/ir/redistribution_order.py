"""The order in which the placements of a tensor change, mesh axis by mesh axis.

If several mesh axes cut one axis of a tensor, the inner one cuts the parts of the outer one. So only the innermost cut
can be undone, and a new cut is made inside all existing ones. An outer axis that leaves, or comes, goes before an inner
one comes, and cuts inside of it are gathered first.

A weight that dp or cp cuts on the axis that its operator wants over tp would be gathered whole for that. Meanwhile tp
cuts it on another axis (`by_way_of`): each rank gathers only its part there, and an all-to-all over tp does the rest.
"""

from collections.abc import Sequence

from stagedb.ir.layouts import INNERMOST_FIRST, MESH_AXES, Layout, Partitioned, Placement

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
