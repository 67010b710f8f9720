"""What kernels take in a framework's step, by hand; the fitted numbers, and the error to expect."""

import csv
import statistics
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.systems import System, load_system
from stagedb.systems.system import inverse
from stagedb.systems.system_files import system_names
from stagedb.timing import framework_timing
from stagedb.timing.expected_errors import expected_error, expected_errors, has_experts
from stagedb.timing.framework_terms import in_step
from stagedb.timing.framework_timing import Calibration, as_used_by, calibrations, stretch_of
from stagedb.timing.node_graph import node_graph_of
from stagedb.timing.op_durations import time_ops
from stagedb.validation import CALIBRATED, HELD_OUT, parts, read_steps
from stagedb.validation.known_rows import fixing_rows
from stagedb.validation.step_rows import job_of
from stagedb.workload.instance_columns import COMPUTE, ClassColumns, Ints, Workload
from tests.timing.test_hidden_communication import on, workload

DOCS = Path(__file__).parents[2] / "docs"
KNOWN = Path(__file__).parents[2] / "stagedb" / "validation" / "known_steps.csv"


def run(made: Workload, system: System, rule: str = "table:matmul") -> tuple[ClassColumns, Ints]:
    """The durations of the first lane where every op takes 1000 ns alone, by this rule."""
    lanes = node_graph_of(made, "axis", system.network(len(made.ranks))).lanes
    alone = time_ops(made, lanes, system)
    even = tuple(replace(each, ns=np.full(len(each.ns), 1000), rule=(rule,) * len(each.ns)) for each in alone.lanes)
    columns = {each.number: each for each in made.classes}[lanes[0].rank_class]
    found = in_step(made, [lane.rank_class for lane in lanes], replace(alone, lanes=even), system)
    return columns, found.lanes[0].ns


def test_measured_kernels_are_stretched_by_operator() -> None:
    system = on(stretch=(("matmul", Fraction(3, 2)), ("attention", Fraction(2))))
    columns, ns = run(workload(), system)
    took = {kind: set(ns[[each == kind for each in columns.ops.kind]].tolist()) for kind in columns.ops.kind}
    assert (took["matmul"], took["attention"]) == ({1500}, {2000})
    _, ns = run(workload(), system, rule="roofline:compute")
    assert set(ns.tolist()) == {1000}


def test_casts_are_fused_and_those_of_weights_made_once_a_step() -> None:
    columns, ns = run(workload(matmul_dtype="fp8", dp=1, global_batch_size=4), on(casts="fused"))
    took = dict(zip(columns.ops.name, ns.tolist(), strict=True))
    assert took["layer.0.ffn.w2.cast_input"] == took["layer.0.ffn.w2.cast_weight.again"] == 0
    assert took["layer.0.ffn.w2.cast_weight"] == 250
    assert took["layer.0.ffn.w2.cast_gradient"] == took["layer.0.ffn.w2"] == 1000


@pytest.mark.parametrize(
    ("sums", "words", "width"),
    [
        ("fp32", {}, 4 + 4),
        ("apart", {"dtype": "bf16", "grad_dtype": "fp32"}, 4 + 4 + 2),
        ("apart", {"dtype": "fp16", "grad_dtype": "fp16"}, 2 + 2 + 2),
    ],
)
def test_gradients_of_weights_are_added_to_a_sum(sums: str, words: dict[str, str], width: int) -> None:
    system = on(sums=sums)
    columns, ns = run(workload(**words), system)
    ops = columns.ops
    at = ops.name.index("layer.0.ffn.w2.weight_gradient")
    size = width * ops.dims[at][0] * ops.dims[at][1]
    memory = system.accelerator
    assert ns[at] == 1000 + round(size / memory.memory.at(size) * inverse(memory.bandwidth))
    assert ns[ops.name.index("layer.0.ffn.w2")] == 1000


