"""How training frameworks run a step, by name and version: what they overlap, and the plan words that they imply.

A recipe decides which operators a step has. A profile adds what a timeline needs: which communication a rank waits for,
which is hidden by which computing, and in which pieces. `framework` picks one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.frameworks import settings
from stagedb.frameworks.settings import SettingNames
from stagedb.mentions import Word

Words = Mapping[str, Any]
"""Words of a plan and their values."""

MB = 1_000_000

_ACTIVATIONS = "bf16"
"""The format of activations of a plan without a word for it."""


EACH = "each"
"""The host issues a matmul for each expert of a rank."""


@dataclass(frozen=True)
class OverlapModel:
    """Which communication a framework hides behind computing.

    blocking: mesh axes whose communication a rank waits for. chunked: mesh axes whose collectives run in as many chunks
    as their groups have members, during the matmul that makes or reads them. reduced, gathered: bytes of the buckets in
    which gradients are reduced during the last backward, and updated parameters are gathered during the next forward; 0
    where they are not. casts: `fused` where the kernel before casts the inputs of fp8 matmuls, `shards` where a kernel
    of its own does, before they are gathered.
    sums: `fp32` where a matmul that makes a gradient of weights adds it to a sum in fp32, `apart` where a kernel of its
    own adds it to a sum in the format of gradients.
    taken: the share of computing that collectives of dp take while they run, in thousandths. copies: how FSDP keeps the
    parameters of a unit, `flat` or `parameters`, which decides what is copied around its collectives. merges: how the
    turns of a ring of cp are merged, `eager` or `fused`. keys: `repeated` where they are copied to all heads. issues:
    `each` where the host issues a matmul for each expert of a rank; otherwise they are one kernel.
    """

    blocking: tuple[str, ...] = ()
    chunked: tuple[str, ...] = ()
    reduced: int = 0
    gathered: int = 0
    casts: str = ""
    sums: str = ""
    taken: int = 0
    copies: str = ""
    merges: str = ""
    keys: str = ""
    issues: str = ""


@dataclass(frozen=True)
class FrameworkProfile:
    """A framework at run time.

    name: the word for it. versions: those that it describes. recipe: the framework that graphs follow. source: where
    its rules come from.
    words: words of every plan. as_activations: words of formats that are that of its activations. by_format: words by
    the format of activations. tensor, staged, context, sharded: words with tp, with tp and pp, with cp, and with
    parameters sharded over dp.
    recompute: the words for what a table calls `full`, `core` or `operators`, or as the framework calls it. kernels:
    the words for each way to make kernels; `hidden_by` has what some of them hide in addition. counts_ends: where
    chunks do not share the layers evenly, embedding and loss count as layers. whole_experts: the ranks of tp have
    experts of their own. sends_once: tokens go to their experts by HybridEP inside an NVLink domain of several nodes,
    and by DeepEP between nodes (`stagedb.validation.step_rows`). configures: the framework that it runs, with
    options of its own. settings: what words of plans are called there; None if unknown.
    only: by word, the values of it that plans can have, where `settings` do not name them.
    """

    name: str
    versions: str
    recipe: str
    source: str
    hiding: OverlapModel = OverlapModel()
    words: Words = field(default_factory=dict)
    as_activations: tuple[str, ...] = ()
    by_format: Mapping[str, Words] = field(default_factory=dict)
    tensor: Words = field(default_factory=dict)
    staged: Words = field(default_factory=dict)
    context: Words = field(default_factory=dict)
    sharded: Words = field(default_factory=dict)
    recompute: Mapping[str, Words] = field(default_factory=dict)
    kernels: Mapping[str, Words] = field(default_factory=dict)
    hidden_by: Mapping[str, OverlapModel] = field(default_factory=dict)
    counts_ends: bool = False
    whole_experts: bool = False
    sends_once: bool = False
    configures: str = ""
    settings: SettingNames | None = None
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def can_run(self, word: str, value: Any) -> bool:
        """Whether its plans can have this value of a word that a search chooses (`CHOSEN`); True if unknown."""
        if word in self.only:
            return value in self.only[word]
        return word not in CHOSEN or self.settings is None or self.settings.has(word, value)

    def plan_words(self, given: Words) -> dict[str, Any]:
        """The words that this framework implies for a plan with these words. Given ones come first."""
        found: dict[str, Any] = {"recipe": self.recipe, **self.words}
        activations = given.get("dtype") or _ACTIVATIONS
        found |= {**dict.fromkeys(self.as_activations, activations), **self.by_format.get(activations, {})}
        partitioned = (given.get("tp") or 1) > 1
        for implied, applies in (
            (self.tensor, partitioned),
            (self.staged, partitioned and (given.get("pp") or 1) > 1),
            (self.context, (given.get("cp") or 1) > 1),
            (self.sharded, (given.get("zero") or 0) >= 2),
        ):
            found |= implied if applies else {}
        return {**found, **{word: value for word, value in given.items() if value is not None}}

    def given_words(self, words: Words) -> dict[str, Any]:
        """Words of a plan without those that this framework implies for the others."""

        def is_implied(word: str) -> bool:
            others = {name: value for name, value in words.items() if name != word}
            return bool(self.plan_words(others).get(word) == words[word])

        return {word: value for word, value in words.items() if not is_implied(word)}

    def hides(self, kernels: str) -> OverlapModel:
        """The communication that the framework hides with these kernels."""
        return self.hidden_by.get(kernels, self.hiding)


CHOSEN = (
    *("tp", "pp", "cp", "cp_kind", "ep", "expert_tp", "dispatch", "sp", "zero", "hsdp", "schedule", "counted_ends"),
    *("recompute", "recompute_every", "rank_order", "scatter_gather", "overlap_experts", "layers_per_chunk"),
)
"""Words that a search chooses and that are settings of a framework. Chunks of stages go with a schedule."""

_FULL: Words = {"recompute": "full"}
_NOTHING: Words = {}
"""A fused attention kernel recomputes its core already, so that nothing more is to be done."""

_NORMS_AND_ACTIVATIONS: Words = {"recompute": "modules", "recompute_modules": ("layernorm", "moe_act")}
"""What tables of Megatron-Core's runs with experts call norm and act."""

