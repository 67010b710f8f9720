"""Durations measured in a run, from its Chakra traces: the mean of each node's name."""

from collections import defaultdict
from fractions import Fraction
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.export.reading import node_durations
from stagedb.systems.durations import Durations, Measured


def trace_durations(path: Path) -> Durations:
    """The mean duration of the nodes of each name, in one trace (`.et`, also gzipped) or all of a directory.

    Nodes without a duration are left out. UsageError where no node has one, TraceError for a file that is no trace.
    """
    files = sorted(path.glob("*.et")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} has no traces (*.et)")
    spent: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in files:
        for name, micros in node_durations(file):
            if micros:
                mean = spent[name]
                mean[0] += micros
                mean[1] += 1
    if not spent:
        raise UsageError(f"no node of {path} has a duration (duration_micros): only traces of a run have")
    return Durations(
        Measured(f"{path}, node {name}", Fraction(1000 * micros, count), name=name)
        for name, (micros, count) in spent.items()
    )
