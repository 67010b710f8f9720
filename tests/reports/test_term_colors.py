"""One set of colours for what the time of a step goes to."""

import re
from importlib.resources import files

from stagedb.plans import GROUP_AXES
from stagedb.reports.page_parts import PALETTE, REASON_STYLES, TERM_STYLES, term_style

SHARED = files("stagedb.reports").joinpath("shared")


def test_every_term_has_one_colour() -> None:
    assert term_style("compute") == term_style("busy") == REASON_STYLES["compute"] == "m0"
    assert all(term_style(f"exposed {axis}") == term_style(axis) for axis in GROUP_AXES)
    assert all(REASON_STYLES[name] == term_style(name) for name in REASON_STYLES if name.startswith("exposed "))
    assert term_style("mesh_of_a_run") == TERM_STYLES["other"]
    assert len({*REASON_STYLES.values()}) == len(REASON_STYLES)


def test_style_sheets_have_them() -> None:
    text = SHARED.joinpath("candidates.css").read_text(encoding="utf-8")
    assert tuple(re.findall(r"\.k\d+ \{ --k: var\(--(m\d+)\); }", text)) == PALETTE
    light, dark = SHARED.joinpath("colors.css").read_text(encoding="utf-8").split("@media", 1)
    assert {*PALETTE, *TERM_STYLES.values()} <= {*re.findall(r"--(m\d+):", light)}
    for scheme in (light, dark):
        words = dict(re.findall(r"--([a-z]+\d*): (#[0-9a-f]+)", scheme))
        assert words["m8"] == words["communication"] and words["m0"] == words["forward"]
