"""Jobs of the `megatron` recipe in the letters of Korthikanti et al. 2022, and what stagedb holds for them."""

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from stagedb.lowering import program_of
from stagedb.memory import Category, ClassMemory, memory_of
from stagedb.models import Card
from stagedb.plans import Plan


@dataclass(frozen=True)
class Job:
    """A model and a plan, in the letters of the paper: b sequences of s tokens, a heads, t tp, p stages, v chunks.

    first: the layers of each chunk that recompute; None: all.
    """

    card: Card
    s: int = 8
    b: int = 1
    t: int = 1
    sp: bool = False
    p: int = 1
    v: int = 1
    microbatches: int = 1
    recompute: str = "none"
    attention: str = "math"
    dropout: float = 0.1
    dp: int = 1
    zero: int = 0
    ep: int = 1
    first: int | None = None

    @property
    def sb(self) -> int:
        return self.s * self.b

    @property
    def between(self) -> int:
        """Ranks that share a tensor between tensor-parallel regions."""
        return self.t if self.sp else 1

    @property
    def vocabulary(self) -> int:
        multiple = 128 * self.t
        return -(-self.card.vocab // multiple) * multiple

    @property
    def penalty(self) -> Fraction:
        """The form for what interleaved stages hold in addition (equation 6)."""
        return Fraction(1) + (Fraction(self.p - 1, self.p * self.v) if self.v > 1 else 0)

    @property
    def discount(self) -> Fraction:
        """The report's share of micro-batches where there are fewer than stages."""
        return min(Fraction(1), Fraction(self.microbatches, self.p)) if self.v == 1 and self.p > 1 else Fraction(1)

    @property
    def inputs(self) -> int:
        """Micro-batches whose embedding the first stage has in flight at its fullest."""
        return min(self.p if self.v == 1 else 2 * self.p, self.microbatches)

    @property
    def layers(self) -> Fraction:
        """Layers of the first stage, once for each micro-batch in flight."""
        runs = min(self.p * self.v + self.p - 1, self.v * self.microbatches) if self.v > 1 else self.inputs
        return Fraction(self.card.layers * runs, self.p * self.v)

    @property
    def claimed(self) -> Fraction:
        """The same in the forms."""
        return self.card.layers * self.penalty * self.discount

    @property
    def plan(self) -> Plan:
        words: dict[str, Any] = {
            "seq_len": self.s,
            "micro_batch_size": self.b,
            "global_batch_size": self.b * self.microbatches * self.dp,
            "tp": self.t,
            "sp": self.sp,
            "pp": self.p,
            "dp": self.dp,
            "zero": self.zero,
            "ep": self.ep,
            "dropout": self.dropout,
            "attention": self.attention,
            "recompute": self.recompute,
        }
        words |= {} if self.first is None else {"recompute_first": self.first}
        return Plan.from_mapping({"recipe": "megatron", "virtual_stages": self.v, **words})

    @cached_property
    def memory(self) -> ClassMemory:
        """The memory of the first stage."""
        made = program_of(self.card, self.plan)
        return next(each for each in memory_of(made) if 0 in each.rank_class.stages)


def activations(job: Job) -> int:
    """The most that the first stage keeps for backwards, with tokens and labels, when a task is over."""
    usage, kept = job.memory.usage, (Category.ACTIVATIONS, Category.INPUTS)
    fixed = usage.before()[Category.INPUTS]
    return max(sum(usage.after(i).get(each, 0) for each in kept) - fixed for i in range(len(usage.tasks)))


def states(job: Job) -> int:
    """Parameters, gradients, moments and master copies of the first stage."""
    held = job.memory.usage.before()
    kinds = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER, Category.MASTER)
    return sum(held[kind] for kind in kinds)


GPT = Card(
    name="small",
    family="test",
    hidden=32,
    layers=4,
    heads=4,
    kv_heads=4,
    head_dim=8,
    ffn=128,
    vocab=500,
    norm="layernorm",
    mlp="plain",
    activation="gelu",
    positions="learned",
    max_positions=64,
    tied=True,
    linear_bias=True,
    qkv_bias=False,
    source="a test",
)
LLAMA = dataclasses.replace(
    GPT,
    heads=8,
    kv_heads=4,
    ffn=96,
    norm="rmsnorm",
    mlp="gated",
    activation="silu",
    positions="rotary",
    tied=False,
    linear_bias=False,
)

MOE = dataclasses.replace(LLAMA, mlp="gated", experts=4, top_k=2, expert_ffn=48)
