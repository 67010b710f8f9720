"""Instances: every row that a small graph is copied to, the same on each engine, and what differs between plans."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.ir import SymLoop
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store, write_graph
from stagedb.store.contents.instances import instantiate
from tests.faults.injected import at
from tests.instances.small_graph import HIDDEN, F, comm, op, small_graph

OP = (
    "MATCH (o:Op {instance: $instance, class: $class}) "
    "RETURN o.template AS template, o.position AS position, o.`order` AS at, o.name AS name, o.type AS type, "
    "o.kind AS kind, o.phase AS phase, o.`when` AS due, o.block AS block, o.layer AS layer, o.chunk AS chunk, "
    "o.flops AS flops, o.bytes_read AS bytes_read, o.bytes_written AS bytes_written, o.dims AS dims, o.axis AS axis, "
    "o.comm_bytes AS comm_bytes, o.comm_out_bytes AS comm_out_bytes, o.dtype AS dtype, o.peer AS peer, "
    "o.sym AS sym, o.id AS id, labels(o) AS labels ORDER BY template, at"
)


def ask(store: Store, query: str, **params: Any) -> list[dict[str, Any]]:
    """Rows of a free query, as dicts."""
    table = store.query(query, params)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def made(store: Store, plan: Plan, **sizes: Any) -> str:
    """An instance of the small graph under a plan."""
    graph = small_graph(**sizes)
    write_graph(store, graph)
    return instantiate(store, graph.key, plan)


def ops(store: Store, instance: str, number: int) -> list[dict[str, Any]]:
    """All ops of a class, by template and issue order."""
    return ask(store, OP, instance=instance, **{"class": number})


def edges(store: Store, instance: str, number: int, kind: str) -> list[str]:
    """Edges of one kind inside a class, by the names of their ends."""
    rows = ask(
        store,
        "MATCH (a:Op {instance: $instance, class: $class})-[d:DEP]->(b:Op) WHERE d.kind = $kind "
        "RETURN a.name AS source, b.name AS target ORDER BY source, target",
        instance=instance,
        kind=kind,
        **{"class": number},
    )
    return [f"{row['source']} > {row['target']}" for row in rows]


EIGHT = Plan(tp=2, dp=2, pp=2, seq_len=16)
"""Two stages of one layer each; a hidden state is 2 * 16 * 8 * 2 / 2 = 256 bytes, a matmul 1,024 flops."""

# template, position, order, name, layer, cost; cost is flops/read/written of a kernel and axis:bytes of the others.
FIRST_STAGE = """
forward          0 24 embedding.look_up                       - 0/256/256
forward          1 36 layer.0.project                         0 1024/256/0
forward          1 38 layer.0.project.all_reduce              0 tp:256
forward          2 50 cut.send_forward                        - pp:256
input_gradient   2 16 cut.recv_backward                       - pp:256
input_gradient   1 30 layer.0.project.input_gradient          0 1024/256/0
input_gradient   1 32 layer.0.project.input_gradient.all_reduce 0 tp:256
step             0  3 bucket.tp.0                             - tp:16
step             0 28 embedding.optimizer                     - 0/512/0
step             1 46 layer.0.optimizer                       0 0/0/0
weight_gradient  1 28 layer.0.project.weight_gradient         0 1024/256/0
weight_gradient  0 38 embedding.look_up.gradient              - 0/256/0
weight_gradient  0 39 bucket.dp.0                             - dp:336
"""
LAST_STAGE = """
forward         -1 12 cut.recv_forward                        - pp:256
forward          0 24 layer.0.project                         0 1024/256/0
forward          0 26 layer.0.project.all_reduce              0 tp:256
forward          1 36 head.loss                               - 4096/0/0
input_gradient   1 26 head.loss.gradient                      - 0/0/0
input_gradient   0 42 layer.0.project.input_gradient          0 1024/256/0
input_gradient   0 44 layer.0.project.input_gradient.all_reduce 0 tp:256
input_gradient  -1 54 cut.send_backward                       - pp:256
step             0  3 bucket.tp.0                             - tp:16
step             0 34 layer.0.optimizer                       0 0/0/0
step             1 40 head.optimizer                          - 0/0/0
weight_gradient  0 40 layer.0.project.weight_gradient         0 1024/256/0
weight_gradient  0 43 bucket.dp.0                             - dp:336
"""


def line(row: dict[str, Any]) -> list[str]:
    """An op as a line of the tables above."""
    cost = f"{row['flops']}/{row['bytes_read']}/{row['bytes_written']}"
    if row["type"] != "compute":
        cost = f"{row['axis']}:{row['comm_bytes']}"
    layer = "-" if row["layer"] is None else str(row["layer"])
    return [row["template"], str(row["position"]), str(row["at"]), row["name"], layer, cost]


def test_ops_of_two_stages(store: Store) -> None:
    instance = made(store, EIGHT)
    for number, table in enumerate((FIRST_STAGE, LAST_STAGE)):
        assert [line(row) for row in ops(store, instance, number)] == [row.split() for row in table.strip().split("\n")]


def test_columns_of_each_type(store: Store) -> None:
    instance = made(store, EIGHT)
    rows = {row["name"]: row for row in ops(store, instance, 0)}
    same = {"chunk": 0, "bytes_written": 0, "flops": 0, "due": "every", "dims": None, "peer": None, "position": 1}
    assert rows["layer.0.project"] == {
        **same,
        "template": "forward",
        "at": 36,
        "name": "layer.0.project",
        "type": "compute",
        "kind": "matmul",
        "phase": "forward",
        "block": "layer",
        "layer": 0,
        "flops": 1024,
        "bytes_read": 256,
        "dims": [16, 4, 8],
        "axis": None,
        "comm_bytes": None,
        "comm_out_bytes": None,
        "dtype": None,
        "id": f"{instance}/0/0/1/layer.project",
        "sym": "small/layer.project",
        "labels": ["Op", "Compute"],
    } | {"labels": rows["layer.0.project"]["labels"]}
    assert rows["bucket.dp.0"] == {
        **same,
        "template": "weight_gradient",
        "at": 39,
        "name": "bucket.dp.0",
        "type": "collective",
        "kind": "all_reduce",
        "phase": "backward",
        "block": "bucket",
        "layer": None,
        "bytes_read": 0,
        "position": 0,
        "due": "last",
        "axis": "dp",
        "comm_bytes": 336,
        "comm_out_bytes": 336,
        "dtype": "bf16",
        "id": f"{instance}/0/0/0/bucket.dp.0",
        "sym": "small/bucket.dp",
        "labels": [],
    } | {"labels": rows["bucket.dp.0"]["labels"]}
    labels = {row["type"]: set(row["labels"]) for number in (0, 1) for row in ops(store, instance, number)}
    assert labels == {
        "compute": {"Op", "Compute"},
        "collective": {"Op", "Collective"},
        "send": {"Op", "Send"},
        "recv": {"Op", "Recv"},
    }
    peers = {(number, row["name"]): row["peer"] for number in (0, 1) for row in ops(store, instance, number)}
    assert {at: peer for at, peer in peers.items() if peer is not None} == {
        (0, "cut.send_forward"): 1,
        (0, "cut.recv_backward"): 1,
        (1, "cut.recv_forward"): -1,
        (1, "cut.send_backward"): -1,
    }


def test_index_and_runs_of_every_op(store: Store) -> None:
    """`index` numbers the ops of a class without gaps in the order in which templates issue them; `runs` counts the
    tasks of the class that run the op."""
    instance = made(store, Plan(tp=2, dp=2, pp=2, seq_len=16, global_batch_size=8))
    templates = ["forward", "input_gradient", "weight_gradient", "step"]
    rows = store.query(
        "MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)-[:COPY_OF]->(s:SymOp) "
        "RETURN c.class AS c, o.index AS i, o.chunk AS k, o.template AS t, o.`order` AS n, o.runs AS r, "
        "o.`when` AS w, o.sym = s.id AS same, c.ops AS ops ORDER BY c, i",
        {"instance": instance},
    ).rows
    for number in (0, 1):
        own = [row for row in rows if row[0] == number]
        assert [row[1] for row in own] == list(range(own[0][8]))
        keys = [(row[2], templates.index(row[3]), row[4]) for row in own]
        assert keys == sorted(keys)
        # Four micro-batches a rank of dp, but for what runs in the last one, or once a step.
        assert {(row[3] == "step", row[6], row[5]) for row in own} <= {
            (False, "every", 4),
            (False, "last", 1),
            (True, "every", 1),
        }
    assert all(row[7] for row in rows)


def test_buckets_carry_weights(store: Store) -> None:
    instance = made(store, Plan(tp=2, dp=2, pp=2, seq_len=16))
    rows = store.query(
        "MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(k:RankClass)-[:RUNS]->(o:Op)-[c:CARRIES]->(t:SymTensor) "
        "RETURN k.class AS class, o.name AS bucket, collect([c.number, c.layer, t.name]) AS weights "
        "ORDER BY class, bucket",
        {"instance": instance},
    ).rows
    assert [(row[0], row[1]) for row in rows] == [
        (number, f"bucket.{axis}.0") for number in (0, 1) for axis in ("dp", "tp")
    ]
    of_dp = {number: sorted(weights) for number, bucket, weights in rows if bucket == "bucket.dp.0"}
    # From the last weight back, as torch fills a bucket.
    assert of_dp[0] == [[0, 0, "layer.weight"], [1, 0, "layer.norm"], [2, None, "embedding.table"]]
    assert of_dp[1] == [[0, None, "head.weight"], [1, 0, "layer.weight"], [2, 0, "layer.norm"]]


def test_an_instance_of_fewer_ops_than_it_is_to_have_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes an operator out of the graph while it is copied."""
    write_graph(store, small_graph())
    real = Store.write_rows

    def write_rows(self: Store, name: str, rows: Any, /, **params: Any) -> None:
        if name == "instantiate/copy_ops":
            with self._session("WRITE") as session:
                session.run("MATCH (s:SymOp {name: 'head.optimizer'}) DETACH DELETE s").consume()
        real(self, name, rows, **params)

    monkeypatch.setattr(Store, "write_rows", write_rows)
    with pytest.raises(StagedbError, match="has 13 of its 14 ops: graph small was changed meanwhile"):
        instantiate(store, small_graph().key, Plan(seq_len=16))
    assert store.query("MATCH (n:Op) RETURN count(n) AS n").rows == ((0,),)


