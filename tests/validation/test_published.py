"""Published numbers come out to every printed digit, and one that does not is seen."""

import pytest

from stagedb.api import Stagedb
from stagedb.models import card_names
from stagedb.store import Store
from stagedb.validation import Published, check_published


def test_every_published_number_comes_out(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    found = list(check_published(db))
    assert [each for each in found if not each.agrees] == []
    assert sum(each.quantity.startswith("parameters of") for each in found) == len(card_names())
    assert sum("elements of" in each.quantity for each in found) == 8
    assert sum("FLOPs" in each.quantity for each in found) == 10
    assert sum("activations of one layer" in each.quantity for each in found) == 6
    assert sum("figure 1" in each.source for each in found) == 12
    assert sum("model states" in each.quantity for each in found) == 11
    assert max(each.within or 0 for each in found if "activations" in each.quantity) <= 0.01
    assert db.graphs() == []


@pytest.mark.parametrize(
    ("reference", "ours", "agrees"),
    [(1075.1, 1075.13, True), (1075.1, 1075.2, False), (206.0, 206.045, True), (206.0, 206.06, False), (7, 8, False)],
)
def test_a_number_agrees_to_its_printed_digits(reference: float, ours: float, agrees: bool) -> None:
    assert Published("somewhere", "something", reference, ours).agrees is agrees


def test_a_number_agrees_within_its_bound() -> None:
    assert Published("somewhere", "something", 100.0, 100.9, within=0.01).agrees
    assert not Published("somewhere", "something", 100.0, 101.1, within=0.01).agrees
