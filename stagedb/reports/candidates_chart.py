"""Pictures of plans at their step and memory, coloured by a word: the candidates of a search, and lists of plans.

It is inline SVG whose places are in percent, so that its texts keep their size at any width, and neither a style nor a
script is inside. `shared/candidates.js` adds what a reader does with it: tooltips, colours, choosing a plan.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from stagedb.errors import UsageError
from stagedb.files import GB, printable, shown
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.reports.page_frame import as_json
from stagedb.reports.page_parts import PALETTE, REASON_STYLES, LinearScale, Scale, percent
from stagedb.reports.search_view import SearchView
from stagedb.search import Candidate, Fate

DRAWN = 2_000
"""Candidates of a picture, at most: those with the best steps and bounds of each system and number of ranks."""

COLORS = 10
"""Colours of a picture. What has more values has one colour for the rarest of them."""

LONGEST = 200
"""Characters of a text of a candidate in a picture."""

MANY = 4.0
"""The largest value over the smallest one from which an axis is logarithmic."""

FEWEST = 4
"""Numbers of an axis."""

MOST_NUMBERS = 6
"""Numbers of an axis over several powers of ten, for which even the chart next to a list has room."""

MS = 1e6
"""Nanoseconds."""

WHY = "why"
"""The colours of why a plan loses, in addition to those of words."""

SHOWN = {"near": "near the best", "all": "all candidates", "timed": "plans that were timed"}
"""What a picture shows: candidates near the best plan, every candidate, or plans that were timed."""

NEAR = 1.1
"""How much longer than the longest plan that was timed a step near the best is, and larger than the memory a peak."""

LEAST = 0.5
"""A peak near the best as a share of the smallest one that was timed; smaller ones are bounds of many plans."""

OTHERS, NONE = "others", "none"

FREE = {NONE: 9, OTHERS: 8}
"""The colours of what is no value of a word."""

Mark = tuple[int, Candidate]
"""A candidate with its place."""

Axis = Scale | LinearScale


@dataclass(frozen=True)
class Coloring:
    """What colours mean. names: the values that have a colour. colors: their numbers, from 0. of: for each mark, which
    of the values it has."""

    word: str
    title: str
    names: Sequence[str]
    colors: Sequence[int]
    of: Sequence[int]


@dataclass(frozen=True)
class Link:
    """Where a chosen plan leads: an address with its text."""

    text: str
    to: str


def candidates_chart(
    view: SearchView,
    color: str | None = None,
    show: str | None = None,
    links: Mapping[int, Sequence[Link]] | None = None,
    *,
    form: bool = False,
) -> str:
    """The picture with its controls.

    color: the word whose values are colours; None for why plans lose. show: `all`, or `timed` alone; None: all. links:
    by place, where a plan leads. form: the controls send a form to the page itself, for readers without scripts.
    Raises UsageError for a word that does not vary, and for another text to show.
    """
    marks, left_out = drawn_marks(view)
    if not marks:
        return "<p>No candidate has a step and a memory that are known, so that there is nothing to draw.</p>"
    colorings = colorings_of(view, marks)
    chosen = _chosen(colorings, color)
    views = views_of(view, marks)
    if show is not None and show not in SHOWN:
        raise UsageError(f"a picture shows {', '.join(SHOWN)}, and not {shown(show)}")
    first = show if show in views else next(iter(views))
    data = {
        "colorings": [
            {"word": each.word, "names": each.names, "colors": each.colors, "of": "".join(map(str, each.of))}
            for each in colorings
        ],
        "places": [place for place, _ in marks],
        "texts": [_title(view, *mark) for mark in marks],
        "views": views,
        "chosen": _choices(view, marks, links or {}),
    }
    plots = "".join(
        _plot(view, [marks[at] for at in some], name, [chosen.colors[chosen.of[at]] for at in some], first)
        for name, some in views.items()
    )
    return (
        f'<figure class="candidates">{_controls(colorings, chosen, views, first, form)}{_legend(chosen)}{plots}'
        '<p class="hint">Point at a mark for its plan. Arrow keys go to the next; a click or Enter chooses it.</p>'
        f'<p class="picked" aria-live="polite"></p><figcaption>{escape(_caption(view, marks, left_out))}</figcaption>'
        f'<script type="application/json">{as_json(data)}</script></figure>'
    )


def drawn_marks(view: SearchView) -> tuple[list[Mark], int]:
    """Candidates with a known step and peak in the order of drawing, and how many others there are of these.

    Those that were timed are last, so that they are on top, and the best is the very last.
    """
    groups = [
        [mark for mark in candidates if mark[1].step > 0 and mark[1].peak > 0] for candidates in view.places.values()
    ]
    ranked = sorted(
        ((at, mark) for group in groups for at, mark in enumerate(group)), key=lambda row: (row[0], row[1][0])
    )
    some = [mark for _, mark in ranked[:DRAWN]]
    return sorted(some, key=lambda mark: (mark[1].fate is Fate.TIMED, -mark[0])), len(ranked) - len(some)


def views_of(view: SearchView, marks: Sequence[Mark]) -> dict[str, list[int]]:
    """What a picture may show, the usual first: for each, which of the marks. Views with the same marks are one."""
    timed = [at for at, (_, each) in enumerate(marks) if each.fate is Fate.TIMED]
    every = list(range(len(marks)))
    found = {"all": every}
    if timed:
        longest = NEAR * max(marks[at][1].step for at in timed)
        least = LEAST * min(marks[at][1].peak for at in timed)
        near = [
            at
            for at, (_, each) in enumerate(marks)
            if each.step <= longest and each.peak >= least and _almost_fits(view, each)
        ]
        found = {"near": near, "all": every, "timed": timed}
    return {name: some for name, some in found.items() if name == "all" or len(some) < len(every)}


def _almost_fits(view: SearchView, each: Candidate) -> bool:
    room = view.rooms.get(each.system)
    return room is None or each.peak <= NEAR * room


def colorings_of(view: SearchView, marks: Sequence[Mark]) -> list[Coloring]:
    """Why plans lose, and each word that has several values, as colours."""
    found = [_by_code([each.code or each.fate.value for _, each in marks])]
    words: dict[str, list[Any]] = {
        "system": [each.system for _, each in marks],
        "ranks": [each.ranks for _, each in marks],
    }
    there = {word for _, each in marks for word in each.words if word not in view.request.words}
    chosen = [*(word for word in PLAN_WORDS if word in there), *sorted(there - PLAN_WORDS.keys())]
    words |= {word: [each.words.get(word) for _, each in marks] for word in chosen}
    for word, values in words.items():
        texts = [NONE if value is None else value_text(value) for value in values]
        if len(set(texts)) > 1:
            found.append(coloring_by(word, texts, dict(zip(texts, values, strict=True))))
    return found


def _by_code(codes: Sequence[str]) -> Coloring:
    """Each usual reason has its own colour; others have those that are free."""
    names = _frequent(codes)
    own = {name: PALETTE.index(REASON_STYLES[name]) for name in names if name in REASON_STYLES}
    free = (at for at in range(len(PALETTE)) if at not in own.values())
    colors = [own[name] if name in own else next(free) for name in names]
    return Coloring(WHY, "why it loses", names, colors, _places(codes, names))


def coloring_by(word: str, texts: Sequence[str], values: Mapping[str, Any]) -> Coloring:
    """A colour for each of the most frequent texts, in the order of their values.

    texts: the value of each mark as a text; `none` if it has no value. values: what the texts mean. word: the plan's
    word that has these values.
    """

    def order(name: str) -> tuple[int, float, str]:
        value = values.get(name)
        if name in FREE:
            return (2, 0.0, name)
        return (
            (0, float(value), "") if isinstance(value, int | float) and not isinstance(value, bool) else (1, 0.0, name)
        )

    names = sorted(_frequent(texts), key=order)
    others = iter(at for at in range(COLORS) if at not in [FREE[name] for name in names if name in FREE])
    colors = [FREE[name] if name in FREE else next(others) for name in names]
    return Coloring(word, word.replace("_", " "), names, colors, _places(texts, names))


def _frequent(texts: Sequence[str]) -> list[str]:
    """The most frequent texts, as many as there are colours. Where there are more, the last one means all others."""
    names = [name for name, _ in Counter(texts).most_common()]
    return names if len(names) <= COLORS else [*names[: COLORS - 1], OTHERS]


def _places(texts: Sequence[str], names: Sequence[str]) -> list[int]:
    known = {name: at for at, name in enumerate(names)}
    return [known[text] if text in known else known[OTHERS] for text in texts]


def value_text(value: Any) -> str:
    """A value of a plan's word as a legend has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return _short(text)


