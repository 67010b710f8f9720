"""The report: its numbers, that it fetches nothing and that names stay names, and a browser that opens it."""

import dataclasses
import html
import json
import re
import subprocess
from fractions import Fraction
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.lowering.columns import COLLECTIVE, SEND
from stagedb.memory import Category
from stagedb.reports import StepView, hotspots, render, shares
from stagedb.reports.memory_sections import CATEGORIES, levels
from stagedb.reports.step_view import held, place_of, works
from stagedb.search.what_ifs import what_ifs
from stagedb.store import Store
from stagedb.systems import System
from stagedb.timing import Scaling
from stagedb.timing.expected_errors import expected_error
from stagedb.timing.framework_timing import as_used_by
from tests.browsing import browser_path
from tests.reports.jobs import PLANS, job


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


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
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
    (chart,) = data["charts"]
    assert chart["step"] == chart["whole"] == made.times.step
    assert len(chart["lanes"]) == len(made.lanes)
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
    page = render(made)
    assert "does not fit" not in page
    reserved = sum(made.system.accelerator.reserved.values()) / 10**9
    assert f"<td>for tensors</td><td>{84.922 - reserved:,.3f} GB</td>" in page and "nccl 0.411042 GB" in page
    assert "capacity less the reserve" in page
    tight = dataclasses.replace(
        made.system,
        accelerator=dataclasses.replace(made.system.accelerator, capacity=Fraction(2, 10**9), reserve=()),
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


TEXTS = re.compile(r">([^<]+)<")
EXACT = re.compile(r"[0-9][0-9,]*\.?[0-9]*")


def test_figures_have_few_digits(embedded_store: Store) -> None:
    text = render(job(embedded_store, "experts", global_batch_size=24)).partition('<div id="tip">')[0]
    shown = [each for each in TEXTS.findall(text.partition("<h2>The plan</h2>")[0]) if "{" not in each]
    decimals = [number for each in shown for number in EXACT.findall(each) if "." in number]
    assert len(decimals) > 50
    assert [each for each in decimals if len(each.replace(".", "").replace(",", "").lstrip("0")) > 5] == []
    # Sorting needs no more either.
    assert max(len(each) for each in re.findall(r'data-value="([^"]*)"', text)) <= 15


def test_the_expected_error_is_next_to_the_step_time(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    for named in (made, dataclasses.replace(made, system=as_used_by(made.system, find_profile("nemo")))):
        found = expected_error(named.system, experts=False)
        page = render(named)
        assert f"tokens; expected error {found.mean:.0%} on average, {found.worst:.0%} at worst<" in page
        assert html.escape(str(found)) in page
    scaled = dataclasses.replace(made, scalings=(Scaling.parse("collective=0.5"),))
    assert "tokens; a what-if<" in render(scaled)


def test_operators_without_flops_are_next_to_the_roofline(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    rows = [row for row in works(made) if not row.flops]
    section = render(made).partition("<h2>Roofline</h2>")[2].partition("</section>")[0]
    assert f"{sum(row.share for row in rows):.1%} of computing" in section
    table = section.partition("<h3>Without FLOPs</h3>")[2]
    places = {(row.place, row.kind) for row in rows}
    share = {each: sum(row.share for row in rows if (row.place, row.kind) == each) for each in places}
    longest = sorted(share, key=lambda each: -share[each])[:3]
    for place, kind in longest:
        assert f"{place} ({kind})" in table
    assert "of the bandwidth" in table


def test_many_lanes_are_shown_in_part(embedded_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(embedded_store, "zb-h1")
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_LANES", 3)
    text = render(made)
    assert "1 of 4 lanes of ranks are not shown" in text
    assert len(data_of(text)["charts"][0]["lanes"]) == 3


def test_a_page_stays_small_however_many_tasks_there_are(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(embedded_store, "zb-h1", global_batch_size=64, recompute="full", recipe="megatron")
    large = render(made)
    assert "recomputing is part" not in large.lower()
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_SPANS", 4 * 3 * 64 + 40)
    assert "Recomputing is part of the backward here." in render(made)
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_SPANS", 200)
    monkeypatch.setattr("stagedb.reports.pipeline_chart.MOST_LEGS", 10)
    small = render(made)
    assert re.search(r"Every [0-9.]+ us show what takes most of them\.", small)
    assert len(small) < len(large) - 10_000
    lanes = data_of(small)["charts"][0]["lanes"]
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
    return browser_path()


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
const zoom = document.getElementById("zoom");
const marks = (value) => {
  zoom.value = value;
  zoom.dispatchEvent(new Event("input"));
  return all(".canvas").map((canvas) => {
    const spans = [...canvas.querySelectorAll(".x text")];
    const axis = spans.map((mark) => [mark.textContent, mark.getBoundingClientRect()]);
    const gaps = axis.slice(1).map(([, at], place) => at.left - axis[place][1].right);
    return { texts: axis.map(([text]) => text), least: Math.min(...gaps), most: Math.max(...gaps) };
  });
};
document.body.dataset.ticks = JSON.stringify([0, 3, 6, 2].map(marks));
document.body.dataset.hints = JSON.stringify(all(".hint").filter(box).map((line) => line.textContent));
document.body.dataset.inner = innerWidth;
const outside = (node) =>
  !node.closest(".scroll, .wide, svg") && node.getBoundingClientRect().right > innerWidth + 1;
const named = all("main *").filter(outside).map((node) => node.outerHTML.slice(0, 80));
document.body.dataset.outside = JSON.stringify(named);
</script></body>"""


def probed(dom: str, name: str) -> Any:
    """What the probe found."""
    found = re.search(rf'data-{name}="([^"]*)"', dom)
    assert found is not None
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize("size", ["1280,900", "500,900"])
@pytest.mark.parametrize("name", ["interleaved", "one rank"])
def test_a_browser_draws_the_report(embedded_store: Store, browser: str, tmp_path: Path, name: str, size: str) -> None:
    made = job(embedded_store, name)
    page = tmp_path / "report.html"
    page.write_text(render(made).replace("</body>", PROBE), encoding="utf-8")
    dom, console = opened(browser, page, tmp_path / "profile", f"--window-size={size}")
    assert console == ""
    assert 'data-ready="yes"' in dom
    data = probed(dom, "probe")
    assert data["paths"] >= 3
    assert data["drawn"], data
    assert data["dots"], data
    assert data["path"], data
    # Nothing but what scrolls on its own is wider than the window.
    assert data["wide"], data
    assert re.search(r'<div id="tip"[^>]*>stage 0[^<]*forward, micro-batch 0', dom)
    assert "--zoom: 4" in dom
    check_ticks(probed(dom, "ticks"))


def check_ticks(found: list[list[dict[str, Any]]]) -> None:
    """There are marks at every zoom, close to each other, not over each other, and all different."""
    for charts in found:
        for axis in charts:
            assert axis["least"] > 0, axis
            assert axis["most"] < 300, axis
            # The end of the step may be rounded to the mark before it.
            assert len(set(axis["texts"][:-1])) == len(axis["texts"]) - 1 >= 3
    assert len(found[2][0]["texts"]) > 10 * len(found[0][0]["texts"])


def test_a_browser_reports_what_is_broken(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><script>missing()</script>", encoding="utf-8")
    assert "missing is not defined" in opened(browser, page, tmp_path / "profile")[1]


def test_what_would_help_is_what_advice_names(embedded_store: Store) -> None:
    made = job(embedded_store)
    found, page = what_ifs(made.times, made.durations, made.system), render(made)
    assert {"no bubble", "no launch overhead", "communication over tp twice as fast"} <= {each.name for each in found}
    section = page[page.index("<h2>What would help</h2>") : page.index("<h2>Roofline")]
    shown = re.findall(r"<tr><td>([^<]+)</td>.*?data-value=\"(\d+)\"", section)
    assert [(name, int(step)) for name, step in shown] == [(each.name, each.step) for each in found]
    small = dataclasses.replace(made.system.accelerator, capacity=Fraction(1, 10**6), reserve=())
    held_by_none = dataclasses.replace(made, system=dataclasses.replace(made.system, accelerator=small))
    assert "The step is bound by memory (" in render(held_by_none)


def test_every_category_of_memory_has_a_colour() -> None:
    assert sorted(CATEGORIES) == sorted(map(str, Category))
    colours = (files("stagedb.reports") / "shared" / "colors.css").read_text(encoding="utf-8")
    used = (files("stagedb.reports") / "shared" / "parts.css").read_text(encoding="utf-8")
    for place in range(len(CATEGORIES)):
        assert f"--m{place}: #" in colours
        assert f".m{place} " in used
