"""Tools about what was measured or timed: reports of profiles and runs, and what is in a run."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from stagedb import api
from stagedb.agents.agent_tools import AgentTool, Name, PageArguments, ToolArguments
from stagedb.agents.bounded_answers import AnswerLimits, PagedTable, ToolAnswer, paged
from stagedb.api import ProfileInfo, Rows, RunInfo, Stagedb
from stagedb.collectives import ALL_REDUCE
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import call
from stagedb.runs.measured_run import COUNTING, without_times

HEAD = 8
"""Rows of each table of a report."""

OF_PROFILES = ("critical_breakdown", "bubble_by_stage", "hotspots", "traffic_by_dimension", "longest_operators")
OF_RUNS = ("late_ranks", "critical_breakdown", "bubble_by_stage", "hotspots", "idle_gaps", "longest_operators")
"""Named queries of which a report has the first rows."""

RunName = Annotated[Name, Meta(description="Id or name of a run.")]


class _ReportArguments(ToolArguments, kw_only=True):
    word: Annotated[Name, Meta(description="Id or name of a profile or a run.")]


def _report(db: Stagedb, asked: _ReportArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.show(asked.word)
    if not isinstance(found, ProfileInfo | RunInfo):
        raise UsageError(
            f"{shown(asked.word)} is a {api.kind_of(found)}, and reports are of profiles and runs: "
            f"{call('ls', 'profiles')} and {call('ls', 'runs')} list them"
        )
    run = found.id if isinstance(found, RunInfo) else None
    profile = None if run else found.id
    which = f"{'run' if run else 'profile'} {found.id[:12]}"
    tables: dict[str, PagedTable] = {}
    untimed = isinstance(found, RunInfo) and found.times is None
    for name in COUNTING if untimed else OF_RUNS if run else OF_PROFILES:
        head = db.query(name, profile=profile, run=run, most=HEAD, timeout=limits.seconds)
        tables[name] = paged(head, 0, HEAD, f"the query {name} with {which} has the rest")
    facts: dict[str, Any] = {"properties": api.properties(found)}
    if isinstance(found, RunInfo):
        facts["extent"] = found.extent
        if found.times is not None:
            facts["spent"] = f"a rank {found.times.spent} of the time"
    return ToolAnswer(facts, tables)


class _RunRowsArguments(PageArguments, kw_only=True):
    run: RunName


class _RunOpsArguments(_RunRowsArguments, kw_only=True):
    rank: Annotated[int | None, Meta(description="Only ops of this rank.")] = None
    kind: Annotated[Name | None, Meta(description=f"Only ops of this kind, such as matmul or {ALL_REDUCE.name}.")] = (
        None
    )
    order: Annotated[
        Literal["start", "duration", "gap"], Meta(description="start: as they ran; else the largest first.")
    ] = "start"


def _run_ops(db: Stagedb, asked: _RunOpsArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.run_ops(asked.run)
    at = {name: place for place, name in enumerate(found.columns)}
    rows = [
        row for row in found.rows if asked.rank in (None, row[at["rank"]]) and asked.kind in (None, row[at["kind"]])
    ]
    if not rows:
        ranks, kinds = ({row[at[name]] for row in found.rows} for name in ("rank", "kind"))
        raise UsageError(
            f"the run has no such ops: its ranks are {_listed(ranks)}, and the kinds of its ops {_listed(kinds)}"
        )
    if asked.order != "start" and rows[0][at["start"]] is None:
        raise without_times(asked.run)
    if asked.order != "start":
        rows.sort(key=lambda row: -row[at[asked.order]])
    table = Rows(found.columns, tuple(rows), units=found.units)
    return ToolAnswer({}, asked.page(table, limits))


def _listed(values: set[Any]) -> str:
    names = sorted(map(str, values))
    return ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")


def _run_collectives(db: Stagedb, asked: _RunRowsArguments, limits: AnswerLimits) -> ToolAnswer:
    return ToolAnswer({}, asked.page(db.run_collectives(asked.run), limits))


class _ReplayArguments(ToolArguments, kw_only=True):
    run: RunName
    scale: Annotated[
        list[Name], Meta(max_length=20, description="Factors on durations, such as collective=0.5 or rank:3=0.9.")
    ] = field(default_factory=list)
    without: Annotated[list[Name], Meta(max_length=20, description="Kinds of dependencies to leave out.")] = field(
        default_factory=list
    )


def _replay(db: Stagedb, asked: _ReplayArguments, limits: AnswerLimits) -> ToolAnswer:
    del limits
    found = db.replay_run(asked.run, scale=asked.scale, without=asked.without)
    facts = {"measured": found.measured, "base": found.base, "step": found.step, "gaps": found.gaps, "unit": "ns"}
    return ToolAnswer(facts)


RUN_TOOLS: tuple[AgentTool[Any], ...] = (
    AgentTool(
        "report",
        "The figures of a profile or a run, and the first rows of the questions about its time: what is on the "
        "critical path, how ranks spend the time, communication that nothing hides, traffic, the longest operators.",
        _ReportArguments,
        _report,
    ),
    AgentTool(
        "run_ops",
        "The ops of a run that was recorded, a row for each op of each rank; times from the run's begin. work is the "
        "op's own time without waiting for other ranks, gap what no dependency explains before it.",
        _RunOpsArguments,
        _run_ops,
    ),
    AgentTool(
        "run_collectives",
        "The collectives and messages of a run, a row for each member. ready is when the last member began, waits how "
        "long this one waited for that, last the rank of it.",
        _RunRowsArguments,
        _run_collectives,
    ),
    AgentTool(
        "replay",
        "Time a run again from what its ops waited for: what would it take if some of it were faster?",
        _ReplayArguments,
        _replay,
    ),
)
