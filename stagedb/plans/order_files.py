"""Files with a schedule's orders of tasks."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from stagedb.errors import UsageError
from stagedb.files import compose, read_text, shown
from stagedb.mentions import Word
from stagedb.plans.torch_orders import torch_orders
from stagedb.schedules import order_text, parse_order

ENDINGS = (".yaml", ".yml", ".json", ".csv")
"""Suffixes of their names."""

_LARGEST = 16 << 20
"""Bytes of the largest file: the orders of thousands of stages."""


@dataclass(frozen=True)
class OrderFile:
    """The orders of the stages as texts, and the placement of their chunks as a plan writes it; None: not given."""

    stages: tuple[str, ...]
    placement: str | None = None


def read_schedule_file(path: Path) -> OrderFile:
    """The content of a YAML or JSON file, or of torch's CSV (`torch_orders`).

    `stages` is a list of texts, or of lists of tasks, one for each stage. `chunk_placement` may be there too: a name,
    or a list of stages. Raises UsageError with the line of the fault.
    """
    text = read_text(path, "schedule", _LARGEST, str(Word("schedule")))
    if path.suffix.lower() == ".csv":
        return OrderFile(*torch_orders(path, text))
    # YAML nodes know their lines, for errors.
    root = compose(text, f"the schedule {path}")
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}, line {_line(root)}: a schedule is `stages:` and a list of orders, one a stage")
    nodes: dict[str, yaml.Node] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in _KEYS or key.value in nodes:
            name = shown(key.value) if isinstance(key, yaml.ScalarNode) else "this key"
            raise UsageError(
                f"{path}, line {_line(key)}: {name} is unknown or appears twice; the keys are {' and '.join(_KEYS)}"
            )
        nodes[key.value] = value
    value = nodes.get("stages")
    if value is None:
        raise UsageError(f"{path}, line {_line(root)}: the key 'stages' is missing")
    if not isinstance(value, yaml.SequenceNode) or not value.value:
        raise UsageError(f"{path}, line {_line(value)}: stages must be a list of orders, one for each stage")
    placement = _placement_text(path, nodes["chunk_placement"]) if "chunk_placement" in nodes else None
    return OrderFile(tuple(_stage_text(path, index, node) for index, node in enumerate(value.value)), placement)


_KEYS = ("stages", "chunk_placement")


def _placement_text(path: Path, node: yaml.Node) -> str:
    parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not parts or not all(isinstance(part, yaml.ScalarNode) for part in parts):
        raise UsageError(f"{path}, line {_line(node)}: chunk_placement is a name, or a list of stages")
    return ",".join(part.value for part in parts)


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
