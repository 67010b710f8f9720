"""Published numbers come out to every printed digit, and one that does not is seen."""

from collections.abc import Mapping
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.models import card_names
from stagedb.store import Store
from stagedb.validation import Published
from stagedb.validation.published_counts import check_cards, check_rows, published_rows
from stagedb.validation.rank_counts import ProgramOf, lowered, stored


def test_every_model_has_its_published_parameters() -> None:
    found = list(check_cards())
    assert [each for each in found if not each.agrees] == []
    assert len(found) == len(card_names())


def title(row: Mapping[str, Any]) -> str:
    return " ".join([row["model"], *(f"{word} {value}" for word, value in row["plan"].items())])


def assert_comes_out(row: Mapping[str, Any], program_of: ProgramOf) -> None:
    found = list(check_rows([row], program_of))
    assert [each for each in found if not each.agrees] == []
    assert len(found) == len(row["printed"])
    assert max((each.within or 0 for each in found if "activations" in each.quantity), default=0) <= 0.01


@pytest.mark.parametrize("row", published_rows(), ids=title)
def test_every_published_number_comes_out(row: Mapping[str, Any]) -> None:
    assert_comes_out(row, lowered)


@pytest.mark.parametrize("row", published_rows()[1::9], ids=title)
def test_a_published_number_comes_out_of_a_store(store: Store, row: Mapping[str, Any]) -> None:
    db = Stagedb(store)
    with stored(db) as program_of:
        assert_comes_out(row, program_of)
    assert db.graphs() == []


def test_the_published_numbers_are_of_many_kinds() -> None:
    quantities = [quantity for row in published_rows() for quantity in row["printed"]]
    assert sum("elements of" in each for each in quantities) == 8
    assert sum("FLOPs" in each for each in quantities) == 10
    assert sum("activations of one layer" in each for each in quantities) == 6
    assert sum("figure 1" in row["source"] for row in published_rows() for _ in row["printed"]) == 12
    assert sum("model states" in each for each in quantities) == 11


@pytest.mark.parametrize(
    ("reference", "ours", "agrees"),
    [(1075.1, 1075.13, True), (1075.1, 1075.2, False), (206.0, 206.045, True), (206.0, 206.06, False), (7, 8, False)],
)
def test_a_number_agrees_to_its_printed_digits(reference: float, ours: float, agrees: bool) -> None:
    assert Published("somewhere", "something", reference, ours).agrees is agrees


def test_a_number_agrees_within_its_bound() -> None:
    assert Published("somewhere", "something", 100.0, 100.9, within=0.01).agrees
    assert not Published("somewhere", "something", 100.0, 101.1, within=0.01).agrees
