"""Runs that a profiler recorded: read from files, joined over ranks, on one clock, with their critical path.

A run is matched with its plan, op by op (`run_match`), and a system is fitted to runs (`calibration`).

`read_trace` reads a file of any known format: the trace of one rank of PyTorch's profiler, or those of the processes
of an export of Nsight Systems. `measured_run` joins ranks to a `MeasuredRun`, and `run_rows` gives its nodes
and relationships.
"""

from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.kineto import file_digest, read_kineto
from stagedb.runs.measured_run import MeasuredRun, measured_run, run_id
from stagedb.runs.nsight import read_nsight
from stagedb.runs.rank_trace import RankTrace
from stagedb.runs.run_rows import RunDigest, RunRows, run_digest, run_rows
from stagedb.runs.trace_files import read_trace

__all__ = [
    "MeasuredRun",
    "RankTrace",
    "RunDigest",
    "RunRows",
    "TraceFileError",
    "file_digest",
    "measured_run",
    "read_kineto",
    "read_nsight",
    "read_trace",
    "run_digest",
    "run_id",
    "run_rows",
]
