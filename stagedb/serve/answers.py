"""The answer to a query on a page: as a table, a chart or its plan, as files, and as a drawing on the page Explore."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, Protocol

from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Rows, Stagedb
from stagedb.errors import UsageError
from stagedb.files import printable, shown
from stagedb.reports.page_parts import LinearScale, percent
from stagedb.serve import page_frames
from stagedb.serve.list_pages import number_of
from stagedb.serve.page_frames import FORMATS, address, cell, cells, file_of, format_of, named

# Two columns of an answer as a chart: a bar for each row, or a line. Inline SVG without styles and scripts.

KINDS = ("bars", "line")
BARS = 100
"""Bars of a chart, at most."""
LABEL = 40
"""Characters of a bar's name."""
PLOT = 1000
"""The size of a line's own coordinates, which the page stretches."""


@dataclass(frozen=True)
class AnswerBar:
    """A row: its name, where its bar begins and how long it is, as shares of the width, and its value."""

    name: str
    start: str
    length: str
    value: str


@dataclass(frozen=True)
class AnswerChart:
    """A chart of columns x and y. numeric: columns that may be y. left_out: rows that it does not have."""

    kind: str
    x: str
    y: str
    columns: Sequence[str]
    numeric: Sequence[str]
    bars: Sequence[AnswerBar]
    line: str
    left_out: int


