"""The pipelines of several steps as one picture."""

import re
from xml.etree import ElementTree

import pytest

from stagedb.reports.pipeline_chart import WORDS, pipelines_picture
from stagedb.store import Store
from tests.reports.jobs import job

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - it was made by the function that is tested


def test_steps_are_on_one_scale(embedded_store: Store) -> None:
    jobs = [job(embedded_store), job(embedded_store, system="a100-80gb"), job(embedded_store, "one rank")]
    root = parsed(pipelines_picture([(each, f"plan {at}") for at, each in enumerate(jobs)]))
    charts = root.findall(f"{SVG}svg")
    assert len(charts) == 3
    longest = max(each.times.step for each in jobs)
    for each, chart in zip(jobs, charts, strict=True):
        lanes = chart.find(f"{SVG}path[@class='lane']")
        assert lanes is not None
        widths = {int(width) for width in re.findall(r"M0 \d+h(\d+)", lanes.get("d") or "")}
        assert widths == {round(each.times.step / longest * 100_000)}
        assert len(re.findall("M", lanes.get("d") or "")) == len(each.lanes)
        assert chart.find(f"{SVG}polyline[@class='path']") is not None
    texts = [each.text or "" for each in root.iter(f"{SVG}text")]
    assert [text.partition(":")[0] for text in texts if text.startswith("plan ")] == ["plan 0", "plan 1", "plan 2"]
    assert {"stage 0", "stage 1", "0", WORDS["forward"], WORDS["lane"]} <= {*texts}
    tops = [float(chart.get("y") or 0) for chart in charts]
    ends = [top + float(chart.get("height") or 0) for top, chart in zip(tops, charts, strict=True)]
    assert all(end < top for end, top in zip(ends[:-1], tops[1:], strict=True))
    assert ends[-1] < float(root.get("height") or 0)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a&b\x1b[31m", '"><image href="//x"/>'])
def test_a_name_is_only_text(embedded_store: Store, name: str) -> None:
    root = parsed(pipelines_picture([(job(embedded_store, "one rank"), name)]))
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        *("svg", "style", "text", "path", "polyline", "rect"),
    }


def test_a_picture_has_the_colours_that_it_names(embedded_store: Store) -> None:
    text = pipelines_picture([(job(embedded_store), "plan")])
    named = set(re.findall(r"var\(--([\w-]+)\s*[,)]", text))
    assert named >= {"forward", "path"}
    assert [each for each in named if f"--{each}:" not in text] == []
