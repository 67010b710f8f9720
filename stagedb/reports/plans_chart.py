"""The picture of a list of plans: each at its memory and its step or tokens a second, coloured by a word.

It is inline SVG as that of a search (`candidates_chart`), with its styles. Each mark is a link, so that it needs no
script.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from stagedb.files import GB, printable
from stagedb.reports.candidates_chart import MS, NONE, axis_over, coloring_by, grid_of, rooms_at, value_text
from stagedb.reports.page_parts import percent

FIGURES: Final[Mapping[str, str]] = {"tokens": "tokens/s an accelerator", "step": "step, ms"}
"""What the vertical axis may show, and its name."""

LONGEST = 120
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
        return f"{_short(self.name)}: {figures}{fits}. {_short(self.plan)}".strip()


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
        _mark(
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


def _mark(mark: PlanMark, x: str, y: str, color: int) -> str:
    here = "" if mark.here else ' tabindex="-1"'
    style = f"k{color}{'' if mark.here else ' away'}{'' if mark.fits else ' set'}"
    text = escape(mark.text)
    return (
        f'<a href="{escape(mark.to)}"{here} aria-label="{text}"><circle class="{style}" cx="{x}" cy="{y}" '
        f'r="{5 if mark.here else 3.5:g}"><title>{text}</title></circle></a>'
    )


def _short(text: str) -> str:
    plain = printable(text, kept="")
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}…"
