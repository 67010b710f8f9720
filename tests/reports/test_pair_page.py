"""The report of two steps."""

import html
import re
from pathlib import Path

import pytest

from stagedb.reports import render, render_pair, sums_of, verdict
from stagedb.reports.step_difference import TERMS
from stagedb.store import Store
from tests.reports.jobs import job
from tests.reports.test_report import EVIL, PROBE, Page, browser, check_ticks, data_of, opened, probed, renamed

__all__ = ["browser"]


def test_two_steps_are_on_one_scale(embedded_store: Store) -> None:
    one, other = job(embedded_store, "pipeline"), job(embedded_store, "interleaved", system="a100-80gb")
    text = render_pair((one, "plain"), (other, "chunks"))
    page = Page(text)
    assert page.open == []
    assert page.fetched == []
    charts = data_of(text)["charts"]
    longer = max(one.times.step, other.times.step)
    assert [chart["step"] for chart in charts] == [one.times.step, other.times.step]
    assert [chart["whole"] for chart in charts] == [longer, longer]
    assert html.escape(verdict(sums_of(one, "plain"), sums_of(other, "chunks"))) in text
    for title in (
        "What makes the difference",
        "The pipelines, on one scale",
        "Memory at the peak: plain",
        "Memory at the peak: chunks",
        "Operators and communication",
        "The plans",
    ):
        assert f"<h2>{title}</h2>" in text
    for word in TERMS.values():
        assert f"<td>{word}</td>" in text
    # A word that differs has both values, one that does not is left out.
    assert re.search(r"<td>virtual_stages</td><td[^>]*>1</td><td[^>]*>2</td>", text)
    assert "<td>micro_batch_size</td>" not in text


def test_the_shorter_step_takes_its_part_of_the_axis(embedded_store: Store) -> None:
    made = job(embedded_store, "one rank")
    other = job(embedded_store, "one rank", global_batch_size=8)
    text = render_pair((made, "few"), (other, "many"))
    lanes = [int(each) for each in re.findall(r'<path class="lane" d="M0 2h(\d+)', text)]
    assert lanes == [round(100_000 * made.times.step / other.times.step), 100_000]
    assert "for as many tokens as the first has, 16 instead of 64" in text
    assert render_pair((made, "few"), (made, "few")).count("few (second)") > 3


def test_names_of_two_steps_are_data(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    other = job(embedded_store, "pipeline", recompute="full")
    plain = render_pair((renamed(made, "x"), "y"), (renamed(other, "z"), "w"))
    evil = render_pair((renamed(made, EVIL), EVIL), (renamed(other, EVIL + "2"), EVIL + "2"))
    assert Page(evil).tags == Page(plain).tags
    assert Page(evil).fetched == []
    assert evil.count("</script>") == 2
    assert "<img" not in evil
    data_of(evil)
    same = render_pair((renamed(made, EVIL), EVIL * 100), (renamed(other, EVIL), EVIL * 100))
    assert same.count("</script>") == 2
    assert "<img" not in same
    assert len(same) < len(evil) + 2000


@pytest.mark.parametrize("size", ["1280,900", "500,900"])
def test_a_browser_draws_two_steps(embedded_store: Store, browser: str, tmp_path: Path, size: str) -> None:
    one, other = job(embedded_store, "interleaved"), job(embedded_store, "zb-h1")
    page = tmp_path / "pair.html"
    text = render_pair((one, "one"), (other, "other"))
    page.write_text(text.replace("</body>", PROBE), encoding="utf-8")
    dom, console = opened(browser, page, tmp_path / "profile", f"--window-size={size}")
    assert console == ""
    data = probed(dom, "probe")
    assert data["drawn"], data
    assert data["wide"], data
    assert probed(dom, "outside") == []
    check_ticks(probed(dom, "ticks"))
    assert dom.count("--zoom: 4") == 2
    assert re.search(r'<div id="tip"[^>]*>stage 0[^<]*forward, micro-batch 0', dom)
    assert bool(probed(dom, "hints")) is (size == "500,900")


FRAME = """<!doctype html><meta charset="utf-8"><body>
<iframe style="width:400px;height:900px" srcdoc="{page}"></iframe><script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => Object.assign(document.body.dataset, frame.contentDocument.body.dataset));
</script></body>"""


@pytest.mark.parametrize("pair", [False, True])
def test_a_phone_scrolls_parts_and_not_the_page(
    embedded_store: Store, browser: str, tmp_path: Path, pair: bool
) -> None:
    one, other = job(embedded_store, "experts"), job(embedded_store, "zb-h1")
    text = render_pair((one, "n" * 80), (other, "other")) if pair else render(one)
    page = tmp_path / "phone.html"
    page.write_text(FRAME.format(page=html.escape(text.replace("</body>", PROBE))), encoding="utf-8")
    dom, console = opened(browser, page, tmp_path / "profile", "--window-size=600,900")
    assert console == ""
    assert probed(dom, "inner") == 400
    assert probed(dom, "probe")["wide"]
    assert probed(dom, "outside") == []
    hints = probed(dom, "hints")
    assert "Swipe sideways for more of the step →" in hints
    assert "Swipe sideways for more columns →" in hints
