"""Workflows, a file each: the phases of one step, the tasks that run them, and the operators that each task runs.

Code asks a template or a kind of task for a property (`once`, `upward`, `differentiates`), never for its name, so that
a new workflow is a file with a `Workflow`, and a line in the imports and in the tuple below.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.workflows.forward_only import FORWARD_ONLY
from stagedb.workflows.serving import DECODE, MIXED, PREFILL, SPECULATIVE
from stagedb.workflows.training import TRAINING
from stagedb.workflows.transfer import TRANSFER, TRANSFER_TASK
from stagedb.workflows.workflow import RECOMPUTE, TaskKind, Template, Workflow

__all__ = [
    "DEFAULT",
    "RECOMPUTE",
    "TASK_KINDS",
    "TEMPLATES",
    "TRANSFER_TASK",
    "WORKFLOWS",
    "TaskKind",
    "Template",
    "Workflow",
    "find_workflow",
    "template_named",
]

WORKFLOWS: Mapping[str, Workflow] = {
    each.name: each for each in (TRAINING, FORWARD_ONLY, PREFILL, MIXED, DECODE, SPECULATIVE)
}
"""Workflows by the name that a plan uses."""

DEFAULT = TRAINING
"""The workflow of a plan that names none."""

T = TypeVar("T", Template, TaskKind)


def _by_name(found: Iterable[T]) -> Mapping[str, T]:
    """The objects by name. Several workflows may share one; two different ones of one name are an error."""
    named: dict[str, T] = {}
    for each in found:
        if named.setdefault(each.name, each) != each:
            raise ValueError(f"two workflows mean different things by {each.name}")
    return named


TEMPLATES = _by_name((*(template for each in WORKFLOWS.values() for template in each.templates), TRANSFER))
"""The templates of all workflows, and that of messages between two instances, by name."""

TASK_KINDS = _by_name((*(kind for each in WORKFLOWS.values() for kind in each.kinds), TRANSFER_TASK))
"""The kinds of tasks of all workflows, and that between two instances, by name."""


def find_workflow(name: str) -> Workflow:
    """The workflow of a name. Raises UsageError for an unknown name."""
    if name not in WORKFLOWS:
        raise UsageError(f"unknown workflow {shown(name)}: {Word('workflow')} is one of {', '.join(WORKFLOWS)}")
    return WORKFLOWS[name]


def template_named(name: str) -> Template:
    """The template that a stored name means. Raises StagedbError for a name that this version does not know."""
    if name not in TEMPLATES:
        raise StagedbError(
            f"the store has operators of template {shown(name)}, where this version knows {', '.join(TEMPLATES)}: "
            "a newer stagedb wrote them; upgrade stagedb, or build the graph again"
        )
    return TEMPLATES[name]
