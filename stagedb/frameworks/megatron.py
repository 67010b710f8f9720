"""Megatron-LM, and NeMo on top of it, with Transformer Engine's kernels and context parallelism.

The comment above a value names the code or the option of the framework that it was read from.
"""

from stagedb.collectives import REDUCE_SCATTER
from stagedb.frameworks.bucket_policies import ONE, Bucketing
from stagedb.frameworks.framework import DefaultFormats, Framework, FrameworkMemory

MEGATRON = Framework(
    name="megatron",
    title="Megatron",
    # `linear_qkv` and `linear_fc1`.
    fused_projections="always",
    # `skip_bias_add`, then bias-dropout-add.
    row_bias="after",
    # `LinearWithGradAccumulationAndAsyncCommunication` overlaps the reduction of the input gradient with the weight
    # gradient.
    weight_gradient_first=False,
    whole_backward=False,
    # The same function keeps a rank's part of the input, and gathers it again for the weight gradient.
    regather=True,
    embedding_dropout="between",
    # `--make-vocab-size-divisible-by 128`.
    vocabulary_multiple=128,
    # `bias_swiglu_fusion` and `cross_entropy_loss_fusion`.
    composite_kernels=False,
    # `VocabParallelEmbedding`.
    embedding_gradient="own",
    # `gather_from_tensor_model_parallel_region`, then `scatter_to_sequence_parallel_region`.
    gathers_projection=True,
    further_reads="normalised",
    logits_first=False,
    # `multi_latent_attention.py` makes values contiguous.
    latent_views=False,
    # `linear_q_down_proj` and `linear_kv_down_proj` have `parallel_mode="duplicated"`; what reads them gathers.
    latents="between",
    # Transformer Engine's `DotProductAttention(softmax_type="learnable")`.
    sinks="kernel",
    joins_shares=False,
    # `MoEAlltoAllTokenDispatcher`.
    routes_whole=False,
    # `tensor_parallel.checkpoint`.
    early_stop=False,
    reentrant=True,
    recomputes_modules=True,
    routing_tables=False,
    buckets=Bucketing(gradients=ONE),
    # 0: DistributedDataParallel. 1: `--use-distributed-optimizer`. 3: `--use-megatron-fsdp`.
    zero_stages=(0, 1, 3),
    # `--num-distributed-optimizer-instances`.
    hybrid_stages=(1, 3),
    cuts_columns=False,
    expert_units=False,
    reshards_to=False,
    has_fsdp1=False,
    optimizer_sharding=REDUCE_SCATTER,
    partial_in_backward=False,
    pipelined_sync="every",
    # `_allreduce_layernorm_grads`.
    sequence_parallel_gradients="one",
    # `cross_entropy_loss_fusion` fuses kernels around whole logits.
    chunks_loss=False,
    clips=False,
    # `TensorParallelMuon` in `emerging_optimizers.py`: `muon_tp_mode`, `muon_split_qkv`.
    muon_tp="blockwise",
    splits_packed=True,
    # `get_megatron_muon_optimizer`: all matrices but those with `is_embedding_or_output_parameter`.
    muon_positions=True,
    # `LayerWiseDistributedOptimizer` in `core/optimizer/layer_wise_optimizer.py`.
    owns_layers=True,
    any_optimizer=False,
    # `HybridDeviceOptimizer` in `core/optimizer/cpu_offloading`, without `--overlap-cpu-optimizer-d2h-h2d`.
    offloads=("optimizer",),
    posts_ahead=False,
    single_schedules=(),
    whole_first_backward=False,
    splits_recomputed=True,
    reduces_halves=True,
    # `--cp-comm-type`: p2p, all_gather, a2a, a2a+p2p.
    cp_kinds=("ring-p2p", "allgather-kv", "ulysses", "ulysses-ring"),
    # `a2a` of Transformer Engine's `AttnFuncWithCPAndQKVOA2A` divides the key/value heads by cp.
    copies_heads=False,
    # Transformer Engine's `all_gather` has a kernel call for each chunk of a rank's queries.
    explicit_mask=False,
    # `scatter_gather_tensors_in_pipeline` (Narayanan et al. 2021, section 4.1).
    scatter_gather=True,
    formats=DefaultFormats(
        # `Float16OptimizerWithFloat16Params`, and `--accumulate-allreduce-grads-in-fp32`.
        parameters={},
        gradients=dict.fromkeys(("bf16", "fp16", "fp32"), "fp32"),
        optimizer=dict.fromkeys(("bf16", "fp16", "fp32"), "fp32"),
        master=dict.fromkeys(("bf16", "fp16"), "fp32"),
        refused_parameters={},
        wide_gradients=True,
    ),
    memory=FrameworkMemory(
        gradient_buffer=True,
        receive_buffers=False,
        keeps_sent=False,
        keeps_gradients=(),
        whole_batch=False,
        optimizer_scalar=0,
        holds_gathers=False,
        holds_arguments=False,
        rearranges=False,
        retains_graph=False,
        mesh_rank=0,
    ),
)
