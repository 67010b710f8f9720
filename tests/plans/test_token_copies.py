"""Copies of tokens for ranks and nodes: closed forms against counting every choice that a token can make."""

import itertools
from collections.abc import Iterator
from fractions import Fraction

import pytest

from stagedb.plans.token_copies import Routing, chance, copy_symbols


def choices_of(experts: int, choices: int, groups: int, chosen: int) -> Iterator[tuple[int, ...]]:
    """Every choice of a token, as often as it is likely: some groups, then some experts of these."""
    each = experts // groups
    for some in itertools.combinations(range(groups), chosen):
        inside = [expert for group in some for expert in range(group * each, (group + 1) * each)]
        yield from itertools.combinations(inside, choices)


@pytest.mark.parametrize(
    ("experts", "choices", "groups", "chosen"),
    [(8, 2, 1, 1), (8, 3, 1, 1), (8, 3, 4, 2), (12, 4, 4, 3), (12, 4, 2, 1), (16, 1, 4, 2)],
)
def test_the_chance_to_reach_a_part_is_the_share_of_choices_that_do(
    experts: int, choices: int, groups: int, chosen: int
) -> None:
    every = list(choices_of(experts, choices, groups, chosen))
    for first, count in itertools.product(range(experts), range(experts + 1)):
        part = {expert % experts for expert in range(first, first + count)}
        reached = sum(1 for choice in every if part & set(choice))
        assert chance(experts, choices, groups, chosen, first, count) == Fraction(reached, len(every))


def test_a_table_counts_different_pairs_of_token_and_target() -> None:
    table = ((0, 1), (0, 7), (2, 3), (4, 0))
    flat = tuple(expert for row in table for expert in row)
    routing = Routing(tokens=8, experts=8, choices=2, groups=1, chosen=1, load=(1,) * 8, table=flat)
    to_ranks = [
        2 * len({token for token, row in enumerate(table) if rank in {e // 2 for e in row}}) for rank in range(4)
    ]
    to_nodes = [
        2 * len({token for token, row in enumerate(table) if node in {e // 4 for e in row}}) for node in range(2)
    ]
    assert routing.reached(4) == to_ranks
    assert routing.reached(2) == to_nodes
    for own in range(4):
        found = copy_symbols(routing, 4, 2, own)
        assert found == {
            "copies_out": 1 + sum(to_ranks),
            "copies_in": 1 + 4 * to_ranks[own],
            "node_copies_out": 1 + sum(to_nodes),
            "node_copies_in": 1 + 2 * to_nodes[own // 2],
            "relayed": 1 + 2 * sum(to_ranks[own // 2 * 2 : own // 2 * 2 + 2]),
        }


@pytest.mark.parametrize(("groups", "chosen", "most"), [(1, 1, 8), (8, 4, 4)])
def test_expected_copies_for_nodes_are_at_most_choices_and_groups(groups: int, chosen: int, most: int) -> None:
    """DeepSeek-V3 on 8 nodes of 8 ranks: at most 8 nodes of a token's choices, 4 where groups are nodes."""
    routing = Routing(4096, 256, 8, groups, chosen, (1,) * 256)
    nodes = sum(routing.reached(8))
    assert nodes <= 4096 * most
    found = copy_symbols(routing, 64, 8, 0)
    assert 0 <= found["node_copies_out"] - 1 - nodes < 8
    assert found["node_copies_out"] - 1 <= 4096 * most
    assert found["node_copies_out"] <= found["copies_out"] <= 4096 * 8 + 1
    assert found["copies_in"] == found["copies_out"]


LOADS = {
    "even": (1,) * 16,
    "one is chosen by all": (5, *(0,) * 5, *(1,) * 10),
    "two groups": (*(3,) * 8, *(1,) * 8),
    "a group": (*(3,) * 4, *(2,) * 8, *(1,) * 4),
    "nothing on some": (*(2,) * 8, *(0,) * 8),
    "whole choices": (3, 3, 4, 3, 3, 3, 3, 3, 3, 4, 3, 3, 3, 3, 3, 1),
}


@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize("load", list(LOADS))
@pytest.mark.parametrize(("ranks", "near"), [(16, 4), (8, 2), (4, 2), (8, 1)])
def test_ranks_send_what_they_get_within_the_bounds_of_the_load(
    groups: tuple[int, int], load: str, ranks: int, near: int
) -> None:
    """A rank gets as many copies as its most chosen expert has choices, or as its choices allow, and not more than
    these; uneven loads have no more copies than even ones, but for rounding."""
    tokens, choices, each = 48, 3, 16 // ranks
    chosen = LOADS[load]
    routing = Routing(tokens, 16, choices, *groups, chosen)
    found = [copy_symbols(routing, ranks, near, rank) for rank in range(ranks)]
    whole = [{name: value - 1 for name, value in each.items()} for each in found]
    assert sum(row["copies_out"] for row in whole) == sum(row["copies_in"] for row in whole)
    assert sum(row["node_copies_out"] for row in whole) == sum(row["node_copies_in"] for row in whole)
    if near > 1:
        assert sum(row["relayed"] for row in whole) == sum(row["copies_in"] for row in whole)
    for rank, row in enumerate(whole):
        of_rank = [Fraction(tokens * choices * one, sum(chosen)) for one in chosen[rank * each : (rank + 1) * each]]
        got = Fraction(row["copies_in"], ranks)
        assert got > max(of_rank) - 1
        assert sum(of_rank) / min(choices, each) - 1 < got < sum(of_rank) + 1
        assert got <= tokens
        if each == 1:
            assert abs(got - of_rank[0]) < 1
    even = copy_symbols(Routing(tokens, 16, choices, *groups, LOADS["even"]), ranks, near, 0)
    if load != "one is chosen by all":  # more choices of one expert than a part has of an even load
        assert whole[0]["copies_out"] <= even["copies_out"] - 1 + ranks
        assert whole[0]["node_copies_out"] <= even["node_copies_out"] - 1 + ranks // near


def test_a_rank_with_one_expert_gets_the_tokens_that_this_computes() -> None:
    routing = Routing(64, 8, 2, 1, 1, (3, 1, 1, 1, 1, 1, 0, 0))
    assert [copy_symbols(routing, 8, 1, rank)["copies_in"] - 1 for rank in range(8)] == [384, *[128] * 5, 0, 0]
    assert copy_symbols(routing, 8, 1, 0)["copies_out"] - 1 == 128