def test_edges_of_two_stages(store: Store) -> None:
    instance = made(store, EIGHT)
    assert edges(store, instance, 0, "data") == [
        "bucket.dp.0 > bucket.tp.0",
        "bucket.dp.0 > embedding.optimizer",
        "bucket.dp.0 > layer.0.optimizer",
        "bucket.tp.0 > layer.0.optimizer",
        "cut.recv_backward > layer.0.project.input_gradient",
        "cut.recv_backward > layer.0.project.weight_gradient",
        "embedding.look_up > layer.0.project",
        "embedding.look_up.gradient > bucket.dp.0",
        "embedding.look_up.gradient > embedding.optimizer",
        "layer.0.project > layer.0.project.all_reduce",
        "layer.0.project > layer.0.project.weight_gradient",
        "layer.0.project.all_reduce > cut.send_forward",
        "layer.0.project.input_gradient > bucket.dp.0",
        "layer.0.project.input_gradient > layer.0.optimizer",
        "layer.0.project.input_gradient > layer.0.project.input_gradient.all_reduce",
        "layer.0.project.input_gradient.all_reduce > embedding.look_up.gradient",
        "layer.0.project.weight_gradient > bucket.dp.0",
        "layer.0.project.weight_gradient > layer.0.optimizer",
    ]
    assert edges(store, instance, 1, "data") == [
        "bucket.dp.0 > bucket.tp.0",
        "bucket.dp.0 > head.optimizer",
        "bucket.dp.0 > layer.0.optimizer",
        "bucket.tp.0 > layer.0.optimizer",
        "cut.recv_forward > layer.0.project",
        "head.loss > head.loss.gradient",
        "head.loss.gradient > bucket.dp.0",
        "head.loss.gradient > head.optimizer",
        "head.loss.gradient > layer.0.project.input_gradient",
        "head.loss.gradient > layer.0.project.weight_gradient",
        "layer.0.project > layer.0.project.all_reduce",
        "layer.0.project > layer.0.project.weight_gradient",
        "layer.0.project.all_reduce > head.loss",
        "layer.0.project.input_gradient > bucket.dp.0",
        "layer.0.project.input_gradient > layer.0.optimizer",
        "layer.0.project.input_gradient > layer.0.project.input_gradient.all_reduce",
        "layer.0.project.input_gradient.all_reduce > cut.send_backward",
        "layer.0.project.weight_gradient > bucket.dp.0",
        "layer.0.project.weight_gradient > layer.0.optimizer",
    ]