def _short(text: str) -> str:
    plain = printable(text, kept="")
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}…"


def _chosen(colorings: Sequence[Coloring], color: str | None) -> Coloring:
    words = {each.word: each for each in colorings}
    if color is not None and color not in words:
        raise UsageError(f"the picture has no colours for {shown(color)}: it is one of {', '.join(words)}")
    return words[color or WHY]


def _choices(view: SearchView, marks: Sequence[Mark], links: Mapping[int, Sequence[Link]]) -> dict[str, dict[str, Any]]:
    """What a reader gets who chooses a plan: its command, and where it leads."""
    return {
        str(place): {
            "command": view.commands.get(place),
            "links": [[_short(each.text), each.to] for each in links.get(place, ())],
        }
        for place, each in marks
        if each.fate is Fate.TIMED
    }


def _controls(colorings: Sequence[Coloring], chosen: Coloring, views: Mapping[str, Any], show: str, form: bool) -> str:
    words = "".join(
        f'<option value="{escape(each.word)}"{" selected" if each is chosen else ""}>{escape(each.title)}</option>'
        for each in colorings
    )
    shows = "".join(
        f'<option value="{each}"{" selected" if each == show else ""}>{SHOWN[each]}</option>' for each in views
    )
    fields = f'<label>Colour <select name="color">{words}</select></label>'
    if len(views) > 1:
        fields += f'<label>Show <select name="show">{shows}</select></label>'
    if form:
        return f'<form class="controls filters" method="get">{fields}<button>Draw</button></form>'
    return f'<div class="controls filters">{fields}</div>'


