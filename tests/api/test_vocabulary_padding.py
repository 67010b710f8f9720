"""The rows that a framework, or a card for it, adds to a vocabulary are named to who builds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stagedb.api import Stagedb, model, properties
from stagedb.errors import UsageError
from stagedb.models import Card
from stagedb.store import Store
from tests.ir.tiny import card


@pytest.fixture
def db(store: Store) -> Stagedb:
    return Stagedb(store)


def odd() -> Card:
    """A model of 1,000 words, which is no multiple of 128."""
    return replace(card("llama"), name="odd", vocab=1000, parameters=0)


@pytest.mark.parametrize(("tp", "padded"), [(1, 1152), (2, 1280)])
def test_megatron_pads_to_a_multiple_of_128_times_tp(db: Stagedb, tp: int, padded: int) -> None:
    padded_model = replace(odd(), vocab=1100, tied=False)
    made = db.instantiate(padded_model, recipe="megatron", tp=tp)
    rows = padded - 1100
    assert made.padding == (
        f"the vocabulary of 1,100 is padded to {padded:,} (a multiple of 128 x tp {tp}, as megatron has it): "
        f"{rows} rows, "
        f"{rows * padded_model.hidden * 2:,} parameters more than its card has"
    )
    assert "padding" not in properties(made)


def test_a_graph_has_tp_as_a_symbol(db: Stagedb) -> None:
    made = db.build(odd(), recipe="megatron")
    assert made.padding == "the vocabulary of 1,000 is padded to a multiple of 128 x tp in an instance (megatron)"
    assert db.build(odd(), recipe="torch").padding == ""


def test_a_card_pads_for_torch(db: Stagedb) -> None:
    padded_model = replace(odd(), vocab_multiple=128, tied=True)
    text = "the vocabulary of 1,000 is padded to 1,024 (a multiple of 128, as its card has it): 24 rows, "
    text += f"{24 * padded_model.hidden:,} parameters more than its card has"
    assert db.build(padded_model, recipe="torch").padding == text
    assert db.instantiate(padded_model, recipe="torch", tp=2).padding == text
    assert db.instantiate(odd(), recipe="torch", tp=2).padding == ""


def test_a_card_that_pads_names_the_rows() -> None:
    assert model("gpt2-xl")["padded_vocab"] == 50304
    assert "padded_vocab" not in model("llama3-8b")


def test_no_rows_are_named_where_there_are_none(db: Stagedb) -> None:
    assert db.instantiate(replace(odd(), vocab=1024), recipe="megatron", tp=2).padding == ""


def test_what_is_printed_of_a_card_is_a_card(tmp_path: Path) -> None:
    """Also of one whose vocabulary is padded; another number is refused."""
    path = tmp_path / "own.json"
    path.write_text(json.dumps({**model("gpt2-xl"), "name": "own"}), encoding="utf-8")
    assert model(str(path))["padded_vocab"] == 50304
    path.write_text(json.dumps({**model("gpt2-xl"), "padded_vocab": 50257}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"padded_vocab is 50257, but vocab and vocab_multiple make 50304"):
        model(str(path))
