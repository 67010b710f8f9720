"""What users wrote about things, where things come from, the log and finding: on pages."""

import csv
import io
import json
import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlencode

import pytest

from stagedb.api import Profile, Stagedb
from stagedb.errors import UsageError
from stagedb.serve.team_pages import plan_words
from stagedb.store import Store
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.serve.served import Served, serving

Pair = tuple[Profile, Profile]


def stock(store: Store) -> Pair:
    db = Stagedb(store)
    wide = db.profile(model=card("llama"), tp=2, dp=2, name="wide")
    deep = db.profile(model=card("llama"), pp=2, dp=2, global_batch_size=4, name="deep")
    db.tag(wide.instance.id, "paper", "reviewed")
    db.note(wide.instance.id, "the plan of <b>table 3</b>")
    db.note(wide.info.id, "checked")
    return wide, deep


@pytest.fixture
def store(fill: Fill) -> Store:
    """These tests only read."""
    return fill(stock).store


@pytest.fixture
def made(fill: Fill) -> Pair:
    return fill(stock).made


@pytest.fixture
def served(store: Store, made: Pair) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def text_of(served: Served, path: str) -> str:
    answer = served.get(path)
    assert answer.status == 200, answer.text
    return unescape(answer.text)


def test_tags_notes_names_and_origin_are_on_the_page_of_a_thing(store: Store, made: Pair, served: Served) -> None:
    wide = made[0]
    raw = served.get(f"/instances/{wide.instance.id}").text
    page = unescape(raw)
    assert re.findall(r'href="/list/instances\?tag=(\w+)"', page) == ["paper", "reviewed"]
    assert "the plan of &lt;b&gt;table 3&lt;/b&gt;" in raw
    first = Stagedb(store).origin(wide.instance.id).rows[0]
    columns = Stagedb(store).origin(wide.instance.id).columns
    row = dict(zip(columns, first, strict=True))
    assert f"Made by {row['user']} with stagedb {row['version']}" in page
    assert row["command"] in page
    assert f'href="/graphs/{wide.instance.graph}"' in page, "the graph is an input"
    profile = text_of(served, f"/profiles/{wide.info.id}")
    assert "<b>" in profile
    assert next(iter(Stagedb(store).show(wide.info.id).names)) in profile  # type: ignore[union-attr]  # it is a profile
    assert "checked" in profile
    assert f'href="/instances/{wide.instance.id}"' in profile
    assert "Made by" in text_of(served, f"/graphs/{wide.instance.graph}")


def test_a_list_has_tags_and_is_filtered_by_one(made: Pair, served: Served) -> None:
    def ids(query: str) -> set[str]:
        return set(re.findall(r'href="/instances/([0-9a-f]+)"', text_of(served, f"/list/instances?{query}")))

    wide, deep = (each.instance.id for each in made)
    assert ids("") == {wide, deep}
    assert ids("tag=paper") == {wide}
    assert ids("text=REVIEWED") == {wide}
    assert "paper, reviewed" in text_of(served, "/list/instances")
    assert ids("tag=nothing") == set()


def test_the_log_is_that_of_the_store(store: Store, made: Pair, served: Served) -> None:
    wide = made[0]
    events = Stagedb(store).log()
    page = text_of(served, "/log")
    assert page.count("<tr>") == len(events) + 1
    mine = text_of(served, "/log?" + urlencode({"word": wide.instance.id}))
    assert mine.count("<tr>") == len(Stagedb(store).log(wide.instance.id)) + 1
    assert f'href="/show/{wide.instance.id}"' in mine
    assert "Nothing changed" in text_of(served, "/log?user=nobody-here")
    assert served.get("/log?days=none").status == 400


def test_finding_gives_the_rows_of_the_command(store: Store, made: Pair, served: Served) -> None:
    found = Stagedb(store).find()
    page = text_of(served, "/find")
    shown = re.findall(r'<td[^>]*><a href="/profiles/([0-9a-f]+)"', page)
    assert shown == [row["profile"] for row in found]
    words = urlencode({"model": "tiny-llama", "tp": 2, "plan": "micro_batch_size=1 sp=false", "fits": 1})
    assert re.findall(r'<td[^>]*><a href="/profiles/([0-9a-f]+)"', text_of(served, f"/find?{words}")) == [
        made[0].info.id
    ]
    rows = list(csv.DictReader(io.StringIO(served.get(f"/find?{words}&format=csv").text)))
    assert [row["profile"] for row in rows] == [made[0].info.id]
    as_json = json.loads(served.get("/find?format=json").text)
    assert [row["step"] for row in as_json] == [row["step"] for row in found]
    assert "No profile is of such a plan" in text_of(served, "/find?tp=7")


REFUSED: tuple[tuple[dict[str, str], str], ...] = (
    ({"tp": "two"}, "tp is of type integer"),
    ({"plan": "recompute"}, "no word of a plan with its value"),
    ({"plan": "recompte=full"}, "unknown word 'recompte' in the plan"),
    ({"plan": "tp=2", "tp": "2"}, "twice"),
    ({"plan": "x=" + "1" * 2_000}, "a page takes 2,000"),
    ({"model": "tiny-lama"}, "did you mean tiny-llama?"),
    ({"system": "<script>"}, "the store has nothing of it"),
    ({"plan": "expert_load=/etc/passwd.csv"}, "expert_load"),
)


def test_words_that_cannot_be_found_are_named(served: Served) -> None:
    for words, error in REFUSED:
        answer = served.get(f"/find?{urlencode(words)}")
        assert answer.status == 400, words
        assert error in unescape(answer.text)
        assert "<script>" not in re.sub(r"<script src=.*?</script>", "", answer.text)


def test_words_of_the_plan_have_their_types() -> None:
    words = plan_words({"tp": "2", "zero": None, "plan": "sp=true recompute=full layers-per-stage=1,2 dropout=0.1"})
    assert words == {"tp": 2, "sp": True, "recompute": "full", "layers_per_stage": [1, 2], "dropout": 0.1}
    with pytest.raises(UsageError, match="zero is of type integer"):
        plan_words({"zero": "three"})
