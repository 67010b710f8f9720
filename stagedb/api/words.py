"""The words of a plan as keyword arguments, for type checkers and editors. `stagedb.parallel.words` reads them."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class GraphWords(TypedDict, total=False):
    """What changes a graph's structure. See `stagedb.parallel.GraphOptions`."""

    recipe: Literal["torch", "megatron"]
    sp: bool
    attention: Literal["fused", "math"]
    matmul_dtype: Literal["same", "fp8"]
    dropout: float
    kernels: Literal["fused", "eager"]
    shared_input: bool
    loss_parallel: bool
    recompute: Literal["none", "full", "core", "pointwise", "operators"]
    recompute_operators: Sequence[str] | str
    early_stop: bool
    strategy: str
    zero: Literal[0, 1, 2, 3]
    reshard: bool
    grad_sync: bool
    cp_kind: Literal["none", "allgather-kv", "ring-allgather", "ring-alltoall", "ring-p2p", "ulysses", "ulysses-ring"]
    cp_chunks: Literal["none", "balanced", "contiguous"]
    cp_grad_sync: bool
    expert_tp: bool
    ep_sync: bool
    scatter_gather: bool


class PlanWords(GraphWords, total=False):
    """How a training step is laid out over ranks. See `stagedb.parallel.Plan`."""

    ranks: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    capacity_factor: float
    expert_load: str | Sequence[int]
    hsdp: int
    ulysses: int
    micro_batch_size: int
    global_batch_size: int
    seq_len: int
    schedule: str
    virtual_stages: int
    task_order: Sequence[str]
    recompute_every: int
    layers_per_stage: Sequence[int] | str
    rank_order: Sequence[str] | str
    dtype: str
    param_dtype: str
    grad_dtype: str
    reduce_dtype: str
    opt_dtype: str
    master_dtype: str
    logits_dtype: str


Words = Mapping[str, object]
"""The same words as a mapping, such as a plan file's."""
