"""The answer to a query on a page: as a table, a chart or its plan, as files, and as a drawing on the page Explore."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Rows, Stagedb
from stagedb.errors import UsageError
from stagedb.serve import page_frames
from stagedb.serve.answer_chart import can_chart, chart_of
from stagedb.serve.downloads import FORMATS, file_of, format_of
from stagedb.serve.list_pages import number_of
from stagedb.serve.page_frames import address, cell, cells, named

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
