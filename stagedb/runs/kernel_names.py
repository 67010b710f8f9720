"""What a kernel does, by its name: matmul, attention, all_reduce … A rule is a pattern; the first that matches holds.

Names are those of NCCL, RCCL and HCCL of all ages, of custom collectives of vLLM, SGLang, TensorRT-LLM and PyTorch's
symmetric memory, of DeepEP, and of the compute libraries of NVIDIA and AMD.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from stagedb.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

SEND_RECV = "send_recv"
"""A kernel of messages that may be an exchange, a send or a receive: what launched it decides."""

OTHER = "other"
"""A kernel whose name has no kind."""

UNKNOWN_COLLECTIVE = "collective"
"""A kernel of a communication library whose name has no kind."""

COLLECTIVE_NAMES: Mapping[str, str] = {
    "allreduce": ALL_REDUCE.name,
    ALL_REDUCE.name: ALL_REDUCE.name,
    "allreduce_coalesced": ALL_REDUCE.name,
    "allreduce_sparse": ALL_REDUCE.name,
    "allgather": ALL_GATHER.name,
    ALL_GATHER.name: ALL_GATHER.name,
    "_allgather_base": ALL_GATHER.name,
    "_all_gather_base": ALL_GATHER.name,
    "allgather_coalesced": ALL_GATHER.name,
    "allgather_into_tensor_coalesced": ALL_GATHER.name,
    "all_gather_into_tensor_coalesced": ALL_GATHER.name,
    REDUCE_SCATTER.name: REDUCE_SCATTER.name,
    "_reduce_scatter_base": REDUCE_SCATTER.name,
    "reduce_scatter_tensor_coalesced": REDUCE_SCATTER.name,
    "alltoall": ALL_TO_ALL.name,
    "alltoall_base": ALL_TO_ALL.name,
    ALL_TO_ALL.name: ALL_TO_ALL.name,
    "all_to_allv": ALL_TO_ALL.name,
    "all_to_all_single": ALL_TO_ALL.name,
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "recv_any_source": "recv",
}
"""Names of collectives in PyTorch's records and annotations, and their kinds."""

LONGEST = 4_096
"""Characters of a kernel's name that decide what it is: some patterns take the square of their number of steps."""

_LONGEST_OF_LIBRARY = 512
"""The same for kernels of NCCL and its like, whose names are short."""

_LIBRARY = re.compile(
    r"(?:nccl|rccl|hccl)\w*?kernel\w*?_(allreduce|allgather|reducescatter|alltoall\w*|broadcast|reduce|sendrecv)", re.I
)
_LIBRARY_KINDS = {
    "allreduce": ALL_REDUCE.name,
    "allgather": ALL_GATHER.name,
    "reducescatter": REDUCE_SCATTER.name,
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": SEND_RECV,
}

_COLLECTIVES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.I), kind)
    for pattern, kind in (
        (
            r"\bcross_device_reduce_[12]stage|(one|two)_?shot_?all_?reduce|multimem_all_?reduce|allreduce_fusion",
            ALL_REDUCE.name,
        ),
        (
            r"customallreduce|quick_?reduce|all_?reduce_(one|two)shot|symm_mem\w*all_?reduce|trtllm_\w*allreduce",
            ALL_REDUCE.name,
        ),
        (r"multimem_all_?gather|cross_device_all_?gather", ALL_GATHER.name),
        (r"multimem_reduce_?scatter", REDUCE_SCATTER.name),
        (r"\b(?:deep_?ep|ep)::\w+(?:::\w+)*::(?:cached_)?notify(?:_dispatch)?\b", "dispatch"),
        (r"\b(?:deep_?ep|ep)::\w+(?:::\w+)*::(?:cached_)?(?:notify_)?combine|\bcached_notify_combine", "combine"),
        (
            r"\b(?:deep_?ep|ep)::\w+(?:::\w+)*::dispatch\b|moe_a2a_dispatch|moealltoall\w*dispatch",
            "dispatch",
        ),
        (r"moe_a2a_combine|moealltoall\w*combine", "combine"),
        (r"nvshmem|rocshmem", UNKNOWN_COLLECTIVE),
        (r"\b(?:nccl|rccl|hccl)\w*(?:kernel|generic)", UNKNOWN_COLLECTIVE),
    )
)

EXCHANGES = ("dispatch", "combine")
"""Kinds of exchanges of tokens between experts."""

PREPARING = re.compile(r"\binternode::cached_notify\b", re.I)
"""A kernel of DeepEP that prepares an exchange whose layout is known: a dispatch or a combine, by what follows it."""

