"""An own block as data: its axes with their sizes, its parameters, its steps."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stagedb.errors import UsageError
from stagedb.models.kinds.part import Architecture

INPUT, OUTPUT = "input", "output"
"""The names of the residual stream as a block reads it, and of the last step, which makes the block's result."""

STREAM = ("batch", "seq", "hidden")
"""The axes that every block has, in the order of `input` and `output`."""

SYMBOLS: Mapping[str, str] = {
    "batch": "B",
    "seq": "SK",
    "hidden": "H",
    "ffn": "F",
    "heads": "A",
    "kv_heads": "KV",
    "head_dim": "D",
}
"""The symbol of a graph for each word that may be the size of an axis. Another axis than `seq` itself that is as long
as the sequence runs over keys."""

WORDS = tuple(word for word in SYMBOLS if word != "batch")
"""The words of a card that an axis may have as its size. `seq` is the sequence under another name."""


@dataclass(frozen=True)
class BlockParameter:
    """A parameter. axes: by dimension of the framework's parameter, the axes that make it. tp: the axis that tensor
    parallelism cuts; empty: each rank has the whole. line: its line in the file, 0 without one."""

    name: str
    axes: tuple[tuple[str, ...], ...]
    tp: str = ""
    line: int = field(default=0, compare=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """Its axes in order."""
        return tuple(axis for dimension in self.axes for axis in dimension)

    @property
    def text(self) -> str:
        """Its axes as in a file: `heads head_dim, hidden`."""
        return ", ".join(" ".join(dimension) for dimension in self.axes)


@dataclass(frozen=True)
class BlockStep:
    """One step. operator: its word in a file. argument: the einsum, the function of a gate, or a factor. of: names of
    what it reads. line: its line in the file, 0 without one."""

    name: str
    operator: str
    of: tuple[str, ...]
    argument: str | float | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class OwnBlock:
    """A mixer or channel mixer of a card's own.

    axes: the size of each axis but batch, seq and hidden: a number, or one of `WORDS`. file: the place that errors
    name; two blocks of the same content are equal.
    """

    name: str
    axes: tuple[tuple[str, int | str], ...]
    parameters: tuple[BlockParameter, ...]
    steps: tuple[BlockStep, ...]
    file: str = field(default="", compare=False)

    def refused(self, line: int, text: str) -> UsageError:
        """The error for a line of the block. text: what is wrong with it."""
        return UsageError(f"{self.file or f'the block {self.name}'}{f', line {line}' if line else ''}: {text}")

    def size(self, axis: str) -> int | str:
        """The size of an axis: a number or a word."""
        return axis if axis in STREAM else dict(self.axes)[axis]

    def is_sequence(self, axis: str) -> bool:
        """Whether an axis runs over the tokens of a sequence."""
        return self.size(axis) == "seq"

    def in_graph(self, axis: str) -> str:
        """The name of an axis in a graph, in whose blocks every axis has one size."""
        return axis if axis in STREAM else f"{self.name}__{axis}"

    def length(self, axis: str, card: Architecture) -> int:
        """The size of an axis in a model."""
        size = self.size(axis)
        return size if isinstance(size, int) else int(getattr(card, size))

    def symbol(self, axis: str) -> str:
        """The size of an axis as an expression of a graph's symbols."""
        size = self.size(axis)
        return str(size) if isinstance(size, int) else SYMBOLS[size]

    def parameter(self, name: str) -> BlockParameter | None:
        """The parameter of a name; None for a name of something else."""
        return next((each for each in self.parameters if each.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Its content, as in a card."""
        return {
            "axes": dict(self.axes),
            "parameters": {
                each.name: {"axes": each.text, "tp": each.tp} if each.tp else {"axes": each.text}
                for each in self.parameters
            },
            "steps": [{each.name: _step(each)} for each in self.steps],
        }

    @property
    def digest(self) -> str:
        """sha256 of its content."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def _step(step: BlockStep) -> dict[str, Any]:
    if step.argument is None:
        return {step.operator: list(step.of)}
    return {step.operator: step.argument, "of": list(step.of)}
