"""The steps that `scripts/bench serving` compares: 30 plans of five models, and six settings that InferSim has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.api.model_names import card_source
from stagedb.lowering import program_of
from stagedb.models import load_card
from stagedb.plans import typed_words
from stagedb.systems import load_system
from stagedb.timing import profile_job

CHECKPOINTS: Mapping[str, str] = {
    "llama3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
}
"""Cards, and the names of their checkpoints for AIConfigurator."""

LATENTS = frozenset({"deepseek-v3"})
EXPERTS = frozenset({"qwen3-235b-a22b", "deepseek-v3"})


@dataclass(frozen=True)
class ServedPlan:
    """A step of an engine.

    requests: those of each rank of dp. tokens: in a prefill the new ones of each request, in a decode those in its
    cache. ep: ranks over which whole experts are; 1: tp cuts each. engine: whose tables AIConfigurator takes.
    """

    model: str
    system: str
    phase: str
    requests: int
    tokens: int
    tp: int = 1
    dp: int = 1
    ep: int = 1
    fp8: bool = False
    engine: str = "trtllm"

    @property
    def has_latents(self) -> bool:
        """Whether the model's attention keeps latents, so that its projections are measured with it."""
        return self.model in LATENTS

    @property
    def exchanges(self) -> bool:
        """Whether tokens are sent to experts. Without it ranks of tp have the same tokens, and add up results."""
        return self.dp > 1

    @property
    def short(self) -> str:
        """The plan in a few words."""
        degrees = [f"{name} {value}" for name in ("tp", "dp", "ep") if (value := getattr(self, name)) > 1]
        of = "tokens" if self.phase == "prefill" else "in the cache"
        words = [*degrees, "fp8" if self.fp8 else "bf16", f"{self.phase} {self.requests} x {self.tokens:,} {of}"]
        return ", ".join(words)

    @property
    def title(self) -> str:
        """The plan with its model and system."""
        return f"{self.model} on {self.system}, {self.short}"

    @property
    def words(self) -> Mapping[str, Any]:
        """The words of our plan."""
        lengths = {"seq_len": self.tokens} if self.phase == "prefill" else {"cache_len": self.tokens}
        found = {"workflow": self.phase, "micro_batch_size": self.requests, "tp": self.tp, "dp": self.dp, **lengths}
        if self.ep > 1:
            found |= {"ep": self.ep}
            found |= {"dispatch": "ranks"} if self.exchanges else {"expert_tp": False}
        return found | ({"matmul_dtype": "fp8"} if self.fp8 else {})

    @property
    def estimate_words(self) -> Mapping[str, Any]:
        """The arguments of AIConfigurator's `cli_estimate`. A decode is the first of two tokens."""
        found: dict[str, Any] = {
            "model_path": CHECKPOINTS[self.model],
            "system_name": f"{self.system}_sxm",
            "mode": "static_ctx" if self.phase == "prefill" else "static_gen",
            "backend_name": self.engine,
            "isl": self.tokens,
            "osl": 2,
            "batch_size": self.requests,
            "tp_size": self.tp,
            "attention_dp_size": self.dp,
        }
        if self.model in EXPERTS:
            found |= {"moe_ep_size": self.ep, "moe_tp_size": self.tp * self.dp // self.ep}
        if self.has_latents:
            # Its checkpoint is in fp8, with a scale a block. The caches of large groups are in fp8 there alone.
            return found if self.engine == "sglang" else found | {"kvcache_quant_mode": "bfloat16"}
        if self.fp8:
            found |= {"gemm_quant_mode": "fp8", "moe_quant_mode": "fp8"}
        return found


PLANS = (
    ServedPlan("llama3.1-8b", "h100", "prefill", 4, 2048),
    ServedPlan("llama3.1-8b", "h100", "prefill", 1, 8192, fp8=True),
    ServedPlan("llama3.1-8b", "h100", "decode", 64, 2048),
    ServedPlan("llama3.1-8b", "h100", "decode", 64, 2048, fp8=True),
    ServedPlan("llama3.1-8b", "h100", "decode", 8, 8192),
    ServedPlan("llama3.1-8b", "h100", "decode", 128, 1024, tp=2),
    ServedPlan("llama3.1-70b", "h200", "prefill", 1, 4096, tp=4),
    ServedPlan("llama3.1-70b", "h200", "prefill", 2, 4096, tp=8, fp8=True),
    ServedPlan("llama3.1-70b", "h200", "decode", 64, 4096, tp=8),
    ServedPlan("llama3.1-70b", "h200", "decode", 32, 2048, tp=4, fp8=True),
    ServedPlan("llama3.1-70b", "h200", "decode", 16, 1024, tp=2, fp8=True),
    ServedPlan("llama3.1-70b", "h200", "decode", 8, 16384, tp=8),
    ServedPlan("qwen3-32b", "h100", "prefill", 2, 4096, tp=2),
    ServedPlan("qwen3-32b", "h100", "prefill", 4, 2048, tp=4, fp8=True),
    ServedPlan("qwen3-32b", "h100", "decode", 32, 4096, tp=2),
    ServedPlan("qwen3-32b", "h100", "decode", 128, 1024, tp=4, fp8=True),
    ServedPlan("qwen3-32b", "h100", "decode", 16, 2048, fp8=True),
    ServedPlan("qwen3-32b", "h100", "decode", 256, 1024, tp=8),
    ServedPlan("qwen3-235b-a22b", "h200", "prefill", 1, 4096, tp=8, ep=8, fp8=True),
    ServedPlan("qwen3-235b-a22b", "h200", "prefill", 1, 4096, dp=8, ep=8, fp8=True),
    ServedPlan("qwen3-235b-a22b", "h200", "decode", 64, 4096, tp=8, ep=8, fp8=True),
    ServedPlan("qwen3-235b-a22b", "h200", "decode", 64, 4096, dp=8, ep=8, fp8=True),
    ServedPlan("qwen3-235b-a22b", "h200", "decode", 16, 2048, tp=4, fp8=True),
    ServedPlan("qwen3-235b-a22b", "h200", "decode", 8, 2048, tp=8, ep=8, fp8=True),
    ServedPlan("deepseek-v3", "h200", "prefill", 1, 4096, tp=8, ep=8, fp8=True),
    ServedPlan("deepseek-v3", "h200", "prefill", 1, 4096, dp=8, ep=8, fp8=True),
    ServedPlan("deepseek-v3", "h200", "decode", 32, 4096, tp=8, ep=8, fp8=True),
    ServedPlan("deepseek-v3", "h200", "decode", 32, 4096, dp=8, ep=8, fp8=True),
    ServedPlan("deepseek-v3", "h200", "decode", 8, 2048, tp=8, ep=8, fp8=True),
    ServedPlan("deepseek-v3", "h100", "decode", 128, 2048, dp=32, ep=32, fp8=True, engine="sglang"),
)
"""Steps in bf16 and fp8, over tensor and expert parallelism and data parallelism of attention."""


@dataclass(frozen=True)
class MeasuredServing:
    """A throughput that InferSim's README has as measured. tokens: a second of an accelerator. model, system, words: of
    our plan. config, arguments: of InferSim's main.py."""

    title: str
    tokens: int
    model: str
    system: str
    words: Mapping[str, Any]
    config: str
    arguments: tuple[str, ...]

    @property
    def expected(self) -> float:
        """Tokens a second of an accelerator under our plan."""
        card, typed = load_card(self.model), typed_words(dict(self.words))
        plan = card_source(card, typed).new_plan(typed)
        merit = profile_job(program_of(card, plan).workload, load_system(self.system)).merit
        return (merit.tokens_per_second or 0.0) / plan.world


_LARGE: Mapping[str, Any] = {"overlap_experts": True, "matmul_dtype": "fp8", "dispatch_dtype": "fp8"}
_DEEPSEEK = ("deepseek_v3_config.json", ("--device-type", "H800", "--use-fp8-gemm", "--enable-deepep", "--enable-tbo"))
_30B, _8B = "qwen3-30B-A3B_config.json", "qwen3-8B_config.json"

MEASURED = (
    MeasuredServing(
        "DeepSeek-V3 in fp8, 32 H800, prefill of 2 x 8,192 tokens in prompts of 4K",
        7_839,
        "deepseek-v3",
        "h800",
        {
            **_LARGE,
            "workflow": "prefill",
            "dp": 32,
            "ep": 32,
            "dispatch": "nodes",
            "node_ranks": 8,
            "global_batch_size": 64,
            "requests": ("2x4096",),
        },
        _DEEPSEEK[0],
        (
            *_DEEPSEEK[1],
            *("--world-size", "32", "--num-nodes", "4", "--target-osl", "1786"),
            *("--max-prefill-tokens", "8192", "--prefill-only"),
        ),
    ),
    MeasuredServing(
        "DeepSeek-V3 in fp8, 128 H800, decode of 2 x 64 requests at 5K",
        2_324,
        "deepseek-v3",
        "h800",
        {
            **_LARGE,
            "workflow": "decode",
            "dp": 128,
            "ep": 128,
            "dispatch": "ranks",
            "micro_batch_size": 64,
            "global_batch_size": 16_384,
            "cache_len": 4_989,
        },
        _DEEPSEEK[0],
        (
            *_DEEPSEEK[1],
            *("--world-size", "128", "--num-nodes", "16", "--target-osl", "1786", "--decode-bs", "64"),
            "--decode-only",
        ),
    ),
    MeasuredServing(
        "Qwen3-30B-A3B in bf16, one H20, prefill of 16,384 tokens in prompts of 4K",
        16_594,
        "qwen3-30b-a3b",
        "h20",
        {"workflow": "prefill", "micro_batch_size": 4, "seq_len": 4096},
        _30B,
        ("--device-type", "H20", "--world-size", "1", "--max-prefill-tokens", "16384", "--prefill-only"),
    ),
    MeasuredServing(
        "Qwen3-30B-A3B in bf16, four H20, decode of 100 requests at 5K",
        2_749,
        "qwen3-30b-a3b",
        "h20",
        {"workflow": "decode", "dp": 4, "ep": 4, "micro_batch_size": 100, "cache_len": 5_120},
        _30B,
        ("--device-type", "H20", "--world-size", "4", "--decode-bs", "100", "--decode-only"),
    ),
    MeasuredServing(
        "Qwen3-8B in fp8, one H20, prefill of 16,384 tokens in prompts of 4K",
        15_061,
        "qwen3-8b",
        "h20",
        {"workflow": "prefill", "micro_batch_size": 4, "seq_len": 4096, "matmul_dtype": "fp8"},
        _8B,
        ("--device-type", "H20", "--max-prefill-tokens", "16384", "--use-fp8-gemm", "--prefill-only"),
    ),
    MeasuredServing(
        "Qwen3-8B in fp8, one H20, decode of 64 requests at 5K",
        2_682,
        "qwen3-8b",
        "h20",
        {"workflow": "decode", "micro_batch_size": 64, "cache_len": 5_120, "matmul_dtype": "fp8"},
        _8B,
        ("--device-type", "H20", "--decode-bs", "64", "--use-fp8-gemm", "--decode-only"),
    ),
)
"""Each as InferSim's examples run it: prompts of 4,096 tokens and, without another word, answers of 2,048 tokens, half
of them there in the mean."""
