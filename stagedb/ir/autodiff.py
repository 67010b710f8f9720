"""The backward of a block, derived from its forward: gradient rules in reverse order, sums where paths meet."""

from collections.abc import Mapping

from stagedb.ir.operators.elementwise import Add
from stagedb.ir.tags import Tag
from stagedb.ir.tensors import Operation, Tensor, Tracer
from stagedb.workflows.training import INPUT_GRADIENT, WEIGHT_GRADIENT


def differentiate(tracer: Tracer, seeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Append the backward of all operations that `tracer` has recorded.

    seeds: the gradient that arrives for a tensor, by the tensor's name. Returns the gradient of every tensor that has
    one, weights and the block's inputs included. Gradients that meet are added as soon as both are there, as autograd
    engines do. The sum belongs to the region of the tensor whose gradient it is.
    """
    forward = list(tracer.operations)
    places = {tensor.name: _place_of_sums(op) for op in forward for tensor in op.outputs}
    consumers = {tensor.name: (op.region, op.marks) for op in reversed(forward) for tensor in op.inputs}
    grads: dict[str, Tensor] = dict(seeds)
    for op in reversed(forward):
        arriving = tuple(grads.get(tensor.name) for tensor in op.outputs)
        if all(grad is None for grad in arriving):
            continue
        for index, grad in _contributions(tracer, op, arriving):
            tensor = op.inputs[index]
            known = grads.get(tensor.name)
            if known is None:
                grads[tensor.name] = grad
                continue
            region, marks = places.get(tensor.name, consumers[tensor.name])
            tracer.enter(region, *marks)
            tracer.origin = op.name
            count = sum(1 for made in tracer.operations if made.name.startswith(f"{tensor.name}.gradient_sum."))
            total = tracer.gradient(tensor, f"{tensor.name}.gradient_sum.{count}")
            template = WEIGHT_GRADIENT if tensor.role == "weight" else INPUT_GRADIENT
            tracer.emit(total.name, Add(), (known, grad), total, template=template)
            grads[tensor.name] = total
    return grads


def _place_of_sums(op: Operation) -> tuple[str, frozenset[Tag]]:
    """Region and tags of the sums of gradients of an operation's results."""
    operator = op.operator
    return (op.region, op.marks) if operator.sum_region is None else (operator.sum_region, operator.sum_tags)


def _contributions(tracer: Tracer, op: Operation, arriving: tuple[Tensor | None, ...]) -> list[tuple[int, Tensor]]:
    """Run one gradient rule in the region of its forward operation, or in one of its own."""
    tracer.enter(op.operator.gradient_region or op.region, *op.marks)
    tracer.origin = op.name
    return list(op.operator.gradient(tracer, op, arriving))
