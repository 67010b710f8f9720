"""The page Cypher: parameters, views of an answer, plans and examples, and the editor in a browser."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stagedb.api import Rows, Stagedb
from stagedb.serve.answers import chart_of
from stagedb.serve.query_pages import examples, parameters_of
from stagedb.store import Store
from stagedb.store.contents.runs import record_run
from tests.browsing import Browser
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.runs.recordings import small_run
from tests.serve.served import Served, serving
from tests.serve.test_answers import asked

WIDTHS = (1280, 400)
BY_KIND = """MATCH (c:RankClass)-[:RUNS]->(o:Op)
WHERE o.flops > $least // not $this
RETURN o.kind AS kind, sum(o.flops) AS flops ORDER BY flops DESC"""


def stock(store: Store) -> None:
    db = Stagedb(store)
    db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    db.profile("wide", name="first")


def stock_with_run(store: Store) -> None:
    stock(store)
    record_run(store, small_run())


@pytest.fixture
def stocked(fill: Fill) -> Store:
    return fill(stock).store


@pytest.fixture
def served(stocked: Store) -> Iterator[Served]:
    with serving(stocked) as found:
        yield found


def views(page: str) -> dict[str, str]:
    """The addresses of the ways to look at an answer, by their names."""
    shown = page[page.index('class="views"') :]
    links = re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', shown[: shown.index("</nav>")])
    return {name: unescape(to) for to, name in links}


def cells(page: str) -> list[str]:
    return [unescape(text) for text in re.findall(r"<td[^>]*>([^<]*)</td>", page)]


def test_parameters_are_those_outside_strings_and_comments() -> None:
    text = "// $no\nRETURN $a, '$no', \"$no\", `$no`, $ b, $`c`, /* $no */ $a"
    assert parameters_of(text) == ["a", "b", "c"]
    assert parameters_of("RETURN $a, 'open") == ["a"]


def test_a_query_has_a_field_for_each_parameter(stocked: Store, served: Served) -> None:
    missing = served.get(asked(query=BY_KIND))
    assert missing.status == 400
    assert "give them in the fields of least" in unescape(missing.text)
    assert '<input name="$least" value="">' in missing.text
    page = served.get(asked(query=BY_KIND, **{"$least": "10"}))
    assert '<input name="$least" value="10">' in page.text
    expected = Stagedb(stocked).query(BY_KIND, {"least": 10})
    assert cells(page.text) == [text for row in expected.rows for text in (row[0], f"{row[1]:,}")]
    # JSON is a value, all else text: nothing is larger than a text.
    assert served.get(asked(query="RETURN $x AS x", **{"$x": "[1, 2]"})).text.count(">1,2</td>") == 1
    assert served.get(asked(query="RETURN $x AS x", **{"$x": "1,2"})).text.count(">1,2</td>") == 1
    assert "no rows" in served.get(asked(query=BY_KIND, **{"$least": "ten"})).text


def test_an_answer_has_ways_to_look_at_it(stocked: Store, served: Served) -> None:
    page = served.get(asked(query=BY_KIND, **{"$least": "10"})).text
    assert [*views(page)] == ["Table", "Chart", "Plan", "CSV", "JSON"]
    chart = served.get(views(page)["Chart"]).text
    first = Stagedb(stocked).query(BY_KIND, {"least": 10}).rows[0]
    assert re.search(rf'<span>{first[0]}</span><svg[^>]*><rect class="bar" x="0%" width="100%"', chart)
    assert f"{first[1]:,}</span>" in chart
    line = served.get(f"{views(page)['Chart']}&chart=line").text
    assert 'class="curve"' in line and "flops along kind" in line
    assert served.get(f"{views(page)['Chart']}&y=kind").status == 400
    assert served.get(f"{views(page)['Table']}&view=pie").status == 400
    text = "MATCH (i:Instance)-[r:OF]->(g:Graph) RETURN i, r, g"
    graph = views(served.get(asked(query=text)).text)["Graph"]
    assert (urlsplit(graph).path, parse_qs(urlsplit(graph).query)["query"]) == ("/explore", [text])
    none = served.get(asked(query="RETURN 'a' AS a")).text
    assert [*views(none)] == ["Table", "Plan", "CSV", "JSON"]


def test_a_plan_is_that_of_the_engine(stocked: Store, served: Served) -> None:
    expected, measured = (("EXPLAIN", "plan"), ("PROFILE", "profile"))
    page = unescape(served.get(asked(query=BY_KIND, view="plan", **{"$least": "10"})).text)
    word = "Op" if stocked.engine == "embedded" else "o:Op"
    assert word in page and "without running the query" in page
    ran = unescape(served.get(asked(query=BY_KIND, view="profile", **{"$least": "10"})).text)
    assert "the plan, as it ran" in ran and ("rows" in ran.lower())
    for text, view in (expected, measured):
        rows = Stagedb(stocked).query(f"{text} MATCH (o:Op) RETURN count(o) AS n")
        assert rows.plan is not None
        assert rows.plan.ran == (view == "profile")
        again = Stagedb(stocked).query("EXPLAIN MATCH (o:Op) RETURN count(o) AS n", plan="profile")
        assert again.plan is not None and again.plan.ran
    assert Stagedb(stocked).query("RETURN 1 AS one").plan is None
    named = served.get("/queries/hotspots?ask=1&view=plan")
    assert "<h2>Answer <small>the plan</small>" in named.text


def test_a_plan_of_neo4j_is_a_table_of_its_operators(neo4j_store: Store) -> None:
    with serving(neo4j_store) as served:
        page = served.get(asked(query="MATCH (i:Instance) WHERE i.tp > 1 RETURN i.name AS n", view="profile"))
    found = cells(page.text)
    assert [text for text in found if text in ("ProduceResults", "Filter", "NodeByLabelScan")]
    assert "hits in the store" in page.text


def test_a_plan_cannot_write(served: Served) -> None:
    for view in ("plan", "profile", "chart"):
        assert served.get(asked(query="MATCH (n) DELETE n", view=view)).status == 400


def test_an_answer_has_its_nodes_and_relationships(stocked: Store) -> None:
    db = Stagedb(stocked)
    text = "MATCH p = (i:Instance)-[:OF]->(:Graph) RETURN p, {inner: [i]} AS again"
    found = db.query(text, graph=True).graph
    assert found is not None
    assert [node.labels for node in found.nodes.values()] in ([("Instance",), ("Graph",)], [("Graph",), ("Instance",)])
    (edge,) = found.edges.values()
    ends = (found.nodes[edge.source].labels, found.nodes[edge.target].labels)
    assert (edge.type, *ends) == ("OF", ("Instance",), ("Graph",))
    assert db.query(text).graph is None
    alone = db.query("MATCH (:Instance)-[r:OF]->(:Graph) RETURN r", graph=True).graph
    assert alone is not None
    assert (len(alone.nodes), len(alone.edges)) == (0, 1)


def test_examples_run(fill: Fill) -> None:
    stocked = fill(stock_with_run).store
    links = {name: to for rows in examples(Stagedb(stocked).queries()).values() for name, _, to in rows}
    assert len(links) > 20
    with serving(stocked) as served:
        check_examples(links, served)


def check_examples(links: dict[str, str], served: Served) -> None:
    page = unescape(served.get("/cypher").text)
    for name, to in links.items():
        assert f'href="{to}">{name}</a>' in page
        answer = served.get(to)
        assert answer.status == 200, (name, re.findall(r'role="alert">(.*?)</p>', unescape(answer.text)))
        assert 'id="answer"' in answer.text, name


@pytest.mark.parametrize(
    ("columns", "rows", "words", "drawn"),
    [
        (("a", "n"), [("x", 4), ("y", -4)], {}, ("bars", "a", "n", [("50%", "50%"), ("0%", "50%")])),
        (("n", "m"), [(1, 2.0)], {}, ("bars", "n", "m", [("0%", "100%")])),
        (("n",), [(1,), (None,)], {}, ("bars", "n", "n", [("0%", "100%")])),
        (("n", "m"), [(n, n) for n in range(101)], {}, ("line", "n", "m", [])),
        (("n", "m"), [(1, 2)], {"x": "m", "y": "n"}, ("bars", "m", "n", [("0%", "100%")])),
        (("n", "m"), [(0, 0), (1, 0)], {"chart": "line"}, ("line", "n", "m", [])),
    ],
)
def test_a_chart_has_a_bar_for_each_row_or_a_line(
    columns: tuple[str, ...], rows: list[tuple[Any, ...]], words: dict[str, str], drawn: tuple[Any, ...]
) -> None:
    chart = chart_of(Rows(columns, tuple(rows)), words)
    assert (chart.kind, chart.x, chart.y, [(bar.start, bar.length) for bar in chart.bars]) == drawn
    assert chart.line.count("<circle") == (len(rows) if chart.kind == "line" else 0)
    assert chart.left_out == sum(row[columns.index(chart.y)] is None for row in rows)


def wait(browser: Browser, expression: str) -> Any:
    """The value of an expression, when it is true."""
    for _ in range(400):
        if value := browser.run(expression):
            return value
        browser._take(0.05)
    raise AssertionError(f"never true: {expression}")


def write(browser: Browser, text: str) -> None:
    """Replace what is in the editor."""
    browser.run(
        f"void (editor.dispatch({{changes: {{from: 0, to: editor.state.doc.length, insert: {text!r}}}}}), "
        "editor.dispatch({selection: {anchor: editor.state.doc.length}}), editor.focus())"
    )


def key(browser: Browser, name: str, code: int, modifiers: int = 0) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                     modifiers=modifiers, text="\r" if name == "Enter" and not modifiers else "")  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_a_query_is_written_run_saved_and_shared(embedded_store: Store, browser: Browser, width: int) -> None:
    Stagedb(embedded_store).instantiate(card("llama"), name="wide", tp=2, dp=2)
    with serving(embedded_store) as served:
        visit = browser.visit(f"{served.address}/cypher", width, dark=width < 500)
        browser.run("localStorage.clear()")
        assert wait(browser, "document.documentElement.dataset.language") == "yes"
        assert browser.run("getComputedStyle(document.getElementById('query')).display") == "none"
        # Completion knows the schema, and what a label means.
        write(browser, "MATCH (c:RankCl")
        browser.call("Input.insertText", text="a")
        shown = "editor.root.querySelector('.cm-tooltip-autocomplete li[aria-selected]')?.textContent"
        assert wait(browser, shown) == "RankClass"
        browser._take(0.3)  # a completion is taken only after it was shown for a moment
        key(browser, "Enter", 13)
        assert wait(browser, "editor.state.doc.toString() === 'MATCH (c:RankClass'")
        # A field appears with a parameter, Ctrl+Enter runs the query.
        write(browser, "MATCH (i:Instance) WHERE i.tp >= $least RETURN i.name AS name, i.tp AS tp")
        wait(browser, "document.querySelector('[name=\"$least\"]') !== null")
        colours = "[...editor.dom.querySelectorAll('.c-label, .c-property')].map((each) => each.textContent).join()"
        wait(browser, f"{colours} === 'Instance,tp,name,tp'")
        browser.run("void (document.querySelector('[name=\"$least\"]').value = '2')")
        browser._loaded = False
        key(browser, "Enter", 13, modifiers=2)
        wait(browser, "document.querySelector('#answer td')?.textContent === 'wide'")
        browser.settle()
        query = (
            "?query=MATCH+%28i%3AInstance%29+WHERE+i.tp+%3E%3D+%24least+RETURN+i.name+AS+name%2C+i.tp+AS+tp&%24least=2"
        )
        assert browser.run("location.search") == query
        # It is kept in this browser: by itself, and under a name, which can be removed.
        wait(browser, "document.documentElement.dataset.editor === 'yes'")
        assert browser.run("document.querySelector('#history a').getAttribute('href')") == f"/cypher{query}"
        browser.run("void (document.querySelector('#save [name=name]').value = 'wide ones')")
        browser.run("document.getElementById('save').requestSubmit()")
        assert browser.run("document.querySelector('#saved a').textContent") == "wide ones"
        visit.console += browser.visit(f"{served.address}/cypher", width).console
        assert browser.run("document.querySelector('#saved a').getAttribute('href')") == f"/cypher{query}"
        browser.run("document.querySelector('#saved button').click()")
        assert browser.run("document.getElementById('saved').hidden")
        # The address alone shows the same to others.
        visit.console += browser.visit(f"{served.address}/cypher{query}", width).console
        assert browser.run("document.querySelector('#answer td').textContent") == "wide"
        assert browser.run("editor.state.doc.toString()").startswith("MATCH (i:Instance)")
        browser.run("document.getElementById('copy').click()")
        status = wait(browser, "document.getElementById('kept').textContent")
        assert status == f"{served.address}/cypher{query}" or status.startswith("The link is copied")
        assert visit.console == [] and visit.elsewhere(served.address) == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_does_not_wait_for_the_language_support(embedded_store: Store, browser: Browser) -> None:
    """The editor is there before its worker, and works in a browser without it."""
    with serving(embedded_store) as served:
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source="window.Worker = undefined")
        try:
            visit = browser.visit(f"{served.address}/cypher?query=RETURN+1+AS+one", 1280)
            assert browser.run("document.documentElement.dataset.editor") == "yes"
            assert wait(browser, "document.documentElement.dataset.language") == "none"
            assert browser.run("document.querySelector('#answer td').textContent") == "1"
        finally:
            browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
        assert visit.console == []


def test_a_text_area_is_there_without_scripts(served: Served) -> None:
    page = served.get(asked(query="RETURN 1 AS one")).text
    assert re.search(r'<textarea[^>]* name="query"[^>]* required[^>]*>RETURN 1 AS one</textarea>', page)
