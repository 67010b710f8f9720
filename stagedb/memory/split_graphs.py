"""What the graph of a split backward's first half holds until the second half is over.

`torch.distributed.pipelining` differentiates a chunk's inputs with `retain_graph=True`, and keeps the operators at
which the gradients of weights branch off. Each of them holds all operators below it, with what their forwards saved.
The second half releases what belongs to an operator that it runs, and the rest at its end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from stagedb.ir.symbolic_graph import OpType
from stagedb.memory.class_program import Item, Key, Program
from stagedb.workflows import TaskKind

Place = tuple[TaskKind, int]
"""An item of a kind of task, by its index."""

Forward = tuple[str, int]
"""A forward operator, by name and position."""


def forward_of(item: Item) -> Forward:
    """The forward operator that an operator of a backward belongs to."""
    return item.op.name.rpartition("_gradient")[0].rpartition(".")[0] or item.op.name, item.position


@dataclass(frozen=True)
class SplitGraph:
    """The two halves of a chunk's backward."""

    program: Program

    def _differentiating(self, kind: TaskKind) -> Iterator[tuple[int, Item]]:
        for index, item in enumerate(self.program.items[kind]):
            if item.op.type is OpType.COMPUTE and "_gradient" in item.op.name:
                yield index, item

    @cached_property
    def branches(self) -> Mapping[Forward, int]:
        """By operator with gradients of weights, its last item in the second half."""
        return {forward_of(item): index for index, item in self._differentiating(self.program.backwards[-1])}

    def held(self, made: Mapping[Key, TaskKind]) -> Iterator[tuple[Key, Place]]:
        """Storages that the first half reads, each with the item until whose end the graph holds it.

        made: by storage, the kind of task that makes it. Above the last operator with weights nothing is held longer
        than the first half.
        """
        first, second = self.program.backwards
        branches = self.branches
        top = min((i for i, item in self._differentiating(first) if forward_of(item) in branches), default=None)
        ends = {kind: len(self.program.items[kind]) - 1 for kind in (first, second)}
        for index, item in self._differentiating(first):
            branch = branches.get(forward_of(item))
            if branch is not None:
                over = second, branch
            elif top is not None and index > top:
                over = second, ends[second]
            else:
                over = first, ends[first]
            for key in item.reads:
                if made.get(key) is self.program.forward:
                    yield key, over

    def following(self, item: Item, index: int) -> int:
        """The item until whose end a gradient of weights is held, in addition to the sum that it is added to.

        It has a name until the next group of gradients is there.
        """
        branches = self.branches
        over = branches.get(forward_of(item), index)
        later = sorted(each for each in branches.values() if each > over)
        return later[0] if later else len(self.program.items[self.program.backwards[-1]]) - 1
