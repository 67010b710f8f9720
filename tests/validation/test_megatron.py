"""What the `megatron` recipe sends, message by message, against volumes measured on Megatron-LM runs.

The measured rows are those of arXiv 2511.10480, table VII; the forms decode them. Units: elements of each operation's
input on one rank and step. Scalar messages (gradient norm, loss average) were not in the measured window.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.models import Card, load_card
from stagedb.store import Store
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import TraceColumns, read_trace
from tests import lowered
from tests.ir.tiny import card as tiny_card

WIDTH = {"bf16": 2, "fp32": 4}


def elements(trace: TraceColumns) -> Counter[str]:
    """Elements that a rank sends, by kind of operation, from its trace."""
    columns = trace.attributes
    found: Counter[str] = Counter()
    for index, node in enumerate(trace.types):
        if node != pb.COMP_NODE:
            size, width = columns["comm_size"][index], WIDTH[columns["dtype"][index]]
            assert size % width == 0
            found[columns["kind"][index]] += size // width
    return found


def sent(card: Card, rank: int, **words: object) -> Counter[str]:
    return elements(lowered.trace(card, rank, recipe="megatron", **words))


@dataclass(frozen=True)
class Job:
    """One rank's share: layers of the stage, which end it is, micro-batches of `seq` tokens, sizes, degrees."""

    layers: int
    first: bool
    last: bool
    microbatches: int
    seq: int
    hidden: int
    tp: int
    pp: int
    vocabulary: int
    learned: bool
    layernorm: bool
    tied: bool

    def sent(self, sp: bool) -> dict[str, int]:
        """The forms of the measured volumes."""
        tokens, h, first, last = self.microbatches * self.seq, self.hidden, int(self.first), int(self.last)
        found: Counter[str] = Counter()
        if self.tp > 1 and sp:
            found["all_gather"] = (6 * self.layers + first + 2 * last) * tokens * h // self.tp
            found["reduce_scatter"] = (4 * self.layers + last + first * (not self.learned)) * tokens * h
            found["all_reduce"] = first * self.learned * tokens * h + 3 * last * tokens
            # Weights outside the tensor-parallel regions: norms, and biases behind row-parallel matmuls.
            found["all_reduce"] += (6 * self.layers + 2 * last) * h if self.layernorm else (2 * self.layers + last) * h
        elif self.tp > 1:
            found["all_reduce"] = (4 * self.layers + first + last) * tokens * h + 3 * last * tokens
        if self.tied and self.pp > 1 and (first or last):
            multiple = 128 * self.tp
            found["all_reduce"] += -(-self.vocabulary // multiple) * multiple // self.tp * h
        if self.pp > 1:
            share = tokens * h // (self.tp if sp else 1)
            found["send"] = found["recv"] = share * ((1 - first) + (1 - last))
        return {kind: count for kind, count in found.items() if count}


@pytest.mark.parametrize(
    ("words", "millions"),
    [
        (
            {"tp": 8, "sp": True, "global_batch_size": 128},
            {"all_reduce": 1075.1, "all_gather": 19730.0, "reduce_scatter": 104153.0},
        ),
        ({"pp": 8, "global_batch_size": 128}, {"all_reduce": 206.0, "send": 1073.7, "recv": 1073.7}),
        ({"dp": 8, "zero": 3, "global_batch_size": 128}, {"all_gather": 19761.3, "reduce_scatter": 80760.9}),
    ],
    ids=["tp 8 + sp", "pp 8, first stage", "FSDP 8"],
)
def test_the_measured_rows_of_gpt3_5b_come_out_to_every_digit(
    words: dict[str, object], millions: dict[str, float]
) -> None:
    found = sent(load_card("gpt3-5b"), 0, **words)
    assert {kind: round(count / 1e6, 1) for kind, count in found.items()} == millions


@pytest.mark.parametrize("microbatches", [1, 3])
def test_a_distributed_optimizer_scatters_gradients_and_gathers_parameters_once_a_step(microbatches: int) -> None:
    """One buffer a stage, each parameter at a multiple of 64 elements, the whole at one of lcm(dp, 128)."""
    card = tiny_card("gpt", kv_heads=4)
    shapes = card.count_parameters()
    found = sent(card, 0, dp=3, zero=1, seq_len=8, global_batch_size=3 * microbatches)
    assert set(found) == {"reduce_scatter", "all_gather"}
    assert found["reduce_scatter"] == 3 * found["all_gather"]
    assert found["reduce_scatter"] % 384 == 0
    assert shapes <= found["reduce_scatter"] < shapes + 64 * 40 + 384


def job_of(card: Card, stage: int, tp: int, pp: int, microbatches: int, seq: int) -> Job:
    share, rest = divmod(card.layers, pp)
    return Job(
        layers=share + (stage < rest),
        first=stage == 0,
        last=stage == pp - 1,
        microbatches=microbatches,
        seq=seq,
        hidden=card.hidden,
        tp=tp,
        pp=pp,
        vocabulary=card.vocab,
        learned=card.positions == "learned",
        layernorm=card.norm == "layernorm",
        tied=card.tied,
    )


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp + sp"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("style", ["gpt", "llama"])
def test_the_forms_hold_on_every_stage(style: str, tied: bool, sp: bool, stage: int) -> None:
    card = tiny_card(style, layers=4, kv_heads=4, tied=tied)
    batch = {"micro_batch_size": 4, "global_batch_size": 12, "seq_len": 8}
    found = sent(card, 2 * stage, tp=2, pp=3, sp=sp, **batch)
    assert dict(found) == job_of(card, stage, tp=2, pp=3, microbatches=3, seq=4 * 8).sent(sp)


@pytest.mark.parametrize(
    ("model", "tp", "pp", "stage"),
    [("gpt3-175b", 32, 1, 0), ("gpt3-175b", 4, 8, 0), ("gpt3-175b", 4, 8, 7), ("llama3-8b", 8, 1, 0)],
)
@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp + sp"])
def test_the_forms_hold_for_published_models(model: str, tp: int, pp: int, stage: int, sp: bool) -> None:
    card = load_card(model)
    words = {"tp": tp, "pp": pp, "sp": sp, "global_batch_size": 2, "seq_len": 2048}
    found = sent(card, tp * stage, **words)
    assert dict(found) == job_of(card, stage, tp, pp, 2, 2048).sent(sp)


def test_the_exported_traces_of_a_store_send_as_much(store: Store, tmp_path: Path) -> None:
    card = tiny_card("gpt", layers=4, kv_heads=4)
    words: dict[str, Any] = {"recipe": "megatron", "tp": 2, "pp": 3, "sp": True}
    words |= {"micro_batch_size": 4, "global_batch_size": 12, "seq_len": 8}
    out = Stagedb(store).export(model=card, out=tmp_path / "traces", **words).path
    for stage in range(3):
        trace = read_trace(next(out.glob(f"*.{2 * stage}.et")))
        assert dict(elements(trace)) == job_of(card, stage, tp=2, pp=3, microbatches=3, seq=4 * 8).sent(sp=True)
