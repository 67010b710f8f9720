"""Systems that are fitted to runs: against sums over the files, against systems that are known, and as predictions."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

from stagedb.api.client import Stagedb
from stagedb.errors import UsageError
from stagedb.frameworks.profiles import find_profile
from stagedb.ir.facts import InExperts
from stagedb.runs.calibration import FittedSystem, Observations, calibrate, observed
from stagedb.store import Store
from stagedb.systems.system import System
from stagedb.systems.system_files import load_system, parse_system
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.host_waits import issued_by
from tests.ir.tiny import card
from tests.matching.recorded import OF_TWO, PAIRS, match_of

KNOWN = """
name: known
sources: [made up]
accelerator:
  name: one
  peak: {fp32: 0.0005, bf16: 0.001}
  memory: {bandwidth: 2, capacity: 10}
  launch: 0
network:
  - {name: link, size: null, kind: switch, bandwidth: 0.1, latency: 20000}
"""
"""So slow in computing that no matmul is bound by memory, and with ops that begin right after those before them."""


@cache
def seen_in(name: str) -> Observations:
    return replace(observed(match_of(name)), run=name, id=name)


def numbers(found: FittedSystem) -> dict[str, float]:
    return {each.name: float(each.value) for each in found.numbers}


def matmuls(name: str) -> Iterator[tuple[int, float]]:
    """FLOPs and microseconds of each matmul in the profiler's files, within its steps."""
    for path in sorted((PAIRS / name).glob("rank?.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        steps = [(each["ts"], each["ts"] + each["dur"]) for each in events
                 if each.get("ph") == "X" and each["name"].startswith("ProfilerStep#")]  # fmt: skip
        for each in events:
            if each.get("name") == "aten::mm" and any(begin <= each["ts"] < end for begin, end in steps):
                (m, k), (_, n) = each["args"]["Input Dims"][:2]
                yield 2 * prod((m, n, k)), each["dur"]


@pytest.mark.parametrize("name", ("two-pp", "two-fsdp-long", "two-ddp-deep"))
def test_the_speed_of_matmuls_is_that_of_the_files(name: str) -> None:
    found = numbers(calibrate([seen_in(name)], None, "fitted"))
    flops, taken = (sum(each) for each in zip(*matmuls(name), strict=True))
    assert found["matmul in fp32"] == pytest.approx(flops / taken / 1e6, rel=1e-3)


def known_run(db: Stagedb, system: System, tmp_path: Path, **words: Any) -> str:
    """A run that takes what a plan takes on a system."""
    name = "-".join(f"{word}{value}" for word, value in words.items())
    model = replace(card("llama"), hidden=256, head_dim=64, ffn=512, max_positions=64)
    made = db.instantiate(model, seq_len=64, **words)
    out = tmp_path / name
    db.export(made.id, out=out, system=system, durations_in_traces=True)
    db.import_run(out, name=name)
    db.match(name, made.id)
    return name


def test_a_system_that_is_known_is_found_again(embedded_store: Store, tmp_path: Path) -> None:
    db, known = Stagedb(embedded_store), parse_system(KNOWN)
    runs = [
        known_run(db, known, tmp_path, tp=2, dp=2, zero=3, global_batch_size=2),
        known_run(db, known, tmp_path, pp=2, dp=2, global_batch_size=4),
    ]
    other = known_run(db, known, tmp_path, tp=4, pp=2, global_batch_size=4)
    made = db.calibrate(runs, predict=[other])
    found = made.system
    assert float(found.accelerator.peak["bf16"]) == pytest.approx(0.001, rel=1e-3)
    assert float(found.accelerator.bandwidth) == pytest.approx(2, rel=0.01)
    assert float(found.dimensions[0].bandwidth) == pytest.approx(0.1, rel=0.05)
    assert float(found.dimensions[0].latency) == pytest.approx(20_000, rel=0.2)
    assert {row["run"]: row["fitted"] for row in made.steps} == {runs[0]: "yes", runs[1]: "yes", other: "no"}
    assert all(abs(row["error"]) < 0.01 for row in made.steps), made.steps.rows
    path = made.write(tmp_path / "found.yaml")
    assert load_system(path) == found
    # The numbers of the base stay where nothing was fitted, and its curves keep their form.
    again = db.calibrate(runs, base=known).system
    assert again.accelerator.capacity == 10 and again.accelerator.peak == known.accelerator.peak
    assert float(again.accelerator.matmul.points[0][1]) == pytest.approx(1, rel=1e-3)


def test_half_of_the_runs_predict_the_other_half() -> None:
    """What the runs on processors can show: docs/systems.md has the errors, and their reasons."""
    pairs = {"two-ddp": "two-ddp-deep", "two-ep": "two-ep-long", "two-pp": "two-pp-long", "two-tp-square": "two-tp"}
    errors = [
        calibrate([seen_in(one)], None, "fitted", [seen_in(other)]).predictions[-1].error
        for one, other in pairs.items()
    ]
    assert sum(map(abs, errors)) / len(errors) < 0.15


def test_each_of_several_runs_is_predicted_from_the_rest() -> None:
    runs = [seen_in(each) for each in ("two-ddp", "two-pp", "two-ep")]
    found = calibrate(runs, None, "fitted")
    assert [(each.run, each.fitted) for each in found.predictions] == [
        *((each.run, True) for each in runs),
        *((each.run, False) for each in runs),
    ]
    for number in found.numbers:
        assert number.each == "run" and number.low is not None and number.high is not None
        assert number.low <= number.value <= number.high or number.unit in ("GB/s", "ns")
    alone = calibrate(runs[:1], None, "fitted")
    assert {each.each for each in alone.numbers} == {"step"} and len(alone.predictions) == 1


@pytest.mark.parametrize("framework", [None, "megatron-core"])
def test_a_host_that_is_in_the_launch_is_waited_for_once(framework: str | None) -> None:
    """What ranks with experts wait for their host is fitted into the launch, so that a framework adds nothing to it."""
    profile = None if framework is None else find_profile(framework)
    run = seen_in("two-pp")
    found = calibrate([run], None, "fitted", framework=profile).system
    assert issued_by(as_used_by(found, find_profile("megatron-core")))["bf16"] > 0, "it has no experts"
    experts = replace(run.workload.classes[0].ops.facts[0], experts=InExperts.MATMUL)
    classes = tuple(
        replace(each, ops=replace(each.ops, facts=(experts, *each.ops.facts[1:]))) for each in run.workload.classes
    )
    run = replace(run, workload=replace(run.workload, classes=classes))
    found = calibrate([run], None, "fitted", framework=profile).system
    assert issued_by(as_used_by(found, find_profile("megatron-core"))) == {"bf16": 0, "fp8": 0}


def test_what_cannot_be_fitted_is_refused(embedded_store: Store) -> None:
    run = seen_in("two-pp")
    with pytest.raises(UsageError, match="80% of the ops of its plan"):
        calibrate([replace(run, matched=0.8)], None, "fitted")
    no_matmul = replace(run, ranks=tuple(replace(each, work=()) for each in run.ranks))
    with pytest.raises(UsageError, match="record_shapes=True"):
        calibrate([no_matmul], None, "fitted")
    slow = load_system("h100")
    slower = replace(slow, tables=(), accelerator=replace(slow.accelerator, peak={"fp32": Fraction(1, 100)}))
    with pytest.raises(UsageError, match="faster than matmul"):
        calibrate([run], slower, "fitted")
    with pytest.raises(UsageError, match="times as long as on h100"):
        calibrate([run], slow, "fitted")
    db = Stagedb(embedded_store)
    with pytest.raises(UsageError, match="name runs that were imported"):
        db.calibrate([])
    db.import_run(PAIRS / "two-pp", name="pp")
    with pytest.raises(UsageError, match="run pp has no plan"):
        db.calibrate(["pp"])
    db.match("pp")
    with pytest.raises(UsageError, match="run pp is fitted"):
        db.calibrate(["pp"], predict=["pp"])


def test_every_recording_of_two_ranks_is_here() -> None:
    assert sorted(each.name for each in PAIRS.iterdir()) == sorted(OF_TWO)