def test_communications_of_a_task_are_one_chain(store: Store) -> None:
    instance = made(store, EIGHT)
    assert edges(store, instance, 0, "program") == [
        "layer.0.project.all_reduce > cut.send_forward",
        "layer.0.project.input_gradient.all_reduce > bucket.dp.0",
    ]
    assert edges(store, instance, 1, "program") == [
        "bucket.dp.0 > layer.0.project.input_gradient.all_reduce",
        "layer.0.project.input_gradient.all_reduce > cut.send_backward",
    ]


def test_one_rank_has_bypasses_and_no_communication(store: Store) -> None:
    instance = made(store, Plan(seq_len=16))
    assert {row["type"] for row in ops(store, instance, 0)} == {"compute"}
    assert edges(store, instance, 0, "data") == [
        "embedding.look_up > head.loss",
        "embedding.look_up > layer.0.project",
        "embedding.look_up.gradient > embedding.optimizer",
        "head.loss > head.loss.gradient",
        "head.loss.gradient > head.optimizer",
        "head.loss.gradient > layer.1.project.input_gradient",
        "head.loss.gradient > layer.1.project.weight_gradient",
        "layer.0.project > layer.0.project.weight_gradient",
        "layer.0.project > layer.1.project",
        "layer.0.project.input_gradient > embedding.look_up.gradient",
        "layer.0.project.input_gradient > layer.0.optimizer",
        "layer.0.project.weight_gradient > layer.0.optimizer",
        "layer.1.project > head.loss",
        "layer.1.project > layer.1.project.weight_gradient",
        "layer.1.project.input_gradient > layer.0.project.input_gradient",
        "layer.1.project.input_gradient > layer.0.project.weight_gradient",
        "layer.1.project.input_gradient > layer.1.optimizer",
        "layer.1.project.weight_gradient > layer.1.optimizer",
    ]
    assert edges(store, instance, 0, "program") == []
    assert ask(store, "MATCH (g:Group {instance: $instance}) RETURN g.gid AS gid", instance=instance) == []


