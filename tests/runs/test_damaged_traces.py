"""Damaged and hostile traces: each is refused in one line with its name, or imported with what was left out."""

import json
import random
from pathlib import Path

import pytest

from scripts._fuzz_hostile import changed, damaged
from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun, file_digest, measured_run, read_trace, run_rows
from tests.runs.nsight_exports import two_processes, write_export
from tests.runs.recordings import training_step


def attempt(path: Path) -> MeasuredRun | str:
    """The run of a file, or why it is refused."""
    try:
        run = measured_run(read_trace(path, file_digest(path)))
    except UsageError as error:
        assert path.name in str(error) or "took time" in str(error)
        assert "\n" not in str(error) and len(str(error)) < 600
        return str(error)
    own = run_rows(run, {}).own
    assert own["step"] > 0 and own["ops"] > 0
    at = 0
    for piece in run.path:
        assert piece.start - piece.idle == at
        at = piece.end
    assert at == run.window
    return run


@pytest.mark.parametrize("seed", range(20))
def test_traces_whose_bytes_are_damaged(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    whole = training_step(0).text().encode()
    found = []
    for number in range(10):
        path = tmp_path / f"{number}.json"
        path.write_bytes(damaged(rng, whole, training_step(1).text().encode()))
        found.append(attempt(path))
    assert any(isinstance(each, str) for each in found)


@pytest.mark.parametrize("seed", range(20))
def test_traces_whose_values_are_hostile(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    whole = json.loads(training_step(0).text())
    for number in range(10):
        path = tmp_path / f"{number}.json"
        document = whole if rng.random() < 0.3 else {**whole, "traceEvents": whole["traceEvents"][:12]}
        path.write_text(json.dumps(changed(rng, document)))
        attempt(path)


@pytest.mark.parametrize("seed", range(10))
def test_exports_whose_bytes_are_damaged(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    whole = write_export(tmp_path / "whole.sqlite", two_processes()).read_bytes()
    for number in range(10):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(damaged(rng, whole))
        attempt(path)


@pytest.mark.parametrize(
    "event",
    [
        {"ts": 1e300},
        {"ts": -1e300},
        {"dur": -5},
        {"dur": 1e300},
        {"ts": None},
        {"args": {"correlation": 10**30, "stream": {"a": 1}}},
        {"args": {"correlation": True, "Process Group Ranks": ["x"], "Collective name": 5, "Group size": -1}},
        {
            "args": {
                "Collective name": "allreduce",
                "Group size": 10**15,
                "Global rank start": 0,
                "Global rank stride": 1,
            }
        },
        {"name": "x" * 100_000},
        {"name": None},
        {"pid": [1]},
    ],
)
def test_an_impossible_value_harms_only_its_event(event: dict[str, object], tmp_path: Path) -> None:
    whole = json.loads(training_step(0).text())
    kernel = next(each for each in whole["traceEvents"] if each["cat"] == "kernel")
    whole["traceEvents"].append({**kernel, **event})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(whole))
    run = attempt(path)
    assert isinstance(run, MeasuredRun)
    whole_ops = sum(each["cat"] == "kernel" for each in whole["traceEvents"])
    assert len(run.ranks[0].ops) == whole_ops - bool(run.ranks[0].left_out)


@pytest.mark.parametrize("label", ("[TP{:02}] {}", "{}{}"))
def test_a_file_that_was_merged_from_several_ranks_is_refused(label: str, tmp_path: Path) -> None:
    """Tools that show ranks next to each other write the rank into the number of each process."""
    merged = json.loads(training_step(0).text())
    merged["traceEvents"] = []
    for rank in range(2):
        for event in json.loads(training_step(rank).text())["traceEvents"]:
            merged["traceEvents"].append({**event, "pid": label.format(rank + 1, event["pid"])})
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(merged))
    found = attempt(path)
    assert isinstance(found, str) and "merged from those of several ranks" in found and "Import the traces" in found
    # Processes with numbers of their own, as one that was forked has, are of one rank.
    events = merged["traceEvents"] = merged["traceEvents"][: len(merged["traceEvents"]) // 2]
    events[3] = {**events[3], "pid": "another"}
    path.write_text(json.dumps(merged))
    assert isinstance(attempt(path), MeasuredRun)
