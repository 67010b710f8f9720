"""Pages that a server makes before anybody asks for them."""

import asyncio
from collections.abc import Callable

import pytest
from starlette.applications import Starlette

from stagedb.api import Stagedb
from stagedb.errors import StagedbError
from stagedb.serve import application, page_routes
from stagedb.serve.access import AccessRules, names_of
from stagedb.serve.page_routes import FIRST_PAGES, OTHERS, Limits
from stagedb.store import Store
from tests.ir.tiny import card
from tests.serve.served import KeptOpen
from tests.store.made_up_searches import made_up_search
from tests.store.many import copies


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses of the pages that a server makes, in their order, each with its status."""
    found = []
    status_of = page_routes._status

    async def recorded(app: Starlette, address: str) -> int:
        found.append((address, await status_of(app, address)))
        return found[-1][1]

    monkeypatch.setattr(page_routes, "_status", recorded)
    return found


def make(connect: Callable[[], Stagedb]) -> None:
    app = application(connect, AccessRules(None, names_of("127.0.0.1", ())), Limits())
    asyncio.run(page_routes.make_first_pages(app))


def test_the_lists_and_the_newest_of_each_kind_are_made(embedded_store: Store, asked: list[tuple[str, int]]) -> None:
    db = Stagedb(embedded_store)
    made_up_search(embedded_store)
    instance = db.instantiate(card("llama"), tp=2, dp=2)
    profile = db.profile(instance.id, system="h100")
    db.instantiate(card("llama"), tp=2, dp=4)  # newer, and without a profile
    make(lambda: KeptOpen(embedded_store))
    assert {status for _, status in asked} == {200}
    found = [address.partition("?")[0] for address, _ in asked]
    (search,) = (row["id"] for row in db.ls("searches"))
    assert found[: len(FIRST_PAGES)] == [each.partition("?")[0] for each in FIRST_PAGES]
    assert found[-len(OTHERS) :] == [*OTHERS]
    assert {*found[len(FIRST_PAGES) : -len(OTHERS)]} == {
        *(f"/{kind}/{id_}" for kind, id_ in (("instances", instance.id), ("profiles", profile.info.id))),
        f"/searches/{search}",
        f"/instances/{instance.id}/memory",
        "/explore",
        "/find",
    }


def test_an_empty_store_has_its_lists(embedded_store: Store, asked: list[tuple[str, int]]) -> None:
    make(lambda: KeptOpen(embedded_store))
    assert asked == [(each, 200) for each in (*FIRST_PAGES, *OTHERS)]


def test_it_ends_where_the_store_is_away(asked: list[tuple[str, int]], caplog: pytest.LogCaptureFixture) -> None:
    def opened() -> Stagedb:
        raise StagedbError("no store there")

    make(opened)
    assert asked == [(FIRST_PAGES[0], 503)]
    assert "the store is away: no store there" in caplog.text


def test_each_kind_has_its_page_however_many_are_newer(embedded_store: Store, asked: list[tuple[str, int]]) -> None:
    db = Stagedb(embedded_store)
    instance = db.profile(model=card("llama"), tp=2).instance
    copies(embedded_store, instance.id, 60)  # their profiles are newer than every instance
    make(lambda: KeptOpen(embedded_store))
    kinds = {address.split("/")[1] for address, _ in asked if address.count("/") == 2}
    assert {"instances", "profiles"} <= kinds
