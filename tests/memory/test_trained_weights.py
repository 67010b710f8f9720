"""What adapters and frozen parts hold: gradients, moments and master copies of what is trained alone."""

from collections.abc import Mapping

import pytest

from stagedb.memory import memory_of
from stagedb.memory.lifetimes import Category
from tests import lowered

LAYERS, HIDDEN, WIDE, NARROW, FFN, VOCAB = 32, 4096, 6144, 4096, 14336, 128256
"""Llama 3 8B: layers, hidden size, rows of the fused queries, keys and values, and so on."""


def held(**words: object) -> Mapping[Category, int]:
    """Bytes of each category before a step on the first rank."""
    return memory_of(lowered.program("llama3-8b", seq_len=256, recipe="megatron", **words))[0].usage.before()


@pytest.mark.parametrize(("tp", "zero"), [(1, 0), (2, 0), (4, 1)])
def test_megatron_has_gradients_and_optimizer_states_of_adapters_alone(tp: int, zero: int) -> None:
    rank, dp = 8, 2
    columns = rank * HIDDEN + WIDE * rank // tp
    rows = rank * FFN // tp + HIDDEN * rank
    trained = LAYERS * (columns + rows)
    found = held(lora=["attn.wqkv", "ffn.w2"], lora_rank=rank, tp=tp, dp=dp, zero=zero)
    assert found[Category.GRADIENTS] == 4 * trained
    assert found[Category.OPTIMIZER] == 8 * trained // (dp if zero else 1)
    assert found[Category.MASTER] == 4 * trained // (dp if zero else 1)
    usual = held(tp=tp, dp=dp, zero=zero)
    assert found[Category.PARAMETERS] == usual[Category.PARAMETERS] + 2 * trained


def test_a_frozen_embedding_has_parameters_alone() -> None:
    usual, found = held(), held(frozen=["embedding"])
    embedding = VOCAB * HIDDEN
    assert usual[Category.PARAMETERS] == found[Category.PARAMETERS]
    for category, width in ((Category.GRADIENTS, 4), (Category.OPTIMIZER, 8), (Category.MASTER, 4)):
        assert usual[category] - found[category] == width * embedding
