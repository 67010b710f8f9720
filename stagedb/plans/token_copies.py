"""Copies of tokens and of experts: how many tokens go to ranks and nodes (`dispatch`), and where copied experts are.

With a routing (`routing`) they are counted. Without one they are the expected number where all choices are equally
likely, as exact fractions that are rounded up to whole copies of a rank's tokens of one micro-batch, for each rank or
node. A token chooses its groups of experts first, if the model has some, each set of them equally likely. With another
load of experts (`expert_load`) the number is linear in the load of a rank or node, below and above its even share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import comb

COPY_SYMBOLS = ("copies_out", "copies_in", "node_copies_out", "node_copies_in", "relayed")
"""Symbols of one rank: the copies for ranks that it sends and gets, those for nodes, and those that it passes on as a
relay. The values are one more than the numbers, because symbols are above 0."""


@dataclass(frozen=True)
class Routing:
    """Which ranks get the tokens of a rank.

    tokens: those of one micro-batch. groups, chosen: as on a card (1 and 1: none). load: choices of each expert. table:
    the experts of tokens that a rank's tokens repeat; empty: unknown.
    """

    tokens: int
    experts: int
    choices: int
    groups: int
    chosen: int
    load: tuple[int, ...]
    table: tuple[int, ...] = ()

    def reached(self, parts: int) -> list[Fraction]:
        """The copies of tokens that a rank sends to each of `parts` equal parts of the experts."""
        each = self.experts // parts
        if self.table:
            repeats = Fraction(self.tokens * self.choices, len(self.table))
            found = [0] * parts
            for row in self._rows:
                for part in {expert // each for expert in row}:
                    found[part] += 1
            return [repeats * count for count in found]
        return [self.tokens * self._chance(part * each, each) for part in range(parts)]

    @cached_property
    def _rows(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.table[at : at + self.choices] for at in range(0, len(self.table), self.choices))

    def _chance(self, first: int, count: int) -> Fraction:
        """The chance that a token reaches the `count` experts from the first one on.

        With an even load it is `chance`. With another one it is linear in the load of these experts, from none to their
        even share and from there to all that they can have. So it never leaves the bounds of the load: a token's
        choices among them, and as many copies as the expert of them that is chosen most has choices.
        """
        even = chance(self.experts, self.choices, self.groups, self.chosen, first, count)
        loads = [Fraction(self.choices * load, sum(self.load)) for load in self.load[first : first + count]]
        share, most = Fraction(self.choices * count, self.experts), min(self.choices, count)
        own = sum(loads)
        beyond = 0 if own <= share else (1 - even) * (own - share) / (most - share)
        found = even * min(own, share) / share + beyond
        return max(found, *loads)

    def most(self, parts: int) -> int:
        """The most parts of the experts that one token can reach. parts: into how many parts the experts are cut."""
        each, group = self.experts // parts, self.experts // self.groups
        of_groups = self.chosen * (-(-group // each) + (0 if group % each == 0 or each % group == 0 else 1))
        return min(self.choices, parts, of_groups)


@lru_cache(maxsize=4096)
def chance(experts: int, choices: int, groups: int, chosen: int, first: int, count: int) -> Fraction:
    """The chance that one of a token's choices is among `count` experts from the first one on, around the end.

    Its groups are any `chosen` of the groups of neighbours, its choices any of the experts in these.
    """
    each = experts // groups
    inside = [0] * groups
    for expert in range(first, first + count):
        inside[expert % experts // each] += 1
    ways: dict[tuple[int, int], int] = {(0, 0): 1}
    for covered in inside:
        more = dict(ways)
        for (taken, sums), number in ways.items():
            if taken < chosen:
                key = (taken + 1, sums + covered)
                more[key] = more.get(key, 0) + number
        ways = more
    there = chosen * each
    missed = sum(
        number * comb(there - covered, choices) for (taken, covered), number in ways.items() if taken == chosen
    )
    return 1 - Fraction(missed, comb(groups, chosen) * comb(there, choices))


def copy_symbols(routing: Routing, ranks: int, near: int, ep_rank: int) -> dict[str, int]:
    """The values of the symbols for copies of tokens (`dispatch`) on a rank of ep.

    routing: of the rank's tokens. ranks: of ep. near: ranks of a node, 1 if tokens go straight to ranks. ep_rank: the
    rank. Each rank of ep sends the same numbers to the others, so that together they send what they get.
    """
    to_ranks, own = whole_copies(routing, ranks), ep_rank % ranks
    found = {"copies_out": sum(to_ranks), "copies_in": ranks * to_ranks[own]}
    if near > 1:
        nodes, node = ranks // near, own // near
        to_nodes = whole_copies(routing, nodes)
        found |= {
            "node_copies_out": sum(to_nodes),
            "node_copies_in": nodes * to_nodes[node],
            "relayed": nodes * sum(to_ranks[node * near : (node + 1) * near]),
        }
    return {name: 1 + found.get(name, 0) for name in COPY_SYMBOLS}


@lru_cache(maxsize=64)
def whole_copies(routing: Routing, parts: int) -> tuple[int, ...]:
    """The copies for each part in whole numbers: rounded up, so that equal parts get equal numbers; or down, if these
    would be more than tokens reach together."""
    exact = routing.reached(parts)
    found = tuple(map(math.ceil, exact))
    return found if sum(found) <= routing.tokens * routing.most(parts) else tuple(map(math.floor, exact))


def histogram(table: tuple[int, ...], experts: int) -> tuple[int, ...]:
    """How often each expert is in a table of choices. experts: their number."""
    found = [0] * experts
    for expert in table:
        found[expert] += 1
    return tuple(found)


def of_sizes(sizes: Mapping[str, int], tokens: int, load: tuple[int, ...], table: tuple[int, ...]) -> Routing:
    """The routing of a rank's tokens in a model.

    sizes: the symbols of the model. tokens: those of one micro-batch. load: choices by expert. table: experts of known
    tokens; empty without a routing.
    """
    return Routing(tokens, sizes["E"], sizes["K"], sizes.get("EG", 1), sizes.get("EC", 1), load, table)


# Copies of experts (redundant experts), and the ranks that they are on, as DeepSeek's load balancer has them.
#
# EPLB (github.com/deepseek-ai/EPLB, `rebalance_experts` with one group) gives each copy to the expert whose copies have
# the largest load each, and packs experts and copies by their load: the largest first, to the rank with the least load
# that has room.


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
