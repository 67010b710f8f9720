"""The page Explore: scenes and their addresses, paths and starts on both engines, and the drawing in a browser."""

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from stagedb.api import Stagedb
from stagedb.api.neighbourhood import MOST_OPEN, types_between
from stagedb.errors import UsageError
from stagedb.serve.explore_page import Scene, with_unit
from stagedb.store import Store
from tests.browsing import Browser
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.serve.served import Served, serving
from tests.serve.test_cypher_page import wait

WIDTHS = (1280, 400)


def stock(store: Store) -> None:
    db = Stagedb(store)
    db.instantiate(card("llama", layers=3), name="wide", tp=2, dp=2)
    db.profile("wide", name="first")


@pytest.fixture
def stocked(fill: Fill) -> Store:
    return fill(stock).store


@pytest.fixture
def served(stocked: Store) -> Iterator[Served]:
    with serving(stocked) as found:
        yield found


def explore(**words: Any) -> str:
    return "/explore?" + urlencode(words, doseq=True)


def drawing(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.findall(r'id="drawing">(.*?)</script>', page, re.DOTALL)[0])
    return found


def ids(store: Store) -> tuple[str, str]:
    """Ids of the instance and the profile."""
    db = Stagedb(store)
    return db.instances()[0].id, db.profiles()[0].id


def joined_ops(store: Store, instance: str | None = None) -> tuple[list[str], dict[str, set[str]]]:
    """Ops of the first class of an instance in their order, and which op runs before which."""
    rows = store.query(
        "MATCH (:RankClass {id: $id})-[:RUNS]->(o:Op) OPTIONAL MATCH (o)-[:DEP]->(p:Op) "
        "RETURN o.id AS id, o.index AS at, collect(p.id) AS after ORDER BY at",
        {"id": f"{instance or ids(store)[0]}/0"},
    ).rows
    return [row[0] for row in rows], {row[0]: set(row[2]) for row in rows}


def distance(after: dict[str, set[str]], start: str, end: str) -> int | None:
    """The number of edges from op to op, found without Cypher."""
    seen, front, steps = {start}, {start}, 0
    while front and end not in front:
        front = {each for one in front for each in after[one]} - seen
        seen |= front
        steps += 1
    return steps if end in front else None


def test_a_path_between_two_ops_is_a_shortest_one(stocked: Store) -> None:
    ops, after = joined_ops(stocked)
    db = Stagedb(stocked)
    start, far = ops[0], [op for op in ops if distance(after, ops[0], op) not in (None, 0)]
    for end in (far[3], far[-1]):
        found = db.shortest_path(f"Op/{start}", f"Op/{end}", over="DEP")
        assert len(found.graph.edges) == distance(after, start, end)
        assert {edge.type for edge in found.graph.edges.values()} == {"DEP"}
        # The other way round it is the same path, along its arrows.
        back = db.shortest_path(f"Op/{end}", f"Op/{start}", over="DEP")
        assert len(back.graph.edges) == len(found.graph.edges)
        # The text alone finds it too: it is what the page shows.
        again = db.query(found.text, found.params, graph=True).graph
        assert again is not None
        assert again.edges.keys() == found.graph.edges.keys()


def test_a_path_over_all_types_is_bounded(stocked: Store) -> None:
    instance, profile = ids(stocked)
    db = Stagedb(stocked)
    ops, _ = joined_ops(stocked)
    found = db.shortest_path(f"Op/{ops[0]}", f"Profile/{profile}")
    # An op, its class, the instance, the profile; or over its times.
    assert 2 <= len(found.graph.edges) <= 3
    assert "*..8" in found.text and found.over is None
    none = db.shortest_path(f"Instance/{instance}", f"Instance/{instance}x")
    assert (len(none.graph.nodes), len(none.graph.edges)) == (0, 0)
    assert types_between("Op", "Op") == ("DEP",) and types_between("Op", "Graph") == ()


