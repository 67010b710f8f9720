"""The words of a plan as keyword arguments, for type checkers and editors.

`scripts/plan_words` writes this file from the declarations in `stagedb.plans.aspects`: change those.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class GraphWords(TypedDict, total=False):
    """Words that change the structure of a graph. See `stagedb.plans.GraphOptions`."""

    workflow: Literal["training", "forward-only", "prefill", "mixed", "decode", "speculative"]
    """What a step runs: training, forward, backward and optimizer; forward-only, the forward and its loss alone, as
    in an evaluation; prefill, a forward of new tokens of requests, whose keys a cache keeps; mixed, a forward of new
    tokens of some requests, with one token of each of others; decode, a forward of one token of each request over
    its cache; speculative, a forward of the last token of each request and of a draft behind it, which it checks.
    [training]"""
    recipe: str
    """The framework that the graph follows. [torch]"""
    attention: Literal["fused", "math"]
    """One flash-like kernel, or matmuls and a softmax. [fused]"""
    latents: Literal["usual", "expanded", "absorbed"]
    """Latent attention in serving: keys and values made of all cached latents, or queries that read the latents
    themselves. [absorbed in decode and speculative, expanded elsewhere]"""
    draft: Literal["usual", "own", "other"]
    """Where a draft comes from: the model's own layers for further tokens make the next one in the same step (own),
    or another model, or n-grams, which are no part of the step (other). [own if the model has such layers]"""
    clip_norm: bool
    """Scale gradients down to a largest norm before the optimizer's step. [no-clip-norm]"""
    loss_chunks: int
    """Parts of a micro-batch's tokens, each with its logits, loss and gradients in the forward, one by one. [1]"""
    dropout: float
    """Dropout probability. [0]"""
    kernels: Literal["fused", "eager"]
    """Fused element-wise kernels, or one kernel a primitive, as autograd runs them. [fused]"""
    sp: bool
    """Sequence parallelism between tensor-parallel regions. [no-sp]"""
    shared_input: bool
    """Gather a tensor-parallel region's input once; without it, once for each matmul. [shared-input]"""
    loss_parallel: bool
    """Cross-entropy on vocabulary-parallel logits; without it, on gathered ones. [loss-parallel]"""
    strategy: str
    """Your own sharding rules, by region of the model: a file (YAML), or their JSON."""
    zero: Literal[0, 1, 2, 3]
    """Sharded over dp: nothing, the optimizer's state, gradients too, parameters too. [0]"""
    reshard: bool
    """With zero=3, free gathered parameters after the forward. [reshard]"""
    reshard_to: int
    """With zero=3, N neighbouring ranks keep all parameters from the forward to the backward. [all that shard them]"""
    fsdp_version: Literal[1, 2]
    """FSDP of zero=2 and 3: FullyShardedDataParallel (1), which frees units late, or fully_shard. [2]"""
    grad_sync: bool
    """Reduce gradients over dp after each micro-batch, or after the last. [the framework's default]"""
    recompute: Literal["none", "full", "core", "pointwise", "operators", "modules"]
    """What a layer's backward computes again: all, the attention core, all but matmuls, the operators that
    recompute_operators names, or Megatron-Core's modules that recompute_modules names. [none]"""
    recompute_operators: Sequence[str] | str
    """Operators of a layer, each with all operators under its name, such as attn_norm,ffn.gate."""
    recompute_modules: Sequence[str] | str
    """Megatron-Core's modules of a layer to recompute, such as layernorm,moe_act."""
    early_stop: bool
    """Recompute only what the backward reads, or everything. [torch: early-stop; megatron: all]"""
    cp_kind: Literal[
        "none",
        "allgather-kv",
        "allgather-lse",
        "ring-allgather",
        "ring-alltoall",
        "ring-p2p",
        "ulysses",
        "ulysses-ring",
    ]
    """How the ranks of cp compute attention: allgather-kv, ring-allgather, ring-alltoall, ring-p2p, ulysses or
    ulysses-ring; with a cache: allgather-lse. [torch: ring-allgather; megatron: ring-p2p; with a cache:
    allgather-lse]"""
    cp_chunks: Literal["none", "balanced", "contiguous"]
    """Which part of a sequence a rank of cp has: balanced (a chunk from the front and one from the back) or
    contiguous. [balanced if the kind allows it]"""
    cp_grad_sync: bool
    """Reduce gradients over cp as well as dp; without it, over dp only. [cp-grad-sync]"""
    expert_tp: bool
    """Tensor parallelism partitions each expert; or its ranks have whole experts, among those of ep: with sp=True of
    tokens that are sent, or in a forward without it of the tokens that all have. [expert-tp]"""
    redundant_experts: int
    """Copies of the experts with most choices, so many in each layer, on ranks of ep. [0]"""
    dispatch: Literal["copies", "ranks", "nodes"]
    """What a token is sent to its experts for: once for each expert, once for each rank with some of them (DeepEP,
    HybridEP), or once for each node with some and from there to its ranks. [copies]"""
    dispatch_dtype: Literal["same", "fp8"]
    """Format in which dispatch='ranks' or nodes sends tokens to their experts; fp8 has a scale for each 128 values,
    and results come back as they are. [same]"""
    ep_sync: bool
    """Reduce the gradients of all weights but experts over ep; without it, copies drift apart. [ep-sync]"""
    expert_unit: bool
    """With zero=2 or 3, the experts of each layer are an FSDP unit of their own, next to the rest. [no-expert-unit]"""
    scatter_gather: bool
    """Ranks of tp with the same tensor each send a part of it to the next stage, which gathers it; without it each
    sends the whole. [no-scatter-gather]"""
    matmul_dtype: Literal["same", "fp8"]
    """Operands of linear layers: in dtype, or cast to fp8. [same]"""
    weight_dtype: Literal["same", "int4", "int4_symmetric", "mxfp4", "nvfp4"]
    """Stored weights of linear layers in serving, which multiply in dtype: int4 (AWQ), int4_symmetric (GPTQ), mxfp4
    (experts alone), nvfp4. [same]"""
    optimizer: Literal["adamw", "adamw-8bit", "adamw-8bit-ao", "adafactor", "muon", "dist-muon", "sgd", "sgd-momentum"]
    """What updates the weights. Muon updates the matrices of layers, and AdamW the rest, dist-muon with each weight
    on one rank of dp; adamw-8bit is that of bitsandbytes, adamw-8bit-ao that of torchao. [adamw]"""
    muon_tp: Literal["usual", "blockwise", "duplicated"]
    """Matrices that tp partitions in Muon: each rank's part alone, or gathered, so that each has the whole.
    [megatron: blockwise]"""
    offload: Literal["none", "optimizer", "activations"]
    """What a rank keeps in its host's memory: the optimizer's states, which the host's processor updates, or the
    inputs of layers that recompute. [none]"""
    lora: Sequence[str] | str
    """Linear layers with low-rank adapters (LoRA), such as q_proj,v_proj or all. Nothing else is trained."""
    frozen: Sequence[str] | str
    """Parts that are not trained: embedding, head, or operators of a layer, such as ffn.router."""


