"""What the `megatron` recipe sends between experts, in elements a rank and step, message by message.

Forms that decode volumes measured on Megatron-LM runs (arXiv 2511.10480, table VII). Gradients of data-parallel ranks
were not in the measured window.
"""

import dataclasses
from collections import Counter

import pytest

from stagedb.models import Card, load_card
from stagedb.traces import chakra_pb2 as pb
from tests import lowered
from tests.ir.tiny import card as tiny_card

WIDTH = {"bf16": 2, "fp32": 4}
DATA = ("dp", "edp")


def sent(card: Card, rank: int, **words: object) -> Counter[tuple[str, str, int]]:
    """How often a rank sends so many elements, by kind of operation and mesh axis; not those of data parallelism."""
    trace = lowered.trace(card, rank, recipe="megatron", **words)
    columns = trace.attributes
    return Counter(
        (columns["kind"][i], columns["axis"][i], columns["comm_size"][i] // WIDTH[columns["dtype"][i]])
        for i, node in enumerate(trace.types)
        if node != pb.COMP_NODE and columns["axis"][i] not in DATA
    )


@dataclasses.dataclass(frozen=True)
class Share:
    """A rank's stage: layers with and without experts, which end it is, micro-batches of `tokens`."""

    card: Card
    layers: int
    dense: int
    first: bool
    last: bool
    microbatches: int
    tokens: int
    tp: int

    def messages(self) -> Counter[tuple[str, str, int]]:
        """Under sp, where tp exceeds 1."""
        card, m, tp = self.card, self.microbatches, self.tp
        h, k, all_layers = card.hidden, card.top_k, self.layers + self.dense
        whole, first, last = self.tokens * card.hidden, int(self.first), int(self.last)
        routed = k * whole // tp
        found = Counter({("all_to_all", "ep", routed): 4 * self.layers * m})
        if tp > 1:
            shared = card.shared_ffn > 0
            # Attention 3 and a dense (or shared) feed-forward 3; 2 of what experts are sent, k times as much.
            gathers = 3 * all_layers + 3 * (self.dense + shared * self.layers) + first + 2 * last
            scatters = 2 * all_layers + 2 * (self.dense + shared * self.layers) + first + last
            found["all_gather", "tp", whole // tp] += gathers * m
            found["all_gather", "tp", routed] += 2 * self.layers * m
            found["reduce_scatter", "tp", whole] += scatters * m
            found["reduce_scatter", "tp", k * whole] += 2 * self.layers * m
            found["all_reduce", "tp", self.tokens] += 3 * last * m
            found["all_reduce", "tp", (2 * all_layers + card.experts * self.layers + last) * h] += 1
        return +found


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_the_forms_hold_on_every_stage(style: str, tp: int, stage: int) -> None:
    card = tiny_card(style, layers=4, kv_heads=4)
    words = {"dp": 4, "ep": 2, "tp": tp, "sp": tp > 1, "pp": 2, "micro_batch_size": 2, "global_batch_size": 24}
    found = sent(card, stage * 4 * tp, **words, seq_len=8)
    dense = card.dense_layers if stage == 0 else 0
    share = Share(card, 2 - dense, dense, stage == 0, stage == 1, microbatches=3, tokens=16, tp=tp)
    assert {key: count for key, count in found.items() if key[0] not in ("send", "recv")} == share.messages()


@pytest.mark.parametrize(
    ("model", "layers", "words"),
    [
        ("mixtral-8x7b", 4, {"tp": 2, "sp": True, "dp": 4, "ep": 4}),
        ("mixtral-8x22b", 2, {"tp": 4, "sp": True, "dp": 8, "ep": 8}),
        ("deepseek-moe-16b", 3, {"dp": 8, "ep": 8}),
        ("deepseek-moe-16b", 2, {"tp": 2, "sp": True, "dp": 4, "ep": 2}),
    ],
)
def test_the_forms_hold_for_published_models(model: str, layers: int, words: dict[str, int]) -> None:
    card = dataclasses.replace(load_card(model), layers=layers)
    found = sent(card, 0, **words, seq_len=1024)
    dense, tp = card.dense_layers, words.get("tp", 1)
    share = Share(card, layers - dense, dense, True, True, microbatches=1, tokens=1024, tp=tp)
    assert found == share.messages()


def test_the_form_of_a_layer_with_experts() -> None:
    """All-gather (3 + 2k)·m·s·h/t, reduce-scatter (2 + 2k)·m·s·h, all-to-all 4·k·m·s/t·h a layer."""
    card = tiny_card("moe", layers=5, kv_heads=4)
    words = {"dp": 2, "ep": 2, "tp": 2, "sp": True, "seq_len": 8, "micro_batch_size": 2, "global_batch_size": 12}
    volumes = [Counter[str](), Counter[str]()]
    for volume, layers in zip(volumes, (4, 5), strict=True):
        model = dataclasses.replace(card, layers=layers)
        for (kind, _, size), count in sent(model, 0, **words).items():
            volume[kind] += size * count
    layer = volumes[1] - volumes[0]
    tokens, h, k = 3 * 16, card.hidden, card.top_k
    assert layer == {
        "all_gather": (3 + 2 * k) * tokens * h // 2,
        "reduce_scatter": (2 + 2 * k) * tokens * h,
        "all_to_all": 4 * k * tokens // 2 * h,
        "all_reduce": (2 + card.experts) * h,
    }
