"""The picture of a search: each candidate at its place, sets hollow at their bounds, the front, colours, and bounds."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stagedb.api.searching import described
from stagedb.errors import UsageError
from stagedb.reports.candidates_chart import (
    COLORS,
    DRAWN,
    OTHERS,
    Link,
    axis_over,
    candidates_chart,
    colorings_of,
    drawn_marks,
    grid_of,
)
from stagedb.reports.search_view import SearchView
from stagedb.search import Candidate, Fate, SearchResult
from tests.store.made_up_searches import FOUND, GB, candidate
from tests.store.searches import small_request


def view_of(candidates: Sequence[Candidate], rooms: dict[str, int | None] | None = None, **more: Any) -> SearchView:
    request = small_request(**more)
    size = sum(each.plans for each in candidates)
    result = SearchResult(request, size, tuple(candidates), True, None, 1.0)
    plans = [described(each, request) for each in candidates]
    return SearchView(result, "tiny", plans, {0: "stagedb profile <x>"}, {"h100": 80 * GB} if rooms is None else rooms)


@dataclass(frozen=True)
class Drawn:
    """A mark of a picture: its classes, place in percent, and radius."""

    style: str
    x: float
    y: float
    r: float


def area(text: str, name: str) -> str:
    """The part of a picture that is one of its views."""
    part = text[text.index(f'data-show="{name}"') :]
    return part[: part.index("</svg>")]


def marks(text: str) -> list[Drawn]:
    found = re.findall(r'<circle class="(k[^"]*)" cx="([\d.]+)%" cy="([\d.]+)%" r="([\d.]+)"', text)
    return [Drawn(style, float(x), float(y), float(r)) for style, x, y, r in found]


def data_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', text)[0])
    return found


@pytest.mark.parametrize(("low", "high"), [(0.05, 60), (10, 30), (5, 250), (20, 24), (300, 90_000), (1.2, 190_000)])
def test_numbers_of_an_axis_do_not_touch(low: float, high: float) -> None:
    axis = axis_over([low, high])
    numbers = re.findall(r'<text class="x[^"]*" x="([\d.]+)%"[^>]*>([^<]*)<', grid_of(axis, axis))
    assert len(numbers) >= 3
    places = [float(place) for place, _ in numbers]
    # The chart next to a list is some 260 pixels wide, with digits of 6.
    for (place, text), (next_, other) in itertools.pairwise(zip(places, [text for _, text in numbers], strict=True)):
        assert (next_ - place) * 2.6 >= 3 * (len(text) + len(other))


def test_a_candidate_is_at_its_step_and_its_peak() -> None:
    text = candidates_chart(view_of(FOUND))
    found = marks(area(text, "timed"))
    # The best is the last one, on top of the others.
    assert [each.style for each in found] == ["k0", "k0", "k4", "k10 best"]
    slow, middle, quick, best = found  # 150, 130, 120 and 100 ms; 20, 35, 30 and 70 GB
    assert (slow.x - middle.x) / (quick.x - best.x) == pytest.approx((20 - 35) / (30 - 70), rel=1e-3)
    assert (slow.y - middle.y) / (quick.y - best.y) == pytest.approx((150 - 130) / (120 - 100), rel=1e-3)
    assert best.y == max(each.y for each in found) < 100, "short steps are below"
    assert slow.x == min(each.x for each in found) > 0


def test_values_of_many_sizes_have_a_logarithmic_axis() -> None:
    rows = [candidate(Fate.TIMED, 10**at, 2**at, "best" if at == 1 else "compute", tp=at) for at in (1, 2, 3)]
    found = marks(area(candidates_chart(view_of(rows)), "all"))
    assert found[0].y - found[1].y == pytest.approx(found[1].y - found[2].y, abs=0.01)
    assert found[0].x - found[1].x != pytest.approx(0)


def test_sets_are_hollow_at_their_bounds_and_may_be_left_out() -> None:
    text = candidates_chart(view_of(FOUND))
    every = marks(area(text, "all"))
    hollow = [each for each in every if " set" in each.style]
    assert len(every) == 7 and len(hollow) == 3, "two sets that are slower, and one that does not fit"
    assert not [each for each in marks(area(text, "timed")) if " set" in each.style]
    texts = data_of(text)["texts"]
    assert "6 plans: tp 4, zero 0\nstep ≥ 110.0 ms, peak ≥ 31.0 GB\nbubble it is" in texts
    assert "tp 2, dp 2, zero 0\nstep 120.0 ms, peak 30.0 GB\nbubble it is" in texts
    caption = re.findall(r"<figcaption>(.*?)</figcaption>", text)[0]
    assert "3 of them are 18 plans" in caption and "2 plans that were refused have no place" in caption
    # A set of 10,000 plans is a larger mark than one of 9.
    large = marks(area(candidates_chart(view_of([*FOUND, replace(FOUND[6], plans=10_000, step=9)])), "all"))
    assert max(each.r for each in large if " set" in each.style) > max(each.r for each in hollow)


def test_near_the_best_is_what_is_almost_as_short_and_small() -> None:
    far = candidate(Fate.SLOWER, 900, 30, "compute", 5, tp=4, pp=1)
    text = candidates_chart(view_of([*FOUND, far]))
    data = data_of(text)
    shown = [data["texts"][at] for at in data["views"]["near"]]
    assert not any("900.0 ms" in each for each in shown), "it takes longer than 1.1 × 150 ms"
    assert not any("peak ≥ 95.0 GB" in each for each in shown), "an accelerator has 80 GB"
    assert any("peak ≥ 10.0 GB" in each for each in shown) and len(shown) == 6
    assert text.index('data-show="near"') < text.index('data-show="all" hidden')
    assert 'data-show="near" hidden' in candidates_chart(view_of([*FOUND, far]), show="all")


def test_the_front_is_a_line_through_the_plans_of_the_front() -> None:
    found = area(candidates_chart(view_of(FOUND)), "timed")
    lines = re.findall(r'<line class="front" x1="([\d.]+)%" y1="([\d.]+)%" x2="([\d.]+)%" y2="([\d.]+)%?"', found)
    slow, _, quick, best = marks(found)
    ends = [(float(x), float(y)) for _, _, x, y in lines]
    # To the best plan, then up and to the left to each smaller one, and up from the smallest.
    assert ends == [
        *((best.x, best.y), (best.x, quick.y), (quick.x, quick.y)),
        *((quick.x, slow.y), (slow.x, slow.y), (slow.x, 0.0)),
    ]
    room = re.findall(r'<line class="room" x1="([\d.]+)%"', area(candidates_chart(view_of(FOUND)), "all"))
    assert len(room) == 1 and "80.0 GB</text>" in candidates_chart(view_of(FOUND))


def test_each_number_of_ranks_has_its_front() -> None:
    rows = [
        candidate(Fate.TIMED, 50, 40, "best", ranks=8, dp=8),
        candidate(Fate.TIMED, 110, 40, "compute", ranks=4, dp=4),
        candidate(Fate.TIMED, 120, 30, "compute", ranks=4, tp=2),
    ]
    found = area(candidates_chart(view_of(rows, ranks=(4, 8))), "all")
    assert found.count('class="front"') == 2 + 4
    assert re.findall(r'<text class="named"[^>]*>([^<]*)<', found) == ["4 ranks", "8 ranks"]
    assert "8 ranks, dp 8\n" in "\n".join(data_of(candidates_chart(view_of(rows, ranks=(4, 8))))["texts"])


def test_colours_are_why_plans_lose_or_the_values_of_a_word() -> None:
    view = view_of(FOUND)
    colorings = {each.word: each for each in colorings_of(view, drawn_marks(view)[0])}
    assert list(colorings) == ["why", "tp", "dp", "zero"], "words that vary"
    names, colors = colorings["why"].names, colorings["why"].colors
    assert dict(zip(names, colors, strict=True)) == {"compute": 0, "bubble": 4, "memory": 11, "best": 10}
    assert list(colorings["tp"].names) == ["1", "2", "4"]
    assert list(colorings["zero"].names) == ["0", "1", "3", "none"], "a set may leave a word open"
    text = candidates_chart(view, color="tp")
    assert '<option value="tp" selected>' in text
    assert re.findall(r'<i class="(k\d)"></i>(\w+)', text) == [("k0", "1"), ("k1", "2"), ("k2", "4")]
    assert [each.style for each in marks(area(text, "timed"))] == ["k0", "k1", "k1", "k0 best"]
    with pytest.raises(UsageError, match="no colours for 'cp': it is one of why, tp, dp, zero"):
        candidates_chart(view, color="cp")
    with pytest.raises(UsageError, match="shows near, all, timed, and not 'none'"):
        candidates_chart(view, show="none")


def test_rare_values_share_a_colour() -> None:
    rows = [candidate(Fate.TIMED, 100 + at, 10 + at, f"reason {min(at, 12)}", tp=at) for at in range(1, 20)]
    view = view_of(rows)
    for each in colorings_of(view, drawn_marks(view)[0]):
        assert len(each.names) <= COLORS and len(set(each.colors)) == len(each.names)
        assert OTHERS in each.names and max(each.of) < len(each.names)


def test_thousands_of_candidates_are_bounded_and_each_world_has_its_best() -> None:
    few = [candidate(Fate.SLOWER, 900, 30, "compute", 2, ranks=4, tp=at) for at in range(1, 50)]
    many = [candidate(Fate.SLOWER, 200 + at, 30 + at / 1000, "compute", 3, ranks=8, tp=at) for at in range(1, 9_000)]
    view = view_of([candidate(Fate.TIMED, 100, 50, "best", ranks=8, tp=1), *many, *few], ranks=(4, 8))
    shown, left_out = drawn_marks(view)
    assert len(shown) == DRAWN and left_out == 9_049 - DRAWN
    assert sum(each.ranks == 4 for _, each in shown) == len(few)
    text = candidates_chart(view)
    assert f"{left_out:,} further sets, those with the longest bounds, are not drawn" in text
    assert len(text) < 1_000_000
    assert data_of(text)["texts"][-1] == "8 ranks, one rank\nstep 100.0 ms, peak 50.0 GB\nthe best plan"


def test_texts_are_escaped_and_short() -> None:
    bad = "</script><script>alert(1)</script>"
    rows = [replace(FOUND[0], words={**FOUND[0].words, bad: bad}), replace(FOUND[1], code=bad, why=bad * 100)]
    view = replace(view_of(rows, systems=("h100", bad)), rooms={bad: 80 * GB})
    view = replace(view, plans=[bad, bad], commands={0: bad})
    text = candidates_chart(view, links={0: [Link(bad, f'/x"{bad}')]})
    assert text.count("<script") == 1 and bad not in text
    assert data_of(text)["chosen"]["0"]["links"] == [[bad, f'/x"{bad}']]
    assert max(len(line) for each in data_of(text)["texts"] for line in each.split("\n")) <= 201
    assert not re.search(r"<[^>]* (style|on\w+)=", text), "the policy of pages allows neither"


def test_a_search_without_bounds_draws_nothing() -> None:
    assert "nothing to draw" in candidates_chart(view_of(FOUND[-1:]))
    alone = candidates_chart(view_of(FOUND[:1], rooms={}))
    assert len(marks(alone)) == 1 and "Show" not in alone and 'class="room"' not in alone
