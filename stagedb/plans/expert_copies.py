"""Copies of experts (redundant experts), and the ranks that they are on, as DeepSeek's load balancer has them.

EPLB (github.com/deepseek-ai/EPLB, `rebalance_experts` with one group) gives each copy to the expert whose copies have
the largest load each, and packs experts and copies by their load: the largest first, to the rank with the least load
that has room.
"""

from collections.abc import Sequence
from fractions import Fraction


def numbers_of_copies(load: Sequence[int], redundant: int) -> list[int]:
    """How many ranks' places each expert takes, itself and its copies.

    load: choices of each expert. redundant: copies in all. The first one of several experts with the same load has the
    copy.
    """
    counts = [1] * len(load)
    for _ in range(redundant):
        counts[max(range(len(load)), key=lambda at: (Fraction(load[at], counts[at]), -at))] += 1
    return counts


def placed(load: Sequence[int], redundant: int, ranks: int) -> list[list[tuple[int, int]]]:
    """The experts of each rank, each with the choices that it gets there.

    load: choices of each expert. redundant: how many copies there are in all. ranks: they divide the experts with their
    copies. The copies of one expert share its choices as evenly as whole numbers allow.
    """
    counts = numbers_of_copies(load, redundant)
    parts = [
        (load[expert] // count + (at < load[expert] % count), expert)
        for expert, count in enumerate(counts)
        for at in range(count)
    ]
    room = len(parts) // ranks
    found: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    sums = [0] * ranks
    for choices, expert in sorted(parts, key=lambda part: -part[0]):
        rank = min((at for at in range(ranks) if len(found[at]) < room), key=sums.__getitem__)
        found[rank].append((expert, choices))
        sums[rank] += choices
    return found


def placed_loads(load: Sequence[int], redundant: int, ranks: int) -> tuple[int, ...]:
    """The choices of each expert and each copy, those of a rank one behind another.

    The parameters are those of `placed`.
    """
    return tuple(choices for own in placed(load, redundant, ranks) for _, choices in own)