def _legend(chosen: Coloring) -> str:
    items = "".join(
        f'<span><i class="k{color}"></i>{escape(name)}</span>'
        for name, color in zip(chosen.names, chosen.colors, strict=True)
    )
    return f'<p class="legend">{items}</p>'


def _caption(view: SearchView, marks: Sequence[Mark], left_out: int) -> str:
    """What the marks mean, and what is not drawn."""
    sets = [each for _, each in marks if each.fate is not Fate.TIMED]
    plans = sum(each.plans for each in sets)
    nowhere = [each for each in view.result.candidates if not (each.step > 0 and each.peak > 0)]
    text = "A filled mark is a plan that was timed; the line is the front of step against memory"
    text += ", one of each system and number of ranks." if view.several else "."
    if sets:
        text += (
            f" A hollow mark is a set of plans that was ruled out or not tried, at the bounds of its step and memory: "
            f"{len(sets):,} of them are {plans:,} plans, and the larger the mark, the more plans it is."
        )
    if left_out:
        text += f" {left_out:,} further sets, those with the longest bounds, are not drawn."
    if nowhere:
        why = "that were refused" if all(each.fate is Fate.REFUSED for each in nowhere) else "without bounds"
        text += f" {sum(each.plans for each in nowhere):,} plans {why} have no place."
    return text


