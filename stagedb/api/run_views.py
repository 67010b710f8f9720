"""What is made of a run that was imported: traces, timelines, tables, and the run timed again."""

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stagedb.api import comparing, lookup, matching, team
from stagedb.api.results import Rows, RunInfo, Unpacked
from stagedb.api.system_choice import resolve_system
from stagedb.api.trace_sets import WriteProgress, figures_of
from stagedb.api.views import place_of
from stagedb.errors import UsageError
from stagedb.files import file_name, write_whole
from stagedb.mentions import Word
from stagedb.reports.report_page import PageParts
from stagedb.reports.run_report import render_run, run_parts
from stagedb.reports.run_trace import trace_run
from stagedb.reports.seen_step import SeenPlan
from stagedb.runs.chakra_traces import run_traces
from stagedb.runs.rank_trace import NONE
from stagedb.runs.stored_run import RunWhatIf, StoredRun, scaling_of, what_if
from stagedb.store import Store
from stagedb.store.contents.run_reading import read_any_run, read_run
from stagedb.systems.system import System
from stagedb.traces import Request
from stagedb.traces.set_output import Counter, WriteClock, write_set


@dataclass(frozen=True)
class ViewedRun:
    """A file that shows a run. bytes: its size. slices, flows: their numbers in a timeline."""

    path: Path
    bytes: int
    run: RunInfo
    slices: int = 0
    flows: int = 0


FORMATS_OF_RUNS = ("et", "json")
"""Formats in which a run is exported: each of its ranks has a file."""


@dataclass(frozen=True)
class ExportedRun(Unpacked):
    """The traces of a run on disk. left_out: what simulators run in another way than it was, as sentences."""

    run: RunInfo
    left_out: tuple[str, ...] = ()


def export_run(
    store: Store, word: str, request: Request, system: str | Path | System | None, progress: WriteProgress | None
) -> ExportedRun:
    """See `Stagedb.export_run`."""
    if request.format not in FORMATS_OF_RUNS:
        raise UsageError(f"a run is exported as {' or '.join(FORMATS_OF_RUNS)}: leave out {Word('format')}")
    info = lookup.the_run(store, word)
    clock, counter = WriteClock(), Counter(progress)
    if request.out == Path():
        request = replace(request, out=Path(_file_name(info)))
    request.check(info.world, None)
    inputs = resolve_system(system)
    with clock.stage("read"):
        run = read_run(store, info.id)
    with clock.stage("encode"):
        made = run_traces(run, inputs)
    request.check_job(made.traces.job)
    done = write_set(made.traces, request, counter=counter, clock=clock)
    return ExportedRun(path=request.out, run=info, left_out=made.left_out, **figures_of(done))


def _file_name(run: RunInfo) -> str:
    """The last name of a run, or the begin of its id, and the number of its ranks."""
    name = run.names[0].rpartition("/")[2] if run.names else run.id[:12]
    return f"{file_name(name)}-{run.world}"


def save_run_timeline(store: Store, word: str, out: str | Path | None, force: bool) -> ViewedRun:
    """See `Stagedb.timeline_run`."""
    info = lookup.the_run(store, word)
    path = place_of(_file_name(info), out, ".pftrace", force)
    made = trace_run(read_run(store, info.id))
    write_whole(path, made.content, str(Word("out")))
    return ViewedRun(path, len(made.content), info, made.slices, made.flows)


def perfetto_trace(store: Store, info: RunInfo) -> bytes:
    """The timeline of a run, as `save_run_timeline` writes it. Writes nothing."""
    return trace_run(read_run(store, info.id)).content


def save_run_report(store: Store, word: str, out: str | Path | None, force: bool) -> ViewedRun:
    """See `Stagedb.report_run`."""
    info = lookup.the_run(store, word)
    path = place_of(_file_name(info), out, ".html", force)
    made = run_report(store, info).encode()
    write_whole(path, made, str(Word("out")))
    return ViewedRun(path, len(made), info)


def run_report(store: Store, info: RunInfo) -> str:
    """The page of a run, as `save_run_report` writes it."""
    instance = matching.instance_of_run(store, info.id)
    if instance is None:
        return render_run(read_run(store, info.id), _made(store, info))
    seen = comparing.seen_against_plan(store, info, comparing.side_of(store, instance))
    plan = SeenPlan(
        instance=seen.instance.name or instance[:12],
        verdict=". ".join(filter(None, (seen.verdict, seen.remark))),
        steps=tuple(each.step for each in seen.sums),
        terms=seen.terms,
        findings=seen.found.findings,
        memory=seen.held,
    )
    return render_run(seen.found.run, _made(store, info), plan)


