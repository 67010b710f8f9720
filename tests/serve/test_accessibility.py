"""Every page under the rules of WCAG 2.2 AA, as axe-core checks them, light and dark, wide and narrow."""

import json
from pathlib import Path

import pytest

from stagedb.api.client import Stagedb
from stagedb.store import Store
from stagedb.store.contents.runs import record_run
from tests.browsing import Browser
from tests.ir.tiny import card
from tests.runs.recordings import small_run
from tests.sampling import part
from tests.serve.served import serving
from tests.serve.test_answers import asked, html_paths
from tests.store.made_up_searches import made_up_search

AXE = (Path(__file__).parent / "axe.min.js").read_text(encoding="utf-8")

CHECK = """axe.run(document, {
  runOnly: {type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
  resultTypes: ["violations"]
}).then((found) => JSON.stringify(found.violations.flatMap((each) =>
  each.nodes.map((node) => `${each.id}: ${node.target.join(" ")}: ${node.failureSummary.slice(0, 200)}`))))"""
"""What violates a rule: the rule, the element, and what to mend."""


def violations(browser: Browser) -> list[str]:
    browser.run(f"{AXE};0")
    found: list[str] = json.loads(browser.run(CHECK))
    return found


LOOKS = ((1280, False), (400, True))
"""Widths of a window, and whether it is dark."""


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_no_page_violates_a_rule(embedded_store: Store, browser: Browser, width: int, dark: bool) -> None:
    db = Stagedb(embedded_store)
    db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    db.instantiate(card("llama"), name="deep", pp=2, dp=2, global_batch_size=4)
    db.instantiate(card("llama"), name="third", dp=2)
    profiles = db.profile("wide", name="first"), db.profile("deep", name="second")
    made_up_search(embedded_store)
    run = small_run()
    record_run(embedded_store, run)
    kinds = ("graphs", "profiles", "searches", "runs", "unfinished")
    pages = [
        *html_paths(profiles),
        *(f"/list/{kind}" for kind in kinds),
        "/list/instances?text=nothing+has+this",
        "/lookup?text=llama",
        "/queries/fastest_plans?ask=1",
        f"/explore?node=Profile/{profiles[0].info.id}",
        asked(query="MATCH (i:Instance) RETURN i.name AS name, i.world AS ranks"),
        f"/runs/{run.id}",
        "/compare?of=wide",
        "/compare?of=wide&of=deep&of=third",
        f"/compare?of={run.id}&of=third",
        f"/compare?of={run.id}&of={run.id}",
        "/nothing",
    ]
    found = {}
    with serving(embedded_store) as served:
        for path in part(pages, LOOKS.index((width, dark)), len(LOOKS)):
            browser.visit(served.address + path, width, dark)
            if wrong := violations(browser):
                found[path] = wrong
    # A line each, so that a failure names them all.
    assert [f"{path}: {each}" for path, wrong in found.items() for each in wrong] == []


def test_a_violation_is_found(browser: Browser) -> None:
    browser.call("Page.navigate", url="data:text/html,<html lang=en><title>t</title><main><img src=x></main>")
    for _ in range(50):
        if browser.run("document.images.length"):
            break
    assert any(each.startswith("image-alt") for each in violations(browser))