_SELECTIVE: Words = {
    "recompute": "operators",
    "recompute_operators": (
        "attn.add",
        "attn.rotary_k",
        "attn.rotary_q",
        "attn.wk",
        "attn.wo",
        "attn_norm",
        "ffn.gate",
        "ffn.w3",
        "ffn_norm",
    ),
}
"""torchtitan's selective checkpointing of operators: pointwise ones and every second matmul run again."""

_DATA_PARALLEL: Mapping[str, tuple[int, ...]] = {"tp": (1,), "pp": (1,), "cp": (1,), "ep": (1,)}
"""What runs on ranks of dp alone."""

_ALL_LAYERS: Mapping[str, tuple[int, ...]] = {"recompute_every": (1,)}
"""Layers recompute, or none does: the setting is a switch, or a policy of each layer."""

_NCCL = 200
"""NCCL's rings have up to 24 channels, each on a multiprocessor of its own, of the 108 or 132 of an A100 or H100."""

TORCH_FSDP = FrameworkProfile(
    name="torch-fsdp",
    versions="PyTorch 2.4 and later",
    recipe="torch",
    source="torch.distributed.fsdp.fully_shard: units are gathered one ahead, and reduced during the next backward",
    hiding=OverlapModel(taken=_NCCL, copies="parameters", merges="eager"),
    words={"kernels": "eager"},
    recompute={"full": _FULL, "core": _NOTHING, "operators": {"recompute": "pointwise"}},
    kernels={"eager": {"kernels": "eager"}, "compile": {"kernels": "fused"}},
)

_TITAN = OverlapModel(casts="shards", taken=_NCCL, copies="parameters", merges="eager", keys="repeated")

TORCHTITAN = FrameworkProfile(
    name="torchtitan",
    versions="2024-12 and later",
    recipe="torch",
    source="torchtitan: fp32 parameters and reductions with bf16 compute (MixedPrecisionPolicy), sequence parallelism "
    "with tp, rings of gathered keys and values with cp, norms clipped; checkpointing of operators saves every second "
    "matmul; torch.compile fuses each layer, casts to fp8 too; weights are cast once, as shards; tp gathers "
    "what is cast to fp8",
    words={"kernels": "fused", "clip_norm": True},
    tensor={"sp": True},
    sharded={"param_dtype": "fp32", "reduce_dtype": "fp32"},
    recompute={"full": _FULL, "core": _NOTHING, "operators": _SELECTIVE},
    kernels={
        "eager": {"kernels": "eager"},
        "compile": {"kernels": "fused"},
        "asyncTP": {"kernels": "fused"},
    },
    # Parameters are gathered again in the backward or not, or all of it is DDP (models/llama3/parallelize.py).
    only={"zero": (0, 2, 3)},
    hiding=_TITAN,
    hidden_by={"eager": replace(_TITAN, casts=""), "asyncTP": replace(_TITAN, chunked=("tp",))},
)

