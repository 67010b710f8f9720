"""The habits of a framework, as data: fusion, order, what is kept, bucketing, what happens once a step.

`torch`: PyTorch's public distributed APIs (DTensor tensor parallel plans, DDP, `torch.distributed.pipelining`).
`megatron`: Megatron-LM (and NeMo). Each field says what it stands for in the framework.
"""

from dataclasses import dataclass
from typing import Literal

from stagedb.parallel.options import CpKind, RecipeName


@dataclass(frozen=True)
class Held:
    """What a framework holds in memory beside the tensors of the graph's operators.

    gradient_buffer: gradients live in buffers that are there from the start (Megatron's main gradients), into which
        each backward adds; else each backward makes them, and the optimizer's step ends with their release.
    reducer_copies: DDP's buckets are copies (`gradient_as_bucket_view=False`).
    receive_buffers: a pipeline stage has a buffer for every micro-batch and direction from the start
        (torch.distributed.pipelining); else what is received is a tensor like others.
    keeps_sent: a stage's result is kept until its backward, and the gradient that it sends until its next one
        (torch.distributed.pipelining; Megatron gives sent results back).
    whole_batch: every stage holds the tokens and labels of all micro-batches; else each those of one.
    optimizer_scalar: bytes of the optimizer's step count, one for each parameter (torch's AdamW).
    bookkeeping: bytes of small tensors that are always there, and once more where a pipeline ends.
    sharded_bookkeeping: more of them during forward and backward where parameters are sharded.
    mesh_rank: bytes a rank of the device mesh where it has several axes.
    """

    gradient_buffer: bool
    reducer_copies: bool
    receive_buffers: bool
    keeps_sent: bool
    whole_batch: bool
    optimizer_scalar: int
    bookkeeping: int
    sharded_bookkeeping: int
    mesh_rank: int


@dataclass(frozen=True)
class Recipe:
    """One framework's choices.

    pack: q, k, v (and gate, up) in one matmul: `learned` where the model has learned positions (GPT-2's fused
        projection), `always` (Megatron's `linear_qkv` and `linear_fc1`).
    row_bias: the bias of a row-parallel matmul is added `inside` (DTensor's addmm on partial results: its gradient is
        then taken from the gathered output gradient) or `after` the reduction (Megatron's bias-dropout-add).
    weight_gradient_first: a linear without bias issues its weight gradient before its input gradient (autograd's mm;
        addmm the reverse); False: always the input gradient first (Megatron overlaps it with the weight gradient).
    whole_backward: an input gradient is reduced over tp when both gradients of its linear have been issued (torch: the
        backward of an operator is one call), or at once, beside the weight gradient (Megatron overlaps them).
    regather: under sp the backward gathers a column-parallel input again instead of keeping it whole (Megatron).
    embedding_dropout: dropout acts before (`embedding`) or after (`between`) the split along the sequence.
    vocabulary_multiple: the vocabulary is padded to a multiple of this times tp; None: as the card says.
    data_parallel_bucket: `ddp` = torch's reducer (first bucket 1 MiB, then 25 MiB), `one` = one buffer a stage.
    optimizer_sharding: with zero 1 gradients are all-reduced as without (torch's ZeroRedundancyOptimizer behind DDP) or
        reduce-scattered in one padded buffer a stage (Megatron's distributed optimizer).
    partial_in_backward: with zero 2 and 3 the gradients that are partial over tp are reduced where a unit's backward
        ends, one by one (FSDP2 on DTensors), instead of once a step.
    pipelined_sync: with zero 2 and 3 under pipeline parallelism gradients are reduced after the `last` micro-batch
        (torch.distributed.pipelining) or after `every` one, as without it.
    sequence_parallel_gradients: gradients of weights between the tensor-parallel regions are reduced over tp
        `each` on its own or in `one` coalesced message a stage, once a step.
    embedding_gradient: the gradient of a vocabulary-parallel table is made `whole` on each rank and cut afterwards
        (DTensor's embedding_dense_backward), or each rank makes its `own` rows (Megatron).
    composite_kernels: backwards of gates and of the loss are several kernels with values between them (PyTorch without
        compilation), or fused ones (Megatron).
    cp_kind: how ranks share a sequence where it is not said.
    explicit_mask: with gathered keys and values the kernel reads the causal mask as numbers that are added to the
        scores, and keeps it for the backward (torch); else it knows where a rank's queries begin.
    held: what the framework holds beside.
    routing_tables: the order of tokens by expert is a buffer of the model (the recorded torch model, whose routing is
        balanced by construction); else each layer makes its own.
    early_stop: a checkpointed part is recomputed only as far as the backward reads it (torch's non-reentrant
        checkpoint), or whole (Megatron).
    """

    pack: Literal["learned", "always"]
    row_bias: Literal["inside", "after"]
    weight_gradient_first: bool
    whole_backward: bool
    regather: bool
    embedding_dropout: Literal["embedding", "between"]
    vocabulary_multiple: int | None
    data_parallel_bucket: Literal["ddp", "one"]
    optimizer_sharding: Literal["all_reduce", "reduce_scatter"]
    partial_in_backward: bool
    pipelined_sync: Literal["last", "every"]
    sequence_parallel_gradients: Literal["each", "one"]
    embedding_gradient: Literal["whole", "own"]
    composite_kernels: bool
    cp_kind: CpKind
    explicit_mask: bool
    held: Held
    early_stop: bool
    routing_tables: bool = False


RECIPES: dict[RecipeName, Recipe] = {
    "torch": Recipe(
        pack="learned",
        row_bias="inside",
        weight_gradient_first=True,
        whole_backward=True,
        regather=False,
        embedding_dropout="embedding",
        vocabulary_multiple=None,
        data_parallel_bucket="ddp",
        optimizer_sharding="all_reduce",
        partial_in_backward=True,
        pipelined_sync="last",
        sequence_parallel_gradients="each",
        embedding_gradient="whole",
        composite_kernels=True,
        cp_kind="ring-allgather",
        explicit_mask=True,
        held=Held(
            gradient_buffer=False,
            reducer_copies=True,
            receive_buffers=True,
            keeps_sent=True,
            whole_batch=True,
            optimizer_scalar=4,
            bookkeeping=4,
            sharded_bookkeeping=4,
            mesh_rank=4,
        ),
        early_stop=True,
        routing_tables=True,
    ),
    "megatron": Recipe(
        pack="always",
        row_bias="after",
        weight_gradient_first=False,
        whole_backward=False,
        regather=True,
        embedding_dropout="between",
        vocabulary_multiple=128,
        data_parallel_bucket="one",
        optimizer_sharding="reduce_scatter",
        partial_in_backward=False,
        pipelined_sync="every",
        sequence_parallel_gradients="one",
        embedding_gradient="own",
        composite_kernels=False,
        cp_kind="allgather-kv",
        explicit_mask=False,
        held=Held(
            gradient_buffer=True,
            reducer_copies=False,
            receive_buffers=False,
            keeps_sent=False,
            whole_batch=False,
            optimizer_scalar=0,
            bookkeeping=0,
            sharded_bookkeeping=0,
            mesh_rank=0,
        ),
        early_stop=False,
    ),
}