class PlanWords(GraphWords, total=False):
    """Words that lay a training step out over ranks. See `stagedb.plans.Plan`."""

    ranks: int
    """World size; sets dp = N / (tp x pp x cp) if dp is not given."""
    tp: int
    """Tensor parallelism. [1]"""
    pp: int
    """Pipeline stages. [1]"""
    cp: int
    """Context parallelism: ranks that share a sequence. [1]"""
    ep: int
    """Expert parallelism, among the ranks of dp x cp (with expert_tp=False also of tp): N divides them and the
    experts. [1]"""
    dp: int
    """Data parallelism. [from ranks, else 1]"""
    rank_order: Sequence[str] | str
    """Mesh axes, innermost first. [tp,cp,dp,pp]"""
    micro_batch_size: int
    """Sequences of one micro-batch on a data-parallel rank. [1]"""
    global_batch_size: int
    """Sequences of one step. [one micro-batch a data-parallel rank]"""
    seq_len: int
    """Tokens of a sequence. [the length that the model was trained with]"""
    cache_len: int
    """Tokens of each request that its cache has before a step of serving. [0]"""
    requests: Sequence[str] | str
    """The requests of a micro-batch on a data-parallel rank: REQUESTSxNEW+CACHED/SHARED,…, with their new tokens,
    those in the cache of each, and of these a prefix that is kept once, sums, an iteration of vLLM, SGLang or ATOM,
    or a CSV, YAML or JSON file. [micro_batch_size of one length]"""
    acceptance: float
    """The probability that the model accepts a token of a draft, if it accepted those before. [None]"""
    schedule: str
    """Order of micro-batches on the stages: gpipe, all forwards, then all backwards; 1f1b, a warm-up of forwards,
    then a forward and a backward in turn; interleaved, 1F1B over several chunks of layers a stage; zb-h1, 1F1B with
    split backwards, whose weight gradients fill the bubble; breadth-first, all micro-batches through one chunk of
    layers after the other; interleaved-zb, interleaved 1F1B with split backwards, whose weight gradients fill the
    bubble; zb-v, a zero-bubble schedule over two chunks a stage, up and down the stages; dualpipev, DeepSeek's
    DualPipe over two chunks a stage, up and down the stages; or a file with the order of each stage: YAML, JSON, or
    torch's CSV. [1f1b]"""
    virtual_stages: int
    """Chunks of layers on each stage; 1f1b is then interleaved. [1]"""
    chunk_placement: str
    """Stages of the chunks in the order of a forward: in loops over the stages, up and down them (v), or the stage
    of each chunk, such as 0,1,1,0. [as the schedule has them]"""
    task_order: Sequence[str] | str
    """With schedule explicit: the tasks of each stage in order, as text (F0 F1 B0 B1)."""
    layers_per_stage: Sequence[int] | str
    """Layers of each stage. [evenly, the remainder to the early stages]"""
    layers_per_chunk: Sequence[int] | str
    """Layers of each chunk in the order of a forward; 0 for a first chunk with only the embedding, or a last one
    with only the head; or Megatron-Core's text for them, such as Et|(tt|)*30mL. [a stage's layers evenly]"""
    counted_ends: Literal["none", "embedding", "loss", "both"]
    """Ends of the model that count as one layer each in an even split: its stages and chunks have so much less.
    [none]"""
    ulysses: int
    """With cp_kind='ulysses-ring': neighbours that exchange heads, in a ring over cp / N. [1]"""
    capacity_factor: float
    """Slots of an expert, as a multiple of its even share. [dropless]"""
    expert_load: Sequence[float] | str
    """Choices of tokens that go to each expert: numbers such as 3,1,2,2, shares such as 0.3,0.1,0.4,0.2, or a YAML
    or JSON list of them. [even]"""
    routing: Sequence[Sequence[int]] | Sequence[str] | str
    """The experts of each token: a YAML or JSON list with a list of experts for each of some tokens, which a rank's
    tokens repeat. [all choices equally likely]"""
    node_ranks: int
    """Ranks of ep that are one node, for dispatch='nodes'. [1]"""
    overlap_experts: bool
    """Run the forward of one micro-batch and the backward of another together, or without a backward two forwards,
    so that each computes while the other exchanges tokens. [no-overlap-experts]"""
    hsdp: int
    """Copies of what is sharded, each on dp / N neighbouring ranks. [1]"""
    recompute_every: int
    """Recompute only in every K-th layer of a stage. [1]"""
    recompute_first: int
    """Recompute only in the first N layers of a stage, or of each of its chunks. [all]"""
    lora_rank: int
    """Rank of the adapters that lora names. [16]"""
    dtype: Literal["bf16", "fp16", "fp32"]
    """Activations, and every format without an option of its own. [bf16]"""
    param_dtype: Literal["bf16", "fp16", "fp32"]
    """Parameters. [dtype; torch: fp32 with fp16]"""
    grad_dtype: Literal["bf16", "fp16", "fp32"]
    """Gradients. [torch: as parameters; megatron: fp32]"""
    reduce_dtype: Literal["bf16", "fp16", "fp32"]
    """Gradients while they are reduced. [as gradients]"""
    opt_dtype: Literal["bf16", "fp32"]
    """Optimizer moments. [torch: as parameters; megatron: fp32]"""
    master_dtype: Literal["none", "fp32"]
    """The optimizer's own copy of parameters. [torch: none; megatron: fp32 unless parameters are fp32]"""
    logits_dtype: Literal["bf16", "fp16", "fp32"]
    """Logits in the loss and their gradient. [fp32]"""
    cache_dtype: Literal["same", "fp8_e4m3"]
    """Keys, values and latents in the caches of requests. [same]"""