@pytest.mark.parametrize(
    ("source", "target", "over", "why"),
    [
        ("Op/a", "Op/a", None, "a path needs two nodes"),
        ("Op", "Op/a", None, "names no node"),
        ("Nothing/a", "Op/a", None, "names no node"),
        ("Op {id: 1})//a", "Op/a", None, "names no node"),
        ("Op/a", "Op/b", "DEP*..]->() DETACH DELETE n //", "no relationship has the type"),
    ],
)
def test_a_path_needs_names_of_the_schema(
    embedded_store: Store, source: str, target: str, over: str | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        Stagedb(embedded_store).shortest_path(source, target, over=over)


def test_a_sub_graph_has_all_relationships_between_its_nodes(stocked: Store) -> None:
    db = Stagedb(stocked)
    ops, after = joined_ops(stocked)
    some = ops[:12]
    found = db.sub_graph(known=[f"Op/{op}" for op in some])
    assert {(edge.type, edge.source, edge.target) for edge in found.edges} == {
        ("DEP", f"Op/{one}", f"Op/{other}") for one in some for other in after[one] if other in some
    }
    instance, profile = ids(stocked)
    owned = db.sub_graph(
        known=[f"RankClass/{instance}/0", f"Op/{ops[0]}", f"Instance/{instance}", f"Profile/{profile}"]
    )
    assert sorted(edge.type for edge in owned.edges) == ["HAS_CLASS", "OF", "RUNS"]
    assert owned.kinds == {}
    gone = db.sub_graph(known=[f"Op/{ops[0]}x"])
    assert gone.nodes == {}
    with pytest.raises(UsageError, match="names no node"):
        db.sub_graph(known=["Nothing/a"])


def test_starts_draw_a_critical_path_and_a_layer(stocked: Store, served: Served) -> None:
    instance, profile = ids(stocked)
    page = served.get("/explore").text
    links = {unescape(to) for to in re.findall(r'href="(/explore\?[^"]*)"', page)}
    path, slow = (Scene(start=each, asked={"profile": profile}).address for each in ("critical_path", "slow_ops"))
    layer = explore(start="layer", instance=instance, **{"$class": 0, "$layer": 0})
    assert {path, slow, layer} <= links
    labels = {node["id"].partition("/")[0] for node in drawing(served.get(slow).text)["nodes"]}
    assert labels == {"OpTime", "Op", "SymOp"}
    drawn = drawing(served.get(path).text)
    legs = stocked.query("MATCH (:Profile {id: $id})-[:HAS_LEG]->(g:Leg) RETURN g.id AS id", {"id": profile}).rows
    assert {node["id"] for node in drawn["nodes"] if node["id"].startswith("Leg/")} == {f"Leg/{id}" for (id,) in legs}
    assert {edge["type"] for edge in drawn["edges"]} >= {"NEXT_LEG", "IN_TASK", "FILLED_BY"}
    assert drawn["layout"] == "layers"
    shown = drawing(served.get(layer).text)
    ops = stocked.query("MATCH (:RankClass {id: $id})-[:RUNS]->(o:Op) WHERE o.layer = 0 RETURN count(o) AS n",
                        {"id": f"{instance}/0"}).rows  # fmt: skip
    assert len(shown["nodes"]) == ops[0][0] > 10
    assert {edge["type"] for edge in shown["edges"]} == {"DEP"}
    assert served.get(explore(start="nothing")).status == 400


def test_an_answer_is_drawn_and_its_cypher_is_shown(stocked: Store, served: Served) -> None:
    text = "MATCH (c:RankClass)-[r:RUNS]->(o:Op) WHERE o.index < $most RETURN c, r, o"
    page = served.get(explore(query=text, **{"$most": 3})).text
    drawn = drawing(page)
    assert len(drawn["nodes"]) == 4
    assert sum(edge["type"] == "RUNS" for edge in drawn["edges"]) == 3
    to = next(unescape(each) for each in re.findall(r'href="(/cypher\?[^"]*)"', page))
    assert parse_qs(urlsplit(to).query) == {"query": [text], "$most": ["3"]}
    assert served.get(to).status == 200
    assert served.get(explore(query=text)).status == 400, "the parameter has no value"
    assert served.get(explore(query="MATCH (n) DELETE n")).status == 400
    many = served.get(explore(query="MATCH (t:SymTensor) RETURN t UNION ALL MATCH (o:SymOp) RETURN o AS t")).text
    count = stocked.query("MATCH (n) WHERE n:SymTensor OR n:SymOp RETURN count(n) AS n").rows[0][0]
    drawn = drawing(many)
    left = max(0, count - 300)
    assert len(drawn["nodes"]) == count - left
    assert (f"{left:,} more nodes of the answer are not drawn" in unescape(many)) == bool(left)
    assert "the answer has none" in served.get(explore(query="RETURN 1 AS one")).text


def test_the_cypher_of_open_nodes_finds_them(stocked: Store, served: Served) -> None:
    instance, _ = ids(stocked)
    page = served.get(explore(node=[f"Instance/{instance}", f"RankClass/{instance}/0"])).text
    texts = [unescape(each) for each in re.findall(r'href="(/cypher\?[^"]*)"', page)]
    assert len(texts) == 2
    for to in texts:
        assert "rows 1 to " in served.get(to).text


def test_labels_and_types_are_hidden(stocked: Store, served: Served) -> None:
    instance, _ = ids(stocked)
    whole = served.get(explore(node=f"Instance/{instance}")).text
    legend = {unescape(name).strip(): unescape(to) for to, name in
              re.findall(r'<li><a href="([^"]*)"[^>]*>(?:<svg.*?</svg>)?([^<]*)</a></li>', whole)}  # fmt: skip
    groups = next(to for name, to in legend.items() if name.startswith("RankClass "))
    without = drawing(served.get(groups).text)
    assert not [node for node in without["nodes"] if node["id"].startswith("RankClass/")]
    assert not [edge for edge in without["edges"] if edge["type"] == "HAS_CLASS"]
    assert len(without["nodes"]) > 2
    back = next(unescape(to) for to in re.findall(r'<a href="([^"]*)" class="off"', served.get(groups).text))
    assert drawing(served.get(back).text) == drawing(whole) | {
        "nodes": [{**node, **_addresses(back, node["id"])} for node in drawing(whole)["nodes"]]
    }
    types = next(to for name, to in legend.items() if name.startswith("→ HAS_CLASS"))
    assert len(drawing(served.get(types).text)["nodes"]) == len(drawing(whole)["nodes"])


def _addresses(back: str, key: str) -> dict[str, str]:
    """Addresses of a node in a scene that names the chosen node, which the whole scene leaves to its open one."""
    opened = tuple(parse_qs(urlsplit(back).query)["node"])
    scene = Scene(node=opened, at=opened[-1])
    turned = scene.closing(key) if key in opened else scene.opening(key)
    return {"to": scene.choosing(key).address, "turn": turned.address}


def test_a_scene_opens_and_closes_nodes() -> None:
    scene = Scene(node=("A/1",)).opening("B/2").widening("B/2", "T.out.C")
    assert (scene.node, scene.more, scene.at) == (("A/1", "B/2"), ("B/2~T.out.C",), "B/2")
    closed = scene.closing("B/2")
    assert (closed.node, closed.more, closed.show) == (("A/1",), (), ("B/2",))
    many = Scene()
    for number in range(MOST_OPEN + 3):
        many = many.opening(f"A/{number}")
    assert many.node == tuple(f"A/{number}" for number in range(3, MOST_OPEN + 3))
    assert many.show == ("A/0", "A/1", "A/2"), "the oldest ones remain without their neighbours"
    assert scene.toggling("A").toggling("A") == scene


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_795_751_804_626, "ms since 1970", "2026-11-27 03:56:44 UTC"),
        (10**18, "ms since 1970", "1,000,000,000,000,000,000 ms since 1970"),
        (1_234_567, "ns", "1,234,567 ns = 1.23 ms"),
        (999, "ns", "999 ns"),
        (84_000_000_000, "B", "84,000,000,000 B = 84.00 GB"),
        (12, "B", "12 B"),
        ("2*H", "B", "2*H B"),
        (3, None, "3"),
        (True, None, "true"),
    ],
)
def test_values_have_units_and_times_are_dates(value: object, unit: str | None, text: str) -> None:
    assert with_unit(value, unit) == text


