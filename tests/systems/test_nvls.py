"""NVLS: an all-reduce in the switch, where a system's file has a switch for it."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.systems import CollectiveWork, Dimension, load_system, parse_system
from stagedb.systems.algorithms import COLLECTIVES
from stagedb.systems.cost_model import time_collective


def switch(size: int, latency: int = 0, *, nvls: bool = True, kind: str = "switch") -> tuple[Dimension, ...]:
    algorithms = ("nvls",) if nvls else ()
    return (Dimension("nvlink", size, kind, Fraction(100), Fraction(latency), algorithms=algorithms),)


def reduced(network: tuple[Dimension, ...], size: int, ranks: range, kind: str = "all_reduce") -> str:
    return time_collective(network, CollectiveWork(kind, size, tuple(ranks))).rule


@pytest.mark.parametrize("n", [4, 6, 8])
def test_a_member_sends_its_buffer_and_its_part_of_the_sum(n: int) -> None:
    size = 8 * 6 * 10**6
    timed = time_collective(switch(8, 10), CollectiveWork("all_reduce", size, tuple(range(n))))
    assert (timed.rule, timed.ns) == ("nvls", 2 * 10 + size * (n + 1) // n // 100)
    sent: Counter[int] = Counter()
    for owner in range(n):
        sent.update(dict.fromkeys(range(n), size // n))  # the switch adds up this part of every member
        sent[owner] += size // n  # and copies the sum to every member
    assert timed.wires == (("nvlink", sent[0]),)
    assert set(sent.values()) == {sent[0]}


def test_two_latencies_are_fewer_than_those_of_a_tree() -> None:
    assert time_collective(switch(8, 1000), CollectiveWork("all_reduce", 800, tuple(range(8)))).ns == 2 * 1000 + 9
    assert reduced(switch(8, 1000, nvls=False), 800, range(8)) == "tree"


def test_two_members_send_less_to_each_other() -> None:
    assert reduced(switch(8), 10**9, range(2)) == "ring"
    assert reduced(switch(8), 10**9, range(3)) == "ring"  # 2 (n - 1) and n + 1 n-ths are equal: the first is taken
    assert reduced(switch(8), 10**9, range(4)) == "nvls"


def test_only_a_switch_that_can_reduces() -> None:
    assert reduced(switch(8, nvls=False), 10**9, range(8)) == "ring"
    assert reduced(switch(8, kind="fully-connected"), 10**9, range(8)) == "ring"
    assert {reduced(switch(8), 10**9, range(8), kind) for kind in COLLECTIVES} == {"nvls", "ring", "direct"}
    outside = replace(switch(4, nvls=False)[0], name="infiniband")
    both = (*switch(8), outside)
    assert reduced(both, 10**9, range(8)) == "nvls"
    assert reduced(both, 10**9, range(16)) == "ring"
    assert reduced((*switch(8), replace(outside, algorithms=("nvls",))), 10**9, range(16)) == "ring"
    assert reduced(both, 10**9, range(0, 32, 8)) == "ring"


@given(st.sampled_from(COLLECTIVES), st.integers(0, 10**10), st.integers(2, 8), st.sampled_from([0, 10, 10**4]))
def test_hardware_never_slows_a_collective_down(kind: str, size: int, n: int, latency: int) -> None:
    message = CollectiveWork(kind, size, tuple(range(n)))
    plain = time_collective(switch(8, latency, nvls=False), message)
    able = time_collective(switch(8, latency), message)
    assert able.ns <= plain.ns
    assert able == plain or able.rule == "nvls"


def test_a_file_names_the_algorithms_of_a_dimension() -> None:
    words = load_system("h100").to_dict()
    assert "algorithms" not in words["network"][0]
    words["network"][0]["algorithms"] = ["nvls"]
    system = parse_system(json.dumps(words))
    assert [each.algorithms for each in system.dimensions] == [("nvls",), ()]
    assert parse_system(json.dumps(system.to_dict())) == system
    words["network"][0]["algorithms"] = ["sharp"]
    with pytest.raises(UsageError, match=r"network\[0\]\.algorithms\[0\] is 'sharp': it takes one of nvls"):
        parse_system(json.dumps(words))
    words["network"][0]["algorithms"] = []
    with pytest.raises(UsageError, match=r"network\[0\]\.algorithms is an empty list: it takes a list"):
        parse_system(json.dumps(words))
