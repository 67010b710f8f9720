"""Recorded steps of PyTorch: stagedb's exported traces and its store hold the same counts, as integers."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.store import Store
from stagedb.validation import (
    Checked,
    CountedMessage,
    Counts,
    Record,
    RecordedMemory,
    check_record,
    check_records,
    compare,
    read_records,
    select,
)

FILE = Path(__file__).with_name("records.json")
RECORDS = {record.name: record for record in read_records(FILE)}

PRODUCTS = {record.name: record for record in read_records(FILE.with_name("records-2.json"))}
"""Products of features, drawn at random."""

PLANNED = list(RECORDS.values())

TINY = [record.name for record in PLANNED if record.config["model"].startswith("tiny")]
LARGE = [record.name for record in PLANNED if not record.config["model"].startswith("tiny")]


STORED = [*TINY[::8], *LARGE[::17]]
"""Those that go through a store too."""


def assert_agrees(checked: Checked) -> None:
    assert checked.unsupported is None
    assert [row for row in checked.differences if not row.agrees] == []
    assert checked.differences
    assert checked.exact


@pytest.mark.parametrize("name", RECORDS)
def test_a_step_is_counted_alike(name: str) -> None:
    assert_agrees(check_record(RECORDS[name]))


@pytest.mark.parametrize("name", STORED)
def test_a_step_of_a_store_is_counted_alike(store: Store, name: str) -> None:
    """From the exported trace, and the counts that Cypher sums up."""
    (checked,) = check_records(Stagedb(store), [RECORDS[name]])
    assert_agrees(checked)
    assert checked == check_record(RECORDS[name])


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_counted_alike(name: str) -> None:
    checked = check_record(PRODUCTS[name])
    assert checked.unsupported is None
    assert [row for row in checked.differences if not row.agrees] == []


def test_a_difference_is_seen() -> None:
    """A record whose framework sent one message more, and computed one operation more, does not agree."""
    record = RECORDS["tiny-llama/L2/b2/s32/tp2sp"]
    message = next(iter(record.counts.messages))
    wrong = Counts(
        {**record.counts.flops, ("forward", "matmul"): record.counts.flops["forward", "matmul"] + 2},
        record.counts.messages + Counter({message: 1}),
    )
    checked = check_record(Record(record.name, record.config, wrong))
    assert not checked.agrees
    off = {row.quantity: row.theirs - row.ours for row in checked.differences if row.theirs != row.ours}
    assert sorted(off.values()) == [1, 2]


def test_a_difference_of_memory_is_seen() -> None:
    """Differences of states, of saved bytes, of bytes at a phase's end, and a peak with a large error."""
    record = RECORDS["tiny-gpt/L2/b2/s32/tp2sp"]
    assert record.memory is not None
    levels = {moment: dict(level) for moment, level in record.memory.levels.items()}
    levels["backward_end"]["grad"] += 1
    wrong = RecordedMemory(
        parameters=record.memory.parameters + 1,
        levels=levels,
        peak=record.memory.peak * 2,
        saved=record.memory.saved + 1,
        layer=(record.memory.layer or 0) + 1,
    )
    checked = check_record(dataclasses.replace(record, memory=wrong))
    off = {row.quantity for row in checked.differences if row.theirs != row.ours}
    assert {"parameter bytes", "saved for the backward", "saved by one layer", "grad bytes at backward end"} <= off
    assert not checked.agrees
    assert any("LayerNorm" in note for note in checked.notes)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("tiny-llama/L2/b2/s32/tp2", 0.03),
        ("llama3-8b/L32/b1/s8192/tp8", 0.005),
        ("llama3-8b/L32/b1/s2048/single", 0.005),
        ("llama3-8b/L32/b1/s8192/pp2-1f1b-m8", 0.005),
    ],
)
def test_a_peak_has_the_bound_that_its_record_calls_for(name: str, bound: float) -> None:
    checked = check_record(RECORDS[name])
    (peak,) = [row for row in checked.differences if row.quantity == "peak bytes"]
    assert peak.bound == bound
    assert peak.agrees
    assert not peak._replace(ours=int(peak.theirs * (1 + 1.1 * bound))).agrees


def test_what_no_plan_can_describe_is_separate() -> None:
    record = next(record for record in RECORDS.values() if record.config["cp"] > 1)
    record = dataclasses.replace(record, config={**record.config, "cp_impl": "spiral"})
    checked = check_record(record)
    assert checked.unsupported is not None
    assert not checked.agrees


@pytest.mark.parametrize(("field", "value"), [("ep", None), ("tp", [2]), ("pp_schedule", {}), ("recompute", ["full"])])
def test_a_configuration_that_misuses_a_field_is_separate(field: str, value: object) -> None:
    record = RECORDS["tiny-gpt/L2/b2/s32/tp2"]
    config = {**record.config, field: value} if value else {k: v for k, v in record.config.items() if k != field}
    checked = check_record(dataclasses.replace(record, config=config))
    assert checked.unsupported is not None


def test_checking_leaves_the_store_as_it_was(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    list(check_records(db, [RECORDS["tiny-gpt/L2/b2/s32/tp2"]]))
    assert db.instances() == []
    assert db.graphs() == []


def test_records_are_chosen_by_name() -> None:
    chosen = select(list(RECORDS.values()), "tiny-llama/*/tp2*")
    assert {record.name.rsplit("/", 1)[1] for record in chosen} >= {"tp2", "tp2sp"}
    assert all(record.name.startswith("tiny-llama") for record in chosen)


@pytest.mark.parametrize("content", ["{", "{}", '[{"name": "x"}]', '[{"name": "x", "config": {}, "flops": 3}]', "[3]"])
def test_what_is_no_file_of_records_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "records.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"records\.json"):
        read_records(path)


def test_quantities_are_compared_from_both_sides() -> None:
    sent = CountedMessage("forward", "all_reduce", "tp", "bf16", 8, 8)
    rows = list(compare(Counts({("forward", "matmul"): 4}, Counter({sent: 2})), Counts({}, Counter())))
    assert [(row.theirs, row.ours) for row in rows] == [(4, 0), (2, 0)]
    rows = list(compare(Counts({}, Counter()), Counts({("forward", "matmul"): 4}, Counter({sent: 2}))))
    assert [(row.theirs, row.ours) for row in rows] == [(0, 4), (0, 2)]


def test_the_file_is_the_one_that_was_recorded() -> None:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text())
    assert len(rows) == 103
    assert len(PRODUCTS) == 71