LLM_FOUNDRY = FrameworkProfile(
    name="llm-foundry",
    versions="2023",
    recipe="torch",
    source="llm-foundry, scripts/train/yamls/pretrain: FULL_SHARD, and gradients reduced after each "
    "micro-batch; its benchmarks: amp_bf16 with mixed_precision DEFAULT, which reduces in fp32 (composer/trainer/"
    "mosaic_fsdp_utils.py); Composer's decoupled AdamW on fp32 shards; norms clipped; kernels of eager PyTorch; the "
    "loss of flash-attn, which reads logits as the head writes them (loss_fn of modeling_mpt.py, 0.1.0 and 0.3.0)",
    hiding=OverlapModel(taken=_NCCL, copies="flat", merges="eager"),
    words={"kernels": "eager", "clip_norm": True},
    as_activations=("logits_dtype",),
    sharded={"param_dtype": "fp32", "reduce_dtype": "fp32", "fsdp_version": 1},
    recompute={"full": _FULL, "core": _NOTHING},
    kernels={"eager": {"kernels": "eager"}, "compile": {"kernels": "fused"}},
    # FULL_SHARD, SHARD_GRAD_OP or NO_SHARD; activation_checkpointing is a switch, until releases of 2024 took lists of
    # blocks (llmfoundry/models/utils/act_ckpt.py).
    only={**_DATA_PARALLEL, **_ALL_LAYERS, "zero": (0, 2, 3)},
)

FSDP = FrameworkProfile(
    name="fsdp",
    versions="2024",
    recipe="torch",
    source="IBM's fms-fsdp, main_training_llama.py: FullyShardedDataParallel with a unit a block and "
    "limit_all_gathers, so that a unit is gathered one ahead; fp32 shards, gathered and reduced in bf16 (bfSixteen of "
    "policies/mixed_precision.py); the loss reads logits as the head writes them; SDPA's flash attention; norms "
    "clipped; every n-th block recomputed (policies/ac_handler.py: the middle one of each n); eager unless compiled",
    hiding=OverlapModel(taken=_NCCL, copies="flat", merges="eager"),
    words={"kernels": "eager", "clip_norm": True},
    as_activations=("logits_dtype",),
    sharded={"param_dtype": "fp32", "reduce_dtype": "bf16", "fsdp_version": 1},
    recompute={
        "full": _FULL,
        "core": _NOTHING,
        **{f"1/{each}": {"recompute": "full", "recompute_every": each} for each in (2, 3, 4)},
    },
    kernels={"eager": {"kernels": "eager"}, "compile": {"kernels": "fused"}},
    # Strategies are fsdp, hsdp and ddp (get_policies of fms_fsdp/utils/train_utils.py).
    only={**_DATA_PARALLEL, "zero": (0, 3)},
)

AUTOMODEL = FrameworkProfile(
    name="automodel",
    versions="2026",
    recipe="torch",
    source="NeMo AutoModel: fully_shard, a unit a layer, gathered one ahead and reduced during the next backward, in "
    "fp32 (FSDP2Config.mp_policy), for the last micro-batch alone (defer_fsdp_grad_sync); parameters in the format of "
    "the checkpoint; kernels of Transformer Engine for attention, linear layers and norms (BackendConfig), or of eager "
    "PyTorch for models of Hugging Face; logits as the head writes them (fp32_upcast off); tp without sequence "
    "parallelism, unless asyncTP (enable_async_tensor_parallel); selective checkpoints save every second matmul "
    "(distributed/activation_checkpointing.py)",
    hiding=OverlapModel(taken=_NCCL, copies="parameters", merges="eager"),
    words={"kernels": "fused", "clip_norm": True},
    as_activations=("logits_dtype",),
    sharded={"reduce_dtype": "fp32"},
    recompute={"full": _FULL, "core": _NOTHING, "operators": _SELECTIVE, "selective": _SELECTIVE},
    kernels={
        "eager": {"kernels": "eager"},
        "compile": {"kernels": "fused"},
        "te": {"kernels": "fused"},
        "asyncTP": {"kernels": "fused", "sp": True},
    },
    only=_ALL_LAYERS,
    hidden_by={
        "te": OverlapModel(taken=_NCCL, copies="parameters", merges="fused"),
        "asyncTP": OverlapModel(chunked=("tp",), taken=_NCCL, copies="parameters", merges="eager"),
    },
)

