"""Communicator groups as a mapping whose lists are made when they are asked for, and their text in parts."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.lowering.columns import Groups
from stagedb.traces import bundle, trace_set
from stagedb.traces.bundle import groups_of
from stagedb.traces.exporting import trace_set as traces_of
from stagedb.traces.packed_file import INDEX, Packed, write_packed
from tests.traces.synthetic import workload


def grouped(gids: list[int], members: list[list[int]]) -> Any:
    """The groups of a workload with these."""
    sizes = np.array([len(each) for each in members], np.int64)
    ranks = np.array([rank for each in members for rank in each], np.int64)
    return groups_of(
        replace(workload(tp=2), groups=Groups(np.array(gids, np.int64), ("tp",) * len(gids), sizes, ranks))
    )


@pytest.mark.parametrize("part", [1, 2, 3, 1000])
def test_groups_are_those_of_the_columns(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_A_PART", part)
    monkeypatch.setattr(trace_set, "_GROUPS_A_PART", part)
    plain = {"30": [4, 0], "7": [1], "12": [9, 8, 7], "8": []}
    found = grouped([int(name) for name in plain], [*plain.values()])
    assert found == plain
    assert (list(found), len(found)) == (list(plain), 4)
    assert {name: found[name] for name in plain} == plain
    assert [*found.items()] == [*plain.items()]
    assert "9" not in found
    for name in ("", "007", "x", "31", "-7", "٧"):
        with pytest.raises(KeyError):
            found[name]
    texts = [*trace_set.group_texts(found)]
    assert "".join(texts) == json.dumps(plain) + "\n"
    assert len(texts) == -(-4 // part) + 1


def test_no_groups_are_an_empty_object() -> None:
    assert trace_set.groups_text(grouped([], [])) == "{}\n" == trace_set.groups_text({})


def test_an_index_in_parts_is_the_json_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = traces_of(workload(tp=2, pp=2, dp=2))
    write_packed(tmp_path / "one", traces)
    monkeypatch.setattr(trace_set, "_GROUPS_A_PART", 1)
    write_packed(tmp_path / "other", traces)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    with zipfile.ZipFile(tmp_path / "one") as archive:
        text = archive.read(INDEX).decode()
    assert json.dumps(json.loads(text)) == text
    with Packed(tmp_path / "one") as packed:
        assert packed.traces().groups == traces.groups
