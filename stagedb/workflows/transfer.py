"""Caches on their way from the ranks that computed a prompt to those that go on with its answer.

It is no workflow of a plan: two instances that are exported together have this task between their steps.
"""

from stagedb.workflows.workflow import TaskKind, Template

TRANSFER = Template("transfer", "transfer")
TRANSFER_TASK = TaskKind("transfer", (TRANSFER,), sends=False, cost=0)
