"""Orders of tasks as text, `F0 F1 B0 W0.1`: written by people, kept in plans. Read and checked here."""

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from stagedb.errors import UsageError
from stagedb.parallel.files import read_text
from stagedb.parallel.schedule import Order, Task, TaskKind, replay, splits

EXPLICIT = "explicit"
"""A plan's schedule whose orders the plan itself says, in the word `task_order`."""

ENDINGS = (".yaml", ".yml", ".json")
"""Of files that hold a schedule."""

LETTERS = {
    "F": TaskKind.FORWARD,
    "B": TaskKind.BACKWARD,
    "I": TaskKind.INPUT_GRADIENT,
    "W": TaskKind.WEIGHT_GRADIENT,
}
_TASK = re.compile(r"([FBIW])([0-9]{1,9})(?:\.([0-9]{1,4}))?")
_FORM = "F, B, I or W (forward, backward, input gradient, weight gradient), a micro-batch, and .CHUNK where it is not 0"


def parse_order(text: str, where: str) -> tuple[Task, ...]:
    """The tasks of a stage, the step after them. Raises UsageError, with `where`, for what is no task."""
    tasks = []
    for word in text.split():
        match = _TASK.fullmatch(word)
        if match is None:
            raise UsageError(f"{where}: {word!r} is no task; a task is {_FORM}, such as F3 or B3.1")
        tasks.append(Task(LETTERS[match[1]], int(match[2]), int(match[3] or 0)))
    return (*tasks, Task(TaskKind.STEP))


def order_text(order: Order) -> str:
    """The text that `parse_order` reads; the step is not said."""
    letter = {kind: letter for letter, kind in LETTERS.items()}
    return " ".join(
        f"{letter[task.kind]}{task.microbatch}" + (f".{task.chunk}" if task.chunk else "")
        for task in order
        if task.kind is not TaskKind.STEP
    )


def check_orders(orders: Sequence[Order], stages: int, microbatches: int) -> int:
    """How many chunks each stage has. Raises UsageError where a plan cannot run these orders."""
    if len(orders) != stages:
        raise UsageError(
            f"the schedule has the orders of {len(orders)} stages, the plan has pp {stages}: take --pp {len(orders)}"
        )
    chunks = 1 + max(task.chunk for order in orders for task in order)
    split = any(map(splits, orders))
    backwards = (TaskKind.INPUT_GRADIENT, TaskKind.WEIGHT_GRADIENT) if split else (TaskKind.BACKWARD,)
    wanted = {
        Task(kind, microbatch, chunk)
        for kind in (TaskKind.FORWARD, *backwards)
        for microbatch in range(microbatches)
        for chunk in range(chunks)
    }
    kinds = list(TaskKind)
    for stage, order in enumerate(orders):
        own = order[:-1]
        twice = sorted({task for task in own if own.count(task) > 1}) if len(set(own)) < len(own) else []
        if twice:
            raise UsageError(f"the schedule's stage {stage} runs {order_text(twice[:1])} twice")
        for tasks, word in ((wanted - set(own), "does not run"), (set(own) - wanted, "runs")):
            if tasks:
                first = order_text([min(tasks, key=lambda task: (task.microbatch, task.chunk, kinds.index(task.kind)))])
                raise UsageError(
                    f"the schedule's stage {stage} {word} {first}: this plan has micro-batches 0 to {microbatches - 1} "
                    f"(--global-batch-size, --micro-batch-size and --dp say how many), chunks 0 to {chunks - 1}, and "
                    f"{'I and W' if split else 'B'} for each of them"
                )
    replay(orders)
    return chunks


def read_schedule_file(path: Path) -> tuple[str, ...]:
    """The orders of a YAML or JSON file, a text a stage: under `stages` a list of texts, or of lists of tasks.

    Raises UsageError with the line of what is wrong.
    """
    text = read_text(path, "schedule", "--schedule")
    try:
        # Nodes, not objects: they know their lines, and nothing is ever constructed from them.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"the schedule {path} cannot be read: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}, line {_line(root)}: a schedule is `stages:` and a list of orders, one a stage")
    orders: list[str] | None = None
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode) or key.value != "stages" or orders is not None:
            said = repr(key.value) if isinstance(key, yaml.ScalarNode) else "this key"
            raise UsageError(f"{path}, line {_line(key)}: {said} is unknown or there twice; the one key is 'stages'")
        if not isinstance(value, yaml.SequenceNode) or not value.value:
            raise UsageError(f"{path}, line {_line(value)}: stages is a list of orders, one a stage")
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
