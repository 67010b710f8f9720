"""Made-up workloads to disk, as `export` writes those of a store."""

from pathlib import Path
from typing import Any

import numpy as np

from stagedb.lowering.columns import RECV, Workload
from stagedb.systems import System, load_system
from stagedb.traces.exporting import pack, trace_set
from stagedb.traces.formats import OneFile
from stagedb.traces.node_durations import NodeTiming, RankPart
from stagedb.traces.set_output import Counter, Progress, Request, Summary, WriteClock, write_set


def timing(workload: Workload, system: System | None = None) -> NodeTiming:
    """Made-up durations: the odd ranks of each class are a lane, and take twice as long as the even ones."""
    parts = {}
    for each in workload.classes:
        ranks = np.flatnonzero(workload.ranks.number == each.number)
        odd = ranks % 2 == 1
        ns = np.where(each.ops.type == RECV, 0, 1 + np.arange(len(each.ops)) * 777)
        parts[each.number] = tuple(
            RankPart((2 * each.number + lane,), chosen, ns * (1 + lane))
            for lane, chosen in enumerate((ranks[~odd], ranks[odd]))
            if len(chosen)
        )
    return NodeTiming("0123456789", system or load_system("h100"), 4711, parts)


def export_workload(
    workload: Workload,
    out: Path,
    *,
    only: str | None = None,
    granularity: str = "op",
    system: System | None = None,
    times: NodeTiming | None = None,
    progress: Progress | None = None,
    **words: Any,
) -> Summary:
    """Write the traces of a workload. `words` are those of the request."""
    request = Request(out, granularity=granularity, **words)
    request.check(len(workload.ranks), only)
    clock = WriteClock()
    with clock.stage("encode"):
        traces = trace_set(workload, only, granularity, system, times)
    return write_set(traces, request, counter=Counter(progress), clock=clock)


def pack_workload(workload: Workload, out: Path) -> Summary:
    """Write a workload as one packed file."""
    request = Request(out, packed=True)
    file = request.written.files
    assert isinstance(file, OneFile)
    return pack(trace_set(workload), request, file, WriteClock())


def traces_of(directory: Path) -> dict[str, bytes]:
    """The bytes of every trace of a directory."""
    return {path.name: path.read_bytes() for path in directory.glob("*.et")}


def files_of(directory: Path) -> dict[str, bytes]:
    """The bytes of everything in a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}
