"""Runs that were recorded: where their time goes, who waits for whom, what is on the critical path."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Rows, RunInfo, Stagedb, run_views
from stagedb.serve import page_frames, step_pages
from stagedb.serve.compare_page import to_instance
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell
from stagedb.serve.step_pages import HANDS_OVER, report_answer, trace_answer

MOST = 12
"""Rows of a table of the page."""

TABLES: Mapping[str, str] = {
    "run_against_plan": "What differs from its plan",
    "late_ranks": "Ranks that the others wait for",
    "critical_breakdown": "What is on the critical path",
    "hotspots": "Communication that nothing hides",
    "idle_gaps": "Kernels after gaps of the critical path",
    "longest_operators": "Operators by the time they take",
    "module_time": "Time by module",
}
"""Named queries that the page answers, with their titles."""

COUNTED: Mapping[str, str] = {
    "run_against_plan": "What differs from its plan",
    "collectives_by_group": "What its ranks communicate",
    "ops_by_module": "What ran most often",
}
"""Those of a run without times."""

NO_TIMES = (
    "<p>The files of this run have no times: it has no timeline, no critical path and no report. Import the traces of "
    "the profiler of the same ranks for these.</p>"
)

Table = tuple[str, str, list[str], list[list[Cell]]]
"""A query, its title, its columns and rows."""


def run(request: Request) -> Response:
    """A run: what was recorded, and the answers to the first questions about it."""
    word = request.path_params["word"]

    def read(db: Stagedb) -> tuple[RunInfo, list[Table], Rows, tuple[str, bool]]:
        found = _run(db, word)
        tables = [_table(db, found.id, *each) for each in (COUNTED if found.times is None else TABLES).items()]
        return found, tables, db.origin(found.id), to_instance(db, found)

    shared, kept = request.app.state.shared, request.app.state.kept
    info, tables, origin, (expected, matched) = shared.read(read)

    key = ("run parts", info.id)

    def parts() -> str:
        if info.times is None:
            return NO_TIMES
        made: str = kept.get(key, lambda: shared.read(lambda db: run_views.run_report_parts(db.store, info).html))
        return made

    answer = page_frames.page_in_parts(
        request,
        "run.html",
        parts,
        ready=kept.has(key),
        info=info,
        short=info.id[:SHORT_ID],
        about=", ".join([info.extent, *info.devices]),
        expected=expected,
        matched=matched,
        report=address("runs", info.id, "report"),
        trace=address("runs", info.id, "trace"),
        perfetto=step_pages.PERFETTO,
        has_times=info.times is not None,
        gaps="" if info.times is None else f"On it: {info.times.gaps} of the time.",
        tables=[table for table in tables if table[3]],
        origin=page_frames.origin(origin),
    )
    answer.headers["cross-origin-opener-policy"] = HANDS_OVER
    return answer


def trace(request: Request) -> Response:
    """The timeline of a run as a file for Perfetto, as `stagedb timeline --run` writes it."""
    shared = request.app.state.shared
    info = shared.read(lambda db: _run(db, request.path_params["word"]))
    content: bytes = shared.read(lambda db: run_views.perfetto_trace(db.store, info))
    return trace_answer(content, info.name or info.id[:SHORT_ID], info.id)


def report(request: Request) -> Response:
    """The report of a run, as `stagedb report --run` writes it."""
    shared, kept = request.app.state.shared, request.app.state.kept
    word = request.path_params["word"]
    info = shared.read(lambda db: _run(db, word))
    key = ("run", info.id, info.name)
    return report_answer(kept.get(key, lambda: shared.read(lambda db: run_views.run_report(db.store, info))))


def _run(db: Stagedb, word: str) -> RunInfo:
    found = db.show(word)
    if not isinstance(found, RunInfo):
        raise HTTPException(404)
    return found


def _table(db: Stagedb, run: str, query: str, title: str) -> Table:
    """The first rows of an answer about a run, with the columns that hold the answer."""
    answer = db.query(query, run=run, most=MOST)
    # A column of figures that were not recorded is null, or 0, in every row.
    recorded = [any(row[place] for row in answer.rows) for place in range(len(answer.columns))]
    every = [answer.columns.index(name) for name in answer.keep]  # the most important first, which a phone shows
    places = [place for place in every if recorded[place]]
    kept = [answer.columns[place] for place in places]
    heads = [_head(name, answer.units.get(name)) for name in kept]
    rows = [[_shown(row[place], answer.units.get(answer.columns[place])) for place in places] for row in answer.rows]
    return query, title, heads, rows


def _head(name: str, unit: str | None) -> str:
    shown = {"ns": "ms", "ratio": "%", "B": ""}.get(unit or "", unit)
    return ("time" if name == "ns" else name.replace("_", " ")) + (f" {shown}" if shown else "")


def _shown(value: Any, unit: str | None) -> Cell:
    """A value as people read it: times in ms, shares in percent."""
    if isinstance(value, int | float) and unit in ("ns", "ratio"):
        return Cell(f"{value / 1e6:,.3f}" if unit == "ns" else f"{value:.1%}".rstrip("%"), number=True)
    return cell(value)
