"""Every page in a browser, wide and narrow: no error, nothing from elsewhere, nothing wider than the window."""

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from stagedb.store.contents.runs import record_run
from tests.browsing import Browser
from tests.ir.tiny import card
from tests.runs.recordings import small_run
from tests.sampling import part
from tests.serve.served import Served, serving
from tests.serve.test_answers import asked, html_paths
from tests.store.made_up_searches import made_up_search

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>\"'`{{7*7}}\u202e\x1b[31m"
WIDTHS = (1280, 400)

OUTSIDE = """JSON.stringify([...document.querySelectorAll("body *")].filter((node) =>
  !node.closest(".wide, .scroll, svg, datalist, .panel") && node.getBoundingClientRect().right > innerWidth + 1
).map((node) => node.outerHTML.slice(0, 90)))"""


def hostile_search(store: Store) -> str:
    """The id of a search whose names are hostile texts."""
    return made_up_search(store, model=HOSTILE, systems=(HOSTILE,), where=HOSTILE).id


def checked(browser: Browser, served: Served, path: str, width: int, *, status: int = 200) -> None:
    visit = browser.visit(served.address + path, width, dark=width < 500)
    assert visit.status == status, path
    assert visit.console == [], path
    assert visit.elsewhere(served.address) == [], path
    assert json.loads(browser.run(OUTSIDE)) == [], path
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), path


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_sound(embedded_store: Store, browser: Browser, width: int) -> None:
    db = Stagedb(embedded_store)
    db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    db.instantiate(card("llama"), name="deep", pp=2, dp=2, global_batch_size=4)
    found = db.profile("wide", name="first"), db.profile("deep", name="second")
    made_up_search(embedded_store)
    record_run(embedded_store, small_run())
    more = [
        "/list/graphs",
        "/list/profiles",
        "/list/searches",
        "/list/runs",
        "/list/unfinished",
        "/compare",
        "/queries/fastest_plans",
    ]
    with serving(embedded_store) as served:
        pages = (*html_paths(found), *more, asked(query="MATCH (i:Instance) RETURN i"))
        for path in part(pages, WIDTHS.index(width), len(WIDTHS)):
            checked(browser, served, path, width)
        checked(browser, served, "/nothing", width, status=404)
        checked(browser, served, asked(query="CREATE (n)"), width, status=400)


@pytest.mark.parametrize("width", WIDTHS)
def test_an_empty_store_and_the_form_for_the_token(embedded_store: Store, browser: Browser, width: int) -> None:
    with serving(embedded_store) as served:
        for path in ("/", "/list/profiles", "/explore", "/compare"):
            checked(browser, served, path, width)
    browser.call("Network.clearBrowserCookies")
    with serving(embedded_store, "a-token-for-the-tests") as served:
        checked(browser, served, "/list/instances?sort=name", width, status=401)
        browser.run("document.querySelector('[name=token]').value = 'a-token-for-the-tests'")
        browser.run("void document.forms[0].submit()")
        for _ in range(200):
            if browser.run("location.pathname + location.search + document.readyState").endswith("namecomplete"):
                break
        browser.settle()
        assert browser.run("document.querySelector('h1').textContent").startswith("instances")


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_texts_are_only_text(embedded_store: Store, browser: Browser, width: int) -> None:
    db = Stagedb(embedded_store)
    made = db.profile(model=card("llama"), tp=2, name="mine")
    search = hostile_search(embedded_store)
    for thing in (made.instance.id, made.info.id, made.instance.graph, search):
        db.tag(thing, "plain")
        db.note(thing, "plain")
    with embedded_store._session("WRITE") as session:  # as another program could write it
        session.run(
            "MATCH (c:Candidate) SET c += $texts", texts=dict.fromkeys(("system", "code", "why"), HOSTILE)
        ).consume()
        session.run("MATCH (c:Candidate) SET c.schedule = $text", text=HOSTILE).consume()
        for label in ("Graph", "Instance", "Profile", "Name"):
            session.run(f"MATCH (n:{label}) SET n.name = $name", name=HOSTILE).consume()
        for label, property_ in (("Note", "text"), ("Tag", "id"), ("User", "id"), ("Input", "name")):
            session.run(f"MATCH (n:{label}) SET n.{property_} = $text", text=HOSTILE).consume()
        for property_ in ("detail", "command", "version", "kind"):
            session.run(f"MATCH (n:Event) SET n.{property_} = $text", text=HOSTILE).consume()
    one = made.info.id
    query = f"RETURN \"{HOSTILE[:80].replace(chr(34), '')}\" AS `<b>column</b>`, '</script>' AS text"
    answers = [
        "/",
        "/list/profiles",
        f"/list/instances?{urlencode({'text': HOSTILE})}",
        f"/instances/{made.instance.id}",
        f"/instances/{made.instance.id}/memory",
        f"/profiles/{one}",
        f"/profiles/{one}/report",
        f"/graphs/{made.instance.graph}",
        f"/searches/{search}",
        "/list/searches",
        "/list/runs",
        f"/list/instances?{urlencode({'tag': HOSTILE})}",
        "/log",
        f"/log?{urlencode({'word': made.instance.id, 'user': HOSTILE})}",
        "/find",
        f"/compare?{urlencode({'of': [one, one]}, doseq=True)}",
        f"/explore?node=Profile/{one}&node=Instance/{made.instance.id}",
        asked(query=query),
        "/queries/hotspots?ask=1",
    ]
    with serving(embedded_store) as served:
        for path in answers:
            checked(browser, served, path, width)
            assert browser.run("document.title") != "owned", path
            assert browser.run(
                "document.querySelectorAll("
                "'img:not([src^=\"/compare/\"]), td b, th b, script:not([src]):not([type])').length"
            ) in ((1,) if path.endswith("/report") else (0,)), path
        missing = [
            f"/{kind}/{urlencode({'x': HOSTILE.replace('/', '')})[2:]}" for kind in ("show", "models", "queries")
        ]
        for path in (
            *missing,
            f"/list/instances?{urlencode({'model': HOSTILE + 'x'})}",
            f"/find?{urlencode({'plan': HOSTILE})}",
        ):
            checked(browser, served, path, width, status=400)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_graph_is_drawn_and_a_click_opens_a_node(embedded_store: Store, browser: Browser, width: int) -> None:
    made = Stagedb(embedded_store).instantiate(card("llama"), tp=2, pp=2)
    with serving(embedded_store) as served:
        checked(browser, served, f"/explore?node=Instance/{made.id}", width)
        drawn = int(browser.run("document.documentElement.dataset.drawn"))
        assert drawn == browser.run("graph.nodes().length") > 4
        sizes = browser.run("[...document.querySelectorAll('#graph canvas')].every((each) => each.width > 200)")
        assert sizes
        browser.run(f"void graph.getElementById('RankClass/{made.id}/0').emit('dbltap')")
        for _ in range(200):
            if browser.run("location.search + (document.getElementById('graph').ariaBusy ?? '')").endswith("2F0"):
                break
            browser._take(0.05)
        assert browser.run("graph.nodes('[?at]').id()") == f"RankClass/{made.id}/0"
        assert browser.run("graph.nodes('[?open]').length") == 2
        assert browser.run("graph.nodes().length") > drawn


