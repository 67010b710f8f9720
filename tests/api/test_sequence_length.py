"""The sequence length of plans that name none: from the card, also where the store has an older one."""

from dataclasses import replace
from typing import Any

import pytest

from stagedb.api import Stagedb, properties
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.models import Card, SequenceLength, load_card
from stagedb.plans import GraphOptions
from stagedb.store import Store, write_graph
from tests.ir.tiny import card

TRAINED = SequenceLength(4, "pre-trained with this length: nowhere")


def tiny(**words: Any) -> Card:
    """A small model with eight positions, trained with sequences of four tokens."""
    return replace(card("llama"), train_seq_len=4, train_seq_len_source=TRAINED.reason, **words)


@pytest.fixture
def db(store: Store) -> Stagedb:
    return Stagedb(store)


def test_an_instance_has_the_trained_length_and_its_reason(db: Stagedb) -> None:
    made = db.instantiate(tiny(), tp=2)
    assert (made.plan["seq_len"], made.usual_length) == (4, TRAINED)
    assert db.instantiate(tiny(), tp=2).usual_length == TRAINED
    named = db.instantiate(tiny(), tp=2, seq_len=4)
    assert (named.id, named.new, named.usual_length) == (made.id, False, None)
    assert "usual_length" not in properties(made)
    # Without a model the instance and its length are those of the store.
    assert db.memory().instance.usual_length is None
    changed = db.memory(made.id, tp=1).instance
    assert (changed.plan["seq_len"], changed.usual_length) == (4, None)
    assert db.profile(model=tiny(), tp=2).instance.usual_length == TRAINED
    assert db.chart(model=tiny(), tp=2).instance.usual_length == TRAINED


def test_the_card_decides_also_where_the_store_has_an_older_length(db: Stagedb, store: Store) -> None:
    """Graphs that were stored before have the last position, under the same id."""
    graph = build_graph(tiny(), GraphOptions())
    assert graph.sizes["S"] == 4
    write_graph(store, replace(graph, sizes={**graph.sizes, "S": 8}))
    (stored,) = db.graphs()
    assert (stored.id, stored.sizes["S"]) == (graph.key, 8)
    assert db.instantiate(tiny(), tp=2).plan["seq_len"] == 4
    by_id = db.instantiate(stored.id, tp=2)
    assert (by_id.plan["seq_len"], by_id.usual_length) == (
        8,
        SequenceLength(8, "that of the graph tiny-llama in the store"),
    )


def test_a_stored_graph_of_the_library_has_the_length_of_its_card(db: Stagedb, store: Store) -> None:
    known = load_card("gpt2")
    graph = build_graph(known, GraphOptions())
    write_graph(store, replace(graph, sizes={**graph.sizes, "S": 512}))
    assert db.instantiate(graph.key).plan["seq_len"] == 1024
    own = replace(known, hidden=96, head_dim=8, ffn=64, parameters=0)
    other = build_graph(own, GraphOptions())
    write_graph(store, replace(other, sizes={**other.sizes, "S": 512}))
    assert db.instantiate(other.key).plan["seq_len"] == 512


def test_sequences_above_a_window_that_the_card_leaves_out_are_refused(db: Stagedb) -> None:
    whole = db.instantiate(tiny(), tp=2, seq_len=8)
    narrow = tiny(left_out_window=4)
    assert db.instantiate(narrow, tp=2).plan["seq_len"] == 4
    for tokens in (5, 8):
        with pytest.raises(UsageError, match=r"attends to 4 tokens at most.*seq_len takes at most 4"):
            db.instantiate(narrow, tp=2, seq_len=tokens)
    with pytest.raises(UsageError, match="seq_len takes at most 4"):
        db.profile(model=narrow, tp=2, seq_len=8)
    # An instance that the store has is read as before.
    assert db.memory(whole.id).instance.id == whole.id
