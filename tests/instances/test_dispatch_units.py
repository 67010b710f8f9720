"""Experts as a unit of their own, where tokens are sent once for each target: it covers the exchanges."""

import dataclasses
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from tests.ir.tiny import card


@pytest.mark.parametrize("near", [0, 2])
def test_a_unit_of_experts_covers_the_exchanges(embedded_store: Store, near: int) -> None:
    words: dict[str, Any] = {"dispatch": "nodes", "node_ranks": near} if near else {"dispatch": "ranks"}
    model = dataclasses.replace(card("moe", layers=2), experts=8)
    instance = Stagedb(embedded_store).instantiate(model, dp=8, ep=4, zero=3, expert_unit=True, seq_len=8, **words)
    rows = embedded_store.query(
        "MATCH (o:Op {instance: $id}) RETURN o.name, o.axis, o.kind, o.phase ORDER BY o.index", {"id": instance.id}
    ).rows
    place = {name: at for at, (name, *_) in enumerate(rows)}

    def is_bucket(at: int, kind: str) -> bool:
        name, axis, of, _ = rows[at]
        return bool(name.startswith("bucket.") and axis == "edp" and of == kind)

    # Nothing is ahead of the first layer's experts in the forward, and of the last layer's in the backward.
    assert is_bucket(place["layer.0.ffn.dispatch"] - 1, "all_gather")
    assert is_bucket(place["layer.1.ffn.back.input_gradient"] - 1, "all_gather")
    for layer in (0, 1):
        assert is_bucket(place[f"layer.{layer}.ffn.experts.w1.weight_gradient"] + 1, "reduce_scatter")
    assert sum(is_bucket(at, "all_gather") for at in range(len(rows))) == 4
