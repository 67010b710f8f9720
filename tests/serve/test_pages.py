"""What pages show: the content of a store, on each engine."""

import re
from collections.abc import Iterator
from html import unescape

import pytest

from stagedb.api import InstanceInfo, Stagedb
from stagedb.store import Store
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.serve.served import Served, serving


def stock(store: Store) -> InstanceInfo:
    db = Stagedb(store)
    db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    return db.instantiate(card("llama"), name="deep", pp=2, dp=2, global_batch_size=4)


@pytest.fixture
def reading(fill: Fill) -> Store:
    return fill(stock).store


@pytest.fixture
def made(fill: Fill) -> InstanceInfo:
    return fill(stock).made


@pytest.fixture
def served(reading: Store) -> Iterator[Served]:
    with serving(reading) as found:
        yield found


def test_lists_are_those_of_ls(reading: Store, served: Served) -> None:
    for kind in ("graphs", "instances"):
        page = served.get(f"/list/{kind}")
        assert page.status == 200
        ids = [each.id for each in (Stagedb(reading).graphs() if kind == "graphs" else Stagedb(reading).instances())]
        assert list(dict.fromkeys(re.findall(rf'href="/{kind}/([0-9a-f]+)"', page.text))) == ids


def test_a_list_is_filtered_and_sorted(served: Served) -> None:
    def names(query: str) -> list[str]:
        found = served.get(f"/list/instances?{query}").text
        return [*dict.fromkeys(name for name in re.findall(r">(wide|deep)<", found))]

    assert names("") == ["deep", "wide"]
    assert names("text=WIDE") == ["wide"]
    assert names("text=pp+2") == ["deep"]
    assert names("sort=name") == ["deep", "wide"]
    assert names("sort=name&model=tiny-llama") == ["deep", "wide"]
    refused = served.get("/list/instances?model=tiny-lama")
    assert refused.status == 400
    assert "did you mean tiny-llama?" in refused.text
    assert "there is no page 2" in served.get("/list/instances?page=2").text


def test_an_instance_has_its_plan_and_classes(reading: Store, made: InstanceInfo, served: Served) -> None:
    page = served.get(f"/instances/{made.id}").text
    facts = dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", page))
    assert (facts["pp"], facts["global_batch_size"]) == ("2", "4")
    shown = page[page.index("Rank classes") :]
    rows = [tuple(re.findall(r"<td[^>]*>([^<]*)<", row)) for row in re.findall(r"<tr>(<td.*?)</tr>", shown, re.DOTALL)]
    classes = Stagedb(reading).classes(made.id)
    assert [row[classes.columns.index("ops")] for row in rows] == [f"{row['ops']:,}" for row in classes]
    assert served.get("/show/deep").headers["location"] == f"/instances/{made.id}"


def test_memory_is_shown_without_a_write(reading: Store, made: InstanceInfo, served: Served) -> None:
    page = served.get(f"/instances/{made.id}/memory")
    assert reading.read("memory/all_peaks", instance=made.id) == []
    memory = Stagedb(reading).memory(made.id, keep=False)
    for row in memory.peaks:
        assert f"{row['peak'] / 1e9:,.2f} GB" in page.text


def test_what_is_not_for_tensors_is_on_the_page_of_memory(made: InstanceInfo, served: Served) -> None:
    page = served.get(f"/instances/{made.id}/memory?system=h100").text
    assert "The accelerator has 82.8" in page and "GB for tensors: every class fits" in page
    assert "An accelerator has 84.92 GB (79.09 GiB): 82.83 GB for tensors, 2.09 GB reserved (context 1.65 GB" in page


def test_the_memory_of_a_page_is_that_of_the_store(store: Store) -> None:
    db, made = Stagedb(store), stock(store)
    without = db.memory(made.id, keep=False)
    stored = db.memory(made.id)
    assert (without.peaks, without.levels, without.tensors) == (stored.peaks, stored.levels, stored.tensors)


def test_models_are_the_librarys_alone(served: Served) -> None:
    assert "/models/llama3-8b" in served.get("/models?text=llama3").text
    assert "vocab" in served.get("/models/gpt2").text
    assert served.get("/models/..%2F..%2Fetc%2Fpasswd").status == 404
    for word in ("card.yaml", "nothing"):
        refused = served.get(f"/models/{word}")
        assert refused.status == 400
        assert "the library has no model" in unescape(refused.text)


def test_an_address_without_an_id_leads_to_the_list(made: InstanceInfo, served: Served) -> None:
    for kind in ("graphs", "instances", "profiles", "searches", "runs"):
        found = served.get(f"/{kind}?q=llama")
        assert (found.status, found.headers["location"]) == (303, f"/list/{kind}?q=llama")
    assert made.id in served.get(served.get("/instances").headers["location"]).text


def test_what_is_not_there_is_named(served: Served) -> None:
    assert served.get("/nowhere").status == 404
    assert served.get("/list/nothing").status == 404
    missing = served.get("/instances/missing")
    assert missing.status == 400
    assert "no graph, instance, profile, search or run" in missing.text
    assert '<a href="/list/instances">the page of instances</a> lists them' in missing.text
