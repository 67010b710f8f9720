"""`import`: a run that a profiler recorded, into the store."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, option_groups

if TYPE_CHECKING:
    from stagedb.api import RunInfo
    from stagedb.api.result_parts import RunTimes


@option_groups
def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", help="Trace files, or directories with them.", show_default=False),
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run: yours, or with your workspace before it.")
    ] = None,
    keep_names: Annotated[
        bool,
        typer.Option("--keep-names", help="Keep the names of the files, which may contain host names and user names."),
    ] = False,
    *,
    common: Common,
) -> None:
    """Import a run that a profiler recorded.

    PATHs are JSON of PyTorch's profiler (Kineto), a file a rank, from CUDA, ROCm or other devices or from a CPU alone,
    as it is or compressed with gzip; or SQLite exports of Nsight Systems, with a rank for each process that ran
    kernels; or a set of Chakra's execution traces. Execution traces of PyTorch may be next to the profiles of their
    ranks; alone they are a run without times, as are traces of Chakra without durations. They are of one recording of
    one job. Collectives are matched over
    the ranks, and their clocks are aligned by them. A run that the store has is found by its files, and is not read
    again. After an import of several files that was interrupted, only those are read that it had not read.

    `stagedb query hotspots --run NAME` and other queries about the time of a profile answer for a run, too.
    """
    with common.connect() as db, progress(common, "reading", "bytes") as report:

        def report_on(done: int, of: int, what: str) -> None:
            if report is not None:
                report.now(what, "bytes" if what == "reading" else "nodes")
                report(done, of)

        run = db.import_run(*paths, name=name, keep_names=keep_names, progress=report_on, notes=common.note)
        clocks = [] if run.times is None else list(db.query("clocks", run=run.id))
    for line in summary(run, clocks):
        common.line(line)
    if run.world < run.job_ranks:
        waiting = "" if run.times is None else ": waiting for them counts as communicating"
        common.note(f"{run.job_ranks - run.world:,} of {run.job_ranks:,} ranks were not imported{waiting}")
    for each in run.left_out:
        common.note(f"left out: {each}")


def summary(run: "RunInfo", clocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was recorded, where the time goes, and what to ask next. clocks: the rows of the query of that name."""
    from stagedb.runs.measured_run import COUNTING

    times = run.times
    found = [
        str(run) if run.new else f"{run} (there already)",
        *([_renamed(run)] if run.known_as and {*run.names} != {*run.known_as} else []),
        *([_aligned(clocks)] if len(clocks) > 1 else []),
    ]
    if times is None:
        found.append("its files have no times: import the profiler's traces of the same ranks for questions about time")
    else:
        found += [f"a rank {times.spent} of the time", f"on the critical path: {times.gaps} of the time"]
    question = COUNTING[0] if times is None else _first_question(times, run.world)
    return [*found, f"next: stagedb query {question} --run {run.name or run.id[:12]}"]


def _renamed(run: "RunInfo") -> str:
    """A line for a run that was in the store already, under another name."""
    new = [name for name in run.names if name not in run.known_as]
    text = f"these files were imported before: the run is {', '.join(run.known_as)}, and now {', '.join(new)} too"
    spaces = {name.partition("/")[0] for name in new}
    own = next((name for name in run.known_as if name.partition("/")[0] in spaces), None)
    return text if own is None else f"{text}. `stagedb rm {own}` takes off the earlier name, and the run stays"


def _first_question(run: "RunTimes", world: int) -> str:
    """The query about what takes the most time besides computing. world: ranks that were imported."""
    waiting, rest = run.launching + run.unexplained, run.step - run.busy - run.exposed
    if max(waiting, rest) > run.exposed:
        return "idle_gaps"
    if run.exposed == 0:
        return "critical_breakdown"
    return "late_ranks" if world > 1 and run.exposed > run.busy else "hotspots"


def _aligned(clocks: Sequence[Mapping[str, Any]]) -> str:
    """How the clocks of several ranks were aligned, in one line."""
    from stagedb.reports.terminal_chart import span

    known = [row for row in clocks[1:] if row["collectives"]]
    if not known:
        return "clocks: as they are, since the ranks are of one file or have no collective in common"
    least = min(row["collectives"] for row in known)
    furthest = max(abs(row["offset"]) for row in known)
    spread = max(row["spread"] for row in known)
    rest = len(clocks) - 1 - len(known)
    return (
        f"clocks: up to {span(furthest)} apart, aligned to within {span(spread)} by {least:,} or more collectives"
        + (f"; {rest} as they are" if rest else "")
    )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("import")(import_)
