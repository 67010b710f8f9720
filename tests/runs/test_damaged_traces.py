"""Damaged and hostile traces: each is refused in one line with its name, or imported with what was left out."""

import json
import random
from pathlib import Path

import pytest

from scripts._fuzz_hostile import changed, damaged
from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun, file_digest, measured_run, read_trace, run_digest, run_rows
from stagedb.runs.measured_run import UntimedRun
from stagedb.runs.run_files import RunFiles
from stagedb.runs.untimed_rows import untimed_rows
from tests.runs.execution_traces import linear_step
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


def test_a_list_of_something_else_is_no_trace(tmp_path: Path) -> None:
    """A recording's directory may have other files: how graphs were captured, or what was allocated."""
    path = tmp_path / "details.json"
    for content in ([{"file": "a.json.gz", "mode": "FULL"}], [[-1, 1, 512, 7]]):
        path.write_text(json.dumps(content))
        found = attempt(path)
        assert isinstance(found, str) and "nothing in it is an event" in found and "out of the directory" in found


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
    # Neither is a device, which some profilers give the second half of a call.
    call = next(each for each in events if each["cat"] == "cuda_runtime")
    device = next(each["args"]["device"] for each in events if each["cat"] == "kernel")
    for process, merges in ((device, False), (device + 1, True)):
        merged["traceEvents"] = [*events, {**call, "pid": process}]
        path.write_text(json.dumps(merged))
        assert isinstance(attempt(path), str) == merges


def attempt_untimed(path: Path) -> UntimedRun | str:
    """The run of an execution trace, or why it is refused."""
    try:
        run = RunFiles.of([path]).read()
    except UsageError as error:
        assert path.name in str(error) or "took time" in str(error)
        assert "\n" not in str(error) and len(str(error)) < 600
        return str(error)
    assert isinstance(run, UntimedRun)
    rows = untimed_rows(run, {})
    for label, nodes in rows.nodes.items():
        # The texts and numbers are those that a store and its digest take.
        run_digest(rows.own, {label: [values for _, values in nodes]}, {})
    edges = list(rows.edges["DEPENDS_ON", "RunOp", "RunOp"])
    ids = {values["id"]: values["index"] for _, values in rows.nodes["RunOp"]}
    assert all(ids[op] > ids[other] for op, other, _ in edges)
    return run


@pytest.mark.parametrize("seed", range(20))
def test_execution_traces_whose_bytes_or_values_are_hostile(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = linear_step(0).write(tmp_path / "whole.json", rng.choice(["1.0.1", "1.1.1-chakra.0.0.4"]))
    whole = path.read_bytes()
    found = []
    for number in range(10):
        path = tmp_path / f"{number}.json"
        if number % 2:
            path.write_bytes(damaged(rng, whole, whole))
        else:
            path.write_text(json.dumps(changed(rng, json.loads(whole))))
        if path.read_bytes()[:12].lstrip().startswith(b'{"schema":'):
            found.append(attempt_untimed(path))
    assert found


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", 1 << 70), ("rf_id", 1 << 64), ("seq_id", -(1 << 80)), ("tid", [[1]]), ("ctrl_deps", 10**30), ("id", 1)],
)
def test_numbers_that_no_program_has_harm_nothing_else(name: str, value: object, tmp_path: Path) -> None:
    made = linear_step(0)
    node = next(each for each in made.nodes if each["name"] == "aten::relu")
    for each in node["attrs"]:
        if each["name"] == name:
            each["value"] = value
    if name in node:
        node[name] = value
    found = attempt_untimed(made.write(tmp_path / "odd.json"))
    if value == 1:
        assert isinstance(found, str) and "several nodes have the id 1" in found
    else:
        assert isinstance(found, UntimedRun) and {len(trace.ops) for trace in found.ranks.values()} == {8}


@pytest.mark.parametrize("depth", [900, 5_000])
def test_operands_that_are_nested_deep_are_none_or_refused(depth: int, tmp_path: Path) -> None:
    made = linear_step(0)
    next(each for each in made.nodes if each["name"] == "aten::relu")["inputs"]["values"][0] = "deep"
    path = made.write(tmp_path / "deep.json")
    path.write_text(path.read_text().replace('"deep"', "[" * depth + "]" * depth))
    found = attempt_untimed(path)
    assert isinstance(found, UntimedRun) if depth < 1_000 else "is damaged" in str(found)