def test_a_page_with_an_error_is_found(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text(
        "<!doctype html><html data-ready=yes><body><script>missing()</script><img src='http://127.0.0.2:1/x'>",
        encoding="utf-8",
    )
    visit = browser.visit(page.as_uri(), 1280)
    assert any("missing is not defined" in line for line in visit.console)
    assert visit.elsewhere("http://127.0.0.1") == ["http://127.0.0.2:1/x"]


PLACE = """(() => {
  const field = document.querySelector(".area:not([hidden]) .field"), box = field.getBoundingClientRect();
  const mark = field.querySelector(".marks .best"), share = (name) => parseFloat(mark.getAttribute(name)) / 100;
  const at = { clientX: box.x + share("cx") * box.width + 4, clientY: box.y + share("cy") * box.height - 4 };
  for (const [kind, name] of [[PointerEvent, "pointermove"], [MouseEvent, "click"]])
    field.dispatchEvent(new kind(name, { ...at, bubbles: true }));
})()"""
"""Points at the best plan, a few pixels next to its middle, and clicks."""


def choose(name: str, value: str) -> str:
    """Chooses a value of a control of the picture."""
    return f"""(() => {{
      const field = document.querySelector("[name={name}]");
      field.value = "{value}";
      field.dispatchEvent(new Event("change", {{ bubbles: true }}));
    }})()"""


def keys(*names: str) -> str:
    """Presses keys in the picture."""
    return f"""(() => {{
      const field = document.querySelector(".area:not([hidden]) .field");
      field.focus();
      for (const key of {json.dumps(names)})
        field.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true }}));
    }})()"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_picture_of_a_search_is_used_with_a_pointer_and_with_keys(
    embedded_store: Store, browser: Browser, width: int
) -> None:
    search = made_up_search(embedded_store).id
    command = Stagedb(embedded_store).searched(search).candidates.rows[0][-1]
    best = "dp 4, zero 0\nstep 100.0 ms, peak 70.0 GB\nthe best plan"
    picked, tip = "document.querySelector('.picked').textContent", "document.querySelector('.tip')"
    with serving(embedded_store) as served:
        checked(browser, served, f"/searches/{search}", width)
        assert browser.run(f"getComputedStyle({tip}).display") == "none"
        browser.run(PLACE)
        assert browser.run(f"{tip}.textContent") == best and browser.run(f"getComputedStyle({tip}).display") == "block"
        assert browser.run(f"{tip}.getBoundingClientRect().right <= innerWidth")
        assert browser.run(picked) == f"{best}{command}\nits row"
        assert browser.run("document.querySelector('tr.picked').id") == "plan-0"
        # The first key goes to the best plan, the next ones to what is smaller, and to what is longer.
        browser.run(keys("Escape"))
        checked(browser, served, f"/searches/{search}?show=timed", width)
        browser.run(keys("ArrowRight"))
        assert browser.run(picked) == best
        browser.run(keys("ArrowLeft"))
        assert "step 130.0 ms, peak 35.0 GB" in browser.run(picked)
        browser.run(keys("ArrowUp", "Enter"))
        assert "step 150.0 ms, peak 20.0 GB" in browser.run(picked) and "stagedb profile" in browser.run(picked)
        assert browser.run("document.querySelector('tr.picked') === null"), "only the three best have a row"
        colors = "[...document.querySelectorAll('.area:not([hidden]) .marks circle')].map((each) => each.classList[0])"
        before = browser.run(colors)
        browser.run(choose("color", "dp"))
        assert browser.run(colors) == ["k1", "k0", "k0", "k1"] != before
        assert browser.run("document.querySelector('.legend').textContent") == "24none"
        browser.run(choose("show", "all"))
        assert browser.run(f"{colors}.length") == 7
        assert browser.run("location.search") == "?color=dp&show=all"
        # The address alone gives the same picture.
        shown = browser.run(colors)
        checked(browser, served, f"/searches/{search}?color=dp&show=all", width)
        assert browser.run(colors) == shown
