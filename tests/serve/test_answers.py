"""Queries, Cypher, comparisons, reports and the graph on pages; and many requests at once."""

import csv
import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from stagedb.api import Profile, Stagedb
from stagedb.api.query_forms import value_of
from stagedb.errors import UsageError
from stagedb.serve import Limits
from stagedb.serve.page_routes import PAGES
from stagedb.store import Field, Store
from stagedb.store.contents.runs import record_run
from tests.conftest import empty
from tests.ir.tiny import card
from tests.runs.recordings import small_run
from tests.serve.served import Served, serving
from tests.store.made_up_searches import made_up_search
from tests.store.searches import small_request

Pair = tuple[Profile, Profile]


def stock(store: Store) -> Pair:
    """Two instances, each with a profile, and a search."""
    db = Stagedb(store)
    made_up_search(store)
    record_run(store, small_run())
    db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    db.instantiate(card("llama"), name="deep", pp=2, dp=2, global_batch_size=4)
    return db.profile("wide", name="first"), db.profile("deep", name="second")


@pytest.fixture(scope="module")
def profiles(embedded_engine: Store) -> Pair:
    """The content of the embedded store, made once: these tests only read."""
    empty(embedded_engine)
    return stock(embedded_engine)


@pytest.fixture(scope="module")
def reading(embedded_engine: Store, profiles: Pair) -> Store:
    return embedded_engine


@pytest.fixture(scope="module")
def served(reading: Store) -> Iterator[Served]:
    with serving(reading) as found:
        yield found


def asked(**words: Any) -> str:
    return "/cypher?" + urlencode(words)


def paths(found: Pair) -> list[str]:
    """An address for each page that reads the store; traces are files."""
    one, other = (each.info for each in found)
    words = {"name": "gpt2", "kind": "instances"}
    filled = [re.sub(r"\{(\w+)\}", lambda part: words.get(part[1], "{word}"), path) for path, _ in PAGES]
    filled = [path for path in filled if not path.endswith("/trace")]
    filled = [path.replace("/queries/gpt2", "/queries/hotspots?ask=1") for path in filled]
    kinds = {"/graphs": found[0].instance.graph, "/instances": one.instance, "/profiles": one.id, "/show": "first"}
    kinds |= {"/searches": small_request().id, "/runs": small_run().id}
    filled = [path.replace("{word}", kinds.get("/" + path.split("/")[1], "")) for path in filled]
    pair = urlencode({"of": (one.id, other.id)}, doseq=True)
    return [f"{path}?{pair}" if path.startswith("/compare") else path for path in filled]


def html_paths(found: Pair) -> list[str]:
    """The same without those of pictures."""
    return [path for path in paths(found) if ".svg" not in path]


def content(store: Store) -> list[tuple[str, int]]:
    """How many nodes there are with each set of labels, and of edges."""
    nodes = store.query("MATCH (n) RETURN labels(n) AS what, count(*) AS count").rows
    edges = store.query("MATCH ()-[r]->() RETURN type(r) AS what, count(*) AS count").rows
    return sorted((str(what), count) for what, count in (*nodes, *edges))


def test_fifty_requests_at_once_are_answered(profiles: Pair, served: Served) -> None:
    every = [path for path in paths(profiles) if not path.startswith("/show")]
    wanted = (every * 50)[:50]
    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(served.get, wanted))
    assert [answer.status for answer in found if answer.status not in (200, 303)] == []


@pytest.mark.parametrize(
    "text",
    [
        "CREATE (n:Graph) RETURN n",
        "MATCH (n) DETACH DELETE n",
        "MATCH (n:Instance) SET n.name = 'x' RETURN n",
        "MATCH (n:Instance) CALL { WITH n DELETE n } RETURN 1",
        "CALL dbms.listConfig()",
        "LOAD CSV FROM 'file:///etc/passwd' AS row RETURN row",
        "DROP INDEX graph_name",
        "\u200bMATCH (n) RETURN n",
        "MATCH (n RETURN n",
        "MATCH (n) RETURN $missing",
        "",
    ],
)
def test_cypher_that_does_not_only_read_is_refused(reading: Store, served: Served, text: str) -> None:
    before = content(reading)
    answer = served.get(asked(query=text))
    assert answer.status == (400 if text else 200), answer.text
    assert ('role="alert"' in answer.text) == bool(text)
    assert unescape(answer.text).replace("\u200b", "").count(text.strip("\u200b")) >= 1, "the text is still in the form"
    assert content(reading) == before