def test_tasks_follow_the_schedule_and_feed_the_neighbours(store: Store) -> None:
    instance = made(store, Plan(pp=2, global_batch_size=2, seq_len=16))
    tasks = ask(
        store,
        "MATCH (t:Task {instance: $instance}) RETURN t.class AS class, t.index AS i, t.kind AS kind, "
        "t.microbatch AS mb, t.chunk AS chunk, t.first AS first, t.last AS last ORDER BY class, i",
        instance=instance,
    )
    assert [(row["class"], row["i"], row["kind"], row["mb"], row["first"], row["last"]) for row in tasks] == [
        (0, 0, "forward", 0, True, False),
        (0, 1, "forward", 1, False, True),
        (0, 2, "backward", 0, True, False),
        (0, 3, "backward", 1, False, True),
        (0, 4, "step", 0, True, True),
        (1, 0, "forward", 0, True, False),
        (1, 1, "backward", 0, True, False),
        (1, 2, "forward", 1, False, True),
        (1, 3, "backward", 1, False, True),
        (1, 4, "step", 0, True, True),
    ]
    links = ask(
        store,
        "MATCH (a:Task {instance: $instance})-[f:FEEDS]->(b:Task) RETURN a.class AS a, a.index AS i, b.class AS b, "
        "b.index AS j, f.axis AS axis, f.hop AS hop ORDER BY a, i",
        instance=instance,
    )
    assert [tuple(row.values()) for row in links] == [
        (0, 0, 1, 0, "pp", 1),
        (0, 1, 1, 2, "pp", 1),
        (1, 1, 0, 2, "pp", -1),
        (1, 3, 0, 3, "pp", -1),
    ]
    order = ask(
        store,
        "MATCH (a:Task {instance: $instance})-[:NEXT]->(b:Task) RETURN a.class AS a, a.index AS i, b.class AS b, "
        "b.index AS j ORDER BY a, i",
        instance=instance,
    )
    assert [tuple(row.values()) for row in order] == [(c, i, c, i + 1) for c in (0, 1) for i in range(4)]


