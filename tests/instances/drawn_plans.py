"""Plans of small models, drawn by a seed: words of all kinds together, those that a model refuses left out."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.errors import UsageError
from stagedb.lowering import Program, program_of
from stagedb.models import Card
from stagedb.plans import Plan
from tests.ir.tiny import card

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "tp": (1, 2, 2),
    "pp": (1, 2, 4),
    "dp": (1, 2, 4),
    "cp": (1, 1, 1, 2),
    "zero": (0, 1, 2, 3),
    "sp": (False, True),
    "recipe": ("torch", "torch", "megatron"),
    "recompute": ("none", "none", "full", "core"),
    "recompute_every": (1, 1, 2),
    "recompute_first": (None, None, 1),
    "virtual_stages": (1, 1, 2),
    "schedule": (None, None, "gpipe", "zb-h1", "zb-v", "interleaved-zb", "breadth-first"),
    "hsdp": (1, 1, 2),
    "ep": (1, 2),
    "workflow": (None, None, None, "forward-only"),
    "matmul_dtype": (None, None, "fp8"),
    "cp_kind": (None, "ring-p2p", "allgather-kv", "ulysses"),
    "dispatch": (None, None, "ranks", "nodes"),
    "reshard": (None, None, False),
}
STYLES = ("gpt", "llama", "qwen3", "moe", "deepseek")


@dataclass(frozen=True)
class Drawn:
    """A plan that a small model takes, and its program."""

    model: Card
    words: Mapping[str, Any]
    program: Program


def drawn_plan(seed: int) -> Drawn:
    """A plan that its model takes, always the same one for a seed."""
    rng = random.Random(seed)
    while True:
        style = rng.choice(STYLES)
        words = {word: rng.choice(values) for word, values in CHOICES.items()}
        experts = style in ("moe", "deepseek")
        needed = {"cp_kind": words["cp"] > 1, "ep": experts, "dispatch": experts}
        needed |= dict.fromkeys(("recompute_every", "recompute_first"), words["recompute"] != "none")
        words = {word: value for word, value in words.items() if value is not None and needed.get(word, True)}
        words |= {"seq_len": 16, "global_batch_size": words["dp"] * rng.choice((4, 8))}
        model = card(style, layers=rng.choice((4, 5, 8)), tied=rng.random() < 0.3)
        try:
            plan = Plan.from_mapping(words)
            return Drawn(model, words, program_of(model, plan))
        except UsageError:
            continue