OVERLAPS = """JSON.stringify((() => {
  const boxes = graph.elements().filter((each) => Number(each.style("text-opacity")) > 0
    && (each.isNode() || 8 * graph.zoom() >= 9)).map((each) => [each.id(),
      each.boundingBox({ includeNodes: false, includeEdges: false, includeOverlays: false, includeLabels: true })]);
  const meet = (a, b) => a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2;
  return boxes.flatMap(([one, a], at) =>
    boxes.slice(at + 1).filter(([, b]) => meet(a, b)).map(([other]) => [one, other]));
})())"""
"""Pairs of labels of the drawing that are on top of each other."""


@pytest.mark.parametrize("width", WIDTHS)
def test_a_path_between_two_ops_is_drawn(embedded_store: Store, browser: Browser, width: int) -> None:
    made = Stagedb(embedded_store).instantiate(card("llama", layers=3), name="wide", tp=2, dp=2)
    _, after = joined_ops(embedded_store, made.id)
    layer = [row[0] for row in embedded_store.query("MATCH (o:Op) WHERE o.layer = 0 RETURN o.id ORDER BY o.index").rows]
    first, last = next((one, two) for one in layer for two in layer if distance(after, one, two) == 4)
    with serving(embedded_store) as served:
        scene = Scene(start="layer", asked={"instance": made.id, "$class": "0", "$layer": "0"})
        visit = browser.visit(served.address + scene.address, width, dark=width < 500)
        wait(browser, "document.documentElement.dataset.drawn")
        assert browser.run("graph.nodes().length") == len(layer)
        assert json.loads(browser.run(OVERLAPS)) == []
        # A click chooses a node in place, and its panel begins a path. A second click has the ways to end it.
        browser.run("window.here = 1")
        tap(browser, f"Op/{first}")
        link(browser, "a path from here")
        wait(browser, "document.querySelector('#panel .path')?.textContent.startsWith('A path begins at')")
        tap(browser, f"Op/{last}")
        link(browser, "a path to here over DEP alone")
        wait(browser, "document.querySelector('#panel .path').textContent.includes('has 4 relationships')")
        idle(browser)
        assert browser.run("graph.edges('[?path]').length") == 4
        assert browser.run("graph.nodes('[?path]').length") == 5
        assert browser.run("window.here") == 1, "the page was not loaded again"
        assert json.loads(browser.run(OVERLAPS)) == []
        # The address alone gives the same, and the browser's own way back works.
        address = browser.run("location.pathname + location.search")
        shown = browser.run("graph.edges('[?path]').map((edge) => edge.id()).sort().join()")
        browser.run("history.back()")
        wait(browser, "document.querySelector('#panel .path')?.textContent.startsWith('A path begins at')")
        again = browser.visit(served.address + address, width)
        wait(browser, "document.documentElement.dataset.drawn")
        assert browser.run("graph.edges('[?path]').map((edge) => edge.id()).sort().join()") == shown
        assert visit.console == again.console == [] and visit.elsewhere(served.address) == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_a_slow_op_leads_to_its_symbolic_op_and_back(
    embedded_store: Store, browser: Browser, width: int, dark: bool
) -> None:
    """From the page of a profile, by links alone: the time of the slowest op, the op, its symbolic op, its copies."""
    made = Stagedb(embedded_store).profile(model=card("llama", layers=3), pp=2, tp=2, global_batch_size=4)
    slowest, op, symbolic = embedded_store.query(
        "MATCH (t:OpTime)-[:OF]->(o:Op)-[:COPY_OF]->(s:SymOp) "
        "RETURN t.id, o.id, s.id ORDER BY t.total DESC, t.id LIMIT 1"
    ).rows[0]
    copies = embedded_store.query("MATCH (o:Op)-[:COPY_OF]->(:SymOp {id: $id}) RETURN o.id", {"id": symbolic}).rows
    with serving(embedded_store) as served:
        browser.visit(f"{served.address}/profiles/{made.info.id}", width, dark)
        wait(browser, "document.querySelector('.links a[href*=slow_ops]') !== null")
        browser.run("document.documentElement.dataset.ready = 'no'")
        browser.run("document.querySelector('.links a[href*=slow_ops]').click()")
        browser.settle()
        wait(browser, "document.documentElement.dataset.drawn")
        assert browser.run("graph.nodes('[id ^= \"OpTime/\"]').length") == 12
        tap(browser, f"OpTime/{slowest}")
        for key in (f"Op/{op}", f"SymOp/{symbolic}"):
            browser.run(f"{joined(key)}.click()")
            wait(browser, f"new URLSearchParams(location.search).get('at') === {key!r}")
            idle(browser)
        # Back: the copies of the symbolic op, the one that was come from among them.
        assert len(copies) > 1
        browser.run(f"{joined(f'Op/{op}')}.click()")
        wait(browser, f"new URLSearchParams(location.search).get('at') === {f'Op/{op}'!r}")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def joined(key: str) -> str:
    """The link of the panel to a neighbour, as an expression in the page."""
    at = f"new URL(each.href).searchParams.get('at') === {key!r}"
    return f"[...document.querySelectorAll('#panel a')].find((each) => {at})"