def can_chart(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bool:
    """Whether a column has numbers."""
    return bool(_numeric(columns, rows))


def chart_of(found: Rows, words: Mapping[str, str]) -> AnswerChart:
    """The chart that an address asks for with `x`, `y` and `chart`.

    Without them, x is the first column without numbers, or the first one, and y another one of numbers, the most
    important one. Raises UsageError for unknown words, and for an answer without numbers.
    """
    columns, rows = found.columns, found.rows
    numeric = sorted(_numeric(columns, rows), key=lambda name: name not in found.keep)
    if not numeric:
        raise UsageError("a chart needs a column of numbers, and this answer has none: look at its table")
    names = [name for name in columns if name not in numeric] or columns[:1]
    x = _chosen(named(words, "x"), columns, "a column") or names[0]
    y = _chosen(named(words, "y"), numeric, "a column of numbers") or next((n for n in numeric if n != x), numeric[0])
    at_x, at_y = columns.index(x), columns.index(y)
    pairs = [(row[at_x], float(row[at_y])) for row in rows if _is_number(row[at_y])]
    kind = _chosen(named(words, "chart"), KINDS, "a chart") or ("line" if _is_long_curve(pairs) else "bars")
    drawn = pairs[:BARS] if kind == "bars" else pairs
    bars = _bars(drawn) if kind == "bars" else []
    line = _line(drawn, x, y) if kind == "line" else ""
    return AnswerChart(kind, x, y, list(columns), numeric, bars, line, len(rows) - len(drawn))


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    found = []
    for at, name in enumerate(columns):
        values = [row[at] for row in rows if row[at] is not None]
        if values and all(_is_number(value) for value in values):
            found.append(name)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _chosen(word: str | None, known: Sequence[str], what: str) -> str | None:
    if word is not None and word not in known:
        raise UsageError(f"{shown(word)} is not {what} of this answer: it has {', '.join(known)}")
    return word


def _is_long_curve(pairs: Sequence[tuple[Any, float]]) -> bool:
    return len(pairs) > BARS and all(_is_number(x) for x, _ in pairs)


def _bars(pairs: Sequence[tuple[Any, float]]) -> list[AnswerBar]:
    low, high = min(0.0, *(y for _, y in pairs)), max(0.0, *(y for _, y in pairs))
    whole = high - low or 1.0
    return [
        AnswerBar(_short(x), percent(min(y, 0.0) - low, whole), percent(abs(y), whole), cell(_plain(y)).text)
        for x, y in pairs
    ]


def _line(pairs: Sequence[tuple[Any, float]], x_name: str, y_name: str) -> str:
    numbers = all(_is_number(x) for x, _ in pairs)
    ordered = sorted(pairs, key=lambda pair: float(pair[0])) if numbers else list(pairs)
    places = [float(x) if numbers else float(at) for at, (x, _) in enumerate(ordered)]
    x = LinearScale(min(places), max(places))
    y = LinearScale(min(0.0, *(value for _, value in ordered)), max(value for _, value in ordered) or 1.0)
    parts = []
    for tick in y.ticks():
        up = percent(1 - y.at(tick), 1)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{up}" y2="{up}"/>')
        parts.append(f'<text x="0" y="{up}" dy="-3">{escape(cell(_plain(tick)).text)}</text>')
    points = " ".join(
        f"{PLOT * x.at(place):.1f},{PLOT * (1 - y.at(value)):.1f}"
        for place, (_, value) in zip(places, ordered, strict=True)
    )
    parts.append(
        f'<svg viewBox="0 0 {PLOT} {PLOT}" preserveAspectRatio="none" width="100%" height="100%">'
        f'<polyline class="curve" points="{points}"/></svg>'
    )
    for place, (name, value) in zip(places, ordered, strict=True):
        title = escape(f"{_short(name)}: {cell(_plain(value)).text}")
        at = f'cx="{percent(x.at(place), 1)}" cy="{percent(1 - y.at(value), 1)}"'
        parts.append(f'<circle class="point" {at} r="3"><title>{title}</title></circle>')
    first, last = escape(_short(ordered[0][0])), escape(_short(ordered[-1][0]))
    label = escape(f"{y_name} along {x_name}", quote=True)
    return (
        f'<div class="plot"><svg role="img" aria-label="{label}">{"".join(parts)}</svg></div>'
        f'<p class="ends"><span>{first}</span><span>{escape(x_name)}</span><span>{last}</span></p>'
    )


def _plain(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _short(value: Any) -> str:
    text = printable(cell(value).text, kept="")
    return text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"


SHOWN = 500
"""Rows of an answer on a page. Downloads have more."""
CHARTED = 2_000
"""Rows of a chart."""
VIEWS = ("table", "chart", "plan", "profile")
"""What a page shows of an answer. `profile` is the plan with what it took, so that the query is run."""
PLANS: Mapping[str, Literal["explain", "profile"]] = {"plan": "explain", "profile": "profile"}


class Ask(Protocol):
    """A function that asks a store a query."""

    def __call__(self, db: Stagedb, most: int, plan: Literal["explain", "profile"] | None = None) -> Rows:
        """The answer with at most `most` rows, or the plan of the query."""


@dataclass(frozen=True)
class Question:
    """A query of an address. name: of its files. path, given: the address of its page. text: its Cypher."""

    ask: Ask
    name: str
    path: tuple[str, ...]
    given: Mapping[str, Any]
    text: str

    def at(self, **words: Any) -> str:
        """The address of the same question with further words."""
        return address(*self.path, **self.given, **words)


def answered(request: Request, template: str, question: Question, form: Mapping[str, Any]) -> Response:
    """A page with an answer, or the answer as a file.

    template: the page's. question: the query and its parameters. form: values that the template gets in addition.
    Raises UsageError for unknown words of the address.
    """
    shared, limits = request.app.state.shared, request.app.state.limits
    format_ = format_of(request)
    if format_ is not None:
        rows: Rows = shared.read(lambda db: question.ask(db, limits.rows))
        return file_of(rows, format_, question.name, cut=rows.cut)
    view = named(request.query_params, "view") or "table"
    if view not in VIEWS:
        raise UsageError(f"there is no view {view[:20]}: it is one of {', '.join(VIEWS)}")
    number = number_of(request.query_params, "page", 1)
    if number * SHOWN > limits.rows + SHOWN:
        raise UsageError(f"there is no page {number}: an answer has at most {limits.rows:,} rows here")
    most = min(CHARTED if view == "chart" else number * SHOWN, limits.rows)
    found: Rows = shared.read(lambda db: question.ask(db, most, PLANS.get(view)))
    if found.plan is not None and view not in PLANS:
        view = "profile" if found.plan.ran else "plan"  # the query's own text begins with EXPLAIN or PROFILE
    answer = {
        **_turned(found, question, number, view),
        "view": view,
        "hints": found.hints,
        "newest": list(found.newest.items()),
        "files": {each: question.at(format=each) for each in FORMATS},
        "views": _views(found, question, view),
        "plan": _plan(found),
        "measured": question.at(view="profile"),
        "given": [(name, value) for name, value in question.given.items() if value is not None],
        "to": address(*question.path),
        "chart": chart_of(found, request.query_params) if view == "chart" else None,
    }
    return page_frames.page(request, template, answer=answer, **{"error": None, **form})


def _turned(found: Rows, question: Question, number: int, view: str) -> dict[str, Any]:
    """The rows of one page, and the addresses of those before and after it."""
    shown = found.rows[(number - 1) * SHOWN :]
    turns = {"before": number - 1 if number > 1 else None, "after": number + 1 if found.cut else None}
    return {
        "columns": found.columns,
        "rows": cells(shown),
        "first": (number - 1) * SHOWN + 1,
        "count": len(found.rows) if view == "chart" else len(shown),
        "cut": found.cut,
        "turns": {word: question.at(page=at) for word, at in turns.items() if at is not None and view == "table"},
    }


def _views(found: Rows, question: Question, view: str) -> list[tuple[str, str, bool]]:
    """Names and addresses of the ways to look at an answer, and which one is shown.

    Those that need its rows are left out where they cannot show them. A plan alone has no rows to judge by.
    """
    unknown = view in PLANS
    views = [("Table", question.at(), view == "table")]
    if unknown or can_chart(found.columns, found.rows):
        views.append(("Chart", question.at(view="chart"), view == "chart"))
    if found.graph is not None and (unknown or found.graph.nodes):
        words = {name: value for name, value in question.given.items() if name != "ask"}
        views.append(("Graph", address("explore", **{**words, "query": question.text}), False))
    return [*views, ("Plan", question.at(view="plan"), view in PLANS)]


def _plan(found: Rows) -> dict[str, Any] | None:
    """The plan as a table of its operators, and as text."""
    if found.plan is None:
        return None
    columns = ["operator", "details", "expected rows", *(("rows", "hits in the store") if found.plan.ran else ())]
    rows = [
        [
            cell(f"{'· ' * step.depth}{step.operator}"),
            cell(step.details),
            cell(None if step.estimated is None else round(step.estimated)),
            *((cell(step.rows), cell(step.hits)) if found.plan.ran else ()),
        ]
        for step in found.plan.steps
    ]
    return {"ran": found.plan.ran, "columns": columns, "rows": rows, "text": found.plan.text}
