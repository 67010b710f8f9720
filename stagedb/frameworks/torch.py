"""PyTorch's public distributed APIs: DTensor tensor-parallel plans, DDP, FSDP2, `torch.distributed.pipelining`.

The comment above a value names the code or the option of the framework that it was read from.
"""

from stagedb.collectives import ALL_REDUCE
from stagedb.frameworks.bucket_policies import DDP, Bucketing
from stagedb.frameworks.framework import DefaultFormats, Framework, FrameworkMemory
from stagedb.mentions import Word

TORCH = Framework(
    name="torch",
    title="PyTorch",
    # A matmul for each `nn.Linear`; GPT-2's `c_attn` is one for q, k and v.
    fused_projections="learned",
    # `RowwiseParallel` runs addmm on partial results.
    row_bias="inside",
    # Autograd's mm; its addmm has the reverse order.
    weight_gradient_first=True,
    # The backward of an operator is one call.
    whole_backward=True,
    # Autograd saves the gathered input.
    regather=False,
    embedding_dropout="embedding",
    vocabulary_multiple=None,
    # Eager mode, without `torch.compile`.
    composite_kernels=True,
    # DTensor's `embedding_dense_backward`.
    embedding_gradient="whole",
    # torchtitan's `deepseek_v3/mtp.py` keeps the hidden state cut; DTensor exchanges parts.
    gathers_projection=False,
    further_reads="stream",
    logits_first=True,
    # `torch.split`; torchtitan's `deepseek_v3/model.py`.
    latent_views=True,
    # `PrepareModuleInput` of the whole attention: torchtitan's `deepseek_v3/sharding.py`.
    latents="attention",
    # torchtitan's `gpt_oss/model.py` (`apply_attention_sink_rescale`), on FlexAttention or variable-length attention.
    sinks="rescaled",
    # `aten.cat` on DTensors.
    joins_shares=True,
    # torchtitan's `models/common/MOE_SHARDING.md`, without expert parallelism; its `ExpertTensorParallel` with it.
    routes_whole=True,
    # `torch.utils.checkpoint.checkpoint(use_reentrant=False)` with `set_checkpoint_early_stop(True)`.
    early_stop=True,
    reentrant=False,
    recomputes_modules=False,
    # The buffer exists in the model whose memory was recorded: its routing is a table that balances the experts.
    routing_tables=True,
    buckets=Bucketing(gradients=DDP),
    # 0: DistributedDataParallel. 1: ZeroRedundancyOptimizer behind it. 2: FSDP2 (`fully_shard`) with
    # `reshard_after_forward=False`. 3: FSDP2.
    zero_stages=(0, 1, 2, 3),
    # FSDP2 on a mesh of two axes; ZeroRedundancyOptimizer has no replicas.
    hybrid_stages=(3, 2),
    # `Shard(1)` in torchtitan's `distributed/fsdp.py`.
    cuts_columns=True,
    # `fully_shard` of `moe.experts` in torchtitan's `models/llama4/infra/parallelize.py`.
    expert_units=True,
    # `fully_shard(reshard_after_forward=N)`.
    reshards_to=True,
    has_fsdp1=True,
    # ZeroRedundancyOptimizer leaves DDP's all-reduce as it is.
    optimizer_sharding=ALL_REDUCE,
    # FSDP2 on DTensors.
    partial_in_backward=True,
    # `torch.distributed.pipelining` calls `set_requires_gradient_sync` for the last micro-batch.
    pipelined_sync="last",
    sequence_parallel_gradients="each",
    # A function of autograd around the head and `torch.nn.functional.cross_entropy`.
    chunks_loss=True,
    # `torch.nn.utils.clip_grad_norm_` on DTensors.
    clips=True,
    # `torch.optim.Muon` on DTensors has messages in each of its matmuls, as DTensor chooses them.
    muon_tp=None,
    splits_packed=False,
    muon_positions=False,
    owns_layers=False,
    any_optimizer=True,
    # `offload_wrapper` of torch.distributed.algorithms._checkpoint.checkpoint_wrapper. torchao's `CPUOffloadOptimizer`
    # copies gradients while the backward runs, and FSDP2's `CPUOffloadPolicy` has parameters on the host too.
    offloads=("activations",),
    # `_PipelineScheduleRuntime`.
    posts_ahead=True,
    # `Schedule1F1B` and `ScheduleGPipe`.
    single_schedules=("1f1b", "gpipe"),
    # `_PipelineStageBase.backward_one_chunk` and `backward_weight_one_chunk`.
    whole_first_backward=True,
    # `stage_backward_weight` differentiates each group of parameters on its own: `checkpoint` runs a layer again for
    # each of these calls, and selective checkpoints, whose kept values are read once, raise an error.
    splits_recomputed=False,
    # `stage_backward_weight` sets `.grad` itself; `stage_backward_input` takes `module.parameters()`, which are parts
    # while a unit is freed.
    reduces_halves=False,
    # `torch.distributed.tensor.experimental.context_parallel` with `set_rotate_method("allgather")` by default.
    cp_kinds=("ring-allgather", "allgather-kv", "ring-alltoall", "ring-p2p", "ulysses", "ulysses-ring"),
    # `kv_replication_factor` of `UlyssesSPAttentionHF` in DeepSpeed's runtime/sequence_parallel/ulysses_sp.py.
    copies_heads=True,
    # `scaled_dot_product_attention(attn_mask=...)`.
    explicit_mask=True,
    scatter_gather=False,
    formats=DefaultFormats(
        # `torch.autocast(dtype=torch.float16)` with fp32 parameters.
        parameters={"fp16": "fp32"},
        gradients={},
        # fp16 parameters are refused with a reason of their own, which a refusal of fp16 moments would hide.
        optimizer={"fp16": "fp32"},
        master={},
        refused_parameters={
            "fp16": "torch trains fp16 with a gradient scaler, which refuses the gradients of fp16 parameters "
            f'("Attempting to unscale FP16 gradients"): take {Word("param_dtype", "fp32")}, or '
            f"{Word('dtype', 'bf16')}"
        },
        # Autograd casts a gradient to its parameter's format.
        wide_gradients=False,
    ),
    memory=FrameworkMemory(
        gradient_buffer=False,
        receive_buffers=True,
        keeps_sent=True,
        # `Schedule1F1B._step_microbatches`: `bwd_sends`; `ScheduleGPipe` names other operations by the same word.
        keeps_gradients=("1f1b",),
        whole_batch=True,
        optimizer_scalar=4,
        # `FSDPCommContext.all_gather_state`.
        holds_gathers=True,
        # `nn.Module.__call__`: the arguments of `forward` and of its hooks.
        holds_arguments=True,
        # `all_gather_tensor` and `reduce_scatter_tensor`.
        rearranges=True,
        # `stage_backward_input` has `retain_graph=True`.
        retains_graph=True,
        mesh_rank=4,
    ),
)
