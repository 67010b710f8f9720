"""Kinds of blocks under PyTorch: FLOPs, messages, their order, and memory agree with those of stagedb, as integers.

`scripts/record --blocks` made the file. The plans are those of torchtitan 0.3.0, whose files
`scripts/recording/under_torch/blocks.py` names.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.recording.block_configurations import configurations
from stagedb.api import Stagedb
from stagedb.store import Store
from stagedb.validation import Counts, Record, check_records, read_records

RECORDS = {record.name: record for record in read_records(Path(__file__).with_name("block_records.json"))}


def unlike(store: Store, record: Record) -> Mapping[str, int]:
    """The quantities that differ, each with the record's minus ours. The matmuls must have the recorded order."""
    (checked,) = check_records(Stagedb(store), [record])
    assert checked.unsupported is None
    assert checked.exact
    return {row.quantity: int(row.theirs - row.ours) for row in checked.differences if not row.agrees}


def sinks(config: Mapping[str, Any]) -> int:
    """torchtitan scales the kernel's result by the sigmoid of log-sum-exp minus sink, and keeps for that the result
    before, and the factor in fp32 and in the format of the result. A kernel that knows sinks keeps none of the three.
    """
    heads = config["heads"] // config["tp"]
    return int(config["batch"] * config["seq"] * heads * (2 * config["head_dim"] + 4 + 2))


def scores(config: Mapping[str, Any]) -> int:
    """The division of a token's scores by their sum keeps the sum, in fp32, where it is a kernel of its own."""
    return int(config["batch"] * config["seq"] * 4)


KEPT: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "sinks": sinks,
    "scored-experts": scores,
    "latent-experts": scores,
}
"""By kind, the bytes of a layer that PyTorch keeps for the backward in addition to what stagedb does."""


def named(config: Mapping[str, Any]) -> Mapping[str, int]:
    """The differences that are to be found. A layer that is recomputed keeps nothing."""
    of_layer = KEPT.get(config["model"])
    if of_layer is None or config["recompute"] == "full":
        return {}
    layer, count = of_layer(config), config["layers"] - config["dense_layers"]
    both = dict.fromkeys(("saved for the backward", "activation bytes at forward end"), count * layer)
    return {**both, "saved by one layer": layer}


@pytest.mark.parametrize("name", RECORDS)
def test_a_block_is_counted_alike(embedded_store: Store, name: str) -> None:
    expected = named(RECORDS[name].config)
    found = unlike(embedded_store, RECORDS[name])
    # The peak follows from what is kept.
    assert {word: size for word, size in found.items() if not expected or word != "peak bytes"} == expected


def test_a_difference_is_seen(embedded_store: Store) -> None:
    record = RECORDS["latent/tp-sp"]
    message = next(iter(record.counts.messages))
    more = Counts(record.counts.flops, record.counts.messages + type(record.counts.messages)({message: 1}))
    assert set(unlike(embedded_store, dataclasses.replace(record, counts=more)).values()) == {1}


def test_the_file_has_the_configurations_of_the_recorder() -> None:
    wanted = {str(config["label"]): config for config in configurations()}
    assert set(RECORDS) == set(wanted)
    for name, record in RECORDS.items():
        assert record.config == wanted[name]
