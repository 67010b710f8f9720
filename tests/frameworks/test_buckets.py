"""How bucket policies deal weights to collectives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import StagedbError
from stagedb.frameworks import bucket_policy
from stagedb.frameworks.bucket_policies import DDP_FIRST, DDP_LATER, MIB

sizes_of_weights = st.lists(st.integers(1, 40 * MIB), max_size=60)


@given(sizes_of_weights)
def test_ddp_closes_buckets_at_its_caps(sizes: list[int]) -> None:
    buckets = bucket_policy("ddp").deal(sizes)
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes) - 1, -1, -1))
    for number, bucket in enumerate(buckets):
        held, cap = [sizes[index] for index in bucket], DDP_LATER if number else DDP_FIRST
        assert sum(held[:-1]) < cap
        assert sum(held) >= cap or number == len(buckets) - 1


@given(sizes_of_weights)
def test_one_bucket_holds_everything(sizes: list[int]) -> None:
    assert [sorted(bucket) for bucket in bucket_policy("one").deal(sizes)] == (
        [list(range(len(sizes)))] if sizes else []
    )


def test_ddp_on_the_weights_of_a_small_llama() -> None:
    """Two layers of hidden 64 with a vocabulary of 16,384 in bf16: the head alone, then all the rest."""
    layer = [128, 8192, 4096, 4096, 8192, 128, 12288, 12288, 12288]
    sizes = [2 * MIB, *layer, *layer, 128, 2 * MIB]
    buckets = bucket_policy("ddp").deal(sizes)
    assert [sum(sizes[index] for index in bucket) for bucket in buckets] == [2 * MIB, 2 * MIB + 2 * sum(layer) + 128]


def test_an_unknown_rule_is_a_failure() -> None:
    with pytest.raises(StagedbError, match="rule 'zigzag'"):
        bucket_policy("zigzag").deal([1])


@given(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=20))
def test_units_hold_every_weight_once(units: list[int | None]) -> None:
    sizes = [1] * len(units)
    for rule in ("unit", "each", "layers"):
        dealt = bucket_policy(rule).deal(sizes, units)
        kept = [index for index, unit in enumerate(units) if rule != "layers" or unit is not None]
        assert sorted(index for bucket in dealt for index in bucket) == kept
        assert all(len({units[index] for index in bucket}) == 1 for bucket in dealt)
    positions = [units[bucket[0]] for bucket in bucket_policy("unit").deal(sizes, units)]
    assert positions == sorted({u for u in units if u is not None}, reverse=True) + [None] * (None in units)
