"""Files with a schedule's orders of tasks."""

from pathlib import Path

import yaml

from stagedb.errors import UsageError
from stagedb.inputs import compose, read_text, shown
from stagedb.schedules import order_text, parse_order

ENDINGS = (".yaml", ".yml", ".json")
"""Suffixes of their names."""

_LARGEST = 16 << 20
"""Bytes of the largest file: the orders of thousands of stages."""


def read_schedule_file(path: Path) -> tuple[str, ...]:
    """The orders in a YAML or JSON file, one text for each stage. `stages` is a list of texts, or of lists of tasks.

    Raises UsageError with the line of the fault.
    """
    # Nodes have their lines.
    root = compose(read_text(path, "schedule", _LARGEST, "--schedule"), f"the schedule {path}")
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}, line {_line(root)}: a schedule is `stages:` and a list of orders, one a stage")
    orders: list[str] | None = None
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode) or key.value != "stages" or orders is not None:
            name = shown(key.value) if isinstance(key, yaml.ScalarNode) else "this key"
            raise UsageError(f"{path}, line {_line(key)}: {name} is unknown or appears twice; the only key is 'stages'")
        if not isinstance(value, yaml.SequenceNode) or not value.value:
            raise UsageError(f"{path}, line {_line(value)}: stages must be a list of orders, one for each stage")
        orders = [_stage_text(path, index, node) for index, node in enumerate(value.value)]
    if orders is None:
        raise UsageError(f"{path}, line {_line(root)}: the key 'stages' is missing")
    return tuple(orders)


def _stage_text(path: Path, index: int, node: yaml.Node) -> str:
    parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
    words = []
    for part in parts:
        where = f"{path}, line {_line(part)}, stages[{index}]"
        if not isinstance(part, yaml.ScalarNode):
            raise UsageError(f"{where}: an order is a text or a list of tasks")
        words.append(order_text(parse_order(part.value, where)))
    return " ".join(words)


def _line(node: yaml.Node | None) -> int:
    return 1 if node is None else node.start_mark.line + 1
