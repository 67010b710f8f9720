"""How many copies of tokens go to ranks and nodes, where a token is sent once for each of them (`--dispatch`).

With a routing (`--routing`) they are counted. Without one they are the expected number where all choices are equally
likely, as an exact fraction that is rounded up once, to whole copies of a rank's tokens of one micro-batch. A token
chooses its groups of experts first, if the model has some, each set of them equally likely.

A rank or node with another share of the load (`--expert-load`) counts as one with that share of the experts, linearly
between whole numbers of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import comb

COPY_SYMBOLS = ("copies_out", "copies_in", "node_copies_out", "node_copies_in", "relayed")
"""Symbols of one rank: the copies for ranks that it sends and gets, those for nodes, and those that it passes on as a
relay. The values are one more than the numbers, because symbols are above 0."""


@dataclass(frozen=True)
class Routing:
    """Who gets the tokens of a rank.

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
        """The copies that a rank sends to each of so many equal parts of the experts."""
        each = self.experts // parts
        if self.table:
            repeats = Fraction(self.tokens * self.choices, len(self.table))
            found = [0] * parts
            for row in self._rows:
                for part in {expert // each for expert in row}:
                    found[part] += 1
            return [repeats * count for count in found]
        shares = [Fraction(sum(self.load[part * each : (part + 1) * each]), sum(self.load)) for part in range(parts)]
        return [self.tokens * self._chance(part * each, share * self.experts) for part, share in enumerate(shares)]

    @cached_property
    def _rows(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.table[at : at + self.choices] for at in range(0, len(self.table), self.choices))

    def _chance(self, first: int, experts: Fraction) -> Fraction:
        """The chance that a token reaches so many experts from the first one on, linearly between whole numbers."""
        low = int(experts)
        below = chance(self.experts, self.choices, self.groups, self.chosen, first, low)
        if low == experts:
            return below
        above = chance(self.experts, self.choices, self.groups, self.chosen, first, low + 1)
        return below + (experts - low) * (above - below)

    def most(self, parts: int) -> int:
        """The most parts that a token reaches: as many as it has choices, or as its groups of experts have."""
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
    """The values of the copies' symbols on a rank of ep. near: ranks of a node, 1 if tokens go straight to ranks."""
    to_ranks, nodes = routing.reached(ranks), ranks // near
    own = ep_rank % ranks
    found = {
        "copies_out": min(_up(to_ranks), routing.tokens * routing.most(ranks)),
        "copies_in": _up([ranks * to_ranks[own]]),
    }
    if near > 1:
        to_nodes, node = routing.reached(nodes), own // near
        found |= {
            "node_copies_out": min(_up(to_nodes), routing.tokens * routing.most(nodes)),
            "node_copies_in": _up([nodes * to_nodes[node]]),
            "relayed": _up(nodes * each for each in to_ranks[node * near : (node + 1) * near]),
        }
    return {name: 1 + found.get(name, 0) for name in COPY_SYMBOLS}


def _up(parts: Iterable[Fraction]) -> int:
    whole = sum(parts, Fraction(0))
    return -(-whole.numerator // whole.denominator)


def histogram(table: tuple[int, ...], experts: int) -> tuple[int, ...]:
    """How often each expert is chosen."""
    found = [0] * experts
    for expert in table:
        found[expert] += 1
    return tuple(found)


def of_sizes(sizes: Mapping[str, int], tokens: int, load: tuple[int, ...], table: tuple[int, ...]) -> Routing:
    """The routing of a model of these sizes."""
    return Routing(tokens, sizes["E"], sizes["K"], sizes.get("EG", 1), sizes.get("EC", 1), load, table)
