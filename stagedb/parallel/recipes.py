"""The habits of a framework, as data: fusion, order, what is kept, bucketing, what happens once a step.

`torch`: PyTorch's public distributed APIs (DTensor tensor parallel plans, DDP, `torch.distributed.pipelining`).
`megatron`: Megatron-LM (and NeMo). Each field says what it stands for in the framework.
"""

from dataclasses import dataclass
from typing import Literal

from stagedb.parallel.options import RecipeName


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
    early_stop: bool


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
        early_stop=True,
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
        early_stop=False,
    ),
}
