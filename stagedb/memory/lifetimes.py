"""What is told of memory: bytes that are there all the time, and lives of tensors tied to the tasks of a schedule.

A micro-batch's forward opens what its backward closes, so a life is said once for all micro-batches: where in which
kind of task it begins and ends, and for which of the tasks of that kind.
"""

from dataclasses import dataclass
from enum import StrEnum

from stagedb.workflows import TaskKind


class Category(StrEnum):
    """What memory is held for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer_state"
    MASTER = "master_weights"
    INPUTS = "inputs_and_buffers"
    ACTIVATIONS = "activations"
    RECOMPUTED = "recomputed"
    GATHERED = "gathered_parameters"
    COMMUNICATION = "communication_buffers"
    TEMPORARIES = "temporaries"


class Which(StrEnum):
    """For which tasks of a kind something happens; `later` is every one but the first."""

    EVERY = "every"
    FIRST = "first"
    LAST = "last"
    LATER = "later"

    def fits(self, first: bool, last: bool) -> bool:
        """Whether it happens in a task that is, or is not, the first and the last of its kind."""
        return {Which.EVERY: True, Which.FIRST: first, Which.LAST: last, Which.LATER: not first}[self]


@dataclass(frozen=True)
class Moment:
    """Right before the item of this index of a task of this kind and chunk; at the task's end for the number of items.

    A step is that of all chunks, and has chunk 0.
    """

    kind: TaskKind
    index: int
    which: Which = Which.EVERY
    chunk: int = 0


@dataclass(frozen=True)
class Life:
    """`bytes` of a tensor from `begin` until one of `ends`; without any they are never given back.

    `layer` is counted from the stage's first, None outside layers.
    """

    name: str
    layer: int | None
    bytes: int
    category: Category
    begin: Moment
    ends: tuple[Moment, ...]


@dataclass(frozen=True)
class State:
    """`bytes` that a rank holds before the step and after it."""

    name: str
    layer: int | None
    bytes: int
    category: Category


@dataclass(frozen=True)
class Lives:
    """Everything that a rank of a class holds in a step."""

    states: tuple[State, ...]
    lives: tuple[Life, ...]


def brief(
    name: str, layer: int | None, size: int, category: Category, kind: TaskKind, index: int, which: Which = Which.EVERY
) -> Life:
    """A life for one item."""
    return Life(name, layer, size, category, Moment(kind, index, which), (Moment(kind, index + 1, which),))