def _plot(view: SearchView, marks: Sequence[Mark], name: str, colors: Sequence[int], first: str) -> str:
    """One of the views. colors: of the marks. first: the name of the view that a reader sees first."""
    x = axis_over([each.peak / GB for _, each in marks])
    y = axis_over([each.step / MS for _, each in marks])
    circles = "".join(_mark(view, mark, x, y, color) for mark, color in zip(marks, colors, strict=True))
    what = "plans that were timed" if name == "timed" else "candidates"
    label = f"{len(marks):,} {what} by peak memory and step"
    return (
        f'<div class="area" data-show="{name}"{"" if name == first else " hidden"}><p class="unit">step, ms</p>'
        f'<div class="field" tabindex="0" role="application" aria-label="{label}">'
        f'<svg aria-hidden="true">{grid_of(x, y)}{rooms_at(view.rooms, x)}{_fronts(view, x, y)}'
        f'<g class="marks">{circles}</g><circle class="ring" r="8"/></svg></div>'
        '<p class="axis">peak memory of the fullest rank, GB</p></div>'
    )


def axis_over(values: Sequence[float]) -> Axis:
    """An axis with room around the values: logarithmic where they differ by much."""
    low, high = min(values), max(values)
    if high / low > MANY:
        room = (high / low) ** 0.05
        return Scale(low / room, high * room)
    room = 0.06 * (high - low) or 0.06 * high
    return LinearScale(low - room, high + room)


def _ticks(axis: Axis) -> list[float]:
    """Round values of an axis, at least a few, and no more than there is room for."""
    if not isinstance(axis, Scale):
        return [value for value in axis.ticks() if axis.low <= value <= axis.high]
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)))
    found: list[float] = []
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        values = [step * 10.0**power for power in powers for step in steps]
        finer = [value for value in values if axis.low <= value <= axis.high]
        if len(found) >= FEWEST or (found and len(finer) > MOST_NUMBERS):
            break
        found = finer
    return found


def grid_of(x: Axis, y: Axis) -> str:
    """Lines and numbers of both axes. On a narrow page every second number of the horizontal one is left out.

    x: the horizontal axis. y: the vertical one.
    """
    found = []
    for value in _ticks(y):
        at = percent(1 - y.at(value), 1)
        found.append(f'<line class="grid" x1="0" x2="100%" y1="{at}" y2="{at}"/>')
        found.append(f'<text class="y" x="-8" y="{at}" dy="4">{value:,.6g}</text>')
    for number, value in enumerate(_ticks(x)):
        at = percent(x.at(value), 1)
        found.append(f'<line class="tick" x1="{at}" x2="{at}" y1="100%" y2="100%"/>')
        found.append(f'<text class="x{" odd" if number % 2 else ""}" x="{at}" y="100%" dy="18">{value:,.6g}</text>')
    return "".join(found)


def rooms_at(rooms: Mapping[str, int | None], x: Axis) -> str:
    """A line at the memory of an accelerator of each system.

    rooms: bytes for tensors, by name of a system; None: no limit. x: the horizontal axis, in GB.
    """
    found = []
    for number, (name, room) in enumerate(list(rooms.items())[:COLORS]):
        if room is not None and x.low < room / GB < x.high:
            at = percent(x.at(room / GB), 1)
            text = f"{room / GB:,.1f} GB" if len(rooms) == 1 else f"{room / GB:,.1f} GB, {name}"
            near = "end" if x.at(room / GB) > 0.5 else "start"
            found.append(
                f'<line class="room" x1="{at}" x2="{at}" y1="0" y2="100%"/>'
                f'<text class="note" text-anchor="{near}" x="{at}" y="0" dx="{-5 if near == "end" else 5}" '
                f'dy="{-6 - 14 * number}">'
                f"{escape(_short(text))}</text>"
            )
    return "".join(found)


