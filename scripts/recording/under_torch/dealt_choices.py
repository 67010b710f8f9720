"""Routers whose code splits rows by the number of each expert's tokens, with tokens dealt to experts in turn (JetMoe).

Their values decide the sizes of matmuls, so that they need values: on the meta device there are none.
"""

from functools import partial
from typing import Any

import torch


def deal_choices(model: Any) -> None:
    """Let choice j of token t go to expert `t·k + j mod E` in such routers of a model, whose logits decide weights."""
    for module in model.modules():
        if type(module).__name__.endswith("TopKGating"):
            module.forward = partial(_dealt, module)


def _dealt(module: Any, hidden: Any) -> tuple[Any, Any, Any, list[int], Any]:
    """What a router returns: choices in the order of experts, their tokens and weights, and the sizes of experts."""
    logits = module.layer(hidden).float()
    weights = torch.softmax(logits.topk(module.top_k, dim=1)[0], dim=1).type_as(hidden)
    chosen = torch.arange(weights.numel(), device="cpu") % module.num_experts
    sizes = torch.bincount(chosen, minlength=module.num_experts).tolist()
    order = chosen.sort(stable=True)[1].to(hidden.device)
    return order, order.div(module.top_k, rounding_mode="trunc"), weights.flatten()[order], sizes, logits
