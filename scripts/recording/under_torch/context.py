"""Attention over the ranks of a context group: torch's ring, or gathered keys and values."""

from typing import Any

import torch
import torch.distributed._functional_collectives as functional_collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import _attention
from torch.nn import functional

ROWS = 2
"""The dimension of rows in q, k and v."""


class ContextAttention:
    """Causal attention of this rank's rows to all rows before them."""

    def __init__(self, kind: str, mesh: DeviceMesh, mask: torch.Tensor | None) -> None:
        self.kind, self.mesh, self.mask = kind, mesh, mask
        if kind.startswith("ring"):
            _attention.set_rotate_method("allgather" if kind == "ring-allgather" else "alltoall")
            _attention._cp_options.enable_load_balance = True
            _attention._enable_context_parallel_dispatcher()

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.ring(q, k, v) if self.kind.startswith("ring") else self.gathered(q, k, v)

    def ring(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """torch's ring attention with balanced rows, behind the flash operator of distributed tensors."""
        given = (DTensor.from_local(each, self.mesh, [Shard(ROWS)], run_check=False) for each in (q, k, v))
        found: Any = torch.ops.aten._scaled_dot_product_flash_attention(*given, 0.0, True)[0]
        return found.to_local()

    def gathered(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of this rank's rows to the keys and values of all."""
        group = self.mesh.get_group()
        k, v = (functional_collectives.all_gather_single_autograd(each.contiguous(), ROWS, group) for each in (k, v))
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask, enable_gqa=q.shape[1] != k.shape[1]
        )
