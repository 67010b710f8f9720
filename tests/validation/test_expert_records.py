"""Experts whose matrices tensor parallelism cuts, under PyTorch: all that a record has agrees with stagedb's.

`scripts/record --config tests/validation/expert_configurations.json` made the file. The layouts are those of
torchtitan's `models/common/MOE_SHARDING.md` (August 2026) without expert parallelism.
"""

import json
from pathlib import Path

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from stagedb.validation import check_records, read_records

RECORDS = {record.name: record for record in read_records(Path(__file__).with_name("expert_records.json"))}


@pytest.mark.parametrize("name", RECORDS)
def test_a_step_is_counted_alike(embedded_store: Store, name: str) -> None:
    (checked,) = check_records(Stagedb(embedded_store), [RECORDS[name]])
    assert checked.unsupported is None
    assert [row for row in checked.differences if not row.agrees] == []
    assert checked.exact


def test_the_file_has_the_configurations() -> None:
    wanted = json.loads(Path(__file__).with_name("expert_configurations.json").read_text(encoding="utf-8"))
    assert [each["label"] for each in wanted] == list(RECORDS)
    for each in wanted:
        assert each.items() <= RECORDS[each["label"]].config.items()
