"""Advice on a step: what bounds it, what it would gain without each of its losses, and which plan near it is faster.

`what_ifs` runs a timed step with other durations. `advise` times the plans near a plan, each as an instance copied in
memory, and ranks them by their step and by whether the system's memory holds them.
"""

from stagedb.advice.advising import Advice, Change, advise
from stagedb.advice.bounds import Bound, bound_of
from stagedb.advice.commands import profile_command
from stagedb.advice.neighbours import changed_words, neighbours
from stagedb.advice.trials import Outcome, Trials
from stagedb.advice.what_ifs import WhatIf, what_ifs

__all__ = [
    "Advice",
    "Bound",
    "Change",
    "Outcome",
    "Trials",
    "WhatIf",
    "advise",
    "bound_of",
    "changed_words",
    "neighbours",
    "profile_command",
    "what_ifs",
]
