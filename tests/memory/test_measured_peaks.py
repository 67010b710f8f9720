"""Published measurements of peaks, and what is counted of them: `docs/memory.md` explains the differences."""

import dataclasses
from typing import Any

import pytest

from stagedb.api import Memory, Stagedb
from stagedb.models import load_card
from stagedb.store import Store

LITE: dict[str, Any] = {"dp": 8, "zero": 3, "micro_batch_size": 8, "seq_len": 4096}
"""DeepSeek 16B on 8 H100: pytorch/torchtitan#1789."""

HOT = ["0.0234375"] * 8 + ["0.0145089"] * 56
"""Shares of 64 experts: those of the first of 8 ranks get 1.5 times the mean."""


def at_peak(found: Memory, rank_class: int, category: str) -> int:
    rows = [row for row in found.levels if (row["class"], row["moment"]) == (rank_class, "peak")]
    return sum(int(row["bytes"]) for row in rows if row["category"] == category)


def test_an_even_exchange_adds_nothing_at_the_peak_and_imbalance_what_is_saved(embedded_store: Store) -> None:
    db, card = Stagedb(embedded_store), load_card("deepseek-v2-lite")
    alone, even, hot = (
        db.memory(db.instantiate(card, **LITE, **words).id)
        for words in ({}, {"ep": 8}, {"ep": 8, "expert_load": ",".join(HOT)})
    )
    (one,), (other,) = alone.peaks, even.peaks
    assert one["peak"] == other["peak"]
    assert "head.loss.label.input_gradient" in one.values()
    assert all(row["category"] == "activations" for row in even.tensors if "all_to_all" in row["name"])
    # Half of a rank's rows more are saved in each layer with experts: rows, two projections and their gate.
    more = LITE["micro_batch_size"] * LITE["seq_len"] * card.top_k // 2
    layers = card.layers - card.dense_layers
    fullest = max(hot.peaks, key=lambda row: int(row["peak"]))
    assert (fullest["class"], fullest["ranks"]) == (0, 1)
    assert fullest["peak"] - other["peak"] == layers * more * 2 * (card.hidden + 3 * card.expert_ffn)


LAYERS = 20 - 4
MEASURED = {"inductor": (9.95, 39.41), "thunder": (10.54, 42.69)}
"""GB of a device at its peak with 4 and with 20 layers, 2 sequences of 4,096 tokens: lightning-thunder#474, zero 3."""


@pytest.mark.parametrize(("compiler", "wider"), [("inductor", 6), ("thunder", 10)])
def test_a_fused_projection_and_a_copied_result_are_what_a_layer_of_litgpt_saves_more(
    embedded_store: Store, compiler: str, wider: int
) -> None:
    """wider: bytes for each element of the hidden state. Two decimals of a measured peak are 0.6 MB a layer."""
    db, card = Stagedb(embedded_store), load_card("llama2-13b")
    tokens, few, many = 2 * 4096, dataclasses.replace(card, layers=1), dataclasses.replace(card, layers=2)
    peaks = [db.memory(db.instantiate(each, dp=8, zero=3, micro_batch_size=2, seq_len=4096).id) for each in (few, many)]
    counted = at_peak(peaks[1], 0, "activations") - at_peak(peaks[0], 0, "activations")
    each = 12 * card.hidden + 4 * card.kv_heads * card.head_dim + 6 * card.ffn + 4 * card.heads + 8
    assert counted == tokens * each == 1_351_942_144
    states = 6 * (many.count_parameters() - few.count_parameters()) / 8
    less, more = MEASURED[compiler]
    measured = (more - less) * 1e9 / LAYERS - states
    assert counted + tokens * wider * card.hidden == pytest.approx(measured, abs=0.01 * 1e9 / LAYERS)
    assert counted < 0.85 * measured
