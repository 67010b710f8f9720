"""Published measurements of peaks, and what is counted of them: `docs/memory.md` explains the differences."""

import dataclasses
from typing import Any

import pytest

from stagedb.memory import ClassMemory, memory_of
from stagedb.memory.class_memory import peak_of
from stagedb.models import Card, load_card
from tests import lowered

LITE: dict[str, Any] = {"dp": 8, "zero": 3, "micro_batch_size": 8, "seq_len": 4096}
"""DeepSeek 16B on 8 H100: pytorch/torchtitan#1789."""

HOT = ["0.0234375"] * 8 + ["0.0145089"] * 56
"""Shares of 64 experts: those of the first of 8 ranks get 1.5 times the mean."""


def memory(card: Card, **words: Any) -> tuple[ClassMemory, ...]:
    return memory_of(lowered.program(card, **words))


def at_peak(each: ClassMemory) -> dict[str, int]:
    """Bytes by category at the peak."""
    return dict(each.peaks())["peak"]


def test_an_even_exchange_adds_nothing_at_the_peak_and_imbalance_what_is_saved() -> None:
    card = load_card("deepseek-v2-lite")
    (one,), (other,), hot = (
        memory(card, **LITE, **words) for words in ({}, {"ep": 8}, {"ep": 8, "expert_load": ",".join(HOT)})
    )
    assert peak_of([one]) == peak_of([other])
    assert one.at(one.peak)[2] == "head.loss.label.input_gradient"
    assert all(each.category == "activations" for each in other.alive() if "all_to_all" in each.name)
    # Half of a rank's rows more are saved in each layer with experts: rows, two projections and their gate.
    more = LITE["micro_batch_size"] * LITE["seq_len"] * card.top_k // 2
    layers = card.layers - card.dense_layers
    fullest = max(hot, key=lambda each: peak_of([each]))
    numbers = lowered.workload(card, **LITE, ep=8, expert_load=",".join(HOT)).ranks.number.tolist()
    assert (fullest.rank_class.number, numbers.count(0)) == (0, 1)
    assert peak_of([fullest]) - peak_of([other]) == layers * more * 2 * (card.hidden + 3 * card.expert_ffn)


LAYERS = 20 - 4
MEASURED = {"inductor": (9.95, 39.41), "thunder": (10.54, 42.69)}
"""GB of a device at its peak with 4 and with 20 layers, 2 sequences of 4,096 tokens: lightning-thunder#474, zero 3."""


@pytest.mark.parametrize(("compiler", "wider"), [("inductor", 6), ("thunder", 10)])
def test_a_fused_projection_and_a_copied_result_are_what_a_layer_of_litgpt_saves_more(
    compiler: str, wider: int
) -> None:
    """wider: bytes for each element of the hidden state. Two decimals of a measured peak are 0.6 MB a layer."""
    card = load_card("llama2-13b")
    tokens, few, many = 2 * 4096, dataclasses.replace(card, layers=1), dataclasses.replace(card, layers=2)
    first, second = (memory(each, dp=8, zero=3, micro_batch_size=2, seq_len=4096)[0] for each in (few, many))
    counted = at_peak(second)["activations"] - at_peak(first)["activations"]
    each = 12 * card.hidden + 4 * card.kv_heads * card.head_dim + 6 * card.ffn + 4 * card.heads + 8
    assert counted == tokens * each == 1_351_942_144
    states = 6 * (many.count_parameters() - few.count_parameters()) / 8
    less, more = MEASURED[compiler]
    measured = (more - less) * 1e9 / LAYERS - states
    assert counted + tokens * wider * card.hidden == pytest.approx(measured, abs=0.01 * 1e9 / LAYERS)
    assert counted < 0.85 * measured