def test_cypher_is_answered(reading: Store, served: Served) -> None:
    text = "MATCH (i:Instance) RETURN i.name AS name, i.tp AS tp ORDER BY name"
    page = served.get(asked(query=text))
    assert re.findall(r"<td[^>]*>([^<]*)</td>", page.text) == ["deep", "1", "wide", "2"]
    assert list(csv.reader(io.StringIO(served.get(asked(query=text, format="csv")).text))) == [
        ["name", "tp"],
        ["deep", "1"],
        ["wide", "2"],
    ]
    file = served.get(asked(query=text, format="json"))
    assert json.loads(file.text) == [{"name": "deep", "tp": 1}, {"name": "wide", "tp": 2}]
    assert file.headers["content-disposition"] == 'attachment; filename="query.json"'
    assert served.get(asked(query=text, format="exe")).status == 400


def test_long_queries_take_no_place_of_other_pages(reading: Store) -> None:
    long = asked(
        query="UNWIND range(1, 9000) AS a UNWIND range(1, 9000) AS b UNWIND range(1, 9000) AS c RETURN count(*)"
    )
    with (
        serving(reading, limits=Limits(timeout=4, working=1, asking=1)) as served,
        ThreadPoolExecutor(60) as pool,
    ):
        ends = [pool.submit(served.get, long) for _ in range(60)]
        others = [served.get(path).status for path in ("/", "/list/instances", "/queries", "/cypher") * 3]
        assert others == [200] * 12
        assert not any(end.done() for end in ends), "the pages were answered while the queries ran"
        answers = [end.result() for end in ends]
    assert {answer.status for answer in answers} == {500, 503}
    assert all("ended after 4 s" in each.text for each in answers if each.status == 500)
    assert all("busy with other queries" in each.text for each in answers if each.status == 503)


