"""Layers that alternate, as the store holds them: two kinds that are made alike are the model without a pattern."""

import dataclasses
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.models import Card
from stagedb.store import Store
from tests.ir.tiny import card

OPS = """
MATCH (o:Op {instance: $id})
RETURN o.name, o.class, o.index, o.chunk, o.position, o.layer, o.block, o.`order`, o.runs, o.flops, o.bytes_read,
  o.bytes_written, o.temporary, o.comm_bytes, o.comm_out_bytes
"""
EDGES = """
MATCH (a:Op {instance: $id})-[d:DEP]->(b:Op)
RETURN a.class, a.index, b.class, b.index, d.kind
"""
CARRIED = """
MATCH (o:Op {instance: $id})-[c:CARRIES]->(t:SymTensor)
RETURN o.class, o.index, c.position, c.layer, t.name
"""

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "one stage": ("llama", {"dp": 2, "tp": 2}),
    "stages that hold both, recomputed": ("llama", {"pp": 2, "zero": 3, "dp": 2, "recompute": "full"}),
    "every second layer recomputed": ("llama", {"pp": 2, "recompute": "full", "recompute_every": 2}),
    "virtual stages": ("moe", {"pp": 2, "virtual_stages": 3, "schedule": "interleaved", "dp": 2, "ep": 2, "zero": 3}),
    "megatron, buffers": ("moe", {"recipe": "megatron", "pp": 2, "dp": 2, "tp": 2, "sp": True, "zero": 1, "ep": 2}),
    "rings": ("llama", {"cp": 2, "cp_kind": "ring-alltoall", "pp": 3}),
}


def alternating(model: Card) -> Card:
    """The model with every second layer of a kind that differs from the others in nothing but its name."""
    kind = model.kinds["layer"].to_dict()
    return dataclasses.replace(model, pattern=("odd", "even"), layer_kinds={"odd": kind, "even": kind})  # type: ignore[arg-type]


def renamed(value: object) -> object:
    """A value with the names of the alternating kinds as that of the plain one."""
    return value if not isinstance(value, str) else value.replace("odd", "layer").replace("even", "layer")


def rows(store: Store, instance: str, query: str) -> list[tuple[object, ...]]:
    found = store.query(query, {"id": instance}).rows
    return sorted((tuple(map(renamed, row)) for row in found), key=repr)


@pytest.mark.parametrize("words", PLANS)
def test_kinds_that_are_made_alike_make_the_plain_model(store: Store, words: str) -> None:
    style, plan = PLANS[words]
    db, model = Stagedb(store), card(style, layers=6, kv_heads=4)
    plan = {"seq_len": 8, "global_batch_size": 8, **plan}
    plain, mixed = (db.instantiate(each, **plan) for each in (model, alternating(model)))
    kinds = store.query(
        "MATCH (o:Op {instance: $id}) WHERE o.layer IS NOT NULL RETURN DISTINCT o.block", {"id": mixed.id}
    )
    assert sorted(block for (block,) in kinds.rows) == ["even", "odd"]
    for query in (OPS, EDGES, CARRIED):
        assert rows(store, mixed.id, query) == rows(store, plain.id, query)
    memory = [db.memory(each.id) for each in (plain, mixed)]
    for found in ([each.peaks.rows for each in memory], [each.levels.rows for each in memory]):
        assert [tuple(map(renamed, row)) for row in found[1]] == list(found[0])
    steps = [db.profile(each.id).info.step for each in (plain, mixed)]
    assert steps[0] == steps[1] > 0
