"""What layers with scans hold from their forward to their backward: the operands and results that kernels keep."""

from collections.abc import Mapping

import pytest

from stagedb.memory import memory_of
from stagedb.memory.lifetimes import Category
from stagedb.models import load_card
from tests import lowered

TOKENS = 4096
INNER, STATE = 128 * 64 // 8, 128  # values of a group of Nemotron-H, and its B, its C
CHANNELS = 8192 // 4  # of a fourth of Jamba's
KEYS, VALUES = 8 * 128, 16 * 128  # queries (keys) and values of half of Qwen3-Next's heads

KEPT: Mapping[str, tuple[dict[str, int], dict[str, float]]] = {
    # Elements of a token in bf16, then in fp32. Gates, channels and steps are views of the matmul in.
    "nemotron-h-8b": (
        {"in_proj": 2 * INNER + 2 * STATE + 16, "conv": INNER + 2 * STATE, "scan": INNER, "gated_norm": INNER},
        {"decay": 16, "gated_norm.rstd": 1},
    ),
    "jamba-v0.1": (
        {
            "in_proj": 2 * CHANNELS,
            "conv": CHANNELS,
            "x_proj.all_reduce.tp": 256 + 2 * 16,
            "step_latent_norm": 256,
            "b_norm": 16,
            "c_norm": 16,
            "dt_proj": CHANNELS,
            "scan": CHANNELS,
            "gated": CHANNELS,
        },
        # A state and a product of decays for each channel and each 2,048 tokens.
        {
            **dict.fromkeys(("step_latent_norm.rstd", "b_norm.rstd", "c_norm.rstd"), 1),
            "states": CHANNELS * 2 * 16 / 2048,
        },
    ),
    "qwen3-next-80b-a3b": (
        {
            "in_qkvz": 2 * KEYS + 2 * VALUES,
            "in_ba": 2 * 16,
            "conv": 2 * KEYS + VALUES,
            "scan": VALUES,
            "inverse": 16 * 64,
            "gated_norm": VALUES,
        },
        {"decay": 16, "gated_norm.rstd": 16},
    ),
    # Queries, keys and values are joined, and made before through matmuls whose results nothing reads again.
    "kimi-linear-48b-a3b": (
        {
            "joined": 3 * 2048,
            "conv": 3 * 2048,
            "f_a": 128,
            "f_b": 2048,
            "in_b": 16,
            "scan": 2048,
            "inverse": 16 * 64,
            "scores": 16 * 64,
            "g_a": 128,
            "g_b": 2048,
            "gated_norm": 2048,
        },
        {"decay": 2048, "gated_norm.rstd": 16},
    ),
    # The norm over all heads reads results in fp32, and the backward of the scan reads none of them.
    "minimax-text-01": (
        {"in_qkv": 3 * 1024, "qkv": 3 * 1024, "scan_norm": 1024, "gates.shares": 1024, "gated": 1024},
        {"scan_norm.wide": 1024, "scan_norm.rstd": 1},
    ),
    "lfm2-1.2b": ({"in_proj": 3 * 1024, "gated_in": 1024, "conv": 1024, "gated_out": 1024}, {}),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_scan_keeps_what_its_kernels_keep(name: str) -> None:
    tp = {"nemotron-h-8b": 8, "minimax-text-01": 8, "jamba-v0.1": 4}.get(name, 2)
    words = {"micro_batch_size": 1, "global_batch_size": 1, "seq_len": TOKENS}
    usage = memory_of(lowered.program(load_card(name), tp=tp, **words))[0].usage
    found: dict[str, int] = {}
    for life in usage.held.lives:
        inside = life.name.partition(".attn.")[2]
        waits = life.begin.kind.name == "forward" and any(end.kind.name != "forward" for end in life.ends)
        if life.category is Category.ACTIVATIONS and life.layer == 0 and inside and waits:
            found[inside] = life.bytes
    narrow, wide = KEPT[name]
    kept: dict[str, float] = {word: 2 * TOKENS * size for word, size in narrow.items()}
    kept |= {word: 4 * TOKENS * size for word, size in wide.items()}
    found.pop("add", None)
    assert found == kept
