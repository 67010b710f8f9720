"""What the page that compares draws: stacked bars, with the words for who does not see them, and rows of tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from stagedb.api import PlanComparison
from stagedb.files import GB
from stagedb.reports.memory_sections import CATEGORIES
from stagedb.reports.page_parts import TERM_STYLES, term_style
from stagedb.reports.step_difference import ComparedTerm, differs_most, shares_of, time_text
from stagedb.reports.terminal_chart import span
from stagedb.serve.page_frames import address, gigabytes


@dataclass(frozen=True)
class DrawnPiece:
    """A piece of a bar, from `x` on [% of the whole]. style: its colour. title: what it is."""

    style: str
    x: float
    width: float
    title: str


@dataclass(frozen=True)
class StackedBar:
    """A bar with its name and its sum. described: all of it in words."""

    label: str
    note: str
    pieces: tuple[DrawnPiece, ...]
    described: str


@dataclass(frozen=True)
class StackedBars:
    """Bars on one scale. legend: colours and what they mean. room: a mark on all bars [%], and its name."""

    bars: tuple[StackedBar, ...]
    legend: tuple[tuple[str, str], ...]
    room: tuple[float, str] | None = None


@dataclass(frozen=True)
class TermRow:
    """A term of several steps: its time and share of each. most: whether it differs the most."""

    text: str
    cells: tuple[tuple[str, str], ...]
    spread: str
    most: bool


@dataclass(frozen=True)
class FigureRow:
    """The first figures of what is compared, as texts. to, profile: addresses. best: whether it is the fastest."""

    name: str
    to: str
    profile: str | None
    system: str
    best: bool
    step: str
    tokens: str
    mfu: str
    memory: str
    fits: str
    ranks: str


def term_bars(names: Sequence[str], terms: Sequence[ComparedTerm], steps: Sequence[float]) -> StackedBars:
    """A bar of terms for each step. steps: their lengths [ns], for as many tokens as the terms.

    names: of the steps.
    """
    totals = [sum(each.values[at] for each in terms) for at in range(len(steps))]
    bars = []
    for at, (name, step) in enumerate(zip(names, steps, strict=False)):
        shares = shares_of(terms, at)
        parts = [
            (term_style(each.name), each.values[at], f"{each.text}: {time_text(each.values[at])}, {share:.1%}")
            for each, share in zip(terms, shares, strict=True)
        ]
        bars.append(stacked_bar(name, span(step, 4, zeros=True), parts, max(totals)))
    return StackedBars(tuple(bars), tuple((term_style(each.name), each.text) for each in terms))


def term_rows(terms: Sequence[ComparedTerm]) -> list[TermRow]:
    """The terms of several steps as rows of a table."""
    if not terms:
        return []
    most = differs_most(terms)
    shares = [shares_of(terms, at) for at in range(len(terms[0].values))]
    return [
        TermRow(
            each.text,
            tuple((time_text(ns), f"{shares[at][place]:.1%}") for at, ns in enumerate(each.values)),
            time_text(each.spread),
            each is most,
        )
        for place, each in enumerate(terms)
    ]


def memory_bars(found: PlanComparison) -> StackedBars:
    """A bar of memory for each compared plan, and the memory of an accelerator if all plans have the same."""
    totals = _totals(found)
    rooms = {each.room for each in found.profiles}
    room = rooms.pop() if len(rooms) == 1 else None
    whole = max([*totals, room or 0])
    bars = []
    for at, (name, total) in enumerate(zip(found.names, totals, strict=True), 1):
        parts = [memory_part(row[0], row[at]) for row in found.memory.rows]
        bars.append(stacked_bar(name, f"{total / GB:,.1f} GB", parts, whole))
    legend = tuple((_category(row[0]), row[0].replace("_", " ")) for row in found.memory.rows)
    return StackedBars(tuple(bars), legend, None if room is None else (100 * room / whole, gigabytes(room)))


def figure_rows(found: PlanComparison) -> list[FigureRow]:
    """The first figures of each compared plan, the fastest marked where one is faster than another."""
    rates = [each.rate for each in found.sums]
    rows = []
    for at, (name, instance, size) in enumerate(zip(found.names, found.instances, _totals(found), strict=True)):
        profile = found.profiles[at] if found.profiles else None
        a_second = None if profile is None else profile.tokens_per_second
        room = None if profile is None else profile.room
        rows.append(
            FigureRow(
                name=name,
                to=address("instances", instance.id),
                profile=None if profile is None else address("profiles", profile.id),
                system="" if profile is None else profile.system,
                best=bool(rates) and rates[at] == max(rates) > min(rates),
                step="" if profile is None else span(profile.step, 4, zeros=True),
                tokens="" if a_second is None else f"{a_second / instance.ranks:,.1f}",
                mfu="" if profile is None or profile.mfu is None else f"{profile.mfu:.1%}",
                memory=gigabytes(size) if size else "",
                fits="" if room is None else "yes" if size <= room else "no",
                ranks=f"{instance.ranks:,}",
            )
        )
    return rows


def memory_part(category: str, size: int) -> tuple[str, float, str]:
    """A category of memory as a part of a bar: its colour, its bytes, and both in words.

    category: of `stagedb.memory`. size: in bytes.
    """
    return _category(category), size, f"{category.replace('_', ' ')}: {gigabytes(size)}"


def _totals(found: PlanComparison) -> list[int]:
    """Bytes of each at its peak."""
    return [sum(row[at] for row in found.memory.rows) for at in range(1, len(found.names) + 1)]


def stacked_bar(name: str, note: str, parts: Sequence[tuple[str, float, str]], whole: float) -> StackedBar:
    """A bar of parts: the style, the value and the title of each. whole: what is as long as the field.

    name: of the bar. note: the text at its end.
    """
    pieces, start = [], 0.0
    for style, value, title in parts:
        width = 100 * value / whole if whole else 0.0
        if width:
            pieces.append(DrawnPiece(style, start, width, title))
        start += width
    described = "; ".join(title for _, value, title in parts if value)
    return StackedBar(name, note, tuple(pieces), f"{name}, {note}: {described}")


def _category(name: str) -> str:
    return f"m{CATEGORIES.index(name)}" if name in CATEGORIES else TERM_STYLES["other"]
