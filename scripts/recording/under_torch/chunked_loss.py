"""A loss in parts of the tokens, in plain PyTorch: a function of autograd that makes its own gradients.

As Liger's fused linear cross entropy, without its kernels: each part has its logits, its loss, and at once the
gradients of the part and of the head's weight. The first part's gradient of the weight is what others are added to.
With a weight that tensor parallelism cuts, the gradient of all tokens is a sum over ranks, which is reduced behind the
function, as torchtitan's `GradAccumulator` has it.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional


class ChunkedLoss(torch.autograd.Function):
    """The mean cross entropy of a head's logits in `count` parts of the tokens. whole: the loss reads whole logits."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, labels: torch.Tensor, count: int, whole: bool) -> torch.Tensor:
        rows, wanted = hidden.detach().flatten(0, 1), labels.flatten()
        trains, total, of_weight = weight.requires_grad, torch.zeros(()), None
        for place, (part, own) in enumerate(zip(rows.chunk(count), wanted.chunk(count), strict=True)):
            loss, grads = differentiated(part, weight, own, len(wanted), trains, whole)
            local = [each.to_local() if isinstance(each, DTensor) else each for each in grads]
            if place == 0:
                of_hidden = torch.empty(rows.shape, dtype=rows.dtype)
            of_hidden[place * len(part) : (place + 1) * len(part)] = local[0]
            if trains:
                of_weight = local[1] if of_weight is None else of_weight.add_(local[1])
            total = total + loss if place else loss
            del loss, grads, local
        ctx.save_for_backward(*(each for each in (of_hidden, of_weight) if each is not None))
        ctx.shape = hidden.shape
        ctx.cut = (weight.device_mesh, weight.placements) if isinstance(weight, DTensor) else None
        return total

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        of_hidden, *of_weight = ctx.saved_tensors
        found = [of_hidden.view(ctx.shape), *of_weight]
        if ctx.cut is not None:
            mesh, placements = ctx.cut
            kinds = ([Partial()], placements)
            found = [DTensor.from_local(each, mesh, kind) for each, kind in zip(found, kinds, strict=False)]
        return found[0], found[1] if of_weight else None, None, None, None


def differentiated(
    part: Any, weight: Any, labels: torch.Tensor, tokens: int, trains: bool, whole: bool
) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The share of a part in the mean over all tokens, and its gradients: of the part, and of a weight that trains.

    What autograd saves for them is none of the model's.
    """
    with torch.enable_grad(), saved_tensors_hooks(lambda each: each, lambda each: each):
        leaf, own = part.detach().requires_grad_(), weight.detach().requires_grad_(trains)
        logits = functional.linear(leaf, own)
        if whole and isinstance(logits, DTensor):
            logits = logits.redistribute(placements=[Replicate()]).to_local()
        loss = functional.cross_entropy(logits.float(), labels, reduction="sum") / tokens
        del logits
        grads = torch.autograd.grad(loss, (leaf, own) if trains else (leaf,))
    return loss.to_local() if isinstance(loss, DTensor) else loss.detach(), grads


def whole_input(hidden: Any, head: nn.Linear) -> Any:
    """What the last norm has made, whole on each rank of tp: torchtitan's models return it so."""
    if not isinstance(head.weight, DTensor):
        return hidden
    if not isinstance(hidden, DTensor):
        hidden = DTensor.from_local(hidden, head.weight.device_mesh, [Replicate()])
    return hidden.redistribute(placements=[Replicate()])


def loss_in_parts(hidden: Any, head: nn.Linear, labels: torch.Tensor, count: int, whole: bool) -> torch.Tensor:
    """The loss of what a model without its head returns."""
    found: torch.Tensor = ChunkedLoss.apply(hidden, head.weight, labels, count, whole)
    return found
