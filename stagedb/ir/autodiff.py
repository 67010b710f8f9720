"""The backward of a block, derived from its forward: gradient rules in reverse order, sums where paths meet."""

import dataclasses
from collections.abc import Collection, Mapping

from stagedb.ir.facts import Tag
from stagedb.ir.operators.elementwise import Add
from stagedb.ir.operators.loss import HandOn, HandOver
from stagedb.ir.tensors import Operation, Tensor, Tracer
from stagedb.workflows.training import INPUT_GRADIENT, WEIGHT_GRADIENT


def differentiate(tracer: Tracer, seeds: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Append the backward of all operations that `tracer` has recorded.

    seeds: the gradient that arrives for a tensor, by the tensor's name. wanted: the tensors whose gradients something
    outside reads (weights that are trained, the block's input). Operations that lead to none of them are left out, as
    autograd engines do not run the backward of what needs no gradient. Returns the gradient of each of them that has
    one. Gradients that meet are added as soon as both are there, as autograd engines do. The sum belongs to the region
    of the tensor whose gradient it is. If a gradient from there is first, those from another region are added to each
    other before: a part that reads the stream itself gives it one gradient.
    """
    forward = list(tracer.operations)
    sums = _Sums(tracer, forward, dict(seeds))
    for op in reversed(forward):
        arriving = tuple(sums.total(tensor) for tensor in op.outputs)
        if all(grad is None for grad in arriving):
            continue
        for index, grad in _contributions(tracer, op, arriving):
            sums.add(op.inputs[index], grad, op)
    for tensor in [each for op in forward for each in op.inputs]:
        sums.total(tensor)
    grads = {name: sums.grads[name] for name in wanted if name in sums.grads}
    _prune(tracer, len(forward), {grad.name for grad in grads.values()})
    return grads


def handed_over(tracer: Tracer) -> dict[str, Tensor]:
    """The gradients with which a block's backward begins, because its forward has made and kept them, by their tensor.

    A function of autograd hands them over in its backward, those of weights first, which are added up at once.
    """
    seeds: dict[str, Tensor] = {}
    tracer.origin = f"{tracer.block}.out"
    tracer.enter("head")
    for of, kept in tracer.kept:
        weight = of.role == "weight"
        word = f"{of.name.rpartition('.')[2]}_gradient" if weight else "input_gradient"
        grad = tracer.gradient(of, f"{tracer.origin}.{word}")
        operator, template = (HandOver(), WEIGHT_GRADIENT) if weight else (HandOn(), INPUT_GRADIENT)
        tracer.emit(grad.name, operator, (kept,), grad, template=template)
        seeds[of.name] = grad
    return seeds


def _prune(tracer: Tracer, forward: int, live: set[str]) -> None:
    """Leave out operations of the backward that nothing live reads. forward: how many operations come before it.

    live: the names of the gradients that are read outside. A kernel that makes several results makes all of them where
    one is read, unless it can leave some out (`Operator.masks`).
    """
    kept = []
    for op in reversed(tracer.operations[forward:]):
        read = tuple(place for place, tensor in enumerate(op.outputs) if tensor.name in live)
        if not read:
            continue
        if op.operator.masks and len(read) < len(op.outputs):
            operator = dataclasses.replace(op.operator, only=read)
            op = dataclasses.replace(op, operator=operator, outputs=tuple(op.outputs[place] for place in read))
        kept.append(op)
        live |= {tensor.name for tensor in op.inputs}
    tracer.operations[forward:] = reversed(kept)


class _Sums:
    """The gradients of tensors, added where they meet. apart: those of parts whose region is not the
    tensor's. began: the region of the first one."""

    def __init__(self, tracer: Tracer, forward: list[Operation], grads: dict[str, Tensor]) -> None:
        self.tracer, self.grads = tracer, grads
        self.apart: dict[str, dict[str, tuple[Tensor, Operation]]] = {}
        self.began: dict[str, str] = {}
        self.places = {tensor.name: _place_of_sums(op) for op in forward for tensor in op.outputs}
        # What comes from outside has the region of its last reader, which adds to the stream; a weight of its first.
        read = {tensor.name: (op.region, op.marks) for op in forward for tensor in op.inputs if tensor.role != "weight"}
        first = {tensor.name: (op.region, op.marks) for op in reversed(forward) for tensor in op.inputs}
        self.places = first | read | self.places

    def add(self, tensor: Tensor, grad: Tensor, op: Operation) -> None:
        """One more gradient of a tensor, which an operation reads."""
        known, home = self.grads.get(tensor.name), self.places[tensor.name][0]
        if known is None:
            self.grads[tensor.name] = grad
            self.began[tensor.name] = op.region
        elif op.region != home and self.began.get(tensor.name) == home:
            parts = self.apart.setdefault(tensor.name, {})
            before = parts.get(op.region)
            parts[op.region] = (grad if before is None else self._sum(tensor, before[0], grad, op), op)
        else:
            self.grads[tensor.name] = self._sum(tensor, known, grad, op)

    def total(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a tensor that has all its gradients."""
        for grad, op in self.apart.pop(tensor.name, {}).values():
            self.grads[tensor.name] = self._sum(tensor, self.grads[tensor.name], grad, op)
        return self.grads.get(tensor.name)

    def _sum(self, tensor: Tensor, known: Tensor, grad: Tensor, op: Operation) -> Tensor:
        tracer = self.tracer
        region, marks = self.places[tensor.name]
        tracer.enter(region, *marks)
        tracer.origin = op.name
        count = sum(1 for made in tracer.operations if made.name.startswith(f"{tensor.name}.gradient_sum."))
        total = tracer.gradient(tensor, f"{tensor.name}.gradient_sum.{count}")
        template = WEIGHT_GRADIENT if tensor.role == "weight" else INPUT_GRADIENT
        tracer.emit(total.name, Add(), (known, grad), total, template=template)
        return total


def _place_of_sums(op: Operation) -> tuple[str, frozenset[Tag]]:
    """Region and tags of the sums of gradients of an operation's results."""
    operator = op.operator
    return (op.region, op.marks) if operator.sum_region is None else (operator.sum_region, operator.sum_tags)


def _contributions(tracer: Tracer, op: Operation, arriving: tuple[Tensor | None, ...]) -> list[tuple[int, Tensor]]:
    """Run one gradient rule in the region of its forward operation, or in one of its own."""
    tracer.enter(op.operator.gradient_region or op.region, *op.marks)
    tracer.origin = op.name
    return list(op.operator.gradient(tracer, op, arriving))
