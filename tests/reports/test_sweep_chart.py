"""The picture of a sweep: an SVG with each point at its place, in as many lines as there are combinations."""

import itertools
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.reports.sweep_chart import HEIGHT, LEFT, LINES, TOP, sweep_chart

SVG = "{http://www.w3.org/2000/svg}"


def row(step: float | None, fits: bool = True, **varied: Any) -> dict[str, Any]:
    return {**varied, "step": step, "fits": fits, "refused": None if step else "no plan"}


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own text


def drawn(varied: list[str], rows: list[dict[str, Any]]) -> ET.Element:
    return parsed(sweep_chart("a <model> & its step", varied, rows))


def circles(picture: ET.Element) -> list[dict[str, str]]:
    return [each.attrib for each in picture.iter(f"{SVG}circle")]


def texts(picture: ET.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}text")]


def test_a_point_is_at_its_step_and_its_value() -> None:
    steps = [8e6, 4e6, 2e6]
    found = circles(drawn(["tp"], [row(step, tp=tp) for step, tp in zip(steps, (1, 2, 3), strict=True)]))
    right, down = ([float(each[axis]) for each in found] for axis in ("cx", "cy"))
    assert right[1] - right[0] == pytest.approx(right[2] - right[1], abs=0.2) and right[0] > LEFT
    # From 0: the heights over the axis have the ratios of the steps.
    heights = [TOP + HEIGHT - each for each in down]
    assert heights[0] / heights[1] == pytest.approx(2, rel=0.01)
    assert heights[0] / heights[2] == pytest.approx(4, rel=0.01)
    assert min(heights) > 0 and max(heights) < HEIGHT


def test_steps_of_many_sizes_have_a_logarithmic_axis() -> None:
    found = circles(drawn(["tp"], [row(step, tp=step) for step in (1e6, 1e7, 1e8)]))
    down = [float(each["cy"]) for each in found]
    assert down[0] - down[1] == pytest.approx(down[1] - down[2], abs=0.2)


@pytest.mark.parametrize("values", [["none", "full", "core"], [1, 2, 4, 8, 16, 32], [True, False], [[1, 2], [2, 1]]])
def test_words_and_degrees_that_double_have_a_place_each(values: list[Any]) -> None:
    picture = drawn(["word"], [row(1e6, word=value) for value in values])
    right = [float(each["cx"]) for each in circles(picture)]
    gaps = {round(after - before) for before, after in itertools.pairwise(right)}
    assert max(gaps) - min(gaps) <= 1
    assert len(set(right)) == len(values)


def test_each_combination_of_the_others_is_a_line_with_a_name() -> None:
    rows = [row(1e6 * tp * pp, tp=tp, pp=pp, sp=sp) for tp in (1, 2, 3) for pp in (1, 2) for sp in (True, False)]
    picture = drawn(["tp", "pp", "sp"], rows)
    lines = list(picture.iter(f"{SVG}polyline"))
    assert len(lines) == 4 and len({each.attrib["stroke"] for each in lines}) == 4
    assert {f"pp {pp}, sp {sp}" for pp in (1, 2) for sp in ("true", "false")} <= set(texts(picture))
    assert "tp" in texts(picture) and "step, ms" in texts(picture)


def test_what_does_not_fit_is_open_and_what_is_refused_is_counted() -> None:
    picture = drawn(["tp"], [row(3e6, fits=False, tp=1), row(2e6, tp=2), row(None, tp=3)])
    assert [each["class"] for each in circles(picture)] == ["point open", "point"]
    assert "an open point does not fit into memory" in texts(picture)
    assert "1 point is refused, and not drawn" in texts(picture)


def test_names_are_escaped_and_nothing_is_fetched() -> None:
    text = sweep_chart("<b>&", ["<i>"], [{"<i>": "<u>", "step": 1e6, "fits": True, "refused": None}])
    parsed(text)
    assert "<b>" not in text and "<u>" not in text
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_more_lines_than_colors_are_refused() -> None:
    rows = [row(1e6, tp=tp, pp=pp) for tp in (1, 2) for pp in range(LINES + 1)]
    with pytest.raises(UsageError, match=f"would have {LINES + 1} lines, a line for each combination of pp"):
        drawn(["tp", "pp"], rows)
    drawn(["pp", "tp"], rows)
    with pytest.raises(UsageError, match="nothing to draw"):
        drawn(["tp"], [row(None, tp=1)])
