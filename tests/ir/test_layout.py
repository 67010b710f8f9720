"""Layouts as text and back, and the redistribution between any two of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.ir import Layout, Partial, Partitioned, parse_layout
from stagedb.ir.collective_matcher import Matching, match
from stagedb.ir.layouts import MESH_AXES, Placement
from stagedb.ir.operators import Add, Cast, Redistribution
from stagedb.ir.tensors import Operation, Tensor
from stagedb.workflows.training import FORWARD

placements: st.SearchStrategy[Placement] = st.one_of(
    st.sampled_from(["batch", "seq", "hidden"]).map(Partitioned), st.sampled_from([Partial(), Partial("max")])
)


@given(st.dictionaries(st.sampled_from(MESH_AXES), placements))
def test_a_layout_s_text_reads_back(chosen: dict[str, Placement]) -> None:
    layout = Layout.of(chosen)
    assert parse_layout(layout.texts()) == layout


def test_a_foreign_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not a layout"):
        parse_layout(["tp:sharded(hidden)"])


@pytest.mark.parametrize(
    ("have", "want", "moves"),
    [
        ({"tp": Partial()}, {}, ["all_reduce"]),
        ({"tp": Partial()}, {"tp": Partitioned("seq")}, ["reduce_scatter"]),
        ({"tp": Partitioned("seq")}, {}, ["all_gather"]),
        ({"tp": Partitioned("seq")}, {"tp": Partitioned("hidden")}, ["all_to_all"]),
        ({}, {"tp": Partitioned("seq")}, ["slice"]),
        ({"tp": Partitioned("seq")}, {"tp": Partitioned("seq")}, []),
        ({"tp": Partial(), "cp": Partitioned("seq")}, {}, ["all_reduce", "all_gather"]),
    ],
)
def test_the_move_between_two_layouts(have: dict[str, Placement], want: dict[str, Placement], moves: list[str]) -> None:
    axes = ("batch", "seq", "hidden")
    x, y, z = (Tensor(name, axes, "act", "activation") for name in "xyz")
    made = Operation("make", Add(), (x,), (y,), "source", FORWARD, "make")
    used = Operation("use", Cast(), (y,), (z,), "target", FORWARD, "use")
    rules = {
        "source": {p.axis: (m,) for m, p in have.items() if isinstance(p, Partitioned)},
        "target": {p.axis: (m,) for m, p in want.items() if isinstance(p, Partitioned)},
    }
    matched, _ = match([made, used], rules, Matching(), {"x": Layout.of(have)}, {})
    done = [op.operator for op in matched.operations if op.outputs[0].name.startswith("y.")]
    assert [op.move for op in done if isinstance(op, Redistribution)] == moves
