"""What a sweep varies: read from texts and lists, combined, and refused with a way out."""

import math
from fractions import Fraction
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.search.sweeping import MOST, changed_system, points, read_variation, shown_text, variation
from stagedb.systems import load_system

H100 = load_system("h100")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("tp=1,2,4", (1, 2, 4)),
        ("tp= 1, 2", (1, 2)),
        ("micro_batch_size=1..4", (1, 2, 3, 4)),
        ("micro-batch-size=2..8:3,16", (2, 5, 8, 16)),
        ("sp=true,false", (True, False)),
        ("dropout=0,0.1", (0.0, 0.1)),
        ("recompute=none,full", ("none", "full")),
        ("layers_per_stage=8,8;9,7", ((8, 8), (9, 7))),
        ("system=h100,h200", ("h100", "h200")),
        ("system.accelerator.memory.bandwidth=2000,4.8e3,.inf", (Fraction(2000), Fraction(4800), math.inf)),
        ("system.network.nvlink.latency=100..300:100", (Fraction(100), Fraction(200), Fraction(300))),
    ],
)
def test_a_text_lists_its_values(text: str, values: tuple[Any, ...]) -> None:
    found = read_variation(text)
    assert found.values == values
    assert [type(each) for each in found.values] == [type(each) for each in values]
    again = variation(found.name, (";" if "," in shown_text(values[0]) else ",").join(map(shown_text, values)))
    assert again == found


def test_lists_of_python_are_those_of_a_text() -> None:
    assert variation("tp", [1, 2]) == read_variation("tp=1,2")
    assert variation("micro_batch_size", range(1, 4)) == read_variation("micro_batch_size=1..3")
    path = "system.accelerator.launch"
    assert variation(path, [1500, 0.5, math.inf]).values == (Fraction(1500), Fraction(1, 2), math.inf)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "is not NAME=VALUES, such as tp=1,2,4"),
        ("tp=", "is not NAME=VALUES"),
        ("=1", "is not NAME=VALUES"),
        ("micro_batch=1,2", "did you mean micro_batch_size"),
        ("accelerator.launch=1", "did you mean system.accelerator.launch"),
        ("tpp=1", "did you mean tp"),
        ("tp=1,two", "tp must be a whole number, not 'two'"),
        ("tp=1,,2", "tp must be a whole number, not ''"),
        ("tp=4..2", "'4..2' is no range: it takes FIRST..LAST"),
        ("tp=1..4:0", "no range"),
        ("tp=1..99999999", "no range.*at most 10,000"),
        ("tp=2,4,2", "has the value 2 twice"),
        ("system.accelerator.launch=fast", "'fast' is no number"),
        ("sp=1", "sp must be true or false"),
    ],
)
def test_what_is_no_variation_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_variation(text)


@pytest.mark.parametrize("values", [[], 3, None, {"a": 1}])
def test_values_are_a_list_or_a_text(values: Any) -> None:
    with pytest.raises(UsageError, match="has no values"):
        variation("tp", values)


def test_every_combination_is_a_point_and_the_last_varies_fastest() -> None:
    found = points([read_variation("tp=1,2"), read_variation("micro_batch_size=1..3")])
    assert [tuple(each.values()) for each in found] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert list(found[0]) == ["tp", "micro_batch_size"]


def test_lists_are_taken_together() -> None:
    both = [read_variation("tp=1,2,4"), read_variation("pp=4,2,1")]
    assert [tuple(each.values()) for each in points(both, together=True)] == [(1, 4), (2, 2), (4, 1)]
    with pytest.raises(UsageError, match=r"lists of one length, and there are 2 of tp, 3 of pp"):
        points([read_variation("tp=1,2"), read_variation("pp=4,2,1")], together=True)


def test_a_name_twice_and_too_many_points_are_refused() -> None:
    with pytest.raises(UsageError, match="has tp twice"):
        points([read_variation("tp=1,2"), read_variation("tp=4")])
    most = [read_variation("tp=1..100"), read_variation("pp=1..100")]
    assert len(points(most)) == MOST
    with pytest.raises(UsageError, match="has 20,000 points, and at most 10,000"):
        points([*most, read_variation("dp=1,2")])


def test_a_system_has_the_numbers_of_a_point() -> None:
    values = {"tp": 2, "system.accelerator.launch": Fraction(500), "system.network.nvlink.bandwidth": Fraction(450)}
    found = changed_system(H100, values)
    assert found.accelerator.launch == 500
    assert found.dimensions == H100.dimensions
    assert changed_system(H100, {"tp": 2, "system.accelerator.launch": Fraction(2000)}) is H100
    with pytest.raises(UsageError, match=r"has no number 'accelerator.lunch': did you mean accelerator.launch"):
        changed_system(H100, {"system.accelerator.lunch": Fraction(1)})
