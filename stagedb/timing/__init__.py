"""Timing: when each rank of a stored instance runs what on a system. Lanes, timeline, critical path, what-ifs.

A network connects all nodes that the rank classes of an instance issue. With the durations of their ops it has a
timeline. `step_times` computes critical path, slack and waits from the timeline. `profile_job` does all of this on a
system and adds figures of merit.
"""

from stagedb.timing.lanes import Lane
from stagedb.timing.node_graph import NodeGraph, Reason, node_graph_of
from stagedb.timing.step_profile import (
    JobProfile,
    Merit,
    ProfileInputs,
    blocking_axes,
    merit_of,
    profile_job,
    step_of,
    timed_step,
)
from stagedb.timing.time_spent import LaneTimes, NodeTimes, OpTimes, StepTimes, TaskTimes, step_times
from stagedb.timing.timeline import Legs, Path, Timeline, run_step
from stagedb.timing.whatif import Scaling

__all__ = [
    "JobProfile",
    "Lane",
    "LaneTimes",
    "Legs",
    "Merit",
    "NodeGraph",
    "NodeTimes",
    "OpTimes",
    "Path",
    "ProfileInputs",
    "Reason",
    "Scaling",
    "StepTimes",
    "TaskTimes",
    "Timeline",
    "blocking_axes",
    "merit_of",
    "node_graph_of",
    "profile_job",
    "run_step",
    "step_of",
    "step_times",
    "timed_step",
]
