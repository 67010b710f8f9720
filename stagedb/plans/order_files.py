"""Files with a schedule's orders of tasks."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from stagedb.errors import UsageError
from stagedb.files import compose, read_text, shown
from stagedb.mentions import Word
from stagedb.schedules import order_text, parse_order

# Orders of tasks as torch writes them: the CSV of `torch.distributed.pipelining`, a row for each rank of the pipeline.
#
# `_PipelineScheduleRuntime._dump_csv(…, format="compute_only")` writes it, and `_load_csv` reads it. A task is the
# number of its chunk in the pipeline (torch's stage index), a letter and a micro-batch (`7I0`). A pair is
# `(3F2;0B0)OVERLAP_F_B`. The row of a chunk is its stage, so that the file has the placement of the chunks too.

_TASK = re.compile(r"([0-9]{1,6})([FBIW])([0-9]{1,9})")
_PAIR = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_REDUCTION = re.compile(r"([0-9]{1,6})(?:WAIT_)?REDUCE_GRAD")

_Action = tuple[int, str, int]
"""Chunk, letter and micro-batch."""


def torch_orders(path: Path, text: str) -> tuple[tuple[str, ...], str]:
    """The orders of the stages, and the stage of each chunk, both as a plan writes them.

    A whole backward becomes its two halves in a row where others of its chunk are split, and a pair its two tasks one
    after the other. path: of the file, for errors. text: its content, a CSV table with a row for each stage. Raises
    UsageError with the line of the fault.
    """
    try:
        cells = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise UsageError(f"the schedule {path} is no CSV file: {error} ({Word('schedule')})") from error
    while cells and not any(map(str.strip, cells[-1])):
        cells.pop()
    rows = [list(_actions(f"{path}, line {line}", row)) for line, row in enumerate(cells, 1)]
    places: dict[int, int] = {}
    for stage, row in enumerate(rows):
        for chunk, _, _ in row:
            if places.setdefault(chunk, stage) != stage:
                raise UsageError(
                    f"{path}, line {stage + 1}: chunk {chunk} is on line {places[chunk] + 1} too: each chunk of the "
                    f"pipeline has one stage ({Word('schedule')})"
                )
    missing = next((chunk for chunk in range(len(places)) if chunk not in places), None)
    if missing is not None or not places:
        raise UsageError(
            f"{path}: no line has tasks of chunk {missing or 0}, such as {missing or 0}F0 ({Word('schedule')})"
        )
    return tuple(map(_order_text, rows)), ",".join(str(places[chunk]) for chunk in range(len(places)))


def _actions(where: str, row: list[str]) -> Iterator[_Action]:
    """The tasks of a stage. Empty cells are idle times, which follow from the order."""
    reduced: set[int] = set()
    for cell in filter(None, map(str.strip, row)):
        if ends := _REDUCTION.fullmatch(cell):
            reduced.add(int(ends[1]))
            continue
        pair = _PAIR.fullmatch(cell)
        for word in pair[1].split(";") if pair else [cell]:
            found = _TASK.fullmatch(word.strip())
            if found is None:
                raise UsageError(
                    f"{where}: {shown(word)} is no task: a task is a chunk, F, B, I or W, and a micro-batch, such as "
                    "7I0; messages and gathers are no part of an order here, so write the file with format compute_only"
                )
            if int(found[1]) in reduced:
                raise UsageError(
                    f"{where}: {shown(word)} is after the reduction of the gradients of chunk {found[1]}, which here "
                    "follows its last backward: move it"
                )
            yield int(found[1]), found[2], int(found[3])


def _order_text(row: list[_Action]) -> str:
    chunks = {chunk: index for index, chunk in enumerate(sorted({chunk for chunk, _, _ in row}))}
    split = {chunk for chunk, letter, _ in row if letter in "IW"}
    words = []
    for chunk, letter, microbatch in row:
        letters = "IW" if letter == "B" and chunk in split else letter
        words += [f"{each}{microbatch}" + (f".{chunks[chunk]}" if chunks[chunk] else "") for each in letters]
    return " ".join(words)


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
    """The content of a YAML or JSON file, or of torch's CSV.

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
