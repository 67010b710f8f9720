"""Kinds of blocks under PyTorch: FLOPs, messages, their order, and memory agree with those of stagedb, as integers.

`scripts/record --blocks` made the file. The plans are those of torchtitan 0.3.0, whose files
`scripts/recording/under_torch/blocks.py` names.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.recording.block_configurations import configurations
from scripts.recording.configurations import DEFAULTS
from stagedb.validation import Counts, Record, check_record, read_records

RECORDS = {record.name: record for record in read_records(Path(__file__).with_name("block_records.json"))}


def unlike(record: Record) -> Mapping[str, int]:
    """The quantities that differ, each with the record's minus ours. The matmuls must have the recorded order."""
    checked = check_record(record)
    assert checked.unsupported is None
    assert checked.exact
    return {row.quantity: int(row.theirs - row.ours) for row in checked.differences if not row.agrees}


@pytest.mark.parametrize("name", RECORDS)
def test_a_block_is_counted_alike(name: str) -> None:
    assert unlike(RECORDS[name]) == {}


def test_a_difference_is_seen() -> None:
    record = RECORDS["latent/tp-sp"]
    message = next(iter(record.counts.messages))
    more = Counts(record.counts.flops, record.counts.messages + type(record.counts.messages)({message: 1}))
    assert set(unlike(dataclasses.replace(record, counts=more)).values()) == {1}


def test_the_file_has_the_configurations_of_the_recorder() -> None:
    wanted = {str(config["label"]): config for config in configurations()}
    assert set(RECORDS) == set(wanted)
    for name, record in RECORDS.items():
        assert {**DEFAULTS, **record.config} == wanted[name]
