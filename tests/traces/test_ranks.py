"""Parts of a world for machines that share an export."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.traces.rank_sets import parse_ranks, shard_ranks


@given(st.integers(1, 5000), st.data())
def test_parts_are_every_rank_once_and_nearly_equal(world: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, min(world, 40)))
    each = [parse_ranks(shard_ranks(f"{part}/{parts}", world), world) for part in range(parts)]
    assert np.concatenate(each).tolist() == list(range(world))
    sizes = {len(ranks) for ranks in each}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["4/4", "1", "-1/4", "1/0", "0/9", "a/b", "1/2/3", ""])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        shard_ranks(text, 8)
