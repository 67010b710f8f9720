"""Messages between stages that ranks of tp send in parts: what of an instance changes with them, and what does not."""

from typing import Any

import pytest

from stagedb.api import Stagedb, describe
from stagedb.errors import UsageError
from stagedb.graphs.graph_identity import graph_key
from stagedb.memory import Category
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.memory import analyse
from tests.ir.tiny import card

WORDS: dict[str, Any] = {"recipe": "megatron", "tp": 4, "pp": 2, "virtual_stages": 2, "dp": 2, "global_batch_size": 8}
MODEL = card("llama", layers=8, kv_heads=4)
MESSAGE = 16 * MODEL.hidden * 2
"""Bytes of a micro-batch's hidden states."""

OPS = """MATCH (o:Op {instance: $i})
RETURN o.class AS class, o.chunk AS chunk, o.position AS position, o.name AS name, o.type AS type, o.kind AS kind,
  o.axis AS axis, o.comm_bytes AS size, o.comm_out_bytes AS out, o.flops AS flops, o.bytes_read AS read"""
EDGES = """MATCH (a:Op {instance: $i})-[d:DEP {kind: 'data'}]->(b:Op)
RETURN a.class AS class, a.chunk AS chunk, a.name AS source, b.name AS target"""


def made(store: Store, **words: Any) -> str:
    return Stagedb(store).instantiate(MODEL, **{"seq_len": 16, **WORDS, **words}).id


def ask(store: Store, statement: str, instance: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in store.query(statement, {"i": instance}).rows}


def test_parts_go_between_stages_and_are_gathered_where_they_arrive(store: Store) -> None:
    plain, scattered = made(store), made(store, scatter_gather=True)
    before, after = (ask(store, OPS, each) for each in (plain, scattered))
    gathers = {row for row in after if row[3].startswith("cut.gather")}
    # What goes between stages is a quarter, and nothing else is another.
    parts = {(*row[:7], MESSAGE // 4, MESSAGE // 4, *row[9:]) if row[6] == "pp" else row for row in before}
    assert after - gathers == parts
    assert {row[4:9] for row in gathers} == {("collective", "all_gather", "tp", MESSAGE // 4, MESSAGE)}
    # They are where the message is received, in the place of the receive.
    ends = {row[:4] for row in after if row[3].startswith("cut.recv")}
    assert {(*row[:3], row[3].replace("gather", "recv")) for row in gathers} == ends
    edges = [ask(store, EDGES, each) for each in (plain, scattered)]

    def led(edge: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*edge[:2], edge[2].replace("cut.recv", "cut.gather"), edge[3])

    received = {(*row[:2], row[3], row[3].replace("recv", "gather")) for row in ends}
    assert edges[1] == {led(edge) for edge in edges[0]} | received


def test_bytes_by_axis_follow(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)

    def sums(instance: str) -> dict[tuple[str, str, str], int]:
        rows = db.query("bytes-by-axis", instance=instance)
        return {(row["axis"], row["kind"], row["phase"]): row["bytes"] for row in rows}

    before, after = sums(made(embedded_store)), sums(made(embedded_store, scatter_gather=True))
    # A stage's ends, both ways, for each micro-batch: three of four chunks send in each direction, on eight ranks.
    messages = 3 * 4 * 8 * MESSAGE
    for phase in ("forward", "backward"):
        assert before["pp", "send", phase] == messages == 4 * after["pp", "send", phase]
        assert after["tp", "all_gather", phase] - before.get(("tp", "all_gather", phase), 0) == messages // 4
    assert {key[0] for key in before.keys() ^ after.keys()} <= {"tp"}


def test_a_part_is_held_until_it_is_gathered(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    info = db.show(made(embedded_store, virtual_stages=1, scatter_gather=True))
    found = analyse(embedded_store, info.id)
    last = next(each.usage for each in found if 1 in each.rank_class.stages)
    named = {life.name: life for life in last.held.lives if life.name.startswith("cut.")}
    assert {name: life.bytes for name, life in named.items()} == {
        "cut.part_forward": MESSAGE // 4,
        "cut.recv_forward": MESSAGE,
    }
    part = named["cut.part_forward"]
    assert (part.category, part.begin.index, [end.index for end in part.ends]) == (Category.TEMPORARIES, 0, [2])
    assert named["cut.recv_forward"].category is Category.ACTIVATIONS


def test_graphs_that_scatter_are_other_graphs() -> None:
    plain = GraphOptions(recipe="megatron")
    other = GraphOptions(recipe="megatron", scatter_gather=True)
    assert graph_key(MODEL, plain) == graph_key(MODEL, GraphOptions(recipe="megatron", scatter_gather=False))
    assert graph_key(MODEL, plain) != graph_key(MODEL, other)
    plan = Plan(other, tp=2, pp=2)
    assert Plan.from_mapping(plan.to_dict()) == plan
    assert describe(plan.to_dict()).endswith("scatter-gather")


@pytest.mark.parametrize("scattered", [False, True])
def test_a_plan_and_its_graph_agree_on_messages(embedded_store: Store, scattered: bool) -> None:
    db = Stagedb(embedded_store)
    graph = db.build(MODEL, recipe="megatron", scatter_gather=scattered)
    other = Plan(GraphOptions(recipe="megatron", scatter_gather=not scattered), tp=2, pp=2, seq_len=16)
    with pytest.raises(UsageError, match=f"was built with scatter_gather {scattered}, the plan has {not scattered}"):
        instantiate(embedded_store, graph.id, other)
    with pytest.raises(UsageError, match=f"has scatter_gather {scattered}, not {not scattered}"):
        db.instantiate(graph.id, tp=2, pp=2, scatter_gather=not scattered)


def test_a_changed_plan_keeps_its_messages(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    one = made(embedded_store, scatter_gather=True)
    other = db.diff(one, made(embedded_store)).plan
    assert list(other) == [{"word": "scatter_gather", "first": True, "second": False}]
    assert db.profile(one, tp=2).instance.plan["scatter_gather"] is True
