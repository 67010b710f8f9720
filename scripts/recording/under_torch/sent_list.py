"""What a program communicates, as PyTorch dispatches it: a list that owes nothing to a profiler."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from scripts.recording.under_torch.observer import COLLECTIVES, NAMESPACES, group_of

MESSAGES = ("send", "recv")


class SentList(TorchDispatchMode):
    """Notes every collective and message that is called inside, in the order of the calls.

    found: kind, group's global ranks, bytes that go in and that come out, and the global rank of a message's other end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES:
            name = func._schema.name.split("::")[1]
            if (kind := "barrier" if name == "barrier" else COLLECTIVES.get(name)) is not None:
                self.found.append(_entry(kind, args, result))
        return result


def _entry(kind: str, args: Any, result: Any) -> dict[str, Any]:
    group = group_of(args)
    ranks = dist.get_process_group_ranks(group)
    found: dict[str, Any] = {"kind": kind, "ranks": ranks}
    given = [each for each in tree_flatten(args)[0] if isinstance(each, torch.Tensor)]
    sizes = [each.numel() * each.element_size() for each in given]
    if kind in MESSAGES:
        numbers = [each for each in args if isinstance(each, int)]
        return found | {"bytes": sizes[0], "peer": ranks[numbers[0]]}
    made = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]
    sizes += [each.numel() * each.element_size() for each in made]
    if kind == "barrier":
        return found
    # The larger one of input and output: gathers make all of the parts that ranks have, and scatters the reverse.
    return found | {"bytes": max(sizes)}
