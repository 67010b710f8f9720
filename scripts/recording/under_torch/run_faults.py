"""What may be wrong with a program that trains: each fault is one change of what PyTorch's own means do."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import ScheduleGPipe

from scripts.recording.under_torch import parallel
from scripts.recording.under_torch.run_programs import PipelineProgram

LAYER = "1"
"""The layer that is wrong."""


def before_it_is_made(fault: str | None) -> None:
    """Change the means that make a program."""
    if fault == "small-buckets":
        parallel.BUCKET = 4
    elif fault == "no-prefetch":
        FSDPParamGroup._backward_prefetch = lambda self: None
    elif fault == "all-forwards-first":
        PipelineProgram.schedule_class = ScheduleGPipe


def after_it_was_made(fault: str | None, program: Any) -> None:
    """Change a program."""
    if fault is not None and fault in _CHANGES:
        _CHANGES[fault](program, program.model.layers[LAYER])


def _gathers_once_more(program: Any, layer: Any) -> None:
    group = program.ranks["dp"].get_group()

    def gather(_: Any, __: Any, result: torch.Tensor) -> None:
        found = result.detach().contiguous().view(-1)
        whole = torch.empty(found.numel() * dist.get_world_size(group), dtype=found.dtype)
        dist.all_gather_into_tensor(whole, found, group=group)

    layer.register_forward_hook(gather)


def _reduces_over_all(_: Any, layer: Any) -> None:
    _units(layer).mesh_info.replicate_process_group = dist.group.WORLD


def _reduces_whole(_: Any, layer: Any) -> None:
    layer.set_custom_reduce_scatter(_AllReduce())


class _AllReduce(ReduceScatter):
    """All ranks get the sum, and each takes its part of it."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
        dist.all_reduce(input_tensor, dist.ReduceOp.SUM, group=group)
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()] / group.size())


def _keeps_all(_: Any, layer: Any) -> None:
    layer.context = replace(layer.context, config={**layer.context.config, "recompute": "none"})


def _in_fp32(_: Any, layer: Any) -> None:
    wide = MixedPrecisionPolicy(torch.float32, reduce_dtype=torch.float32, output_dtype=torch.bfloat16)
    _units(layer).mp_policy = layer._get_fsdp_state()._mp_policy = wide


def _reduces_nothing(_: Any, layer: Any) -> None:
    layer.set_requires_gradient_sync(False)


def _units(layer: Any) -> Any:
    return layer._get_fsdp_state()._fsdp_param_group


_CHANGES: Mapping[str, Callable[[Any, Any], None]] = {
    "extra-gather": _gathers_once_more,
    "wide-group": _reduces_over_all,
    "all-reduce": _reduces_whole,
    "no-checkpoint": _keeps_all,
    "fp32-unit": _in_fp32,
    "no-reduction": _reduces_nothing,
}