_COMPUTE: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.I), kind)
    for pattern, kind in (
        (r"kv_indices|reshape_and_cache|store_(?:kv)?cache", "other"),  # tables of pages, and what fills them
        # Decodes divide the keys of a request among blocks, and add up what these made.
        (r"finalize_matmul_scatter", "reduce"),  # sums of experts, in Triton's kernels
        (r"paged_attention\w*reduce|splitkv_combine|(?:attn|attention|mla)\w*(?:_reduce|_combine|_merge)", "reduce"),
        (r"flash|fmha|attention|attn_(fwd|bwd)|\bmla|sdpa|paged_?attn|cross_entropy_attn", "attention"),
        (r"softmax|cross_?entropy|nll_loss", "softmax"),
        (r"multi_tensor_apply|adam(w|functor|_)|fused_?sgd|\blamb_|optimizer", "optimizer"),
        (
            r"wgrad|dgrad|fprop|convolution|implicit_?gemm|winograd|\bconv\d?d|cudnn.*conv|_conv_|conv_depthwise|"
            r"computeB?Offsets",
            "convolution",
        ),
        (
            r"(?<!fb)gemm|\bb?mm_|\bgemv|cutlass|cublas|nvjet|\bcijk_|matmul|xmma|splitkreduce|tensile|wmma|mfma|marlin|"
            r"\b(?:add|badd)?b?mm(?:backward\d*)?\b|\blinear(?:backward\d*)?\b",
            "matmul",
        ),
        (r"layer_?norm|rms_?norm|batch_?norm|group_?norm|\bln_(fwd|bwd)|\bbn_|norm_kernel", "norm"),
        (r"rotary|rope", "rotary"),
        (r"quant|cast_to_fp8|per_(token|channel|tensor)_cast|fp8_cast|scaled_fp8", "quantize"),
        (r"embedding|index_select|gather_kernel|indexselect|vectorized_gather", "embedding"),
        (r"topk|routing|moe_align|expert|moe::|bitonic|radixsort|\bsort", "routing"),
        (
            r"memcpy|direct_copy|copy_kernel|catarraybatchedcopy|transpose|nchwtonhwc|nhwctonchw|reshape|permute|"
            r"copy_device",
            "copy",
        ),
        (r"memset|fillfunctor|fill_kernel|fillbuffer", "fill"),
        (r"reduce_kernel|reduction|reducebykey|devicereduce|devicescan|welford", "reduce"),
        (r"elementwise|unrolled|vectorized|pointwise|triton_poi|act_and_mul|silu|gelu|dropout|add_kernel", "pointwise"),
        (r"triton_red|triton_per", "reduce"),
        (r"distribution|philox|random|curand", "random"),
    )
)


@lru_cache(maxsize=1 << 16)
def collective_kind(name: str) -> str | None:
    """The kind of collective of a name in a record or an annotation, such as `_allgather_base`; None for others.

    A prefix such as `nccl:` or `gloo:` and what follows a space do not count.
    """
    word = (
        name.partition(":")[2]
        if name.partition(":")[0].lower() in ("nccl", "gloo", "rccl", "hccl", "ucc", "mpi", "xccl")
        else name
    )
    return COLLECTIVE_NAMES.get(word.strip().lower().partition(" ")[0])


_WRAPPER = re.compile(
    r"(?:device_kernel|Kernel2?|elementwise_kernel\w*|vectorized_elementwise_kernel|unrolled_elementwise_kernel\w*|"
    r"reduce_kernel|multi_tensor_apply_kernel|globalKernel|DeviceScanKernel)$"
)
"""Kernels that run a functor: only the name of that shows what they do."""

_SCOPES = re.compile(r"\b(?:at::native|at|c10|cuda|cutlass|std|\(anonymous namespace\)|native|internal|detail)::")
_WITHOUT_NAME = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
"""A namespace without a name, as LLVM, Nsight Systems and GCC write it."""

_FUNCTOR = re.compile(r"[A-Za-z_][\w:]*")
_PLAIN = frozenset(
    ("float", "double", "int", "long", "bool", "char", "void", "unsigned", "short", "const", "true", "false")
)


@lru_cache(maxsize=1 << 16)
def short_name(kernel: str) -> str:
    """The name of a kernel without its return type, arguments and parameters.

    A kernel that runs a functor has the name of that in brackets: `vectorized_elementwise_kernel[FillFunctor]`.
    """
    text = _WITHOUT_NAME.sub("", kernel[:LONGEST]).removeprefix("void ")
    head, _, rest = text.partition("<")
    head = head.partition("(")[0].strip()
    # An operator's template of a return type, as `std::enable_if<…>::type name<…>`, has its name after the last one.
    if not head or "enable_if" in head:
        found = re.findall(r"([A-Za-z_][\w:]*)\s*[<(]", text)
        head = found[-1] if found else text
        rest = ""
    if _WRAPPER.search(head) and rest:
        words = [each for each in _FUNCTOR.findall(_SCOPES.sub("", rest)) if each not in _PLAIN]
        inner = next((each.strip(":").rpartition("::")[2] or each for each in words), "")
        head = f"{_SCOPES.sub('', head)}[{inner}]" if inner else head
    return _SCOPES.sub("", head)[:120] or kernel[:120]


@lru_cache(maxsize=1 << 16)
def communication_kind(kernel: str) -> str | None:
    """The kind of collective or message that a kernel is, by its name; None for one that computes or copies."""
    found = _LIBRARY.search(kernel, 0, _LONGEST_OF_LIBRARY)
    if found is not None:
        word = found[1].lower()
        return ALL_TO_ALL.name if word.startswith("alltoall") else _LIBRARY_KINDS[word]
    return next((kind for pattern, kind in _COLLECTIVES if pattern.search(kernel, 0, LONGEST)), None)


@lru_cache(maxsize=1 << 16)
def compute_kind(kernel: str, launcher: str = "") -> str:
    """What a kernel computes: matmul, attention, norm …, or `other`.

    kernel: its name. launcher: that of the operator that launched it, which decides where the kernel's name does not.
    """
    found = (kind for name in (kernel, launcher) for pattern, kind in _COMPUTE if pattern.search(name, 0, LONGEST))
    return next(found, OTHER)
