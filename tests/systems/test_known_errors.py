"""The known errors of predicted steps are those of the recorded table of published steps."""

import csv
import dataclasses
from collections import defaultdict
from pathlib import Path

import pytest

from stagedb.systems import load_system
from stagedb.systems.known_errors import known_error, known_errors
from stagedb.validation import published_steps

RECORDED = Path(__file__).parents[2] / "docs" / "step-times.csv"


def test_known_errors_follow_from_the_recorded_steps() -> None:
    systems = {row.source: row.system for row in published_steps()}
    errors: dict[str, list[float]] = defaultdict(list)
    sources: dict[str, set[str]] = defaultdict(set)
    fitted: dict[str, int] = defaultdict(int)
    with RECORDED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            system = systems[row["source"]]
            errors[system].append(abs(float(row["ratio"]) - 1))
            sources[system].add(row["source"])
            fitted[system] += row["rows"] == "calibrated"
    assert set(known_errors()) == set(errors)
    for system, found in known_errors().items():
        assert found.steps == len(errors[system])
        assert found.fitted == fitted[system]
        assert found.mean == pytest.approx(sum(errors[system]) / found.steps, abs=6e-4)
        assert found.worst == pytest.approx(max(errors[system]), abs=6e-4)
        assert set(found.sources) == sources[system]


def test_an_error_is_known_only_of_the_system_that_was_compared() -> None:
    h100 = load_system("h100")
    assert known_error(h100) == known_errors()["h100"]
    assert known_error(load_system("b200")) is None
    faster = dataclasses.replace(h100.accelerator, launch=h100.accelerator.launch / 2)
    assert known_error(dataclasses.replace(h100, accelerator=faster)) is None
