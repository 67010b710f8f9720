"""What is put on the wire: closed forms exactly, and algorithms run step by step with every send counted."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import floor, inf, prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stagedb.systems import CollectiveWork, Dimension, Durations, Measured, Subject, Timed, Transfer, Wires, load_system
from stagedb.systems.algorithms import COLLECTIVES
from stagedb.systems.cost_model import time_collective, time_transfer

Send = tuple[int, int, Fraction]
"""From which rank, to which, bytes."""

PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}


def network(
    *sizes: int, latency: Sequence[int] = (), rate: Sequence[float] = (), kind: str = "switch"
) -> tuple[Dimension, ...]:
    return tuple(
        Dimension(
            f"d{at}",
            size,
            kind,
            rate[at] if rate and rate[at] == inf else Fraction(rate[at] if rate else 100),
            Fraction(latency[at] if latency else 0),
        )
        for at, size in enumerate(sizes)
    )


def wires(net: tuple[Dimension, ...], kind: str, size: int, ranks: Sequence[int], rule: str) -> Wires:
    found = time_collective(net, CollectiveWork(kind, size, tuple(ranks)))
    assert found.rule == rule
    return found.wires


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_a_ring_sends_all_but_one_part_of_the_buffer_once_or_twice(n: int) -> None:
    net, ranks, size = network(8), range(n), 8 * 3 * 7 * 1000
    assert wires(net, "all_reduce", size, ranks, "ring") == (("d0", 2 * size * (n - 1) // n),)
    assert wires(net, "reduce_scatter", size, ranks, "ring") == (("d0", size * (n - 1) // n),)
    # The size of a gather is the shard that this rank has.
    assert wires(net, "all_gather", size, ranks, "ring") == (("d0", size * (n - 1)),)
    assert wires(net, "all_to_all", size, ranks, "direct") == (("d0", size * (n - 1) // n),)


def test_a_tree_sends_over_all_its_links_but_on_average_as_much_as_a_ring() -> None:
    assert wires(network(8, latency=[1000]), "all_reduce", 800, range(8), "tree") == (("d0", 2 * 800 * 7 // 8),)
    both = wires(network(8, 4, latency=[0, 10**6]), "all_reduce", 3200, range(32), "tree")
    assert both == (("d0", 2 * 3200 * 7 // 8), ("d1", 2 * 3200 * 3 // 32))


def test_each_level_of_a_hierarchy_sends_what_the_one_inside_has_left() -> None:
    net, size = network(8, 4, rate=[inf, 25], latency=[0, 10**6]), 32 * 10**6
    whole = (("d0", size * 7 // 8), ("d1", size // 8 * 3 // 4))
    assert wires(net, "reduce_scatter", size, range(32), "hierarchical") == whole
    assert wires(net, "all_gather", size // 32, range(32), "hierarchical") == whole
    small = network(8, 4, rate=[inf, 25], latency=[0, 1])
    twice = tuple((name, 2 * sent) for name, sent in whole)
    assert wires(small, "all_reduce", size, range(32), "hierarchical") == twice


def test_parallel_rings_leave_a_node_from_all_its_members() -> None:
    size = 32 * 32 * 1000
    found = wires(network(8, 4, rate=[400, 25]), "reduce_scatter", size, range(32), "ring")
    # Seven of eight rings go on inside of the node.
    assert found == (("d0", size * 31 // 32 * 7 // 8), ("d1", size * 31 // 32 // 8))


def test_what_is_sent_directly_goes_to_each_other_member_once() -> None:
    found = wires(network(8, 4), "all_to_all", 32_000, range(32), "direct")
    assert found == (("d0", 7 * 1000), ("d1", 24 * 1000))


def test_an_uneven_group_sends_this_much_on_average() -> None:
    # Eight on one node and four on another: ten steps of a ring stay inside, two leave; of 132 pairs 64 do.
    size = 12 * 12 * 1000
    assert wires(network(8, 4), "reduce_scatter", size, range(12), "ring") == (
        ("d0", size * 11 // 12 * 10 // 12),
        ("d1", size * 11 // 12 * 2 // 12),
    )
    assert wires(network(8, 4), "all_to_all", size, range(12), "direct") == (
        ("d0", size * 68 // 144),
        ("d1", size * 64 // 144),
    )


def test_a_message_is_sent_into_the_dimension_that_it_crosses() -> None:
    net = network(8, 4)
    assert time_transfer(net, Transfer(10, 0, 7)).wires == (("d0", 10),)
    assert time_transfer(net, Transfer(10, 7, 8)).wires == (("d1", 10),)
    # What links of a ring carry on counts once.
    assert time_transfer(network(8, kind="ring"), Transfer(10, 0, 4)).wires == (("d0", 10),)


def test_bytes_are_rounded_once_and_a_half_up() -> None:
    assert wires(network(2), "reduce_scatter", 1, (0, 1), "ring") == (("d0", 1),)
    assert wires(network(3), "reduce_scatter", 1, (0, 1, 2), "ring") == (("d0", 1),)
    assert wires(network(4, 4, latency=[0, 9]), "all_to_all", 1, range(16), "direct") == (("d0", 0), ("d1", 1))
    assert wires(network(2), "all_reduce", 0, (0, 1), "ring") == (("d0", 0),)


def test_a_group_of_one_sends_nothing() -> None:
    assert time_collective(network(8), CollectiveWork("all_reduce", 10**6, (3,))) == Timed(0, "ring")


def test_a_measured_duration_keeps_the_traffic_of_the_model() -> None:
    modelled = time_collective(load_system("h100").network(16), CollectiveWork("all_reduce", 1 << 20, tuple(range(16))))
    assert len(modelled.wires) == 2
    measured = Durations([Measured("a", Fraction(7), kind="all_reduce")]).time(Subject("", "all_reduce"), modelled)
    assert measured == replace(modelled, ns=7, rule="measured")


# Algorithms, run. Ranks are lists of digits, innermost first; a message crosses the outermost digit that differs.


def digits(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    found = []
    for size in sizes:
        found.append(rank % size)
        rank //= size
    return tuple(found)


def crosses(source: int, target: int, sizes: Sequence[int]) -> int:
    both = zip(digits(source, sizes), digits(target, sizes), strict=True)
    return max(at for at, (one, other) in enumerate(both) if one != other)


def scatter(order: Sequence[int], whole: Fraction) -> Iterator[Send]:
    """Reduce-scatter around a ring: parts go round and take up what each member has of them."""
    n = len(order)
    holds = [[{at} for _ in range(n)] for at in range(n)]
    for step in range(n - 1):
        moving = [(at, (at - step) % n, set(holds[at][(at - step) % n])) for at in range(n)]
        for at, part, has in moving:
            yield order[at], order[(at + 1) % n], whole / n
            holds[(at + 1) % n][part] |= has
    assert all(len(holds[at][(at + 1) % n]) == n for at in range(n))


def gather(order: Sequence[int], whole: Fraction) -> Iterator[Send]:
    """All-gather around a ring: parts go round until everyone has had each."""
    n = len(order)
    holds = [{at} for at in range(n)]
    for step in range(n - 1):
        moving = [(at, (at - step) % n) for at in range(n)]
        for at, part in moving:
            assert part in holds[at]
            yield order[at], order[(at + 1) % n], whole / n
        for at, part in moving:
            holds[(at + 1) % n].add(part)
    assert all(len(each) == n for each in holds)


def ring(kind: str, ranks: Sequence[int], sizes: Sequence[int], whole: Fraction) -> Iterator[Send]:
    """Rings that leave the rows at different places, each for its part of the buffer."""
    turns = list(product(*(range(size) for size in sizes)))
    for turn in turns:
        turned = {
            rank: [(digit + by) % size for digit, by, size in zip(digits(rank, sizes), turn, sizes, strict=True)]
            for rank in ranks
        }
        order = sorted(ranks, key=lambda rank: turned[rank][::-1])
        for run in (scatter,) * (kind != "all_gather") + (gather,) * (kind != "reduce_scatter"):
            yield from run(order, whole / len(turns))


def tree(kind: str, ranks: Sequence[int], sizes: Sequence[int], whole: Fraction) -> Iterator[Send]:
    """A binary tree in each row, another over the rows' roots, and so on; up it adds up, down it hands out."""
    parent: dict[int, int] = {}
    units = {rank: rank for rank in ranks}  # place to the root of the units there
    for size in sizes:
        rows: dict[int, list[int]] = {}
        for place in sorted(units):
            rows.setdefault(place // size, []).append(units[place])
        for row in rows.values():
            parent |= {row[at]: row[(at - 1) // 2] for at in range(1, len(row))}
        units = {place: row[0] for place, row in rows.items()}
    (root,) = units.values()
    sums = {rank: {rank} for rank in ranks}
    waiting = Counter(parent.values())
    ready = [rank for rank in ranks if not waiting[rank] and rank != root]
    while ready:
        rank = ready.pop()
        yield rank, parent[rank], whole
        sums[parent[rank]] |= sums[rank]
        waiting[parent[rank]] -= 1
        if not waiting[parent[rank]] and parent[rank] != root:
            ready.append(parent[rank])
    assert sums[root] == set(ranks)
    has = {root}
    while len(has) < len(ranks):
        for rank in [rank for rank in ranks if rank not in has and parent[rank] in has]:
            yield parent[rank], rank, whole
            has.add(rank)


def hierarchical(kind: str, ranks: Sequence[int], sizes: Sequence[int], whole: Fraction) -> Iterator[Send]:
    """Scattered inside, the same further out with each part, gathered inside."""

    def run(group: Sequence[int], dimension: int, left: Fraction) -> Iterator[Send]:
        if dimension == len(sizes):
            return
        inside: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(group):
            inside.setdefault(digits(rank, sizes)[dimension + 1 :], []).append(rank)
        # Members of one place in their rows, at any position of the row.
        across = list(zip(*inside.values(), strict=True))
        if kind != "all_gather":
            for row in inside.values():
                yield from scatter(row, left)
        for column in across:
            yield from run(column, dimension + 1, left / len(across))
        if kind != "reduce_scatter":
            for row in inside.values():
                yield from gather(row, left)

    yield from run(ranks, 0, whole)


def direct(kind: str, ranks: Sequence[int], sizes: Sequence[int], whole: Fraction) -> Iterator[Send]:
    yield from ((one, other, whole / len(ranks)) for one in ranks for other in ranks if one != other)


ALGORITHMS: dict[str, Callable[[str, Sequence[int], Sequence[int], Fraction], Iterator[Send]]] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
    "direct": direct,
}


def counted(rule: str, kind: str, size: int, ranks: Sequence[int], sizes: Sequence[int]) -> dict[int, Counter[int]]:
    """By dimension, what each rank sends into it."""
    whole = Fraction(size * len(ranks) if kind == "all_gather" else size)
    found: dict[int, Counter[int]] = {}
    for source, target, sent in ALGORITHMS[rule](kind, ranks, sizes, whole):
        into = found.setdefault(crosses(source, target, sizes), Counter())
        into[source] += sent  # type: ignore[assignment]
    return found


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Sizes of a network, the ranks of a group in it, and whether it is even by its making."""
    sizes = tuple(draw(st.lists(st.integers(2, 4), min_size=1, max_size=3)))
    if draw(st.booleans()):
        along = [sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))) for size in sizes]
        strides = [prod(sizes[:at]) for at in range(len(sizes))]
        ranks = {sum(d * by for d, by in zip(at, strides, strict=True)) for at in product(*along)}
    else:
        ranks = draw(st.sets(st.integers(0, prod(sizes) - 1), min_size=2))
        along = []
    return sizes, tuple(sorted(ranks)), bool(along)


@given(
    groups().filter(lambda found: len(found[1]) > 1),
    st.sampled_from(COLLECTIVES),
    st.integers(0, 10**7),
    st.lists(st.sampled_from([0, 10, 10**5]), min_size=3, max_size=3),
    st.lists(st.sampled_from([1, 50, 10**4]), min_size=3, max_size=3),
)
@example(((4, 3), tuple(range(12)), True), "all_reduce", 10**6, [0, 0, 0], [10**4, 50, 1])
@example(((4, 3), tuple(range(12)), True), "all_reduce", 10, [10, 10, 0], [50, 50, 1])
@example(((4, 3), tuple(range(12)), True), "all_reduce", 10**6, [0, 10**5, 0], [50, 50, 1])
@example(((4, 3, 2), tuple(range(24)), True), "all_gather", 10**6, [0, 10, 10**5], [10**4, 50, 1])
@example(((4, 3), tuple(range(7)), False), "all_reduce", 1001, [0, 10, 0], [50, 1, 1])
@example(((4, 2), (0, 3, 5, 6), False), "all_reduce", 1, [0, 0, 0], [1, 50, 1])
@example(((3, 2), (0, 1, 3, 5), False), "all_reduce", 1, [0, 0, 0], [1, 50, 1])
@example(((4, 3), tuple(range(7)), False), "all_to_all", 1001, [0, 10, 0], [50, 1, 1])
def test_a_rank_sends_what_the_algorithm_sends_step_by_step(
    group: tuple[tuple[int, ...], tuple[int, ...], bool],
    kind: str,
    size: int,
    latency: list[int],
    rate: list[int],
) -> None:
    sizes, ranks, even = group
    net = network(*sizes, latency=latency, rate=rate)
    timed = time_collective(net, CollectiveWork(kind, size, ranks))
    sent = counted(timed.rule, kind, size, ranks, sizes)
    assert [name for name, _ in timed.wires] == [f"d{at}" for at in sorted(sent)]
    for name, mean in timed.wires:
        into = sent[int(name[1:])]
        assert mean == floor(Fraction(sum(into.values()), len(ranks)) + Fraction(1, 2))
        everywhere = timed.rule == "ring" and len(ranks) == prod(sizes)
        if everywhere or (even and timed.rule in ("hierarchical", "direct")):
            assert len({into[rank] for rank in ranks}) == 1


@given(groups().filter(lambda found: len(found[1]) > 1), st.sampled_from(COLLECTIVES), st.integers(0, 10**7), st.data())
def test_no_less_is_sent_than_must_be(
    group: tuple[tuple[int, ...], tuple[int, ...], bool], kind: str, size: int, data: st.DataObject
) -> None:
    sizes, ranks, _ = group
    latency = data.draw(st.lists(st.sampled_from([0, 10, 10**5]), min_size=3, max_size=3))
    timed = time_collective(network(*sizes, latency=latency), CollectiveWork(kind, size, ranks))
    n, whole = len(ranks), size * len(ranks) if kind == "all_gather" else size
    total = n * sum(sent for _, sent in timed.wires)
    # Each part of a result takes in, or goes to, every other member. An n-th of the exchanged data stays.
    assert abs(total - PASSES[kind] * (n - 1) * whole) <= Fraction(n * len(timed.wires), 2)
    if kind != "all_to_all":
        # And everything further out, every other unit of ranks inside.
        for at in range(len(sizes)):
            units = len({rank // prod(sizes[:at]) for rank in ranks})
            beyond = n * sum(sent for name, sent in timed.wires if int(name[1:]) >= at)
            assert beyond >= PASSES[kind] * (units - 1) * whole - Fraction(n * len(sizes), 2)