def test_ranks_and_groups(store: Store) -> None:
    instance = made(store, EIGHT)
    ranks = ask(
        store,
        "MATCH (r:Rank {instance: $instance}) RETURN r.rank AS r, r.tp AS tp, r.cp AS cp, r.dp AS dp, r.ep AS ep, "
        "r.pp AS pp, r.class AS class, r.group_tp AS in_tp, r.group_dp AS in_dp, r.group_kv AS in_kv ORDER BY r",
        instance=instance,
    )
    assert [tuple(row.values()) for row in ranks] == [
        (0, 0, 0, 0, 0, 0, 0, 1, 5, None),
        (1, 1, 0, 0, 0, 0, 0, 1, 6, None),
        (2, 0, 0, 1, 0, 0, 0, 2, 5, None),
        (3, 1, 0, 1, 0, 0, 0, 2, 6, None),
        (4, 0, 0, 0, 0, 1, 1, 3, 7, None),
        (5, 1, 0, 0, 0, 1, 1, 3, 8, None),
        (6, 0, 0, 1, 0, 1, 1, 4, 7, None),
        (7, 1, 0, 1, 0, 1, 1, 4, 8, None),
    ]
    groups = ask(
        store,
        "MATCH (g:Group {instance: $instance}) RETURN g.gid AS gid, g.axis AS axis, g.ranks AS ranks ORDER BY gid",
        instance=instance,
    )
    assert [tuple(row.values()) for row in groups] == [
        (1, "tp", [0, 1]),
        (2, "tp", [2, 3]),
        (3, "tp", [4, 5]),
        (4, "tp", [6, 7]),
        (5, "dp", [0, 2]),
        (6, "dp", [1, 3]),
        (7, "dp", [4, 6]),
        (8, "dp", [5, 7]),
    ]


def classes(store: Store, instance: str) -> list[tuple[Any, ...]]:
    """Number, stages, first layers, layers, ranks, ops and tasks of each class."""
    rows = ask(
        store,
        "MATCH (c:RankClass {instance: $instance}) RETURN c.class AS class, c.stages AS stages, "
        "c.first_layers AS first_layers, c.layers AS layers, c.ranks AS ranks, c.ops AS ops, c.tasks AS tasks "
        "ORDER BY class",
        instance=instance,
    )
    return [tuple(row.values()) for row in rows]


def test_equal_stages_are_one_class(store: Store) -> None:
    """Under gpipe all middle stages do the same; under 1F1B they do where they hold as many micro-batches."""
    gpipe = made(store, Plan(pp=5, dp=2, schedule="gpipe", global_batch_size=12, seq_len=16), layers=5, key="deep")
    assert classes(store, gpipe) == [
        (0, [0], [0], 1, 2, 10, 13),
        (1, [1, 2, 3], [1, 2, 3], 1, 6, 9, 13),
        (2, [4], [4], 1, 2, 10, 13),
    ]
    feeds = ask(
        store,
        "MATCH (a:Task {instance: $instance, kind: 'forward', microbatch: 0})-[f:FEEDS]->(b:Task) "
        "RETURN a.class AS a, b.class AS b, f.hop AS hop ORDER BY a, b",
        instance=gpipe,
    )
    assert [tuple(row.values()) for row in feeds] == [(0, 1, 1), (1, 1, 1), (1, 2, 1)]
    wide = made(store, Plan(pp=5, dp=2, global_batch_size=12, seq_len=16), layers=5, key="deep")
    assert [row[1] for row in classes(store, wide)] == [[0], [1], [2], [3], [4]]
    narrow = made(store, Plan(pp=5, dp=2, global_batch_size=6, seq_len=16), layers=5, key="deep")
    assert [row[1] for row in classes(store, narrow)] == [[0], [1, 2], [3], [4]]


def test_layers_as_the_plan_deals_them(store: Store) -> None:
    plan = Plan(pp=3, layers_per_stage=(1, 3, 1), seq_len=16)
    instance = made(store, plan, layers=5, key="deep")
    assert [row[2:4] for row in classes(store, instance)] == [([0], 1), ([1], 3), ([4], 1)]
    middle = Counter(row["layer"] for row in ops(store, instance, 1))
    assert middle == {None: 4, 0: 4, 1: 4, 2: 4}
    hops = [row for row in edges(store, instance, 1, "data") if row.startswith("layer.1.project >")]
    assert hops == ["layer.1.project > layer.1.project.weight_gradient", "layer.1.project > layer.2.project"]