def idle(browser: Browser) -> None:
    """Wait until the drawing has what the page has."""
    wait(browser, "document.getElementById('graph').getAttribute('aria-busy') === null")


def tap(browser: Browser, key: str) -> None:
    """Choose a node."""
    browser.run(f"void graph.getElementById({key!r}).emit('onetap')")
    wait(browser, f"new URLSearchParams(location.search).get('at') === {key!r}")
    idle(browser)


def link(browser: Browser, text: str) -> None:
    """Follow a link of the panel."""
    found = f"[...document.querySelectorAll('#panel a')].find((each) => each.textContent === {text!r})"
    wait(browser, f"{found} !== undefined")
    browser.run(f"{found}.click()")


def test_nodes_keep_their_places_when_one_opens(embedded_store: Store, browser: Browser) -> None:
    made = Stagedb(embedded_store).instantiate(card("llama"), tp=2, pp=2)
    with serving(embedded_store) as served:
        browser.visit(f"{served.address}/explore?node=Instance/{made.id}", 1280)
        wait(browser, "document.documentElement.dataset.drawn")
        places = "JSON.stringify(Object.fromEntries(graph.nodes().map((n) => [n.id(), n.position()])))"
        before = json.loads(browser.run(places))
        browser.run(f"void graph.getElementById('RankClass/{made.id}/0').emit('dbltap')")
        wait(browser, f"Number(document.documentElement.dataset.drawn) > {len(before)}")
        after = json.loads(browser.run(places))
        for key, place in before.items():
            assert after[key]["x"] == pytest.approx(place["x"], abs=2), key
        # A second time it closes: its neighbours go, and it remains.
        browser.run(f"void graph.getElementById('RankClass/{made.id}/0').emit('dbltap')")
        wait(browser, f"Number(document.documentElement.dataset.drawn) === {len(before)}")
        assert json.loads(browser.run(places)).keys() == before.keys()
        # Search marks what is there, without the server.
        browser.run(
            "void (document.querySelector('[name=find]').value = 'rankclass', "
            "document.querySelector('[name=find]').dispatchEvent(new Event('input')))"
        )
        assert browser.run("document.getElementById('changed').textContent").startswith("2 of ")
        assert browser.run("graph.nodes().not('.faded').length") == 2
