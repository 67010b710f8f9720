"""Pages that were just made are shown to others; errors, downloads and what a write made old are not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.responses import Response, StreamingResponse

from stagedb.api import Stagedb
from stagedb.serve import Limits
from stagedb.serve.page_routes import RecentAnswers
from stagedb.store import Store
from tests.ir.tiny import card
from tests.serve.served import serving


class Maker:
    """Makes numbered answers, after all who ask have asked."""

    def __init__(self, fails: int = 0, *, status: int = 200) -> None:
        self.made, self.fails, self.status = 0, fails, status

    async def __call__(self) -> Response:
        self.made += 1
        number = self.made
        await asyncio.sleep(0.01)
        if number <= self.fails:
            raise ValueError(number)
        return Response(str(number), self.status)


def together(recent: RecentAnswers, make: Callable[[], Awaitable[Response]], count: int) -> list[object]:
    async def ask() -> list[object]:
        return [*await asyncio.gather(*(recent.get("page", make) for _ in range(count)), return_exceptions=True)]

    return asyncio.run(ask())


def test_readers_at_the_same_time_get_one_answer() -> None:
    make = Maker()
    answers = together(RecentAnswers(1.0), make, 50)
    assert make.made == 1
    assert {answer.body for answer in answers if isinstance(answer, Response)} == {b"1"}


def test_an_answer_is_shown_for_so_many_seconds() -> None:
    now, make = [0.0], Maker()
    recent = RecentAnswers(2.0, lambda: now[0])
    bodies = []
    for now[0] in (0.0, 1.9, 2.1, 3.0):
        bodies += [answer.body for answer in together(recent, make, 1) if isinstance(answer, Response)]
    assert bodies == [b"1", b"1", b"2", b"2"]


def test_an_error_is_not_kept_and_others_ask_again() -> None:
    make = Maker(fails=1)
    first, *others = together(RecentAnswers(1.0), make, 3)
    assert isinstance(first, ValueError)
    assert [type(each) for each in others] == [Response, Response]


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_a_refusal_is_not_kept(status: int) -> None:
    make, recent = Maker(status=status), RecentAnswers(60.0)
    together(recent, make, 1)
    together(recent, make, 1)
    assert make.made == 2


def test_what_is_sent_in_parts_is_made_for_each() -> None:
    async def make() -> Response:
        return StreamingResponse(iter([b"a", b"b"]))

    answers = together(RecentAnswers(60.0), make, 3)
    assert len({id(answer) for answer in answers}) == 3


def test_what_was_being_made_while_the_store_changed_is_not_kept() -> None:
    recent, make = RecentAnswers(60.0), Maker()

    async def ask() -> None:
        asked = asyncio.ensure_future(recent.get("page", make))
        await asyncio.sleep(0)
        recent.clear()
        assert (await asked).body == b"1"
        assert (await recent.get("page", make)).body == b"2"
        assert (await recent.get("page", make)).body == b"2"

    asyncio.run(ask())


def test_a_reader_who_leaves_does_not_end_the_page_of_others() -> None:
    recent, make = RecentAnswers(60.0), Maker()

    async def ask() -> Response:
        leaving = asyncio.ensure_future(recent.get("page", make))
        await asyncio.sleep(0)
        staying = asyncio.ensure_future(recent.get("page", make))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(ask()).body == b"1"


def test_who_writes_sees_it_at_once_and_readers_get_no_form(embedded_store: Store) -> None:
    made = Stagedb(embedded_store).instantiate(card("llama"), tp=2)
    writer = "a-token-of-writers-here"
    words = {"authorization": f"Bearer {writer}", "content_type": "application/x-www-form-urlencoded"}
    with serving(embedded_store, limits=Limits(recent=600.0), writer=writer) as served:
        path = f"/instances/{made.id}"
        before = served.get(path), served.get(path, authorization=f"Bearer {writer}")
        assert ["/write/name" in answer.text for answer in before] == [False, True]
        assert served.get("/write/name", "POST", f"id={made.id}&name=wide-one", **words).status == 303
        assert "wide-one" in served.get(path).text