_POINTWISE = ("attn.add", "attn.rotary_k", "attn.rotary_q", "attn_norm", "ffn.gate", "ffn_norm")
_UP = ("ffn.w1", "ffn.w3")

MAXTEXT = FrameworkProfile(
    name="maxtext",
    versions="2024 and later",
    recipe="torch",
    source="MaxText's GPU configurations (configs/gpu/a3) and base.yml: XLA's latency-hiding scheduler, "
    "double-buffered loops over layers, and pipelined gathers and reductions run those of fsdp during the layer "
    "before; weights are fp32 shards, cast before they are gathered (weight_dtype, dtype), and gradients are reduced "
    "as matmuls make them; "
    "collectives of tp run alone unless XLA splits their matmuls (collective matmul, "
    "xla_gpu_threshold_for_windowed_einsum_mib); XLA fuses what is between matmuls; cuDNN's flash attention; logits in "
    "fp32 (cast_logits_to_fp32); remat_policy by its names (layers/decoders.py)",
    hiding=OverlapModel(taken=_NCCL, merges="fused"),
    words={"kernels": "fused", "clip_norm": True},
    sharded={"param_dtype": "fp32", "reduce_dtype": "bf16"},
    recompute={
        "full": _FULL,
        "core": _NOTHING,
        "operators": {"recompute": "pointwise"},
        "minimal_with_context": {"recompute": "pointwise"},
        "minimal": {"recompute": "operators", "recompute_operators": (*_POINTWISE, "attn.core")},
        "save_dot_except_mlp": {"recompute": "operators", "recompute_operators": (*_POINTWISE, "attn.core", *_UP)},
        "save_qkv_proj": {"recompute": "operators", "recompute_operators": (*_POINTWISE, "attn.core", "attn.wo", *_UP)},
    },
    kernels={"collective-matmul": {"kernels": "fused"}},
    only=_ALL_LAYERS,
    hidden_by={"collective-matmul": OverlapModel(chunked=("tp",), taken=_NCCL, merges="fused")},
)

MEGATRON_2021 = FrameworkProfile(
    name="megatron-2021",
    versions="Megatron-LM 2.x",
    recipe="megatron",
    source="arXiv 2104.04473: nothing runs during a collective of tp or a message; messages in parts (section 4.1)",
    hiding=OverlapModel(blocking=("tp", "pp")),
    words={"attention": "math"},
    recompute={"full": _FULL, "core": {"recompute": "core"}},
    settings=settings.MEGATRON_LM_2,
)

MEGATRON_DEEPSPEED = FrameworkProfile(
    name="megatron-deepspeed",
    versions="2021 to 2023",
    recipe="megatron",
    source="Megatron-DeepSpeed of BigScience: all-reduces of tp that computing waits for (megatron/mpu/mappings.py), "
    "softmax and GELU fused, no flash attention, dropout 0.1 by default (megatron/arguments.py); DeepSpeed's pipeline: "
    "1F1B (runtime/pipe/schedule.py), messages between computing, each rank of tp with a part (is_pipe_partitioned), "
    "gradients of tied tables and then all others reduced after the last backward, parameters gathered after the "
    "optimizer, gradients in fp16, or added to sums in fp32 by the optimizer of bf16 (runtime/bf16_optimizer.py, whose "
    "all-reduce counts as a reduce-scatter here); whole layers recomputed; the embedding and the head count as layers "
    "where layers alone share no stages evenly (--pp-partition-method)",
    hiding=OverlapModel(blocking=("tp", "pp"), sums="apart"),
    words={"attention": "math", "dropout": 0.1},
    by_format={"fp16": {"grad_dtype": "fp16", "reduce_dtype": "fp16"}},
    staged={"scatter_gather": True},
    recompute={"full": _FULL, "core": {"recompute": "core"}},
    settings=settings.MEGATRON_DEEPSPEED,
    counts_ends=True,
)

_GRAPHS: Mapping[str, Words] = {"cuda-graph": {}}
"""A CUDA graph of the whole step issues its kernels; one of attention or router alone leaves experts to the host."""

