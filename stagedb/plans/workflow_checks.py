"""Words of a plan that mean nothing to its workflow: those of gradients and of an optimizer that it does not have."""

from collections.abc import Iterable, Mapping
from typing import Any

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans.aspects.word import PlanWord
from stagedb.workflows import WORKFLOWS, Workflow


def check_needed(workflow: Workflow, words: Iterable[PlanWord], values: object, usual: Mapping[str, Any]) -> None:
    """Raise UsageError for a word with another value than the usual one, by field, that the workflow cannot use.

    words: those to check. values: an object with a field for each word. usual: by field, the value that any workflow
    may have; a field that is left out has its default.
    """
    for word in words:
        value, needs = getattr(values, word.field), word.about.needs
        if value != usual.get(word.field, word.default) and not _has(workflow, needs):
            raise UsageError(
                f"the workflow {workflow.name} has no {needs}, which {word.switch(value)} is for: leave it out, or "
                f"take {workflows_with(needs)}"
            )


def workflows_with(needs: str) -> str:
    """The workflows that have what a word of a plan needs, as options of a message."""
    return " or ".join(str(Word("workflow", name)) for name, workflow in WORKFLOWS.items() if _has(workflow, needs))


def _has(workflow: Workflow, needs: str) -> bool:
    has = {
        "gradients": workflow.differentiates,
        "optimizer": workflow.optimizes,
        "cache": workflow.caches,
        "draft": workflow.drafts,
    }
    return has.get(needs, True)
