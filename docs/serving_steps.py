"""Published throughputs of serving next to those of plans, for docs/serving.md and its test. Nothing is fitted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stagedb.api.model_names import card_source
from stagedb.lowering import program_of
from stagedb.models import Card, load_card
from stagedb.plans import typed_words
from stagedb.systems import load_system
from stagedb.timing import profile_job

SGLANG = "SGLang on H100 (LMSYS, 2025-05-05)"
DEEPSEEK = "DeepSeek's profile on H800, as LMSYS reads it"

EXPERTS: Mapping[str, Any] = {
    "overlap_experts": True,
    "matmul_dtype": "fp8",
    "dispatch_dtype": "fp8",
}
PREFILL: Mapping[str, Any] = {
    **EXPERTS,
    "workflow": "prefill",
    "dp": 32,
    "ep": 32,
    "dispatch": "nodes",
    "node_ranks": 8,
    "global_batch_size": 64,
}
DECODE: Mapping[str, Any] = {**EXPERTS, "workflow": "decode", "dispatch": "ranks"}
DRAFTS: Mapping[str, Any] = {
    **DECODE,
    "workflow": "speculative",
    "seq_len": 2,
    "draft": "other",
    "acceptance": 0.6,
    "dp": 72,
    "ep": 72,
    "global_batch_size": 9_216,
    "cache_len": 4_000,
}


@dataclass(frozen=True)
class PublishedServing:
    """A throughput of DeepSeek-V3. tokens: a second of a node with eight accelerators. experts: with their copies."""

    source: str
    what: str
    system: str
    tokens: int
    words: Mapping[str, Any]
    experts: int = 256

    @property
    def expected(self) -> float:
        """The tokens a second of a node under the plan."""
        times = _step(self.system, self.experts, tuple(sorted(self.words.items())))
        return 8 * times

    @property
    def error(self) -> float:
        """How much more tokens are expected than were published, as a share."""
        return self.expected / self.tokens - 1


def _card(experts: int) -> Card:
    card = load_card("deepseek-v3")
    if experts == card.experts:
        return card
    more = (experts - card.experts) * (58 * 3 * 7168 * 2048 + 58 * 7168)  # of 58 layers, and the rows of their routers
    return replace(card, experts=experts, parameters=None if card.parameters is None else card.parameters + more)


def _step(system: str, experts: int, words: tuple[tuple[str, Any], ...]) -> float:
    """Tokens a second of an accelerator."""
    card, typed = _card(experts), typed_words(dict(words))
    plan = card_source(card, typed).new_plan(typed)
    program = program_of(card, plan)
    tokens = profile_job(program.workload, load_system(system)).merit.tokens_per_second
    return (tokens or 0.0) / plan.world


ROWS = (
    PublishedServing(SGLANG, "prefill of 1K prompts", "h100", 57_674, {**PREFILL, "requests": ("8x1024",)}),
    PublishedServing(SGLANG, "prefill of 2K prompts", "h100", 54_543, {**PREFILL, "requests": ("4x2048",)}),
    PublishedServing(SGLANG, "prefill of 4K prompts", "h100", 50_302, {**PREFILL, "requests": ("2x4096",)}),
    PublishedServing(SGLANG, "the same, experts balanced", "h100", 59_337, {**PREFILL, "requests": ("2x4096",)}),
    PublishedServing(
        SGLANG,
        "decode, 256 requests, 2K",
        "h100",
        22_282,
        {**DECODE, "dp": 72, "ep": 72, "micro_batch_size": 128, "global_batch_size": 18_432, "cache_len": 2_000},
        experts=288,
    ),
    # Checks a drafted token of each request, of which 60 % are accepted, with attention slowed to that of two tokens.
    PublishedServing(
        SGLANG,
        "decode, 128 requests, 4K, drafts simulated",
        "h100",
        17_373,
        {**DRAFTS, "micro_batch_size": 64},
        experts=288,
    ),
    PublishedServing(
        SGLANG,
        "the same, without overlap",
        "h100",
        12_929,
        {**DRAFTS, "overlap_experts": False, "micro_batch_size": 128},
        experts=288,
    ),
    PublishedServing(DEEPSEEK, "prefill of 4K prompts", "h800", 62_713, {**PREFILL, "requests": ("2x4096",)}),
    PublishedServing(
        DEEPSEEK,
        "decode, 128 requests, 4K",
        "h800",
        18_598,
        {**DECODE, "dp": 128, "ep": 128, "micro_batch_size": 64, "global_batch_size": 16_384, "cache_len": 4_096},
    ),
)


def table() -> str:
    """The rows as Markdown."""
    lines = ["| source | step | tokens/s a node | expected | error |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.source} | {each.what} | {each.tokens:,} | {each.expected:,.0f} | {100 * each.error:+.1f}% |"
        for each in ROWS
    ]
    mean = sum(abs(each.error) for each in ROWS) / len(ROWS)
    return "\n".join([*lines, "", f"The mean error is {100 * mean:.1f}%."]) + "\n"
