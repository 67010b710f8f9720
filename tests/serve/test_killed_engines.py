"""The engine is killed while a page's query runs: that page names it, and the next one is answered by a new engine."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import psutil
import pytest

from stagedb.api import Stagedb
from stagedb.serve import Limits
from stagedb.store import connect, embedded
from tests.ir.tiny import card
from tests.serve.served import Answer, Served, serving_opened
from tests.serve.test_answers import asked

SLOW = "UNWIND range(1, 90000) AS a UNWIND range(1, 90000) AS b UNWIND range(1, 90000) AS c RETURN sum(a * b * c) AS n"
NAMED = "MATCH (i:Instance) RETURN i.name AS name"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    embedded.stop(tmp_path / "home")


def killed(home: Path, served: Served, page: str) -> Answer:
    """The answer of a page whose engine is killed while it waits."""
    engine = embedded.running(home)
    assert engine is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.get, page)
        time.sleep(2)
        assert not waiting.done()
        psutil.Process(engine.pid).kill()
        return waiting.result(timeout=300)


def test_a_page_whose_engine_is_killed_names_it_and_the_next_one_works(home: Path) -> None:
    def opened() -> Stagedb:
        return Stagedb(connect(environment={}, home=home))

    with opened() as db:
        db.instantiate(card("llama"), name="wide", tp=2)
    with serving_opened(opened, limits=Limits(timeout=100)) as served:
        assert served.get("/list/instances").status == 200
        for form in ({}, {"format": "csv"}):
            answer = killed(home, served, asked(query=SLOW, **form))
            text = unescape(answer.text)
            assert answer.status == 500, text
            assert "was lost while the query ran, and it is not run again by itself" in text
            assert "Traceback" not in text
            assert "wide" in served.get("/list/instances").text
            found = served.get(asked(query=NAMED))
            assert (found.status, ">wide<" in found.text) == (200, True), found.text
