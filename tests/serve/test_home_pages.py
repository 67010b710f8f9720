"""The first page, and looking up anything by a text."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlencode

import pytest

from stagedb.api import Profile, Stagedb, overview
from stagedb.store import Store
from stagedb.store.contents.runs import record_run
from tests.ir.tiny import card
from tests.runs.recordings import small_run
from tests.serve.served import Served, serving
from tests.store.made_up_searches import made_up_search
from tests.store.many import copies


@pytest.fixture
def made(embedded_store: Store) -> tuple[Profile, Profile]:
    db = Stagedb(embedded_store)
    made_up_search(embedded_store)
    record_run(embedded_store, small_run())
    db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    db.instantiate(card("llama"), name="deep", pp=2, dp=2, global_batch_size=4)
    return db.profile("wide", name="first"), db.profile("deep", name="second", scale=["compute=0.001"])


@pytest.fixture
def served(embedded_store: Store, made: tuple[Profile, Profile]) -> Iterator[Served]:
    with serving(embedded_store) as found:
        yield found


def sections(page: str) -> dict[str, str]:
    """The parts of a page by the first word of their titles."""
    parts = re.findall(r"<section><h2>(\w+)(.*?)</section>", page, re.DOTALL)
    return dict(parts)


def looked_up(served: Served, text: str) -> dict[str, str]:
    return sections(served.get(f"/lookup?{urlencode({'text': text})}").text)


def test_the_store_and_its_newest_things_are_shown(
    embedded_store: Store, made: tuple[Profile, Profile], served: Served
) -> None:
    page = unescape(served.get("/").text)
    assert embedded_store.uri in page
    assert "embedded engine" in page
    chips = re.findall(r'<li><a href="(/list/\w+)"><b>(\d+)</b> (\w+)</a>', page)
    assert chips == [
        ("/list/instances", "2", "instances"),
        ("/list/profiles", "2", "profiles"),
        ("/list/searches", "1", "search"),
        ("/list/runs", "1", "run"),
        ("/list/graphs", "1", "graph"),
    ]
    new = sections(page)["New"]
    assert sorted(re.findall(r"<tr><td>(\w+)</td>", new)) == sorted(
        ["instance", "instance", "profile", "profile", "run", "search"]
    )
    assert made[0].info.made_by is not None
    assert f"<td>{made[0].info.made_by}</td>" in new


def test_the_best_plan_of_a_pair_fits_and_is_not_scaled(
    embedded_store: Store, made: tuple[Profile, Profile], served: Served
) -> None:
    db = Stagedb(embedded_store)
    assert re.findall(r'href="/profiles/(\w+)"', sections(served.get("/").text)["Best"]) == [made[0].info.id]
    with embedded_store._session("WRITE") as session:
        session.run("MATCH (p:Profile {id: $id}) SET p.room = 1", id=made[0].info.id).consume()
    nothing = sections(served.get("/").text)["Best"]
    assert "none fits" in nothing
    assert "/profiles/" not in nothing
    fitting = db.profile("deep")
    other = db.profile("deep", system="b200")
    best = overview.overview(embedded_store, 3)
    assert [(each.system, each.plan and each.plan.id, each.profiles) for each in best.best] == [
        ("b200", other.info.id, 1),
        ("h100", fitting.info.id, 2),
    ]
    assert len(best.newest) == 3


def test_anything_is_found_by_a_text(embedded_store: Store, made: tuple[Profile, Profile], served: Served) -> None:
    db = Stagedb(embedded_store)
    db.tag("deep", "candidate")
    assert list(looked_up(served, "wide")) == ["instances", "profiles"]
    assert list(looked_up(served, "CANDIDATE")) == ["instances"]
    assert list(looked_up(served, made[0].info.id[:9])) == ["profiles"]
    assert list(looked_up(served, small_run().id)) == ["runs"]
    found = looked_up(served, "tiny tp=2")
    assert list(found) == ["instances", "profiles"]
    assert ">wide<" in found["instances"]
    assert ">deep<" not in found["instances"]
    assert "/models/gpt2" in looked_up(served, "gpt2")["models"]
    assert looked_up(served, "nothing-has-this") == {}
    assert "Nothing has all of these words" in served.get("/lookup?text=nothing-has-this").text
    assert sections(served.get("/lookup").text) == {}
    assert served.get("/lookup?text=tp%3Dmany").status == 400


def test_what_is_found_is_bounded(embedded_store: Store) -> None:
    one = Stagedb(embedded_store).profile(model=card("llama"), tp=2, dp=2)
    copies(embedded_store, one.instance.id, 40)
    with serving(embedded_store) as served:
        found = looked_up(served, "llama tp=2")["instances"]
    assert len(re.findall(r"<tr><td>", found)) == 10
    assert '<a href="/list/instances?text=llama&amp;plan=tp%3D2">all 41 instances</a>' in found
