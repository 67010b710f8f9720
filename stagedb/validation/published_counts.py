"""Published numbers, computed again: `published.yaml` in this folder, and the parameter counts of the model cards."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from typing import Any

import yaml

from stagedb.files import shown
from stagedb.lowering import Program
from stagedb.memory import Category, ClassMemory, Point, memory_of
from stagedb.models import Card, card_names, load_card
from stagedb.plans.dtypes import FORMAT_BYTES
from stagedb.traces import chakra_pb2 as pb
from stagedb.validation.rank_counts import ProgramOf, lowered, runs, trace_of

UNITS: Mapping[str, int] = {"million": 10**6, "billion": 10**9, "GB": 10**9, "GiB": 1 << 30}

_QUANTITY = re.compile(r"(?P<what>[^\[]+?)(?: \[(?P<unit>\w+)\])?")
_ELEMENTS = re.compile(r"elements of (?P<kind>\w+), rank (?P<rank>\d+)")


@dataclass(frozen=True)
class Published:
    """A printed number, and ours for the same quantity.

    within: the error that is allowed, as a share of it, if ours leaves small terms out; None: ours is right to each
    digit.
    """

    source: str
    quantity: str
    reference: float
    ours: float
    within: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether ours is the printed number when rounded to its digits, or is within the allowed error."""
        if self.within is not None:
            return abs(self.ratio - 1) <= self.within
        text = str(self.reference)
        return round(self.ours, len(text.split(".")[1]) if "." in text else 0) == self.reference

    @property
    def ratio(self) -> float:
        """Ours over the published number."""
        return self.ours / self.reference


def check_published(progress: Callable[[int, int], None] = lambda done, of: None) -> Iterator[Published]:
    """Compute all published numbers again, and yield each with ours. It needs no store.

    progress: called with the rows that are done, and all.
    """
    yield from check_cards()
    yield from check_rows(published_rows(), progress=progress)


def check_cards() -> Iterator[Published]:
    """The published parameter counts of the library's models."""
    for name in card_names():
        card = load_card(name)
        if card.parameters:
            yield Published(card.source, f"parameters of {name}", card.parameters, card.count_parameters())


def check_rows(
    rows: Sequence[Mapping[str, Any]],
    program_of: ProgramOf = lowered,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Iterator[Published]:
    """The numbers of some rows. A row is a model, a plan, and what is printed about it.

    progress: called with the rows that are done, and all.
    """
    for done, row in enumerate(rows):
        progress(done, len(rows))
        yield from _row(row, program_of)
    progress(len(rows), len(rows))


def published_rows() -> list[Mapping[str, Any]]:
    """The rows of `published.yaml`."""
    text = resources.files(__package__).joinpath("published.yaml").read_text(encoding="utf-8")
    rows: list[Mapping[str, Any]] = yaml.safe_load(text)
    return rows


def _row(row: Mapping[str, Any], program_of: ProgramOf) -> Iterator[Published]:
    card = dataclasses.replace(load_card(row["model"]), **row.get("sizes", {}))
    program = program_of(card, row["plan"])
    first_stage = None
    for quantity, reference in row["printed"].items():
        match = _QUANTITY.fullmatch(quantity)
        if match is None:
            raise ValueError(f"published.yaml: {shown(quantity)} is not a quantity")
        what = match["what"]
        if what in MEMORY:
            first_stage = first_stage or next(each for each in memory_of(program) if 0 in each.rank_class.stages)
            value = MEMORY[what](first_stage)
        else:
            value = _ours(program, card, what)
        ours = value / UNITS.get(match["unit"] or "", 1)
        exact = int(ours) if isinstance(reference, int) else ours
        quantity = f"{quantity} of {_title(card, row['plan'])}"
        yield Published(row["source"], quantity, reference, exact, row.get("within"))


def _title(card: Card, plan: Mapping[str, Any]) -> str:
    degrees = [f"{axis} {plan[axis]}" for axis in ("tp", "pp", "dp", "zero") if plan.get(axis, 1) > 1]
    sp = ["sp"] if plan.get("sp") else []
    recompute = [f"recompute {plan['recompute']}"] if "recompute" in plan else []
    return " ".join([card.name, *degrees, *sp, *recompute])


def _ours(program: Program, card: Card, what: str) -> int:
    elements = _ELEMENTS.fullmatch(what)
    if elements is not None:
        return _elements(program, int(elements["rank"]))[elements["kind"]]
    if what == "parameters":
        return card.count_parameters()
    if what == "FLOPs of a step":
        numbers = program.workload.ranks.number.tolist()
        return sum(
            numbers.count(each.number) * int(flops) * count
            for each in program.workload.classes
            for flops, count in zip(each.ops.flops.tolist(), runs(each).tolist(), strict=True)
        )
    raise ValueError(f"published.yaml: unknown quantity {shown(what)}")


def _layer_activations(stage: ClassMemory) -> int:
    """The bytes that the layers of a stage save, for as many micro-batches as its schedule has in flight at once."""
    saved = [
        sum(
            sum(each.values())
            for position, each in stage.saved(chunk.chunk).items()
            if chunk.layers[position] is not None
        )
        for chunk in stage.programs
    ]
    return max(accumulate((task.kind.keeps - task.kind.releases) * saved[task.chunk] for task in stage.usage.tasks))


def _one_layer(stage: ClassMemory) -> int:
    """The bytes that the middle one of a stage's layers saves for one micro-batch."""
    layers = [sum(each.values()) for position, each in stage.saved().items() if _is_layer(stage, position)]
    return layers[len(layers) // 2]


def _is_layer(stage: ClassMemory, position: int) -> bool:
    return stage.program.layers[position] is not None


def _states(stage: ClassMemory, layers: bool) -> int:
    """Bytes of parameters, gradients and the optimizer's state, at the end of the backward."""
    last = max(i for i, task in enumerate(stage.usage.tasks) if not task.kind.once)
    task = stage.usage.tasks[last]
    end = Point(last, stage.usage.lengths[task.kind, task.chunk])
    held = [alive for alive in stage.usage.alive(end) if alive.category in STATES]
    return sum(alive.bytes for alive in held if alive.layer is not None or not layers)


STATES = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER, Category.MASTER)

MEMORY: Mapping[str, Callable[[ClassMemory], int]] = {
    "activations of layers, first stage": _layer_activations,
    "activations of one layer": _one_layer,
    "parameters, gradients and optimizer state of layers, first stage": lambda stage: _states(stage, layers=True),
    "model states": lambda stage: _states(stage, layers=False),
}
"""Quantities of the memory of the first stage's ranks, in bytes."""


def _elements(program: Program, rank: int) -> Counter[str]:
    """The traffic of a rank in a step, by kind: elements of each operation's input on that rank, from its trace."""
    trace = trace_of(program, rank)
    found: Counter[str] = Counter()
    columns = trace.attributes
    for index, node in enumerate(trace.types):
        if node != pb.COMP_NODE:
            found[columns["kind"][index]] += columns["comm_size"][index] // FORMAT_BYTES[columns["dtype"][index]]
    return found
