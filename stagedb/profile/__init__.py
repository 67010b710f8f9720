"""An instance on accelerators: what every rank class holds in memory over a step, and when it runs what.

A network connects all that an instance's rank classes issue; with durations of their ops it has a timeline, whose
critical path, slack and waits `step_times` tells. `profile_job` does all of it on a system, figures of merit included.
"""

from stagedb.profile.asking import Asked, StoredProfile, read_profile
from stagedb.profile.critical import Legs, Path
from stagedb.profile.lanes import Lane
from stagedb.profile.lives import Category
from stagedb.profile.memory import ClassMemory, analyse, record
from stagedb.profile.merit import Merit, merit_of
from stagedb.profile.network import Network, Reason, network_of
from stagedb.profile.profiling import JobProfile, blocking_axes, profile_job
from stagedb.profile.recording import profile_id, record_profile
from stagedb.profile.spent import LaneTimes, NodeTimes, OpTimes, StepTimes, TaskTimes, step_times
from stagedb.profile.timeline import Timeline, run_step
from stagedb.profile.usage import Alive, Point, Usage
from stagedb.profile.whatif import Scaling, WhatIf, what_if

__all__ = [
    "Alive",
    "Asked",
    "Category",
    "ClassMemory",
    "JobProfile",
    "Lane",
    "LaneTimes",
    "Legs",
    "Merit",
    "Network",
    "NodeTimes",
    "OpTimes",
    "Path",
    "Point",
    "Reason",
    "Scaling",
    "StepTimes",
    "StoredProfile",
    "TaskTimes",
    "Timeline",
    "Usage",
    "WhatIf",
    "analyse",
    "blocking_axes",
    "merit_of",
    "network_of",
    "profile_id",
    "profile_job",
    "read_profile",
    "record",
    "record_profile",
    "run_step",
    "step_times",
    "what_if",
]