def test_collectives_of_dp_take_some_of_the_computing() -> None:
    made = workload(recipe="torch", dp=4, zero=3)
    columns, ns = run(made, on(taken=200))
    ops = columns.ops
    forward = ops.template == 0
    computes = forward & (ops.type == COMPUTE)
    apart = forward & np.array([axis == "dp" for axis in ops.axis])
    share = min(apart.sum(), computes.sum()) / computes.sum()
    assert set(ns[computes].tolist()) == {1000 + int(200 * share)}
    assert set(ns[apart].tolist()) == {1000}


def numbers(monkeypatch: pytest.MonkeyPatch, *rows: Calibration) -> None:
    monkeypatch.setattr(framework_timing, "calibrations", lambda: rows)


def with_tables(name: str) -> System:
    system = load_system(name)
    if system.tables:
        return system
    table = pytest.importorskip("stagedb.systems.system").TableFile("matmul", "bf16", "a table", "0" * 16)
    return replace(system, tables=(table,))


def test_a_framework_without_a_number_has_that_of_its_recipe_on_the_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def row(framework: str, factor: str, **more: Any) -> Calibration:
        values = {"systems": ("h100",), "operator": "matmul", "rows": 5, "shared": True, **more}
        return Calibration(frameworks=(framework,), factor=Fraction(factor), **values)

    def found(system: str, framework: str) -> Fraction | None:
        return dict(stretch_of(with_tables(system), find_profile(framework))).get("matmul")

    numbers(monkeypatch, row("nemo", "1.1"), row("torchtitan", "1.5"), row("llm-foundry", "1.7", shared=False))
    assert found("h100", "nemo") == Fraction("1.1")
    assert found("h100", "llm-foundry") == Fraction("1.7")
    assert found("h100", "megatron-core") == Fraction("1.1")
    assert found("h100", "torch-fsdp") == Fraction("1.5")
    assert found("b200", "nemo") == Fraction("1.3")
    assert stretch_of(replace(with_tables("h100"), tables=()), find_profile("nemo")) == ()


def test_fewer_numbers_are_fitted_than_one_for_ten_rows_and_only_to_calibrated_ones() -> None:
    rows = read_steps(KNOWN)
    part = parts(rows)
    assert len(calibrations()) * 10 < len(rows)
    fixing = fixing_rows()
    assert list(fixing) == list(calibrations())
    for each, own in fixing.items():
        assert each.rows == len(own) > 0
        assert {job_of(row).profile.name for row in own} <= set(each.frameworks)
        assert all(part[row] == CALIBRATED for row in rows if row.cells in [other.cells for other in own])


def test_the_error_to_expect_is_that_of_held_out_rows() -> None:
    with (DOCS / "step-predictions.csv").open(encoding="utf-8", newline="") as file:
        written = {int(row["row"]): row for row in csv.DictReader(file)}
    rows = read_steps(KNOWN)
    part = parts(rows)
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        assert written[row.line]["rows"] == part[row]
        assert float(written[row.line]["published"]) == row.seconds
        if part[row] == HELD_OUT:
            error = float(written[row.line]["predicted"]) / row.seconds - 1
            found.setdefault(job_of(row).kind, []).append(abs(error))
    assert {
        (each.system, each.framework, "experts" if each.experts else "dense"): each for each in expected_errors()
    } == {
        kind: each
        for kind, off in found.items()
        for each in expected_errors()
        if (each.system, each.framework) == kind[:2]
        and (each.rows, each.mean, each.worst) == (len(off), round(statistics.fmean(off), 3), round(max(off), 3))
    }
    assert len(expected_errors()) == len(found)


def test_a_prediction_has_the_error_of_its_kind() -> None:
    for each in expected_errors():
        if each.system in system_names() and load_system(each.system).tables:
            system = as_used_by(load_system(each.system), find_profile(each.framework))
            assert expected_error(system, each.experts) == each
            assert expected_error(replace(system, dimensions=system.dimensions[:1]), each.experts) is None
    assert expected_error(load_system("h100"), False) is None
    assert not has_experts(workload())
