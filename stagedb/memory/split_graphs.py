"""What the graph of a split backward's first half holds until the second half is over.

`torch.distributed.pipelining` differentiates a chunk's inputs with `retain_graph=True`, and keeps the operators at
which the gradients of weights branch off. Each of them holds all operators below it, with what their forwards saved.
The second half releases what belongs to an operator that it runs, and the rest at its end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from stagedb.ir.symbolic_graph import OpType
from stagedb.memory.class_program import ChunkProgram, Forward, Item, Key, forward_of
from stagedb.workflows import TaskKind

Place = tuple[TaskKind, int]
"""An item of a kind of task, by its index."""


@dataclass(frozen=True)
class SplitGraph:
    """What autograd's graph holds between the two halves of a chunk's backward. program: of the chunk."""

    program: ChunkProgram

    def _differentiating(self, kind: TaskKind) -> Iterator[tuple[int, Item]]:
        for index, item in enumerate(self.program.items[kind]):
            if item.op.type is OpType.COMPUTE and item.facts.origin is not None:
                yield index, item

    @cached_property
    def branches(self) -> Mapping[Forward, int]:
        """For each forward operator that the second half differentiates, the index of its last item there."""
        return {forward_of(item): index for index, item in self._differentiating(self.program.backwards[-1])}

    @cached_property
    def again(self) -> Mapping[Forward, tuple[int, Item]]:
        """The operators that make gradients of inputs and of weights in one call, which the second half runs again.

        By forward operator, the item of the second half before which it does, and the operator of the first. The
        second half goes through weights in the order of the forward.
        """
        first, second = self.program.backwards
        order = {(item.op.name, item.position): i for i, item in enumerate(self.program.items[self.program.forward])}
        places = [(index, order.get(forward_of(item), -1)) for index, item in self._differentiating(second)]
        run_again: dict[Forward, tuple[int, Item]] = {}
        for _, item in self._differentiating(first):
            if any(key in self.program.gradients for key in item.writes):
                own = order.get(forward_of(item), -1)
                after = (index for index, other in places if other > own)
                run_again[forward_of(item)] = next(after, len(self.program.items[second])), item
        return run_again

    def _branch(self, forward: Forward) -> int | None:
        """The item of the second half after which an operator's part is released; None if it has no weights."""
        if forward in self.branches:
            return self.branches[forward]
        return max(self.again[forward][0] - 1, 0) if forward in self.again else None

    def held(self, made: Mapping[Key, TaskKind]) -> Iterator[tuple[Key, Place]]:
        """Storages that the first half reads, each with the item until whose end the graph holds it.

        made: by storage, the kind of task that makes it. Above the last operator with weights nothing is held longer
        than the first half. An operator that runs again needs the gradient of its result too.
        """
        first, second = self.program.backwards
        operators = [(index, item, self._branch(forward_of(item))) for index, item in self._differentiating(first)]
        top = min((index for index, _, branch in operators if branch is not None), default=None)
        ends = {kind: len(self.program.items[kind]) - 1 for kind in (first, second)}
        for index, item, branch in operators:
            if branch is not None:
                over = second, branch
            elif top is not None and index > top:
                over = second, ends[second]
            else:
                over = first, ends[first]
            again = forward_of(item) in self.again
            for key in item.reads:
                if made.get(key) is self.program.forward or (again and made.get(key) is first):
                    yield key, over

    def following(self, item: Item, index: int) -> int:
        """The item until whose end a gradient of weights is held, in addition to the sum that it is added to.

        The gradient has a name in the code until the next group of gradients is there. index: of `item`.
        """
        branches = self.branches
        over = branches.get(forward_of(item), index)
        if any(place == over + 1 for place, _ in self.again.values()):
            return over
        later = sorted(item_at for item_at in branches.values() if item_at > over)
        return later[0] if later else len(self.program.items[self.program.backwards[-1]]) - 1
