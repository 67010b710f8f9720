"""What kernels take in a framework's step, by hand; the fitted numbers, and the error to expect."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.lowering.columns import COMPUTE, ClassColumns, Ints, Workload
from stagedb.systems import System, load_system
from stagedb.systems.system import inverse
from stagedb.systems.system_files import system_names
from stagedb.timing.expected_errors import FEW, ErrorFigures, KindErrors, expected_error, expected_errors, has_experts
from stagedb.timing.framework_terms import in_step
from stagedb.timing.framework_timing import Calibration, as_used_by, stretch_of
from stagedb.timing.node_graph import node_graph_of
from stagedb.timing.op_durations import time_ops
from tests.timing.test_hidden_communication import on, workload


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


def test_numbers_of_an_operator_multiply_where_they_hold() -> None:
    def row(factor: str, operator: str = "attention", **of: tuple[str, ...]) -> Calibration:
        frameworks, systems = of.get("frameworks", ()), of.get("systems", ())
        return Calibration(operator, frameworks, systems, Fraction(factor), 5, "a cause")

    known = (
        row("1.1", "matmul", systems=("h100",)),
        row("1.3", "matmul", systems=("a100-80gb",)),
        row("2", frameworks=("llm-foundry",)),
        row("1.5", frameworks=("llm-foundry", "torchtitan"), systems=("h100",)),
    )

    def found(system: str, framework: str) -> dict[str, Fraction]:
        made = load_system(system)
        return dict(stretch_of(made, find_profile(framework), known))

    def of(factor: str) -> dict[str, Fraction]:
        return dict.fromkeys(("matmul", "matmul-fp8"), Fraction(factor))

    assert found("h100", "llm-foundry") == {**of("1.1"), "attention": Fraction(3)}
    assert found("h100", "torchtitan") == {**of("1.1"), "attention": Fraction("1.5")}
    assert found("a100-80gb", "llm-foundry") == {"matmul": Fraction("1.3"), "attention": Fraction(2)}
    assert found("b200", "nemo") == of("1.2"), "the mean of the others"
    assert stretch_of(replace(load_system("h100"), tables=()), find_profile("nemo"), known) == ()
    assert stretch_of(load_system("h100"), find_profile("nemo"), ()) == ()


def test_a_kind_with_rows_has_their_error() -> None:
    """That of held-out rows; else of all rows without the kind; else of near kinds, where these are few too."""
    for each in expected_errors():
        for name in system_names():
            plain = load_system(name)
            if plain.accelerator.name != each.accelerator:
                continue
            found = expected_error(as_used_by(plain, find_profile(each.framework)), each.experts)
            own = each.held_out if each.held_out.rows >= FEW else each.apart
            if own.rows >= FEW:
                assert (found.rows, found.mean, found.worst) == (own.rows, own.mean, own.worst)
                assert found.same_kind
                which = "are off when no number is fitted to them" if own is each.apart else "that fixed no number"
                assert f"with {each.framework} on {each.accelerator} {which}" in str(found)
            else:
                assert found.rows > own.rows
                assert not found.same_kind
                assert f"only {own.rows} with {each.framework} on {each.accelerator} are known" in found.reason


def figures(of: Callable[[KindErrors], ErrorFigures | None]) -> tuple[int, float]:
    rows = [found for each in expected_errors() if (found := of(each)) is not None]
    return sum(each.rows for each in rows), max(each.worst for each in rows)


def test_a_kind_without_rows_has_the_error_of_the_nearest_kinds_left_out() -> None:
    other = expected_error(as_used_by(load_system("b200"), find_profile("nemo")), False)
    on_b200 = figures(lambda each: each.apart if each.accelerator.startswith("B200") and not each.experts else None)
    assert (other.rows, other.worst) == on_b200
    assert "with other frameworks on B200" in other.reason
    assert "none with nemo on B200 SXM 180GB is known, so that yours may be further off" in other.reason
    other = expected_error(as_used_by(load_system("h200"), find_profile("nemo")), False)
    of_nemo = figures(lambda each: each.elsewhere if each.framework == "nemo" and not each.experts else None)
    assert (other.rows, other.worst) == of_nemo
    assert (
        "with nemo on other accelerators (H100 SXM 80GB) are off when no number is fitted to their acc" in other.reason
    )
    other = expected_error(as_used_by(load_system("mi300x"), find_profile("maxtext")), True)
    assert (other.rows, other.worst) == figures(lambda each: each.elsewhere if each.experts else None)
    assert "models with experts with other frameworks on other accelerators" in other.reason
    assert not other.same_kind


def test_a_system_of_ones_own_has_its_accelerators_kind_or_none() -> None:
    system = as_used_by(load_system("h100"), find_profile("nemo"))
    assert expected_error(replace(system, dimensions=system.dimensions[:1]), False).same_kind
    faster = replace(system, accelerator=replace(system.accelerator, bandwidth=Fraction(5000)))
    found = expected_error(faster, False)
    assert not found.same_kind
    assert "none with nemo on an accelerator of your own (H100 SXM 80GB) is known" in found.reason


@pytest.mark.parametrize("system", system_names())
@pytest.mark.parametrize("experts", [False, True])
def test_without_a_framework_there_is_an_error_too(system: str, experts: bool) -> None:
    found = expected_error(load_system(system), experts)
    here = [
        each.unnamed
        for each in expected_errors()
        if each.experts == experts and each.accelerator == load_system(system).accelerator.name
    ]
    if here:
        assert found.rows == sum(each.rows for each in here)
    else:
        assert "so that yours may be further off" in found.reason
    assert 0 < found.mean <= found.worst
    assert "without the name of their framework" in found.reason
    assert "--framework names yours" in found.reason


def test_experts_are_seen_in_a_workload() -> None:
    assert not has_experts(workload())
