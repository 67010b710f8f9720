"""Workflows are asked for what they run, never for names, and agree about what they share."""

import ast
import re
from pathlib import Path

import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.workflows import (
    DEFAULT,
    TASK_KINDS,
    TEMPLATES,
    WORKFLOWS,
    find_workflow,
    forward_only,
    serving,
    template_named,
    training,
)
from stagedb.workflows.workflow import Workflow

ROOT = Path(__file__).parents[2]
OUTSIDE = sorted(path for path in (ROOT / "stagedb").rglob("*.py") if path.parent != ROOT / "stagedb" / "workflows")
CONSTANTS = {name for module in (training, forward_only, serving) for name in vars(module) if name.isupper()}
"""The names of the templates, kinds of tasks and workflows in code."""


def owner(node: ast.expr | None) -> str:
    """The name in code of an object, or of one whose `name` is read."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def asked(source: str) -> list[str]:
    """Where code decides by which template, kind of task or workflow something is."""
    found = []
    for node in ast.walk(ast.parse(source)):
        words: set[str] = set()
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            items = [each for operand in operands for each in getattr(operand, "elts", [operand])]
            words = {owner(each) for each in items} & CONSTANTS
            of_kind = any("template" in ast.unparse(each) or ".kind" in ast.unparse(each) for each in operands)
            texts = {str(each.value) for each in items if isinstance(each, ast.Constant)}
            words |= texts & (TEMPLATES.keys() | TASK_KINDS.keys()) if of_kind else set()
            words |= texts & WORKFLOWS.keys() if any("workflow" in ast.unparse(each) for each in operands) else set()
        elif isinstance(node, ast.Dict):
            words = {owner(key) for key in node.keys} & CONSTANTS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "index":
            words = {str(each.value) for each in node.args if isinstance(each, ast.Constant)} & TASK_KINDS.keys()
        found += [f"{getattr(node, 'lineno', 0)}: {word}" for word in sorted(words)]
    return found


def test_no_code_asks_for_a_template_by_name() -> None:
    found = {path: asked(path.read_text(encoding="utf-8")) for path in OUTSIDE}
    assert {str(path): each for path, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "source",
    [
        "if op.template is FORWARD: pass",
        "if op.template == 'step': pass",
        "chosen = op['template'] in ('input_gradient', 'weight_gradient')",
        "if task.kind is not STEP_TASK: pass",
        "found = {BACKWARD_TASK: 2}.get(task.kind, 1)",
        "code = TASK_KINDS.index('step')",
        "if plan.workflow is DECODE: pass",
        "if workflow not in ('prefill', 'decode'): pass",
        "text = {PREFILL.name: 'prompts'}[workflow.name]",
    ],
)
def test_a_comparison_is_found(source: str) -> None:
    assert asked(source)


def test_no_statement_that_writes_asks_for_a_template_by_name() -> None:
    names = "|".join(TEMPLATES.keys() | TASK_KINDS.keys())
    pattern = re.compile(rf"(template|kind)\b[^\n]*(=|<>|IN|WHEN)[^\n]*'({names})'")
    for path in sorted((ROOT / "cypher").rglob("*.cypher")):
        text = path.read_text(encoding="utf-8")
        code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
        assert not pattern.search(code), path
    assert pattern.search("WHERE reader.template = 'step'")


@pytest.mark.parametrize("workflow", WORKFLOWS.values(), ids=lambda each: each.name)
def test_the_tasks_of_a_workflow_belong_together(workflow: Workflow) -> None:
    assert find_workflow(workflow.name) is workflow
    for kind in workflow.kinds:
        assert TASK_KINDS[kind.name] == kind
        assert kind.after is None or kind.after in workflow.kinds
        # What one task runs walks one way, in one phase, as often.
        assert len({(each.upward, each.once, each.phase) for each in kind.templates}) == 1
        assert all(template_named(each.name) == each for each in kind.templates)
        assert bool(kind.letter) is not kind.once
    letters = [kind.letter for kind in workflow.kinds if kind.letter]
    assert len(set(letters)) == len(letters)
    for split in (False, True):
        running = workflow.running(split)
        assert running[0] == workflow.kinds[0]
        ending = running[len(running) - len(workflow.ending) :]
        assert tuple(kind for kind in running if kind.once) == workflow.ending == ending
        # Each template runs in one task.
        templates = [template for kind in running for template in kind.templates]
        assert sorted(templates, key=str) == sorted(workflow.templates, key=str)


def test_training_splits_its_backward() -> None:
    assert DEFAULT.name == "training"
    assert [kind.name for kind in DEFAULT.running(False)] == ["forward", "backward", "step"]
    assert [kind.name for kind in DEFAULT.running(True)] == ["forward", "input_gradient", "weight_gradient", "step"]
    assert {name: [kind.name for kind in kinds] for name, kinds in DEFAULT.phases.items()} == {
        "forward": ["forward"],
        "backward": ["backward", "input_gradient", "weight_gradient"],
        "optimizer": ["step"],
    }


def test_what_a_newer_version_wrote_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown workflow 'serve': --workflow is one of training"):
        find_workflow("serve")
    with pytest.raises(StagedbError, match="operators of template 'decode', where this version knows forward"):
        template_named("decode")
