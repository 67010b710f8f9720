"""The report: its numbers, that it fetches nothing and that names stay names, and a browser that opens it."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from stagedb.reports import StepView, hotspots, render, shares
from stagedb.reports.figures import held, levels, place_of, works
from stagedb.store import Store
from stagedb.systems import System
from stagedb.workload.instance_columns import COLLECTIVE, SEND
from tests.reports.jobs import PLANS, job

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOW = "no browser to open the report: install Chromium (Debian: apt-get install chromium)"


class Page(HTMLParser):
    """What a page has: texts, tags, and all that it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "input", "link", "img", "br", "path", "polyline", "polygon"):
            self.open.append(tag)
        self.fetched += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def data_of(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


@pytest.mark.parametrize("name", PLANS)
def test_a_report_is_whole_and_fetches_nothing(embedded_store: Store, name: str) -> None:
    made = job(embedded_store, name)
    text = render(made)
    page = Page(text)
    assert page.open == []
    assert page.fetched == []
    assert not re.search(r"https?://|url\(|@import", re.sub(r"<td>[^<]*</td>", "", text))
    assert page.tags.count("svg") >= 3
    data = data_of(text)
    assert data["step"] == made.times.step
    assert len(data["lanes"]) == len(made.lanes)  # type: ignore[arg-type]
    for title in ("The pipeline", "Where the time goes", "Memory at the peak", "Communication", "Roofline", "The plan"):
        assert f"<h2>{title}</h2>" in text


def test_the_shares_of_a_step_are_those_of_its_lanes(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    found = shares(made)
    assert found.busy + found.exposed + found.bubble + found.idle == pytest.approx(1)
    assert found.busy == pytest.approx(np.mean([lane.busy for lane in made.times.lanes]) / made.times.step)


def test_what_is_communicated_adds_up(embedded_store: Store) -> None:
    made = job(embedded_store, "interleaved")
    rows, net = hotspots(made), made.times.network
    sent = np.isin(net.type, (COLLECTIVE, SEND))
    ranks = np.array([lane.ranks for lane in made.lanes])[net.lane]
    assert sum(row.calls for row in rows) == int(ranks[sent].sum())
    lasted = made.times.timeline.finish - made.times.timeline.start
    whole = float((lasted[net.event] * ranks)[sent].sum()) / len(made.workload.ranks)
    assert sum(row.time for row in rows) == pytest.approx(whole)
    assert all(row.exposed <= row.time for row in rows)
    wires = [
        int(spent.ops.runs[op]) * lane.ranks * sum(size for _, size in found)
        for lane, timed, spent in zip(made.lanes, made.durations.lanes, made.times.lanes, strict=True)
        for op, found in enumerate(timed.wires)
    ]
    assert sum(row.wire for row in rows) == sum(wires) > 0
    assert place_of("layer.3.attn.wo.all_reduce.tp.2", "all_reduce", "tp") == "layer.attn.wo"
    assert place_of("bucket.gradients.dp.64", "all_reduce", "dp") == "bucket.gradients"
    assert sum(row.share for row in works(made)) == pytest.approx(1)


def test_memory_is_that_of_the_account(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    totals = {each.rank_class: each.total for each in held(made)}
    assert totals == {m.rank_class.number: sum(m.usage.at(m.peak).values()) for m in made.memory}
    curve = levels(made)
    assert curve is not None
    assert max(sum(sizes) for sizes in zip(*curve.sizes.values(), strict=True)) == max(totals.values())
    assert "does not fit" not in render(made)
    tight = dataclasses.replace(
        made.system,
        accelerator=dataclasses.replace(made.system.accelerator, capacity=made.system.accelerator.launch / 10**12),
    )
    assert "does not fit" in render(dataclasses.replace(made, system=tight))
    assert levels(dataclasses.replace(made, memory=())) is None
    assert "Memory at the peak" not in render(dataclasses.replace(made, memory=()))


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028"


def renamed(made: StepView, name: str) -> StepView:
    """The same job, whose model, operators and system have other names."""
    net = made.times.network
    columns = tuple(
        dataclasses.replace(
            each, ops=dataclasses.replace(each.ops, name=tuple(f"{name}{old}" for old in each.ops.name))
        )
        for each in net.columns
    )
    workload = dataclasses.replace(
        net.workload, name=name, model=name, instance=name, plan={**net.workload.plan, "recipe": name, name: name}
    )
    network = dataclasses.replace(net, workload=workload, columns=columns)
    order = dataclasses.replace(made.times.timeline.order, network=network)
    path = dataclasses.replace(made.times.path, network=network)
    times = dataclasses.replace(made.times, timeline=dataclasses.replace(made.times.timeline, order=order), path=path)
    accelerator = dataclasses.replace(made.system.accelerator, name=name)
    system: System = dataclasses.replace(made.system, name=name, sources=(name,), accelerator=accelerator)
    return dataclasses.replace(made, times=times, system=system)


def test_names_are_data(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    plain, evil = render(renamed(made, "x")), render(renamed(made, EVIL))
    assert Page(evil).tags == Page(plain).tags
    assert Page(evil).fetched == []
    assert evil.count("</script>") == 2
    assert "<img" not in evil
    data_of(evil)


def test_many_lanes_are_shown_in_part(embedded_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(embedded_store, "zb-h1")
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_LANES", 3)
    text = render(made)
    assert "1 of 4 lanes of ranks are not shown" in text
    assert len(data_of(text)["lanes"]) == 3  # type: ignore[arg-type]


def test_a_page_stays_small_however_many_tasks_there_are(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(embedded_store, "zb-h1", global_batch_size=64, recompute="full")
    large = render(made)
    assert "recomputing is part" not in large.lower()
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_SPANS", 4 * 3 * 64 + 40)
    assert "Recomputing is part of the backward here." in render(made)
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_SPANS", 200)
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_LEGS", 10)
    small = render(made)
    assert re.search(r"Every [0-9.]+ us show what takes most of them\.", small)
    assert len(small) < len(large) - 10_000
    lanes = data_of(small)["lanes"]
    assert isinstance(lanes, list)
    assert sum(len(lane["spans"]) for lane in lanes) <= 200


def test_a_system_without_limits_has_no_roof(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    accelerator = made.system.accelerator
    free = dataclasses.replace(
        accelerator, peak=dict.fromkeys(accelerator.peak, float("inf")), capacity=float("inf"), bandwidth=float("inf")
    )
    text = render(dataclasses.replace(made, system=dataclasses.replace(made.system, accelerator=free)))
    assert Page(text).open == []
    assert "unlimited" in text


def test_a_job_without_memory_shows_the_rest(embedded_store: Store) -> None:
    made = job(embedded_store, "one rank")
    assert "There is none." in render(made)


@pytest.fixture(scope="session")
def browser() -> str:
    """A browser's command; skips (or fails) where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("STAGEDB_REQUIRE_BROWSER") == "1":
            pytest.fail(f"STAGEDB_REQUIRE_BROWSER is set, and there is {HOW}")
        pytest.skip(HOW)
    return found


def opened(browser: str, page: Path, profile: Path, *options: str) -> tuple[str, str]:
    """The page after its script ran, and the output on the console."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    command = [browser, *flags, f"--user-data-dir={profile}", *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


PROBE = """<script>
const box = (node) => { const at = node.getBoundingClientRect(); return at.width > 0 && at.height > 0; };
const all = (query) => [...document.querySelectorAll(query)];
document.body.dataset.probe = JSON.stringify({
  drawn: all("svg").every(box), paths: all(".canvas svg path").filter(box).length, dots: all(".dot").every(box),
  path: document.querySelector("polyline.path").getBoundingClientRect().width > 300,
  wide: document.documentElement.scrollWidth <= innerWidth,
  width: innerWidth,
});
for (const button of all("th button")) button.click();
const canvas = document.querySelector(".canvas svg").getBoundingClientRect();
const at = { bubbles: true, clientX: canvas.left + 2, clientY: canvas.top + 5 };
document.querySelector(".canvas").dispatchEvent(new PointerEvent("pointermove", at));
document.getElementById("zoom").value = 2;
document.getElementById("zoom").dispatchEvent(new Event("input"));
</script></body>"""


@pytest.mark.parametrize("size", ["1280,900", "500,900"])
@pytest.mark.parametrize("name", ["interleaved", "one rank"])
def test_a_browser_draws_the_report(embedded_store: Store, browser: str, tmp_path: Path, name: str, size: str) -> None:
    made = job(embedded_store, name)
    page = tmp_path / "report.html"
    page.write_text(render(made).replace("</body>", PROBE), encoding="utf-8")
    dom, console = opened(browser, page, tmp_path / "profile", f"--window-size={size}")
    assert console == ""
    assert 'data-ready="yes"' in dom
    found = re.search(r'data-probe="([^"]*)"', dom)
    assert found is not None
    data = json.loads(found[1].replace("&quot;", '"'))
    assert data["paths"] >= 3
    assert data["drawn"], data
    assert data["dots"], data
    assert data["path"], data
    # Nothing but what scrolls on its own is wider than the window.
    assert data["wide"], data
    assert re.search(r'<div id="tip"[^>]*>stage 0[^<]*forward, micro-batch 0', dom)
    assert "--zoom: 4" in dom


def test_a_browser_reports_what_is_broken(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><script>missing()</script>", encoding="utf-8")
    assert "missing is not defined" in opened(browser, page, tmp_path / "profile")[1]
