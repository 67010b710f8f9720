"""A framework as data: what it fuses, the order of its work, what it keeps in memory, and which plans it refuses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stagedb.collectives import CollectiveKind
from stagedb.frameworks.bucket_policies import Bucketing


@dataclass(frozen=True)
class FrameworkMemory:
    """What a framework holds in memory in addition to the tensors of the graph's operators.

    gradient_buffer: gradients have buffers from the start, into which each backward adds (Megatron's main gradients);
        else each backward makes them, and the optimizer's step releases them.
    receive_buffers: a pipeline stage has a receive buffer for each micro-batch and direction from the start
        (torch.distributed.pipelining); else a received tensor is like any other.
    keeps_sent: a stage keeps its result until that micro-batch's backward (torch.distributed.pipelining); else it
        releases it as soon as it is sent (Megatron).
    keeps_gradients: the schedules in which a stage with one chunk keeps the gradient that it sends until its next
        backward is over; else it releases it before.
    whole_batch: each stage holds the tokens and labels of all micro-batches; else it loads what it reads of each with
        its forward, and frees it after its backward.
    optimizer_scalar: bytes of the optimizer's step count for each parameter (torch's AdamW).
    holds_gathers: a forward holds the buffer of a gather until the next gather has been copied out (FSDP2); else it
        frees each at once.
    holds_arguments: the calls of attention and feed-forward hold their inputs until they return.
    rearranges: what ranks of tp gather or scatter is copied, so that the parts of ranks are rows (functional
        collectives along another dimension than the first).
    retains_graph: the first half of a split backward frees nothing that its operators have saved: the graph holds it,
        and each operator with weights releases its own part in the second half (torch.distributed.pipelining).
    mesh_rank: bytes for each rank of a device mesh with several axes.
    """

    gradient_buffer: bool
    receive_buffers: bool
    keeps_sent: bool
    keeps_gradients: tuple[str, ...]
    whole_batch: bool
    optimizer_scalar: int
    holds_gathers: bool
    holds_arguments: bool
    rearranges: bool
    retains_graph: bool
    mesh_rank: int


@dataclass(frozen=True)
class DefaultFormats:
    """The number formats that a framework uses if a plan names none, and those that it refuses.

    Each table has only exceptions: a format that is missing maps to itself, and a missing master copy to `none`.

    parameters: by the format of the compute. gradients, optimizer, master: by the format of the parameters.
    refused_parameters: by format, why the framework cannot train parameters in it, and what to do instead.
    wide_gradients: gradients may have more bytes an element than their parameters.
    """

    parameters: Mapping[str, str]
    gradients: Mapping[str, str]
    optimizer: Mapping[str, str]
    master: Mapping[str, str]
    refused_parameters: Mapping[str, str]
    wide_gradients: bool


@dataclass(frozen=True)
class Framework:
    """One framework's choices.

    name: the word for it in plans (`recipe`). title: its name in error messages.

    fused_projections: one matmul makes q, k, v (and one makes gate and up): `learned` only q, k, v of models with
        learned positions (GPT-2's fused projection), `always` in every model. A fused projection cannot repeat a K/V
        head, so that tp divides the K/V heads, and it reads one shared input.
    row_bias: the bias of a row-parallel matmul is added `inside` it, on partial results, so that its gradient comes
        from the gathered output gradient; or `after` the reduction.
    weight_gradient_first: a linear without bias issues its weight gradient before its input gradient.
    whole_backward: an input gradient is reduced over tp after both gradients of its linear; else at once, while
        the weight gradient is computed.
    regather: with sp the backward gathers a column-parallel input again instead of keeping it whole.
    embedding_dropout: dropout acts before (`embedding`) or after (`between`) the split along the sequence.
    vocabulary_multiple: the vocabulary is padded to a multiple of this times tp; None: as the card has it, and tp
        divides it.
    composite_kernels: backwards of gates and of the loss are several kernels with values between them; else fused.
    embedding_gradient: the gradient of a vocabulary-parallel table is made `whole` on each rank and cut afterwards, or
        each rank makes its `own` rows.
    gathers_projection: tp cuts the projection before a layer of multi-token prediction, and its result is gathered, and
        cut along the sequence again where tp cuts it; else each rank has the whole weight.
    further_reads: the first layer of multi-token prediction reads what the model's last norm made, or the stream before
        that norm.
    logits_first: the model returns the logits of all predicted tokens, and their losses come after it, that of the next
        token first; else each loss follows its logits, the furthest first.
    latent_views: the latent of latent attention, and its values, remain views of the results of the matmuls that make
        them; else they are copied.
    latents: the region in which latents are made: with sp a rank gathers the hidden state for them (`attention`), or
        makes those of its own tokens, and these are gathered (`between`).
    sinks: the fused attention kernel knows sinks (`kernel`), or does not, and its result is multiplied by the sigmoid
        of its log-sum-exp minus the sink (`rescaled`).
    joins_shares: a gradient that is partial over tp is joined with a whole one without being reduced, so that the
        linear layer before them has partial gradients; else it is reduced before.
    routes_whole: where tp partitions each expert, all its ranks route the same tokens, which are gathered before, and
        experts' results remain shares until they are tokens again; else each rank routes its own tokens, and the slots
        of experts are gathered.
    early_stop: a checkpointed part is recomputed only as far as the backward reads it; else whole.
    reentrant: a checkpointed part has a backward only where its input needs a gradient.
    recomputes_modules: modules of a layer may be computed again, by their names in Megatron-Core, some of which discard
        their outputs (`recompute_modules`).
    routing_tables: the order of tokens by expert is a buffer of the model; else each layer makes its own.

    buckets: the bucket policies, by use.
    zero_stages: the ZeRO stages that the framework has (`zero`).
    hybrid_stages: those whose shards may have copies (`hsdp`); errors suggest the first.
    cuts_columns: with zero 2 and 3 experts that ranks divide are cut along their second axis if more ranks share them
        than a rank holds, so that none has padding only.
    expert_units: with zero 2 and 3 the experts of a layer may be a unit of their own (`expert_unit`).
    reshards_to: with zero 3 a few ranks may keep all parameters from the forward to the backward (`reshard_to`).
    has_fsdp1: with zero 2 and 3 units may be those of `FullyShardedDataParallel` (`fsdp_version`).
    optimizer_sharding: with zero 1 gradients are all-reduced as with zero 0, or reduce-scattered in one buffer a stage.
    partial_in_backward: with zero 2 and 3 gradients that are partial over tp are reduced where a unit's backward ends,
        one by one; else once a step.
    pipelined_sync: with zero 2 and 3 and several stages gradients are reduced after the `last` micro-batch, and units
        stay gathered from a backward to the next forward; or after `every` one as with a single stage.
    sequence_parallel_gradients: gradients of weights between tensor-parallel regions are reduced over tp `each` on its
        own, or in `one` coalesced message a stage, once a step.

    chunks_loss: logits, their loss and its gradients may be made for parts of the tokens in turn (`loss_chunks`).
    clips: gradients are clipped by the norms of all of them, reduced in one message an axis (`clip_norm`).

    muon_tp: how Muon sees matrices that ranks of tp partition, where a plan does not name it (`muon_tp`);
        None: a plan must name it.
    splits_packed: Muon takes fused queries, keys and values as three matrices.
    muon_positions: Muon takes learned positions as a matrix.
    owns_layers: each weight may be updated by one rank of dp, which the others get it from (`dist-muon`).

    any_optimizer: weights may be updated by any optimizer of PyTorch.
    offloads: what may be on the host, with copies in the order of kernels (`offload`).

    posts_ahead: with several chunks a stage, or another schedule than `single_schedules`, a runtime posts receives
        ahead of the tasks that read them (`stagedb.schedules.posted`). A trace has a receive with its task: it waits
        for nothing there.
    single_schedules: the schedules of one chunk a stage that the framework runs with code of their own.
    whole_first_backward: under split backwards the first chunk of the pipeline, whose input has no gradient, runs its
        whole backward where its weight gradients are due.
    splits_recomputed: a backward that recomputes may run as two halves, of which the second reads what the first has
        computed again.
    reduces_halves: the second half of a split backward makes all gradients, also those of units that were freed, and
        those that ranks of dp copy are reduced.
    cp_kinds: the kinds of context parallelism that the framework has (`cp_kind`), the default first.
    copies_heads: Ulysses may spread attention over more ranks than a rank of tp has key/value heads: each is sent to
        several ranks, as copies; else their number must divide the heads.
    explicit_mask: with gathered keys and values the kernel reads the causal mask as numbers, and keeps it for the
        backward; else it reads keys up to the end of a rank's queries, with a call for each part of them.
    scatter_gather: pipeline messages may go in parts, one a rank of tp (`scatter_gather`).

    formats: number formats. memory: what the framework holds in addition to the tensors of operators.
    """

    name: str
    title: str

    fused_projections: Literal["learned", "always"]
    row_bias: Literal["inside", "after"]
    weight_gradient_first: bool
    whole_backward: bool
    regather: bool
    embedding_dropout: Literal["embedding", "between"]
    vocabulary_multiple: int | None
    composite_kernels: bool
    embedding_gradient: Literal["whole", "own"]
    gathers_projection: bool
    further_reads: Literal["normalised", "stream"]
    logits_first: bool
    latent_views: bool
    latents: Literal["attention", "between"]
    sinks: Literal["kernel", "rescaled"]
    joins_shares: bool
    routes_whole: bool
    early_stop: bool
    reentrant: bool
    recomputes_modules: bool
    routing_tables: bool

    buckets: Bucketing
    zero_stages: tuple[int, ...]
    hybrid_stages: tuple[int, ...]
    cuts_columns: bool
    expert_units: bool
    reshards_to: bool
    has_fsdp1: bool
    optimizer_sharding: CollectiveKind
    partial_in_backward: bool
    pipelined_sync: Literal["last", "every"]
    sequence_parallel_gradients: Literal["each", "one"]
    chunks_loss: bool
    clips: bool
    muon_tp: Literal["blockwise", "duplicated"] | None
    splits_packed: bool
    muon_positions: bool
    owns_layers: bool
    any_optimizer: bool
    offloads: tuple[str, ...]
    posts_ahead: bool
    single_schedules: tuple[str, ...]
    whole_first_backward: bool
    splits_recomputed: bool
    reduces_halves: bool

    cp_kinds: tuple[str, ...]
    copies_heads: bool
    explicit_mask: bool
    scatter_gather: bool

    formats: DefaultFormats
    memory: FrameworkMemory