def _fronts(view: SearchView, x: Axis, y: Axis) -> str:
    """The front of each system and number of ranks, as stairs: with a plan's memory, no timed plan is shorter."""
    found, named = list[str](), list[str]()
    for system, ranks in view.places:
        room = view.rooms.get(system)
        end = "100%" if room is None else percent(min(x.at(room / GB), 1), 1)
        corners = [
            (percent(x.at(each.candidate.peak / GB), 1), percent(1 - y.at(each.candidate.step / MS), 1))
            for each in view.memory_front(system, ranks)
        ]
        found += [_line(end, corners[0][1], *corners[0])] if corners else []
        for (right, top), (left, bottom) in itertools.pairwise(corners):
            found += [_line(right, top, right, bottom), _line(right, bottom, left, bottom)]
        found += [_line(*corners[-1], corners[-1][0], "0")] if corners else []
        if corners and view.several:
            named.append(
                f'<text class="named" text-anchor="end" x="{end}" y="{corners[0][1]}" dx="-6" dy="-5">'
                f"{escape(_world(view, system, ranks))}</text>"
            )
    return "".join([*found, *named[:COLORS]])


def _world(view: SearchView, system: str, ranks: int) -> str:
    """The system and the number of ranks, where these differ from plan to plan."""
    parts = [system] * (len(view.request.systems) > 1) + [f"{ranks:,} ranks"] * (len(view.request.ranks) > 1)
    return _short(", ".join(parts))


def _line(x1: str, y1: str, x2: str, y2: str) -> str:
    return f'<line class="front" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _mark(view: SearchView, mark: Mark, x: Axis, y: Axis, color: int) -> str:
    place, each = mark
    timed = each.fate is Fate.TIMED
    size = (6.5 if place == 0 else 5.0) if timed else 2.5 + min(len(str(each.plans)), 6) * 0.75
    # Readers without scripts have the plans that were timed; the script has the texts of all marks.
    title = f"<title>{escape(_title(view, place, each))}</title>" if timed else ""
    style = f"k{color}{'' if timed else ' set'}{' best' if timed and place == 0 else ''}"
    return (
        f'<circle class="{style}" cx="{percent(x.at(each.peak / GB), 1)}" cy="{percent(1 - y.at(each.step / MS), 1)}" '
        f'r="{size:g}">{title}</circle>'
    )


def _title(view: SearchView, place: int, each: Candidate) -> str:
    """The plan of a mark and its figures, a line each."""
    least = "" if each.fate is Fate.TIMED else "≥ "
    many = f"{each.plans:,} plans: " if each.plans > 1 else ""
    world = [_world(view, each.system, each.ranks)] if view.several else []
    lines = [
        f"{many}{', '.join([*world, view.plans[place]])}",
        f"step {least}{each.step / MS:,.1f} ms, peak {least}{each.peak / GB:,.1f} GB",
        "the best plan" if each.code == "best" else each.why or each.code or each.fate.value,
    ]
    return "\n".join(map(_short, lines))


# The picture of a list of plans: each at its memory and its step or tokens a second, coloured by a word.
#
# It is inline SVG as that of a search (`candidates_chart`), with its styles. Each mark is a link, so that it needs no
# script.

FIGURES: Final[Mapping[str, str]] = {"tokens": "tokens/s an accelerator", "step": "step, ms"}
"""What the vertical axis may show, and its name."""

LONGEST_PLAN = 120
"""Characters of the name of a mark."""