def test_queries_leave_threads_to_other_pages_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 192 cores would let queries have all 40 threads of the server."""
    monkeypatch.setattr("os.cpu_count", lambda: 192)
    bounds = Limits()
    assert bounds.asking + bounds.working <= 30
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert Limits().asking == 2


def test_an_answer_has_pages_and_a_bound(reading: Store, profiles: Pair) -> None:
    text = "UNWIND range(1, 100000) AS n RETURN n"
    with serving(reading, limits=Limits(rows=1200)) as served:
        first = served.get(asked(query=text)).text
        assert "rows 1 to 500, there are more" in first
        after = re.search(r'rel="next" href="([^"]*)"', first)
        assert after is not None
        assert "rows 501 to 1,000, there are more" in served.get(unescape(after[1])).text
        assert served.get(asked(query=text, page=900)).status == 400
        file = served.get(asked(query=text, format="csv"))
        assert len(file.text.splitlines()) == 1201
        assert file.headers["x-stagedb-cut"] == "yes"


def test_a_slow_query_is_ended(reading: Store, profiles: Pair) -> None:
    text = "UNWIND range(1, 30000) AS a UNWIND range(1, 1000) AS b RETURN sum(a * b) AS n"
    with serving(reading, limits=Limits(timeout=0.1)) as served:
        answer = served.get(asked(query=text))
        assert answer.status == 500
        assert "was ended after 0.1 s" in answer.text
        assert "allow more time with the time-out of this server" in answer.text
        assert served.get("/list/instances").status == 200


def test_a_named_query_is_a_form(reading: Store, profiles: Pair, served: Served) -> None:
    form = served.get("/queries/fastest_plans").text
    assert re.search(r'<input name="model" value=""[^>]*required', form)
    assert "<h2>Answer" not in form
    answered = served.get("/queries/fastest_plans?ask=1&model=tiny-llama")
    expected = Stagedb(reading).query("fastest_plans", {"model": "tiny-llama"})
    assert [answered.text.count(f">{row['profile']}<") for row in expected] == [1, 1]
    file = served.get("/queries/fastest_plans?ask=1&model=tiny-llama&format=json")
    assert [row["profile"] for row in json.loads(file.text)] == [row["profile"] for row in expected]
    newest = unescape(served.get("/queries/hotspots?ask=1").text)
    assert "of the newest profile" in newest
    assert "no query is named nothing" in served.get("/queries/nothing").text


def test_queries_of_an_instance_have_it_filled_in(profiles: Pair, served: Served) -> None:
    page = served.get(f"/queries?profile={profiles[0].info.id}").text
    assert f"/queries/hotspots?profile={profiles[0].info.id}" in page
    assert "/queries/classes" not in page


def test_a_report_is_that_of_the_command(reading: Store, profiles: Pair, served: Served) -> None:
    one, other = (each.info.id for each in profiles)
    answer = served.get(f"/profiles/{one}/report")
    assert answer.text == Stagedb(reading).report_page(one)
    assert "sandbox allow-scripts" in answer.headers["content-security-policy"]
    pair = served.get(f"/compare/report?of={one}&of={other}")
    assert pair.text == Stagedb(reading).report_page(one, other)


def test_a_sub_graph_has_the_neighbours_of_open_nodes(reading: Store, profiles: Pair, served: Served) -> None:
    instance = profiles[1].instance
    key, inside = f"Instance/{instance.id}", f"RankClass/{instance.id}/0"
    found = Stagedb(reading).sub_graph(key, inside)
    kinds = {kind.name: kind for kind in found.kinds[inside]}
    compute = kinds["RUNS.out.Op.Compute"]
    counted = reading.query(
        "MATCH (:RankClass {id: $id})-[:RUNS]->(o:Compute) RETURN count(o) AS n", {"id": f"{instance.id}/0"}
    )
    assert compute.count == counted.rows[0][0]
    assert len(compute.shown) == 10
    assert {kind.type for kind in found.kinds[key]} >= {"HAS_CLASS", "HAS_GROUP", "OF"}
    assert any((edge.type, edge.source, edge.target) == ("HAS_CLASS", key, inside) for edge in found.edges)
    assert all({edge.source, edge.target} <= found.nodes.keys() for edge in found.edges)
    wider = Stagedb(reading).sub_graph(inside, more=[(inside, "RUNS.out.Op.Compute")])
    shown = {kind.name: len(kind.shown) for kind in wider.kinds[inside]}
    assert shown["RUNS.out.Op.Compute"] == min(60, compute.count) > 10
    assert shown["SCHEDULES.out.Task"] <= 10
    page = served.get("/explore?" + urlencode({"node": [key, inside]}, doseq=True)).text
    drawn = json.loads(re.findall(r'id="drawing">(.*?)</script>', page, re.DOTALL)[0])
    assert [node["id"] for node in drawn["nodes"]] == list(found.nodes)
    assert len(drawn["edges"]) == len(found.edges)


@pytest.mark.parametrize(
    "key", ["", "Instance", "Instance/", "Instance/nothing", "Store/stagedb", "Nothing/1", "../schema/store/1"]
)
def test_a_node_that_is_not_there_is_named(reading: Store, key: str) -> None:
    with pytest.raises(UsageError, match=r"names no node|has no complete"):
        Stagedb(reading).sub_graph(key)


def test_open_nodes_are_few(reading: Store) -> None:
    with pytest.raises(UsageError, match="at most 12 open nodes"):
        Stagedb(reading).sub_graph(*(f"Instance/{n}" for n in range(13)))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "-12", -12),
        ("float", "1.5", 1.5),
        ("boolean", "True", True),
        ("string", "007", "007"),
        ("string?", "", None),
        ("integer[]", "1, 2,3", [1, 2, 3]),
        ("integer[]", "[1,2]", [1, 2]),
        ("string[]", "a,b", ["a", "b"]),
        ("map", '{"a": 1}', {"a": 1}),
    ],
)
def test_texts_of_a_form_have_types(kind: str, text: str, value: object) -> None:
    assert value_of(Field("x", kind, None, "for a test"), text) == value


@pytest.mark.parametrize(
    ("kind", "text"), [("integer", "1.5"), ("integer", "9" * 30), ("integer", ""), ("float", "x"), ("boolean", "1")]
)
def test_texts_of_another_type_are_refused(kind: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"x is of type {kind}, and .* is not: for a test"):
        value_of(Field("x", kind, None, "for a test"), text)
