"""Collectives over several dimensions in parts: closed forms, and parts that run step by step."""

from dataclasses import replace
from fractions import Fraction
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.systems import (
    Collectives,
    CollectiveWork,
    Costs,
    Curve,
    Dimension,
    load_system,
    parse_system,
    system_names,
)
from stagedb.systems.algorithms.hierarchical import pipelined
from stagedb.systems.cost_model import time_placed
from stagedb.systems.group_placement import place
from tests.systems.test_systems import TEXT

FAST, SLOW = (
    Dimension("inside", 4, "switch", Fraction(200), Fraction(300)),
    Dimension("outside", 4, "switch", Fraction(25), Fraction(1000)),
)
NODES = (FAST, SLOW)


def timed(network: tuple[Dimension, ...], kind: str, size: int, parts: int) -> tuple[int, str]:
    sizes = [each.places for each in network]
    found = time_placed(network, kind, size, place(range(prod(sizes)), sizes), parts)
    return found.ns, found.rule


def stepped(stages: list[Fraction], parts: int) -> Fraction:
    """The end of the last part, where every part takes every stage in turn, and a stage takes one part at a time."""
    ends = [Fraction(0)] * len(stages)
    for _ in range(parts):
        came = Fraction(0)
        for at, takes in enumerate(stages):
            came = ends[at] = max(came, ends[at]) + takes
    return ends[-1]


numbers = st.integers(0, 10**6).map(lambda each: Fraction(each, 7))


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5), st.integers(1, 12))
def test_parts_follow_each_other_at_the_pace_of_the_slowest_dimension(
    rows: list[tuple[Fraction, Fraction]], parts: int
) -> None:
    latencies, moves = [row[0] for row in rows], [row[1] for row in rows]
    stages = [latency + move / parts for latency, move in rows]
    assert pipelined(latencies, moves, parts) == stepped(stages, parts)


def test_a_hierarchy_in_parts_takes_its_closed_form() -> None:
    # 3 x 300 ns and 3/4 of 16 GB at 200 GB/s inside; 3 x 1,000 ns and 3/16 of it at 25 GB/s outside.
    size, inside, outside = 16 * 10**9, 60 * 10**6, 120 * 10**6
    assert timed(NODES, "reduce_scatter", size, 8) == (900 + inside // 8 + 8 * (3000 + outside // 8), "hierarchical")
    assert timed(NODES, "all_gather", 10**9, 8) == timed(NODES, "reduce_scatter", size, 8)
    twice = 2 * (900 + inside // 8 + 8 * (3000 + outside // 8))
    assert timed(NODES, "all_reduce", size, 8) == (twice, "hierarchical")


def test_with_one_part_dimensions_take_strict_turns() -> None:
    late = (replace(FAST, latency=Fraction(10**7)), replace(SLOW, latency=Fraction(10**9)))
    size = 16 * 10**9
    assert timed(late, "reduce_scatter", size, 1) == (90 * 10**6 + 3 * 10**9 + 120 * 10**6, "hierarchical")
    # Parts that would wait for too many latencies are not made.
    assert timed(late, "reduce_scatter", size, 64) == timed(late, "reduce_scatter", size, 1)


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    st.integers(0, 10**11),
    st.integers(1, 63),
    st.lists(st.integers(2, 5), min_size=1, max_size=3),
)
def test_more_parts_are_never_slower_and_one_dimension_has_none(
    kind: str, size: int, parts: int, sizes: list[int]
) -> None:
    network = tuple(
        Dimension(f"d{at}", each, "switch", Fraction(400, 3**at), Fraction(500 * (at + 1)))
        for at, each in enumerate(sizes)
    )
    fewer, more = (timed(network, kind, size, each)[0] for each in (parts, parts + 1))
    assert fewer >= more
    assert timed(network[:1], kind, size, parts) == timed(network[:1], kind, size, 1)


def test_parts_are_those_of_the_system() -> None:
    for name in system_names():
        system = load_system(name)
        assert system.collectives == Collectives("fastest", 8)
    system = replace(load_system("h100"), dimensions=NODES, tables=())
    work = CollectiveWork("reduce_scatter", 16 * 10**9, tuple(range(16)))
    strict = replace(system, collectives=Collectives())
    assert Costs(system, 16).collective(work).ns == timed(NODES, "reduce_scatter", 16 * 10**9, 8)[0]
    assert Costs(strict, 16).collective(work).ns == timed(NODES, "reduce_scatter", 16 * 10**9, 1)[0]
    assert Costs(strict, 16).collective(work).ns > Costs(system, 16).collective(work).ns


def test_an_efficiency_is_that_of_the_whole_message() -> None:
    curve = Curve(((Fraction(10**9), Fraction(1, 4)), (Fraction(4 * 10**9), Fraction(1, 2))))
    network = tuple(replace(each, efficiency=curve, latency=Fraction(0)) for each in NODES)
    # 16 GB, of which 4 GB go outside, have half of the bandwidths: in eight parts as in one.
    inside, outside = 120 * 10**6, 240 * 10**6
    assert timed(network, "reduce_scatter", 16 * 10**9, 8) == (inside // 8 + outside, "hierarchical")


def test_a_file_has_a_model_and_parts_and_one_without_them_has_strict_turns() -> None:
    assert parse_system(TEXT).collectives == Collectives("fastest", 1)
    assert "collectives" not in parse_system(TEXT).to_dict()
    found = parse_system(TEXT + "collectives: {model: astra-sim, parts: 4}\n")
    assert found.collectives == Collectives("astra-sim", 4)
    assert found.to_dict()["collectives"] == {"model": "astra-sim", "parts": 4}
    assert parse_system(TEXT + "collectives: {parts: 3}\n").collectives == Collectives("fastest", 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{model: slowest}", "line 26: collectives.model is 'slowest': it takes one of fastest, astra-sim"),
        ("{parts: 0}", "line 26: collectives.parts is '0': it takes a whole number of parts from 1 to 64"),
        ("{parts: 65}", "collectives.parts is '65'"),
        ("{parts: 1.5}", "collectives.parts is '1.5'"),
        ("{chunks: 4}", "unknown key collectives.chunks"),
    ],
)
def test_other_words_are_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_system(f"{TEXT}collectives: {words}\n")