@dataclass(frozen=True)
class PlanMark:
    """A plan to draw. memory [bytes] and both figures (step in ns) are above 0. value: of the word that colours mean.

    to: where the mark leads. here: whether its row is on the page.
    """

    name: str
    plan: str
    memory: int
    step: int
    tokens: float
    fits: bool
    value: Any
    to: str
    here: bool

    def figure(self, name: str) -> float:
        """A figure of `FIGURES`, in the unit of the axis. name: of the figure."""
        return self.step / MS if name == "step" else self.tokens

    @property
    def text(self) -> str:
        """Name, figures and plan of the mark, for a tooltip and for screen readers."""
        fits = "" if self.fits else ", does not fit"
        figures = (
            f"{self.tokens:,.1f} tokens/s an accelerator, step {self.step / MS:,.1f} ms, {self.memory / GB:,.2f} GB"
        )
        return f"{_short_plan(self.name)}: {figures}{fits}. {_short_plan(self.plan)}".strip()


def plans_chart(marks: Sequence[PlanMark], figure: str, word: str, rooms: Mapping[str, int], left_out: int = 0) -> str:
    """The picture, with its legend and a sentence on the best plan that fits. Empty without marks.

    figure: of `FIGURES`. word: what colours mean, as people read it. rooms: memory of an accelerator, by the
    systems that have it.
    left_out: plans that are not drawn.
    """
    if not marks:
        return ""
    texts = [NONE if mark.value is None else value_text(mark.value) for mark in marks]
    coloring = coloring_by(word, texts, dict(zip(texts, (mark.value for mark in marks), strict=True)))
    x = axis_over([mark.memory / GB for mark in marks])
    y = axis_over([mark.figure(figure) for mark in marks])
    # Rows of this page are drawn last, on top of the others.
    order = sorted(range(len(marks)), key=lambda at: marks[at].here)
    circles = "".join(
        _plan_mark(
            marks[at],
            percent(x.at(marks[at].memory / GB), 1),
            percent(1 - y.at(marks[at].figure(figure)), 1),
            coloring.colors[coloring.of[at]],
        )
        for at in order
    )
    legend = "".join(
        f'<span><i class="k{color}"></i>{escape(name)}</span>'
        for name, color in zip(coloring.names, coloring.colors, strict=True)
    )
    title = f"{len(marks):,} plans by memory and {FIGURES[figure].removesuffix(', ms')}"
    about = best_sentence(marks)
    more = f" {left_out:,} further plans are not drawn." if left_out else ""
    return (
        f'<figure class="candidates plans-chart"><p class="legend"><b>{escape(word)}</b>{legend}</p>'
        f'<div class="area"><p class="unit">{FIGURES[figure]}</p><div class="field">'
        f'<svg role="group" aria-labelledby="plans-title" aria-describedby="plans-about">'
        f'<title id="plans-title">{escape(title)}, coloured by {escape(word)}</title>'
        f'<desc id="plans-about">{escape(about)}</desc>'
        f'{grid_of(x, y)}{rooms_at(rooms, x)}<g class="marks">{circles}</g></svg></div>'
        '<p class="axis">memory of the fullest rank, GB</p></div>'
        f"<figcaption>{escape(about + more)}</figcaption></figure>"
    )


def best_sentence(marks: Sequence[PlanMark]) -> str:
    """Which plan that fits has the most tokens a second an accelerator."""
    fitting = [mark for mark in marks if mark.fits]
    if not fitting:
        return "None of these plans fits the accelerator's memory."
    best = max(fitting, key=lambda mark: mark.tokens)
    return f"The most tokens a second an accelerator of those that fit: {best.text}"


def _plan_mark(mark: PlanMark, x: str, y: str, color: int) -> str:
    here = "" if mark.here else ' tabindex="-1"'
    style = f"k{color}{'' if mark.here else ' away'}{'' if mark.fits else ' set'}"
    text = escape(mark.text)
    return (
        f'<a href="{escape(mark.to)}"{here} aria-label="{text}"><circle class="{style}" cx="{x}" cy="{y}" '
        f'r="{5 if mark.here else 3.5:g}"><title>{text}</title></circle></a>'
    )


def _short_plan(text: str) -> str:
    plain = printable(text, kept="")
    return plain if len(plain) <= LONGEST_PLAN else f"{plain[:LONGEST_PLAN]}…"