def test_buckets_fill_as_torch_does(store: Store) -> None:
    """Hidden 1,024: a layer's matmul holds 2 MiB, its norm 2 KiB; the head and the table hold 64 MiB each."""
    plan = Plan(dp=2, seq_len=16)
    instance = made(store, plan, layers=20, hidden=1024, vocabulary=32768, key="wide")
    rows = [row for row in ops(store, instance, 0) if row["axis"] == "dp"]
    kib = [row["comm_bytes"] // 1024 for row in rows]
    layer = 2 * 1024 + 2
    # The table comes first in the order of registration, so it fills up what the first layers left open.
    assert kib == [64 * 1024, 12 * layer + 2048, 8 * layer - 2048 + 64 * 1024]
    assert [row["position"] for row in rows] == [21, 8, 0]
    reads = ask(
        store,
        "MATCH (a:Op {instance: $instance})-[:DEP {kind: 'data'}]->(b:Op) WHERE b.name = $name "
        "RETURN count(*) AS gradients, count(DISTINCT a.layer) AS layers",
        instance=instance,
        name=rows[1]["name"],
    )
    assert reads == [{"gradients": 25, "layers": 13}]


def test_groups_of_tied_ends_and_shared_heads_exist_where_something_uses_them(store: Store) -> None:
    instance = made(store, Plan(tp=4, pp=2, seq_len=16), key="shared", kv_heads=2)
    groups = ask(
        store,
        "MATCH (g:Group {instance: $instance}) RETURN g.axis AS axis, g.gid AS gid, g.ranks AS ranks ORDER BY gid",
        instance=instance,
    )
    assert [tuple(row.values()) for row in groups] == [
        ("tp", 1, [0, 1, 2, 3]),
        ("tp", 2, [4, 5, 6, 7]),
        ("kv", 3, [0, 1]),
        ("kv", 4, [2, 3]),
        ("kv", 5, [4, 5]),
        ("kv", 6, [6, 7]),
    ]
    rows = {row["name"]: row for row in ops(store, instance, 0)}
    assert (rows["layer.0.kv"]["axis"], rows["layer.0.kv"]["comm_bytes"]) == ("kv", 2)


def test_the_same_twice_is_one_instance(store: Store) -> None:
    first = made(store, EIGHT)
    reported: list[str] = []
    again = instantiate(
        store, "small", Plan.from_mapping(EIGHT.to_dict() | {"global_batch_size": 2}), progress=reported.append
    )
    assert again == first
    assert reported == []
    assert len(ask(store, "MATCH (i:Instance) RETURN i.id AS id")) == 1
    assert instantiate(store, "small", Plan(tp=4, seq_len=16)) != first


def test_the_row_of_an_instance(store: Store) -> None:
    write_graph(store, small_graph())
    instance = instantiate(store, "small", EIGHT)
    query = "MATCH (i:Instance {id: $id}) RETURN i.name AS name, i.graph AS graph, i.plan AS plan, i.world AS world"
    (row,) = ask(store, query, id=instance)
    assert Plan.from_mapping(json.loads(row.pop("plan"))) == EIGHT
    assert row == {"name": "toy", "graph": "small", "world": 8}
    instantiate(store, "small", EIGHT, name="mine")
    # A name for what exists is a pointer of its user, and content stays as it is.
    assert ask(store, query, id=instance)[0]["name"] == "toy"


def test_what_cannot_be_is_refused_and_nothing_is_written(store: Store) -> None:
    write_graph(store, small_graph())
    with pytest.raises(UsageError, match="the store has no graph 'smal'"):
        instantiate(store, "smal", EIGHT)
    with pytest.raises(UsageError, match="tp 3 does not divide the 4 attention heads"):
        instantiate(store, "small", Plan(tp=3))
    with pytest.raises(UsageError, match=r"built with sp False, the plan has True \(--sp\)"):
        instantiate(store, "small", Plan(tp=2, options=GraphOptions(sp=True)))
    with pytest.raises(UsageError, match="pp 3 is more than the model's 2 layers"):
        instantiate(store, "small", Plan(pp=3))
    assert ask(store, "MATCH (i:Instance) RETURN i.id AS id") == []


def test_a_size_that_is_not_whole_names_op_expression_and_degree(store: Store) -> None:
    write_graph(store, small_graph(hidden=9, key="odd"))
    with pytest.raises(UsageError, match=r"dims of layer\.project: H/tp is 9/2, not whole: .*tp=2"):
        instantiate(store, "odd", Plan(tp=2, seq_len=16))


def test_a_graph_of_a_later_version_fails_clearly(store: Store) -> None:
    graph = small_graph()
    rolled = [op(f"layer.ring{turns}", F, 9, loop=SymLoop(f"tp + {turns}", 9)) for turns in (1, 2)]
    write_graph(store, dataclasses.replace(graph, key="rolled", ops=(*graph.ops, *rolled)))
    with pytest.raises(StagedbError, match=r"graph rolled has loops of \[3, 4\] turns"):
        instantiate(store, "rolled", EIGHT)
    strange = comm("layer.strange", F, 1, "sideways", "all_reduce", comm_bytes=HIDDEN)
    write_graph(store, dataclasses.replace(graph, key="strange", ops=(*graph.ops, strange)))
    with pytest.raises(StagedbError, match="collectives on axis 'sideways'"):
        instantiate(store, "strange", EIGHT)
    assert ask(store, "MATCH (i:Instance) RETURN i.id AS id") == []


def test_a_collective_of_one_member_is_a_fault_of_the_graph(store: Store) -> None:
    """Traces with such a group stall a simulator, so the copy must not make them."""
    graph = small_graph()
    alone = comm("layer.alone", F, 1, "tp", "all_reduce")
    write_graph(store, dataclasses.replace(graph, key="alone", ops=(*graph.ops, alone)))
    with pytest.raises(StagedbError, match=r"layer\.alone .* axis 'tp', along which no two ranks communicate"):
        instantiate(store, "alone", Plan(dp=2, seq_len=16))


KILL = """
from stagedb.ir import SymLoop
from stagedb.store.contents.instances import instantiate
from stagedb.plans import Plan
from stagedb.store import connect
with connect() as store:
    instantiate(store, "small", Plan.from_mapping(dict(tp=2, dp=2, pp=2, seq_len=16)))
"""


@pytest.mark.parametrize("statement", ["dump/make_rankclass", "instantiate/chains", "lifecycle/set_instance"])
def test_killed_halfway_nothing_is_visible_and_the_next_run_completes(
    store: Store, store_environment: dict[str, str], statement: str
) -> None:
    write_graph(store, small_graph())
    environment = {**os.environ, **store_environment, **at(f"wrote.{statement}:kill")}
    ended = subprocess.run([sys.executable, "-c", KILL], env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert store.read("catalog/instances") == []
    assert ask(store, "MATCH (i:Instance) RETURN i.state AS state") == [{"state": "building"}]
    instance = instantiate(store, "small", EIGHT)
    assert [row["id"] for row in store.read("catalog/instances")] == [instance]
    for number, table in enumerate((FIRST_STAGE, LAST_STAGE)):
        assert len(ops(store, instance, number)) == len(table.strip().split("\n"))
    counts = ask(
        store,
        "MATCH (r:Rank) WITH count(r) AS ranks MATCH (g:Group) WITH ranks, count(g) AS groups "
        "MATCH (t:Task) WITH ranks, groups, count(t) AS tasks MATCH (:Op)-[d:DEP]->(:Op) "
        "RETURN ranks, groups, tasks, count(d) AS edges",
    )
    assert counts == [{"ranks": 8, "groups": 8, "tasks": 6, "edges": 41}]


def test_chunks_of_a_stage(embedded_store: Store) -> None:
    """Two stages of two chunks: messages between consecutive numbers, around the ends between chunks."""
    plan = Plan(pp=2, virtual_stages=2, dp=2, global_batch_size=4)
    instance = made(embedded_store, plan, layers=4, key="chunks")
    first, second = ops(embedded_store, instance, 0), ops(embedded_store, instance, 1)
    found = [
        {(row["name"], row["chunk"], row["peer"]) for row in rows if row["type"] in ("send", "recv")}
        for rows in (first, second)
    ]
    # One stage away; from the last stage to the first, or back, as many as there are less one.
    assert found[0] == {
        ("cut.send_forward", 0, 1),
        ("cut.recv_backward", 0, 1),
        ("cut.recv_forward", 1, 1),
        ("cut.send_backward", 1, 1),
        ("cut.send_forward", 1, 1),
        ("cut.recv_backward", 1, 1),
    }
    assert found[1] == {(name, chunk, -1) for name, chunk, _ in found[1]}
    assert {(name, chunk) for name, chunk, _ in found[1]} == {
        ("cut.recv_forward", 0),
        ("cut.send_backward", 0),
        ("cut.send_forward", 0),
        ("cut.recv_backward", 0),
        ("cut.recv_forward", 1),
        ("cut.send_backward", 1),
    }
    blocks = [{(row["block"], row["chunk"]) for row in rows} for rows in (first, second)]
    assert ("embedding", 0) in blocks[0] and ("embedding", 1) not in blocks[0]
    assert ("head", 1) in blocks[1] and ("head", 0) not in blocks[1]
    assert {(row["layer"], row["chunk"]) for row in first if row["block"] == "layer"} == {(0, 0), (1, 1)}
    # Each chunk is wrapped by itself: a bucket of its own.
    assert {row["chunk"] for row in first if row["kind"] == "all_reduce"} == {0, 1}
    classes = ask(
        embedded_store,
        "MATCH (c:RankClass {instance: $instance}) RETURN c.first_layers AS first, c.layers AS layers ORDER BY c.class",
        instance=instance,
    )
    # Layers 0 and 2 are on stage 0, 1 and 3 on stage 1.
    assert classes == [{"first": [0, 1], "layers": 2}, {"first": [1, 2], "layers": 2}]


def test_no_input_gradient_waits_for_a_weight_gradient(embedded_store: Store) -> None:
    plan = Plan(pp=2, schedule="zb-h1", dp=2, tp=2, global_batch_size=4)
    instance = made(embedded_store, plan, layers=4, key="split")
    backwards = (
        "MATCH (a:Op {instance: $instance})-[d:DEP]->(b:Op) WHERE a.template = $source AND b.template = $target "
    )
    waits = [
        ask(
            embedded_store,
            backwards + "RETURN a.name",
            instance=instance,
            source=f"{source}_gradient",
            target=f"{target}_gradient",
        )
        for source, target in (("input", "weight"), ("weight", "input"))
    ]
    assert waits[0]
    assert not waits[1]
    kinds = ask(
        embedded_store,
        "MATCH (t:Task {instance: $instance, class: 1}) RETURN t.kind AS kind ORDER BY t.index",
        instance=instance,
    )
    assert " ".join(row["kind"][0] for row in kinds) == "f i f i w w s"


@pytest.mark.parametrize(
    "words",
    [
        {"virtual_stages": 2},
        {"schedule": "zb-h1"},
        {"virtual_stages": 2, "schedule": "breadth-first"},
        {"virtual_stages": 2, "schedule": "zb-v"},
        {"virtual_stages": 2, "schedule": "interleaved-zb"},
        {"virtual_stages": 2, "schedule": "breadth-first", "chunk_placement": "0,0,1,1"},
    ],
)
def test_a_schedule_changes_no_work(embedded_store: Store, words: dict[str, Any]) -> None:
    """Every layer computes what it does under 1F1B, on whichever stage, and as much is sent over tp."""
    plain = Plan(pp=2, tp=2, dp=2, global_batch_size=8)
    found = []
    for plan in (plain, dataclasses.replace(plain, **words)):
        instance = made(embedded_store, plan, layers=4, key="work")
        flops = embedded_store.read("analyze/model/flops_by_layer", instance=instance)
        sent = embedded_store.read("analyze/communication/bytes_by_axis", instance=instance)
        found.append(
            (
                sorted((row["block"], row["layer"] or 0, row["forward_flops"], row["backward_flops"]) for row in flops),
                sorted((row["kind"], row["phase"], row["bytes"]) for row in sent if row["axis"] == "tp"),
            )
        )
    assert found[0] == found[1]
    assert len(found[0][0]) == 5
