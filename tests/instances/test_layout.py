"""Blocks dealt to stages, and the issue order of positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import StagedbError
from stagedb.lowering.stage_blocks import Block, IssueOrder, Place, lay_out

GPT = (Block("embedding", None), Block("layer", 5), Block("head", None))


def test_ends_of_the_model_go_to_the_ends_of_the_pipeline() -> None:
    first, middle, last = lay_out(GPT, (2, 2, 1))
    assert first.places == (Place(0, "embedding"), Place(1, "layer", 0), Place(2, "layer", 1))
    assert first.with_cuts() == (*first.places, Place(3, "cut", end="next"))
    assert middle.with_cuts() == (
        Place(-1, "cut", end="previous"),
        Place(0, "layer", 0),
        Place(1, "layer", 1),
        Place(2, "cut", end="next"),
    )
    assert last.with_cuts() == (Place(-1, "cut", end="previous"), Place(0, "layer", 0), Place(1, "head"))
    assert [stage.first_layer for stage in (first, middle, last)] == [0, 2, 4]
    assert first.single_blocks() == {"embedding": 0}
    assert last.single_blocks() == {"head": 1}


def test_one_stage_has_no_cut() -> None:
    (only,) = lay_out(GPT, (5,))
    assert only.with_cuts() == only.places
    assert only.single_blocks() == {"embedding": 0, "head": 6}


def test_a_block_between_layers_goes_with_the_layer_after_it() -> None:
    blocks = (Block("dense", 2), Block("bridge", None), Block("sparse", 2), Block("head", None))
    first, second = lay_out(blocks, (2, 2))
    assert [place.block for place in first.places] == ["dense", "dense"]
    assert [place.block for place in second.places] == ["bridge", "sparse", "sparse", "head"]
    assert [place.layer for place in second.places] == [None, 0, 1, None]
    first, second = lay_out(blocks, (1, 3))
    assert [place.block for place in second.places] == ["dense", "bridge", "sparse", "sparse", "head"]


def test_the_ends_of_a_pipeline_may_have_no_layer() -> None:
    first, *middle, last = lay_out(GPT, (0, 2, 3, 0))
    assert first.with_cuts() == (Place(0, "embedding"), Place(1, "cut", end="next"))
    assert last.with_cuts() == (Place(-1, "cut", end="previous"), Place(0, "head"))
    assert [len(stage.places) for stage in middle] == [2, 3]
    assert [stage.first_layer for stage in (first, *middle, last)] == [0, 0, 2, 5]


def test_layers_that_the_graph_does_not_have_are_a_failure() -> None:
    with pytest.raises(StagedbError, match="4 layers are dealt to stages, but the graph's blocks repeat 5 times"):
        lay_out(GPT, (2, 2))


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_issue_numbers_follow_the_dataflow(positions: int, orders: int, slots: int) -> None:
    """Going up from cut to cut in a forward and down in a backward, and no two ops share a number."""
    order = IssueOrder(positions, orders, slots)
    ups = [order.upward(position) + index * slots for position in range(-1, positions + 1) for index in range(orders)]
    downs = [
        order.downward(position) + index * slots for position in range(positions, -2, -1) for index in range(orders)
    ]
    assert ups == downs == list(range(order.stride, (positions + 3) * order.stride, slots))


def test_layers_of_kinds_that_alternate_are_dealt_in_their_order() -> None:
    blocks = (
        Block("embedding", None),
        Block("dense", 3, (0, 1, 4)),
        Block("sparse", 2, (2, 3)),
        Block("head", None),
    )
    stages = lay_out(blocks, (3, 2))
    assert [[(place.block, place.layer) for place in stage.places] for stage in stages] == [
        [("embedding", None), ("dense", 0), ("dense", 1), ("sparse", 2)],
        [("sparse", 0), ("dense", 1), ("head", None)],
    ]
    # Two stages of two chunks: layers of all kinds are counted over the chunks of a stage.
    chunks = lay_out(blocks, (1, 1, 1, 2), chunks=2)
    assert [[place.layer for place in chunk.places if place.layer is not None] for chunk in chunks] == [
        [0],
        [0],
        [1],
        [1, 2],
    ]
