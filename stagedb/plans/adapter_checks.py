"""Checks of the words of a plan for adapters."""

from collections.abc import Mapping

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans.aspects import LAYOUT_WORDS
from stagedb.plans.plan_fields import PlanFields


def check_adapters(plan: PlanFields) -> None:
    """Raise UsageError for a rank of adapters that no layer has."""
    if plan.lora_rank != LAYOUT_WORDS["lora_rank"].default and not plan.options.lora:
        raise UsageError(
            f"no layer has an adapter of rank {plan.lora_rank}: name some with {Word('lora')}, or leave "
            f"{Word('lora_rank')} out"
        )


def check_rank(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for adapters that are wider than what they read. sizes: those of the model."""
    if plan.options.lora and plan.lora_rank > sizes["H"]:
        raise UsageError(
            f"adapters of rank {plan.lora_rank} are wider than the hidden size {sizes['H']}: {Word('lora_rank')} takes "
            f"at most {sizes['H']}"
        )
