"""Made-up workloads to disk, as `export` writes those of a store."""

from pathlib import Path
from typing import Any

from stagedb.export.exporting import trace_set
from stagedb.export.output import Clock, Counter, Progress, Request, Summary, write_set
from stagedb.issue.columns import Workload
from stagedb.systems import System


def export_workload(
    workload: Workload,
    out: Path,
    *,
    only: str | None = None,
    granularity: str = "op",
    system: System | None = None,
    progress: Progress | None = None,
    **said: Any,
) -> Summary:
    """Write the traces of a workload. `said` are words of the request."""
    request = Request(out, granularity=granularity, **said)
    request.check(len(workload.ranks), only)
    clock = Clock()
    with clock.stage("encode"):
        traces = trace_set(workload, only, granularity, system)
    return write_set(traces, request, counter=Counter(progress), clock=clock)


def traces_of(directory: Path) -> dict[str, bytes]:
    """The bytes of every trace of a directory."""
    return {path.name: path.read_bytes() for path in directory.glob("*.et")}


def files_of(directory: Path) -> dict[str, bytes]:
    """The bytes of everything in a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}
