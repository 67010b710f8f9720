"""The order in which a tensor's placements change: parts of parts are never taken apart from the outside."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.ir.collective_matcher import next_move
from stagedb.ir.layouts import Layout, Partial, Partitioned, Placement

MESH = ("dp", "cp", "tp")
PLACEMENTS: list[Placement | None] = [None, *(Partitioned(axis) for axis in ("seq", "hidden", "heads"))]

layouts = st.tuples(*[st.sampled_from(PLACEMENTS)] * 3)


def layout(placements: tuple[Placement | None, ...]) -> Layout:
    return Layout.of({m: p for m, p in zip(MESH, placements, strict=True) if p is not None})


@settings(max_examples=500, deadline=None)
@given(have=layouts, want=layouts, partial=st.sampled_from([None, *MESH]), order=st.permutations(MESH))
def test_only_the_innermost_part_comes_and_goes(
    have: tuple[Placement | None, ...], want: tuple[Placement | None, ...], partial: str | None, order: list[str]
) -> None:
    current, goal = layout(have), layout(want)
    if partial is not None:
        current = current.with_(partial, Partial())
    for _ in itertools.count():
        turns = [m for m in order if current.on(m) != goal.on(m)]
        if not turns:
            break
        mesh_axis, placement = next_move(current, goal, turns)
        before, current = current, current.with_(mesh_axis, placement)
        for state, there in ((before, before.on(mesh_axis)), (current, placement)):
            if isinstance(there, Partitioned):
                assert state.cuts(there.axis)[-1] == mesh_axis
        assert placement in (goal.on(mesh_axis), None)
        assert before != current


def test_an_inner_part_is_gathered_and_cut_again() -> None:
    have, want = layout((None, None, Partitioned("seq"))), layout((None, Partitioned("seq"), Partitioned("seq")))
    moves = []
    while have != want:
        mesh_axis, placement = next_move(have, want, [m for m in reversed(MESH) if have.on(m) != want.on(m)])
        moves.append((mesh_axis, placement))
        have = have.with_(mesh_axis, placement)
    assert moves == [("tp", None), ("cp", Partitioned("seq")), ("tp", Partitioned("seq"))]
