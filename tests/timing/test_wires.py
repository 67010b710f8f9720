"""Ranks that do the same over other links: each lane's traffic is that of each of its ranks, counted one by one."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from stagedb.lowering.columns import COLLECTIVE, SEND, Workload
from stagedb.systems import CollectiveWork, Costs, System, Transfer
from stagedb.timing import JobProfile, profile_job
from stagedb.timing.lanes import group_of, stages_of
from stagedb.timing.node_graph import node_graph_of
from tests.timing.plain import PLAIN
from tests.timing.test_timeline import PLANS, instance

INNER, OUTER = PLAIN.dimensions
NODES = replace(PLAIN, dimensions=(replace(INNER, size=4, use=4), replace(OUTER, bandwidth=Fraction(1, 8))))
"""Four on a node, of which a job takes all, and slow links between nodes."""

WHOLE = (replace(INNER, size=12), OUTER)
"""A node that has room for all."""

Where = tuple[int, str, str]
"""Stage, axis, dimension of the network."""

JOBS: dict[str, dict[str, Any]] = {
    "ring": PLANS["ring"],
    "megatron ring": PLANS["both"],
    "ring of two nodes": {"cp": 4, "cp_kind": "ring-alltoall", "tp": 2, "global_batch_size": 1},
    "uneven groups": {"tp": 4, "dp": 3, "rank_order": "dp,cp,tp,pp", "global_batch_size": 6},
    "stages inside": {"pp": 6, "dp": 2, "rank_order": "pp,tp,cp,dp", "global_batch_size": 4},
    "even": {"tp": 2, "dp": 2, "pp": 2, "global_batch_size": 4},
}


def of_lanes(job: JobProfile) -> Counter[Where]:
    found: Counter[Where] = Counter()
    net = job.times.network
    for lane, columns, timed, spent in zip(net.lanes, net.columns, job.durations.lanes, job.times.lanes, strict=True):
        for op, wires in enumerate(timed.wires):
            for name, sent in wires:
                found[lane.stage, columns.ops.axis[op], name] += lane.ranks * int(spent.ops.runs[op]) * sent
    return found


def of_ranks(workload: Workload, job: JobProfile, system: System) -> Counter[Where]:
    costs, ranks = Costs(system, len(workload.ranks)), workload.ranks
    by_number = {each.number: each.ops for each in workload.classes}
    runs = {
        lane.rank_class: spent.ops.runs for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True)
    }
    stages = stages_of(workload)
    found: Counter[Where] = Counter()
    for rank, number in enumerate(ranks.number.tolist()):
        ops = by_number[number]
        for op in range(len(ops)):
            size, axis = int(ops.size[op]), ops.axis[op]
            if ops.type[op] == COLLECTIVE:
                timed = costs.collective(CollectiveWork(ops.kind[op], size, group_of(workload.groups, axis, rank)))
            elif ops.type[op] == SEND:
                onwards = (ranks.ring_next if ops.rings[op] else ranks.next)[rank]
                back = (ranks.ring_previous if ops.rings[op] else ranks.previous)[rank]
                timed = costs.transfer(Transfer(size, rank, int(onwards if ops.towards[op] > 0 else back)))
            else:
                continue
            for name, sent in timed.wires:
                found[int(stages[rank]), axis, name] += int(runs[number][op]) * sent
    return found


@pytest.mark.parametrize("name", JOBS)
def test_what_lanes_send_is_what_their_ranks_send(name: str) -> None:
    rows = instance(**JOBS[name])
    job = profile_job(rows, NODES)
    assert of_lanes(job) == of_ranks(rows, job, NODES)


def test_a_group_across_nodes_keeps_others_of_its_kind_waiting() -> None:
    rows = instance(**JOBS["stages inside"])
    job, inside = (profile_job(rows, system) for system in (NODES, replace(NODES, dimensions=WHOLE)))
    lanes = len(node_graph_of(rows).lanes)
    assert len(inside.times.lanes) == lanes < len(job.times.lanes)
    assert sum(lane.ranks for lane in job.times.network.lanes) == len(rows.ranks)
    # Only some send over slow links, and all end when these do.
    assert inside.step < job.step


def test_ranks_in_similar_places_stay_one_lane() -> None:
    rows = instance(**JOBS["even"])
    assert len(profile_job(rows, NODES).times.lanes) == len(node_graph_of(rows).lanes) == 2