_GROUPED = OverlapModel(reduced=160 * MB, gathered=80 * MB, casts="fused", sums="fp32", merges="fused", issues=EACH)

MEGATRON_CORE = FrameworkProfile(
    name="megatron-core",
    versions="0.8 and later",
    recipe="megatron",
    source="Megatron-LM's options: --sequence-parallel, --use-flash-attn, --overlap-grad-reduce and "
    "--overlap-param-gather with buckets of 40M elements (DistributedDataParallelConfig.bucket_size); tokens by "
    "--moe-token-dispatcher-type alltoall inside a node, and flex beyond: HybridEP inside an NVLink domain, as all of "
    "Megatron-Bridge's recipes for GB200 and GB300 set it, DeepEP between nodes (Megatron-MoE-ModelZoo's for H100); "
    "--expert-tensor-parallel-size 1, as all recipes with experts of both have it",
    hiding=_GROUPED,
    tensor={"sp": True},
    recompute={"full": _FULL, "core": _NOTHING, "operators": _NORMS_AND_ACTIVATIONS},
    counts_ends=True,
    whole_experts=True,
    settings=settings.MEGATRON_LM,
    sends_once=True,
    kernels=_GRAPHS,
    hidden_by={"cuda-graph": replace(_GROUPED, issues="")},
)

_CHUNKED = replace(_GROUPED, chunked=("tp",), reduced=80 * MB)

NEMO = FrameworkProfile(
    name="nemo",
    versions="24.07 and later",
    recipe="megatron",
    source="NeMo's performance recipes: tp_comm_overlap (user buffers), overlap_grad_reduce, overlap_param_gather, "
    "gradients reduced in bf16 (grad_reduce_in_fp32 off) in Megatron's buckets of 40M elements, summed in fp32; "
    "Transformer Engine casts to fp8 in the norm or activation before a matmul, and weights once a step",
    hiding=_CHUNKED,
    hidden_by={"cuda-graph": replace(_CHUNKED, issues="")},
    kernels=_GRAPHS,
    words={"reduce_dtype": "bf16"},
    tensor={"sp": True},
    settings=settings.NEMO,
    recompute={"full": _FULL, "core": _NOTHING, "operators": _NORMS_AND_ACTIVATIONS},
    counts_ends=True,
)

MEGATRON_BRIDGE = replace(
    NEMO,
    name="megatron-bridge",
    versions="25.09 and later",
    source="Megatron-Bridge's performance recipes (scripts/performance/configs): tp_comm_overlap with tp (user "
    "buffers), gradients reduced in bf16 (grad_reduce_in_fp32 off), overlap_grad_reduce and overlap_param_gather of "
    "Megatron-Core; whole experts on each rank of tp (expert_tensor_parallel_size 1) and the flex dispatcher, as in "
    "Megatron-Core (perf_recipes)",
    configures="megatron-core",
    settings=settings.MEGATRON_BRIDGE,
    whole_experts=True,
    sends_once=True,
)

FRAMEWORK_PROFILES: Mapping[str, FrameworkProfile] = {
    each.name: each
    for each in (
        *(TORCH_FSDP, TORCHTITAN, LLM_FOUNDRY, FSDP, AUTOMODEL, MAXTEXT),
        *(MEGATRON_2021, MEGATRON_DEEPSPEED, MEGATRON_CORE, NEMO, MEGATRON_BRIDGE),
    )
}
"""Every profile by its name."""

FRAMEWORK_NAMES = tuple(FRAMEWORK_PROFILES)


def find_profile(name: str) -> FrameworkProfile:
    """The profile with this name. Raises UsageError, with the known names, for another one."""
    if name not in FRAMEWORK_PROFILES:
        raise UsageError(
            f"unknown framework {shown(name)}: {Word('framework')} is one of {', '.join(FRAMEWORK_PROFILES)}"
        )
    return FRAMEWORK_PROFILES[name]


def usual_profile(zero: int, recipe: str) -> FrameworkProfile:
    """The profile of a plan that names none: by its recipe, and where that is empty by what dp shards.

    zero: the plan's ZeRO stage, from 0 to 3. recipe: the plan's; empty: any.
    """
    usual = TORCH_FSDP if zero >= 2 else MEGATRON_CORE
    return next((each for each in (usual, TORCH_FSDP, MEGATRON_CORE) if recipe in ("", each.recipe)), usual)