def run_report_parts(store: Store, info: RunInfo) -> PageParts:
    """The parts of the report of a run that its page has."""
    return run_parts(read_run(store, info.id))


def _made(store: Store, info: RunInfo) -> dict[str, str]:
    """The tool, the import and the files of a run, as texts by name."""
    imported = [f"{row['name']} {row['digest']}" for row in team.origin(store, info.id) if row["input"] == "trace"]
    return {
        "run": info.id,
        "recorded by": info.tool,
        "imported": f"{info.created}, by {info.made_by or 'an unknown user'}",
        "files": ", ".join(imported[:8]) + (f" and {len(imported) - 8} more" if len(imported) > 8 else ""),
        "stagedb": importlib.metadata.version("stagedb"),
        "made again by": "stagedb import FILE…, stagedb match RUN if it has a plan, then stagedb report --run RUN",
    }


def replay_run(store: Store, word: str, scale: Sequence[str], without: Sequence[str]) -> RunWhatIf:
    """See `Stagedb.replay_run`."""
    run = read_run(store, lookup.the_run(store, word).id)
    return what_if(run, [scaling_of(each, run) for each in scale], without)


def run_ops(store: Store, word: str) -> Rows:
    """See `Stagedb.run_ops`."""
    run = read_any_run(store, lookup.the_run(store, word).id)
    columns = (
        "rank", "lane", "stage", "index", "name", "type", "kind", "phase", "axis", "block", "launcher", "shapes",
        "step_number", "stream", "dtype", "message", "bytes", "start", "duration", "launched", "work", "gap",
    )  # fmt: skip
    rows = []
    for rank in run.timed:
        lane = run.lane_of[rank]
        for index, (op, times) in enumerate(zip(lane.ops, _times(run, rank), strict=True)):
            rows.append((
                rank, lane.number, lane.stage, index, op.name, op.type, op.kind, op.phase, op.axis, op.block,
                op.launcher, op.shapes, op.step_number, op.stream, op.dtype, op.message, op.bytes, *times,
            ))  # fmt: skip
    times_in = dict.fromkeys(("start", "duration", "launched", "work", "gap"), "ns")
    return Rows(columns, tuple(rows), units={**times_in, "message": "B", "bytes": "B"})


def _times(run: StoredRun, rank: int) -> Iterator[tuple[int | None, ...]]:
    """Start, duration, launch, work and gap of each op of a rank; None in a run without times."""
    ops = run.timed[rank]
    if not run.has_times:
        return ((None,) * 5 for _ in ops.start)
    found = run.dependencies[rank]
    columns = (ops.start, ops.end - ops.start, ops.launched, found.work, found.gap)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return ((start, ns, None if launched == NONE else launched, work, gap) for start, ns, launched, work, gap in rows)


def run_collectives(store: Store, word: str) -> Rows:
    """See `Stagedb.run_collectives`."""
    run = read_any_run(store, lookup.the_run(store, word).id)
    columns = (
        "number", "kind", "axis", "sequence", "group_size", "message", "rank", "index", "start", "ready", "end",
        "waits", "last", "by_order",
    )  # fmt: skip
    rows = tuple(_members(run))
    times_in = dict.fromkeys(("start", "ready", "end", "waits"), "ns")
    return Rows(columns, rows, units={**times_in, "message": "B"})


def _members(run: StoredRun) -> "list[tuple[object, ...]]":
    rows: list[tuple[object, ...]] = []
    for number, each in enumerate(run.collectives):
        recorded = each.joint.collective
        for rank, index in each.joint.members.items():
            start, end = int(run.timed[rank].start[index]), int(run.timed[rank].end[index])
            times = (start, each.ready, end, each.ready - start, each.last) if run.has_times else (None,) * 5
            message = run.lane_of[rank].ops[index].message
            rows.append((
                number, recorded.kind, each.axis, recorded.sequence, recorded.size, message, rank, index, *times,
                each.joint.by_order,
            ))  # fmt: skip
    return rows
