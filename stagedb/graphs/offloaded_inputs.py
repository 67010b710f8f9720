"""The input of a recomputed layer on the host: it is copied there in the forward, and back where the backward begins.

`torch.autograd.graph.save_on_cpu` around `torch.utils.checkpoint.checkpoint`, as `offload_wrapper` of
torch.distributed.algorithms._checkpoint.checkpoint_wrapper has it: the checkpoint saves nothing but its input.
"""

import dataclasses

from stagedb.ir.operators.optimizer import HOST_ACTIVATION, FromHost, ToHost
from stagedb.ir.tensors import Operation, Tensor
from stagedb.workflows.training import FORWARD, INPUT_GRADIENT


def offload_input(
    operations: tuple[Operation, ...], x: Tensor, region: str
) -> tuple[tuple[Operation, ...], Tensor, Tensor]:
    """A block's operations with both copies, the tensor on the host, and the one that the backward reads.

    operations: those of a layer that runs its forward again. x: its input. region: of the copies.
    """
    there = dataclasses.replace(x, name=f"{x.name}.host", role=HOST_ACTIVATION)
    back = dataclasses.replace(x, name=f"{x.name}.back")
    names = f"{x.name}.to_host", f"{x.name}.from_host"
    down = Operation(names[0], ToHost(), (x,), (there,), region, FORWARD, names[0])
    up = Operation(names[1], FromHost(), (there,), (back,), region, INPUT_GRADIENT, names[1], recomputed=True)
    first = next(place for place, op in enumerate(operations) if op.recomputed)
    found = [down]
    for place, op in enumerate(operations):
        found += [up] * (place == first)
        inputs = tuple(back if each.name == x.name else each for each in op.inputs)
        found.append(dataclasses.replace(op, inputs=inputs) if op.template.differentiates else op)
    return tuple(found), there, back
