"""Time follows from ranks' places: a profile of lanes is a replay in which every rank's own messages are costed."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

from stagedb.systems import Collectives, CollectiveWork, Costs, Dimension, Overlap, System, Transfer, Work
from stagedb.timing import profile_job
from stagedb.traces import chakra_pb2 as pb
from tests.timing.plain import PLAIN
from tests.timing.replayed import Run, Traces
from tests.timing.test_timeline import PLANS, exported, instance

KINDS = {0: "all_reduce", 2: "all_gather", 6: "all_to_all", 7: "reduce_scatter"}


class Placed(Run):
    """Every rank's nodes take what they cost in the places of that rank, its group and its peer."""

    def __init__(self, traces: Traces, system: System) -> None:
        super().__init__(traces, lambda name: 0, as_issued=system.overlap.compute == "in-order")
        self.costs = Costs(system, self.world)

    def cost_of(self, number: int, node: int) -> int:
        rank = self.ranks[number]
        match rank.trace.types[rank.row[node]]:
            case pb.COMP_NODE:
                work = Work("matmul", "bf16", rank.value(node, "num_ops"), rank.value(node, "tensor_size"))
                return self.costs.work(work).ns
            case pb.COMM_SEND_NODE:
                return self.costs.transfer(
                    Transfer(rank.value(node, "comm_size"), number, rank.value(node, "comm_dst"))
                ).ns
        kind, group = KINDS[rank.value(node, "comm_type")], self.groups[str(rank.value(node, "pg_name"))]
        return self.costs.collective(CollectiveWork(kind, rank.value(node, "comm_size"), tuple(sorted(group)))).ns


def system(inner: int, kind: str, compute: str) -> System:
    """So many accelerators in a node, beyond which everything takes ten times as long. A job takes all of them."""
    whole = inner if kind == "switch" else None
    dimensions = (
        Dimension("inner", inner, kind, Fraction(10), Fraction(100), use=whole),
        Dimension("outer", None, "switch", Fraction(1), Fraction(5_000)),
    )
    return replace(PLAIN, dimensions=dimensions, overlap=Overlap(compute, "one"))


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_ranks_take_as_long_as_their_places_make_it(tmp_path: Path, plan: str) -> None:
    rows = instance(**PLANS[plan])
    traces = exported(rows, tmp_path / "out")
    for inner, (kind, compute) in product((2, 3, 5), (("switch", "in-order"), ("ring", "out-of-order"))):
        placed = system(inner, kind, compute)
        assert Placed(traces, placed).run() == profile_job(rows, placed).step, (inner, kind)


@pytest.mark.parametrize("plan", ["both", "sp-pp", "tied"])
def test_ranks_take_as_long_as_a_simulator_takes_in_their_places(tmp_path: Path, plan: str) -> None:
    """Messages take the innermost dimension that differs: that also separates ranks of a class."""
    rows = instance(**PLANS[plan])
    traces = exported(rows, tmp_path / "out")
    placed = replace(system(2, "switch", "out-of-order"), collectives=Collectives("astra-sim", 2))
    found = profile_job(rows, placed)
    assert Placed(traces, placed).run() == found.step
    assert found.step != profile_job(rows, replace(placed, collectives=Collectives())).step


def test_a_class_is_parted_where_its_groups_are_in_a_node_or_not() -> None:
    """Two ranks of tp in nodes of three: one of every three groups crosses."""
    rows = instance(tp=2, dp=6)
    lanes = profile_job(rows, system(3, "switch", "in-order")).times.network.lanes
    assert sum(lane.ranks for lane in lanes) == 12
    crossing = {lane.rank // 3 != (lane.rank ^ 1) // 3 for lane in lanes}
    assert crossing == {True, False}
    assert sum(lane.ranks for lane in lanes if lane.rank // 3 != (lane.rank ^ 1) // 3) == 4
    assert len(profile_job(rows, system(4, "switch", "in-order")).times.network.lanes) == 1
