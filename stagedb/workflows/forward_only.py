"""The forward alone, with its loss: evaluation. Nothing is kept for a backward, and no rank has gradients."""

from stagedb.workflows.training import FORWARD_TASK
from stagedb.workflows.workflow import Workflow

FORWARD_ONLY = Workflow("forward-only", "the forward and its loss alone, as in an evaluation", (FORWARD_TASK,))
