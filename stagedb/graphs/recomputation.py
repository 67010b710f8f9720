"""Activation recomputation: the backward runs parts of a block's forward again, so that they need not be kept.

It works on matched operations, so that collectives are recomputed together with the operators that need them. If the
framework stops early (PyTorch's non-reentrant checkpoint), only the operations that the backward reads run again;
otherwise the whole part does (Megatron-LM).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from stagedb.ir.operators import Redistribution
from stagedb.ir.tensors import Operation, Tensor
from stagedb.workflows.training import INPUT_GRADIENT

SUFFIX = ".recompute"


@dataclass(frozen=True)
class RecomputedPart:
    """The part that runs again. `again` chooses among the forward operations.

    whole: the chosen operations are one checkpointed function, and its results are kept for readers outside of it;
    otherwise each operation is recomputed on its own, even if others read its results. early_stop: only as far as the
    backward reads. caches: every result of the other operations is kept until the block's backward, even if nothing
    there reads it. inside: what belongs to the layer, where a block has several; others are neither run again nor kept.
    offloads: the block's input is kept on the host.
    """

    again: Callable[[Operation], bool]
    whole: bool
    early_stop: bool
    caches: bool = False
    inside: Callable[[Operation], bool] = lambda op: True
    offloads: bool = False

    def chooses(self, op: Operation) -> bool:
        """Whether a forward operation runs again."""
        return self.inside(op) and self.again(op)


def recompute(operations: tuple[Operation, ...], part: RecomputedPart) -> tuple[tuple[Operation, ...], dict[str, str]]:
    """Run a part of the forward once more, before the first backward operation that needs it.

    The backward of an operator takes all its saved tensors when it begins, so both its gradients count as one. Returns
    the operations with the copies among them, and for each new tensor the one that it repeats.
    """
    forward = [op for op in operations if not op.template.differentiates]
    chosen = [op for op in forward if part.chooses(op)]
    outside = {tensor.name for op in forward if not part.chooses(op) for tensor in op.inputs}
    kept = outside if part.whole else set()
    makers = {tensor.name: op for op in chosen for tensor in op.outputs if tensor.name not in kept}
    first = next((i for i, op in enumerate(operations) if _reads(op, makers)), None)
    if first is None:
        return operations, {}
    origin = operations[first].origin
    begins = (i for i, op in enumerate(operations[:first]) if op.origin == origin and _computes_backward(op))
    first = next(begins, first)
    needed = _needed(operations, makers) if part.early_stop else {op.name for op in chosen}
    if part.early_stop and part.whole:
        # The function runs in its order until the last tensor that the backward wants is there.
        last = max(place for place, op in enumerate(chosen) if op.name in needed)
        needed = {op.name for op in chosen[: last + 1]}
    copies = [_copy(op, makers, needed) for op in chosen if op.name in needed]
    repeats = {
        tensor.name: copy
        for op, made in zip((op for op in chosen if op.name in needed), copies, strict=True)
        for tensor, copy in zip(op.outputs, made.outputs, strict=True)
    }
    rest = [_reading(op, {name: copy for name, copy in repeats.items() if name in makers}) for op in operations]
    rest[first:first] = copies
    return tuple(rest), {copy.name: name for name, copy in repeats.items()}


def cached(operations: tuple[Operation, ...], part: RecomputedPart) -> frozenset[str]:
    """The tensors that are kept for the backward even if nothing there reads them.

    They are results of operations outside the part that runs again. A result that only operators of the same call read
    is not kept, such as what one turn of a ring reads of the turn before.
    """
    forward = [op for op in operations if not op.template.differentiates and part.inside(op)]
    kept = [op for op in forward if not part.again(op) and not isinstance(op.operator, Redistribution)]
    readers: dict[str, set[str]] = {}
    for op in operations:
        for tensor in op.inputs:
            readers.setdefault(tensor.name, set()).add("" if op.template.differentiates else op.origin)
    results = (t.name for op in kept for t in op.outputs if readers.get(t.name) != {op.origin})
    return frozenset(results) if part.caches else frozenset()


def _computes_backward(op: Operation) -> bool:
    return op.template.differentiates and not isinstance(op.operator, Redistribution)


def _reads(op: Operation, makers: dict[str, Operation]) -> bool:
    return op.template.differentiates and any(tensor.name in makers for tensor in op.inputs)


def _needed(operations: tuple[Operation, ...], makers: dict[str, Operation]) -> set[str]:
    """The chosen operations that the backward's reads lead back to."""
    wanted = [tensor.name for op in operations if _reads(op, makers) for tensor in op.inputs]
    needed: set[str] = set()
    while wanted:
        maker = makers.get(wanted.pop())
        if maker is not None and maker.name not in needed:
            needed.add(maker.name)
            wanted += [tensor.name for tensor in maker.inputs]
    return needed


def _again(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, name=tensor.name + SUFFIX)


def _copy(op: Operation, makers: dict[str, Operation], needed: set[str]) -> Operation:
    def source(tensor: Tensor) -> Tensor:
        maker = makers.get(tensor.name)
        return _again(tensor) if maker is not None and maker.name in needed else tensor

    loop = op.loop
    if loop is not None:
        previous = tuple(name + SUFFIX for name in loop.previous)
        loop = dataclasses.replace(loop, name=loop.name + SUFFIX, previous=previous)
    return dataclasses.replace(
        op,
        name=op.name + SUFFIX,
        inputs=tuple(map(source, op.inputs)),
        outputs=tuple(map(_again, op.outputs)),
        template=INPUT_GRADIENT,
        recomputed=True,
        loop=loop,
    )


def _reading(op: Operation, renamed: dict[str, Tensor]) -> Operation:
    """The operation with its reads renamed to copies, if it is a backward one; the forward keeps its reads."""
    if not op.template.differentiates or all(tensor.name not in renamed for tensor in op.inputs):
        return op
    return dataclasses.replace(op, inputs=tuple(renamed.get(tensor.name, tensor) for tensor in op.inputs))
