"""`diff`: the differences between two instances or two profiles."""

import dataclasses
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups, print_line
from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import Word

if TYPE_CHECKING:
    from stagedb.api import Difference, InstanceInfo, ProfileInfo, Rows, RunInfo

MOST = 24
"""Rows of a table on a terminal."""

MS = 1e6
"""Nanoseconds."""

TITLES_OF_RUNS = {
    "time": "times",
    "memory": "memory: bytes of a rank at moments of the step, expected and seen",
    "work": "what differs",
}

COMPARED = {"plan": "two plans", "memory": "a run and its plan"}
"""What has the tables that others do not have."""

TITLES_OF_SEVERAL = {"time": "the step and its terms: ns of a rank, for as many tokens"}

TITLES = {
    "plan": "words of the plans",
    "work": "work and messages of a step, all ranks together",
    "time": "time: figures, and the average time of a rank",
}


class DiffRows(StrEnum):
    """The values of `--show` in `diff`: which rows it prints."""

    PLAN = "plan"
    WORK = "work"
    TIME = "time"
    MEMORY = "memory"
    ALL = "all"


@option_groups
def diff(
    first: Annotated[
        str,
        typer.Argument(
            metavar="FIRST", help="Id or name of an instance or profile.", autocompletion=completion.compared
        ),
    ],
    second: Annotated[
        str, typer.Argument(metavar="SECOND", help="Another one of the same kind.", autocompletion=completion.compared)
    ],
    more: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MORE",
            help="Further ones, up to 8 in all: the fastest is compared with each of the others.",
            autocompletion=completion.compared,
        ),
    ] = None,
    show: Annotated[
        DiffRows | None,
        typer.Option(
            help="plan: words of the plans; work: calls, FLOPs and bytes by kind, axis and phase; time, for profiles: "
            "their figures and times; memory, for a run and a plan: bytes at moments of a step.  [all in a table, else "
            "time of profiles, work of instances]"
        ),
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="End with status 1 if the step of SECOND is longer than that of FIRST by more than this, such as 3%: "
            "for profiles, for as many tokens. The error names the term that grew.",
        ),
    ] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """Compare two to eight instances or profiles, or two runs.

    It begins with one sentence: which is faster, by how much, and what makes most of the difference. Only differences
    are printed. Instances have the times of their newest profiles, if all have one on one system.
    """
    printed = output.format is RowFormat.TABLE and output.output is None
    if show is DiffRows.ALL and not printed:
        raise UsageError("tables with different columns do not fit into one file: --show plan, work, time or memory")
    from stagedb import api

    if more:
        if fail_above is not None:
            raise UsageError(f"{Word('fail_above')} compares two steps, and {2 + len(more)} are named: name two")
        _write_several((first, second, *more), show, printed, output, common)
        return
    with common.connect() as db:
        found = db.diff(first, second, fail_above=fail_above)
    profiles = isinstance(found.first, api.ProfileInfo | api.RunInfo)
    chosen = show or (DiffRows.ALL if printed else DiffRows.TIME if profiles else DiffRows.WORK)
    _write(found, chosen, printed, output, common)
    if found.failed:
        raise StagedbError(found.failure)


def _write(found: "Difference", chosen: DiffRows, printed: bool, output: Output, common: Common) -> None:
    """The sentence and the chosen tables, shortened where they are printed."""
    write = common.line if printed else common.note
    if not found.same:
        write(f"{found.verdict}.")
    if found.remark:
        write(f"{found.remark}.")
    if found.memory_verdict:
        write(f"{found.memory_verdict}.")
    same = ": nothing differs" if found.same else ""
    write(f"first {_description(found.first)}, second {_description(found.second)}{same}")
    titles = TITLES if found.plan.columns else TITLES_OF_RUNS
    tables = {"plan": found.plan, "work": found.work, "time": found.time, "memory": found.memory}
    if chosen.value in COMPARED and not tables[chosen.value].columns:
        common.note(f"{chosen.value} is compared between {COMPARED[chosen.value]} only")
        if chosen.value not in titles and output.format is not RowFormat.TABLE:
            output.write((), (), provenance=found.provenance)  # whoever reads it expects a document
    for part, title in titles.items():
        rows = tables[part] if output.format is not RowFormat.TABLE else _in_ms(tables[part])
        if chosen.value == part:
            output.write(rows.columns, rows.rows, units=rows.units, provenance=found.provenance)
        elif chosen is DiffRows.ALL and rows.rows:
            print_line(f"\n{title}")
            output.write(rows.columns, rows.rows[:MOST], keep=rows.keep, units=rows.units)
            if len(rows) > MOST:
                common.line(f"and {len(rows) - MOST} more: --show {part} prints all")


def _in_ms(rows: "Rows") -> "Rows":
    """Rows that have units of their own, with ms in place of ns."""
    if "unit" not in rows.columns:
        return rows
    unit = rows.columns.index("unit")
    values = [at for at, name in enumerate(rows.columns) if name in ("first", "second")]

    def shown(row: tuple[Any, ...], at: int) -> Any:
        if row[unit] != "ns" and not row[unit].startswith("ns "):
            return row[at]
        if at == unit:
            return f"m{row[unit][1:]}"
        return row[at] / MS if at in values and row[at] is not None else row[at]

    shown_rows = tuple(tuple(shown(row, at) for at in range(len(row))) for row in rows.rows)
    return dataclasses.replace(rows, rows=shown_rows)


def _write_several(
    words: tuple[str, ...], show: DiffRows | None, printed: bool, output: Output, common: Common
) -> None:
    """The sentences on several and the chosen tables, shortened where they are printed."""
    with common.connect() as db:
        found = db.compare(*words)
    chosen = show or (DiffRows.ALL if printed else DiffRows.PLAN)
    write = common.line if printed else common.note
    for sentence in (found.verdict, *found.sentences):
        write(f"{sentence}.")
    for part, rows in {"plan": found.plan, "time": found.terms, "work": found.work}.items():
        if chosen.value == part:
            output.write(rows.columns, rows.rows, units=rows.units, provenance=found.provenance)
        elif chosen is DiffRows.ALL and rows.rows:
            print_line(f"\n{TITLES_OF_SEVERAL.get(part, TITLES[part])}")
            output.write(rows.columns, rows.rows[:MOST], units=rows.units)
            if len(rows) > MOST:
                common.line(f"and {len(rows) - MOST} more: --show {part} prints all")


def _description(info: "InstanceInfo | ProfileInfo | RunInfo") -> str:
    called = getattr(info, "called", None)
    if called is not None:
        return f"{info.id[:12]} {called}"
    if not hasattr(info, "system"):
        return f"{info.id[:12]} {info.name or ''}".rstrip()
    return (
        f"{info.id[:12]} {info.name or ''}".rstrip()
        + f" ({getattr(info, 'instance_name', '')} on {getattr(info, 'system', '')})"
    )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(diff)
