"""The picture of a list of plans: places, colours, and what it is for those who do not see it."""

import re
import xml.etree.ElementTree as ET
from typing import Any

from stagedb.reports.candidates_chart import PlanMark, plans_chart


def mark(name: str, memory: float, tokens: float, **words: Any) -> PlanMark:
    usual: dict[str, Any] = {
        "plan": "tp 2",
        "fits": True,
        "value": 2,
        "to": f"#row-{name}",
        "here": True,
        "step": round(1e9 / tokens),
    }
    return PlanMark(name=name, memory=round(memory * 1e9), tokens=tokens, **(usual | words))


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - a text of this package


def test_marks_are_links_at_their_places() -> None:
    marks = [mark("a", 10, 100), mark("b", 20, 200, value=4), mark("c", 30, 300, value=4, fits=False, here=False)]
    root = parsed(plans_chart(marks, "tokens", "tp", {"h100": 25_000_000_000}))
    links = root.findall(".//a")
    assert [each.attrib["href"] for each in links] == ["#row-c", "#row-a", "#row-b"], "rows of the page are on top"
    circles = {link.attrib["href"]: link.find("circle") for link in links}
    places = {
        name: (float(each.attrib["cx"][:-1]), float(each.attrib["cy"][:-1]))
        for name, each in circles.items()
        if each is not None
    }
    assert places["#row-a"][0] < places["#row-b"][0] < places["#row-c"][0]
    assert places["#row-a"][1] > places["#row-b"][1] > places["#row-c"][1], "more tokens are higher"
    styles = {name: each.attrib["class"] for name, each in circles.items() if each is not None}
    assert styles == {"#row-a": "k0", "#row-b": "k1", "#row-c": "k1 away set"}
    assert links[0].attrib["tabindex"] == "-1"
    steps = parsed(plans_chart(marks, "step", "tp", {}))
    heights = {each.attrib["href"]: float(each[0].attrib["cy"][:-1]) for each in steps.findall(".//a")}
    assert heights["#row-a"] < heights["#row-b"], "a longer step is higher"


def test_who_does_not_see_it_has_titles() -> None:
    text = plans_chart([mark("a", 10, 100), mark("big", 90, 300, fits=False)], "step", "tp", {}, left_out=1_200)
    root = parsed(text)
    svg = root.find(".//svg")
    assert svg is not None
    assert [each.tag for each in svg][:2] == ["title", "desc"]
    assert svg.attrib["aria-labelledby"] == svg[0].attrib["id"]
    assert svg[0].text == "2 plans by memory and step, coloured by tp"
    assert (svg[1].text or "").startswith("The most tokens a second an accelerator of those that fit: a: 100.0")
    assert root.findall(".//a")[0].attrib["aria-label"].startswith("a: 100.0 tokens/s")
    assert "1,200 further plans are not drawn" in text
    assert "None of these plans fits" in plans_chart([mark("big", 90, 300, fits=False)], "step", "tp", {})
    assert plans_chart([], "step", "tp", {}) == ""


def test_texts_are_only_text() -> None:
    text = plans_chart([mark("<q>\x1b[31m\u202e", 10, 100, value='"><i>', to='"><u>')], "tokens", "tp", {"<s>": 10**10})
    assert not re.search(r"<[qus]>|\x1b|\u202e", text)
    parsed(text)
