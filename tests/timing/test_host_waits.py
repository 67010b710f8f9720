"""Waits for a host that issues the matmuls of experts one by one, by hand."""

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.columns import COMPUTE, TEMPLATES, ClassColumns, Ints, Workload
from stagedb.lowering.issue_order import sequence
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.plans import Plan
from stagedb.reports.report_page import stages
from stagedb.reports.step_difference import sums_of
from stagedb.reports.step_view import StepView, works
from stagedb.search.what_ifs import what_ifs
from stagedb.systems import Coverage, System, load_system, parse_system
from stagedb.systems.measured_durations import MEASURED
from stagedb.systems.system_numbers import with_numbers
from stagedb.timing import Scaling, profile_job
from stagedb.timing.framework_timing import Calibration, as_used_by, calibrations
from stagedb.timing.host_waits import host_notes, issued_by, longest_wait, with_host
from stagedb.timing.lanes import find_lanes
from stagedb.timing.op_durations import time_ops
from stagedb.validation.step_rows import fixing_rows, job_of, known_rows
from stagedb.validation.step_times import predict
from tests.ir.tiny import card

EXPERTS = 4
"""Those of a rank below, of which the host issues each matmul in `CALL` ns."""

CALL, TOOK = 700, 1000


def workload(layers: int = 2, **words: object) -> Workload:
    """A model with four experts, on one rank unless words have it otherwise."""
    plan = Plan.from_mapping({"recipe": "megatron", "seq_len": 32, **words})
    return lower(IndexedGraph.of(build_graph(card("moe", layers=layers), plan.options)), plan).workload


def on(issued: Mapping[str, int]) -> System:
    system = load_system("h100")
    return replace(system, overlap=replace(system.overlap, issued=tuple(issued.items())))


def waits(made: Workload, system: System, rule: str = "table:matmul", took: int = TOOK) -> tuple[ClassColumns, Ints]:
    """The waits of the first lane, where every op takes so long alone, and those further back some ns more."""
    lanes = find_lanes(made, system.network(len(made.ranks)))
    alone = time_ops(made, lanes, system)
    kernels = [took + np.arange(len(each.ns)) for each in alone.lanes]
    even = tuple(replace(each, ns=ns, rule=(rule,) * len(ns)) for each, ns in zip(alone.lanes, kernels, strict=True))
    columns = {each.number: each for each in made.classes}[lanes[0].rank_class]
    alone = replace(alone, lanes=even, coverage=Coverage(measured_ops=int(rule == MEASURED)))
    found = with_host(made, [lane.rank_class for lane in lanes], alone, system).lanes[0]
    assert (found.kernels == kernels[0]).all()
    return columns, found.ns - kernels[0]


def by_name(columns: ClassColumns, found: Ints) -> dict[str, int]:
    return {name: ns for name, ns in zip(columns.ops.name, found.tolist(), strict=True) if ns}


def test_a_forward_waits_from_where_tokens_are_counted() -> None:
    """The first matmul is issued 4 x 700 ns after dispatch begins, which runs for 1,000 ns. So is the second, after
    gate begins."""
    columns, found = waits(workload(), on({"bf16": CALL}))
    of_layer = {name: ns for name, ns in by_name(columns, found).items() if name.startswith("layer.1.ffn.")}
    forward = [name for name in columns.ops.name if name.startswith("layer.1.ffn.") and "gradient" not in name]
    between = forward[forward.index("layer.1.ffn.order") + 1 : forward.index("layer.1.ffn.experts.w2") + 1]
    assert between == [f"layer.1.ffn.{each}" for each in ("dispatch", "experts.w13", "experts.gate", "experts.w2")]
    before = {
        "experts.w13": "dispatch",
        "experts.w2": "experts.gate",
        "experts.w2.input_gradient": "combine.input_gradient",
        "experts.w2.weight_gradient": "experts.w2.input_gradient",
        "experts.w13.input_gradient": "experts.gate.input_gradient",
        "experts.w13.weight_gradient": "experts.w13.input_gradient",
    }
    ran = {op: TOOK + columns.ops.name.index(f"layer.1.ffn.{each}") for op, each in before.items()}
    assert of_layer == {f"layer.1.ffn.{op}": EXPERTS * CALL - ns for op, ns in ran.items()}


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_each_op_begins_when_the_one_before_it_lets_it(schedule: str) -> None:
    """An op begins when the one before it has ended, and not before the host has issued it, from when that began. The
    one before it is that of the task: of a whole backward, or of one of its parts."""
    made = workload(4, pp=2, micro_batch_size=1, global_batch_size=2, schedule=schedule)
    columns, found = waits(made, on({"bf16": CALL}))
    ops, seen = columns.ops, set[int]()
    for layout in sequence(columns).layouts:
        rows = [
            row for row in layout.ops.tolist() if ops.type[row] == COMPUTE and TEMPLATES[ops.template[row]] != "step"
        ]
        for before, row in zip([-1, *rows], rows, strict=False):
            call = EXPERTS * CALL * (ops.kind[row] == "matmul" and ops.facts[row].of_experts)
            assert found[row] == max(call - (TOOK + before if before >= 0 else 0), 0)
        seen |= {row for row in rows if found[row]}
    assert {ops.name[row].partition("experts.")[2] for row in seen} == {
        f"{each}{gradient}" for each in ("w13", "w2") for gradient in ("", ".input_gradient", ".weight_gradient")
    }


@pytest.mark.parametrize("took", [10, TOOK])
def test_with_a_capacity_the_host_is_ahead(took: int) -> None:
    """Nothing is counted: a rank waits for what the host takes longer than a forward and a backward run."""
    columns, found = waits(workload(3, capacity_factor=1, global_batch_size=2), on({"bf16": CALL}), took=took)
    ops = columns.ops
    matmuls = 3 * 2 * 3
    left = matmuls * EXPERTS * CALL - sum(took + row for row in np.flatnonzero(ops.template < TEMPLATES.index("step")))
    assert found.sum() == (left // matmuls * matmuls if left > 0 else 0)
    assert (left > 0) == (took == 10)


def test_fp8_takes_the_host_longer_and_measured_ops_have_it() -> None:
    made = workload(matmul_dtype="fp8")
    columns, slow = waits(made, on({"bf16": CALL, "fp8": 4 * CALL}))
    _, fast = waits(made, on({"bf16": CALL, "fp8": CALL}))
    at = columns.ops.name.index("layer.0.ffn.experts.w13")
    names = list(columns.ops.name[at - 3 : at])
    assert names == [
        f"layer.0.ffn.{each}" for each in ("dispatch", "experts.w13.cast_input", "experts.w13.cast_weight")
    ]
    # Its casts are issued with it, from when dispatch begins.
    ran = sum(TOOK + row for row in range(at - 3, at))
    assert (slow[at], fast[at]) == (4 * EXPERTS * CALL - ran, 0)
    assert not waits(made, on({"bf16": CALL, "fp8": CALL}), rule=MEASURED)[1].any()
    assert not waits(made, on({}))[1].any()
    assert (waits(made, on({"bf16": CALL}))[1] == fast).all(), "a format that is not known is as bf16"


def test_experts_that_outlast_their_issue_wait_for_nothing() -> None:
    assert not waits(workload(), on({"bf16": CALL}), took=EXPERTS * CALL)[1].any()


def test_waits_follow_from_kernels_that_are_faster() -> None:
    """Twice as fast matmuls wait longer, where the host sets the pace. The what-if without it has none of them."""
    made, system = workload(), on({"bf16": 10**6})
    plain = profile_job(made, system)
    faster = profile_job(made, system, scalings=(Scaling("compute", "matmul", Fraction(1, 2)),))
    lane, half = plain.durations.lanes[0], faster.durations.lanes[0]
    matmuls = [kind == "matmul" for kind in made.classes[0].ops.kind]
    assert (half.kernels[matmuls] <= (lane.kernels[matmuls] + 1) // 2).all()
    assert 0 < plain.step - faster.step < (lane.kernels - half.kernels).sum()
    free = {each.name: each.step for each in what_ifs(plain.times, plain.durations, system)}["no waits for the host"]
    assert (
        free
        == plain.step - longest_wait(plain.times.network.columns, plain.durations)
        == profile_job(made, on({})).step
    )
    assert [text for text in plain.remarks if text.startswith("note: a rank waits 9")]
    assert "no waits for the host" not in {
        each.name for each in what_ifs(profile_job(made, on({})).times, profile_job(made, on({})).durations, on({}))
    }


def test_waits_are_idle_and_no_part_of_a_kernels_rate() -> None:
    made, slow = workload(pp=2, global_batch_size=4, micro_batch_size=1), on({"bf16": 10**6})
    with_waits, without = profile_job(made, slow), profile_job(made, on({}))
    for late, free, lasts in zip(with_waits.times.lanes, without.times.lanes, with_waits.durations.lanes, strict=True):
        assert lasts.waits is not None
        assert late.busy == free.busy
        assert late.idle >= int((lasts.waits * late.ops.runs).sum()) > 0
        assert late.busy + late.exposed + late.bubble + late.idle == with_waits.step
    drawn = [
        {(each.place, each.ns, round(each.time)) for each in works(StepView.of(job))} for job in (with_waits, without)
    ]
    assert drawn[0] == drawn[1]
    pages = [stages(StepView.of(job), job.times.network.lanes) for job in (with_waits, without)]
    assert ["of the step for its host" in page for page in pages] == [True, False]


def test_a_published_row_has_the_note_of_its_profile() -> None:
    (row,) = [each for each in known_rows() if "qwen3-30b" in each.title]
    (found,) = predict([row])
    assert [text for text in found.remarks if text.startswith("note: a rank waits 5")]


def test_short_waits_are_not_noted() -> None:
    assert host_notes(9, 1000, {}) == host_notes(0, 0, {}) == ()
    assert "waits 50% of the step" in host_notes(500, 1000, {})[0]
    assert "a capacity factor" in host_notes(500, 1000, {})[0]
    assert "a capacity factor" not in host_notes(500, 1000, {"capacity_factor": 1})[0]


def test_a_host_is_known_by_framework_and_system() -> None:
    fitted = next(each for each in calibrations() if each.operator == "experts")
    half = (replace(fitted, factor=Fraction(1, 2)),)

    def issued(system: str | System, framework: str, numbers: tuple[Calibration, ...] | None = half) -> dict[str, int]:
        known = load_system(system) if isinstance(system, str) else system
        return issued_by(as_used_by(known, find_profile(framework), "", numbers))

    assert issued("h100", "nemo") == {"bf16": 95_639, "fp8": 345_368}
    assert issued("b200", "megatron-core") == {"bf16": 95_639, "fp8": 95_639}, "MXFP8 casts all experts at once"
    assert issued("gb200-nvl72", "megatron-bridge") == {"bf16": 99_660, "fp8": 99_660}, "measured on Grace"
    assert issued("h100", "torchtitan") == issued("gb200-nvl72", "maxtext") == issued("h100", "nemo", ()) == {}
    assert issued(replace(load_system("gb200-nvl72"), name="mine"), "nemo") == issued("gb200-nvl72", "nemo")
    slow = with_numbers(load_system("h100"), {"accelerator.issue": Fraction(191_278)})
    assert issued(slow, "nemo") == {"bf16": 191_278, "fp8": 690_735}
    assert issued(on({"bf16": 7}), "nemo") == {"bf16": 7}, "a file's own"
    assert issued(on({"bf16": 7}), "torchtitan") == {}
    used = as_used_by(load_system("h100"), find_profile("nemo"))
    assert with_numbers(used, {"accelerator.issue": Fraction(1)}) != used
    assert issued_by(with_numbers(used, {"accelerator.issue": Fraction(1000)})) == {"bf16": 1000, "fp8": 3611}
    assert parse_system(json.dumps(used.to_dict())).overlap == used.overlap


def test_a_graph_of_the_whole_step_needs_no_host() -> None:
    row = next(each for each in known_rows() if "qwen3-30b" in each.title)
    graph = replace(row, cells={**row.cells, "kernels": "cuda-graph"})
    assert issued_by(job_of(row).system)
    assert not issued_by(job_of(graph).system)


@pytest.mark.parametrize("workflow", ["prefill", "decode"])
def test_only_training_waits(workflow: str) -> None:
    made = workload(workflow=workflow, **({"cache_len": 64, "seq_len": 1} if workflow == "decode" else {}))
    assert profile_job(made, on({"bf16": 10**6})).step == profile_job(made, on({})).step


def test_buckets_hide_behind_what_is_left_of_waits() -> None:
    """Without waits, and with other kernels, computing hides as much of the reductions as if they were all there is."""
    made = workload(dp=8, zero=1, global_batch_size=8, micro_batch_size=1)
    system = replace(on({"bf16": 10**6}), overlap=replace(on({"bf16": 10**6}).overlap, reduced=1000, gathered=1000))
    free = replace(system, overlap=replace(system.overlap, issued=()))
    late = profile_job(made, system)
    assert late.step > profile_job(made, free).step
    found = {each.name: each.step for each in what_ifs(late.times, late.durations, system)}
    assert found["no waits for the host"] == profile_job(made, free).step
    same = profile_job(made, system, scalings=(Scaling("compute", "norm", Fraction(1)),))
    assert same.step == late.step
    dp = next(op for op in range(len(made.classes[0].ops)) if made.classes[0].ops.axis[op] == "dp")
    lane = late.durations.lanes[0]
    assert lane.spared is not None
    assert lane.kernels[dp] == lane.ns[dp] + lane.spared[dp] > lane.ns[dp]


def test_parts_of_computing_add_up_to_it() -> None:
    made = workload(pp=2, global_batch_size=4, micro_batch_size=1)
    late, prompt = (sums_of(StepView.of(profile_job(made, each)), "a step") for each in (on({"bf16": 10**6}), on({})))
    assert late.parts["busy"] == prompt.parts["busy"]
    assert sum(late.parts["busy"].values()) == pytest.approx(late.terms["busy"])


def test_only_models_with_experts_fix_the_host() -> None:
    rows: dict[str, Any] = {each.operator: fixing for each, fixing in fixing_rows().items()}
    assert {job_of(row).kind[2] for row in rows["experts"]} == {"experts"}
    assert len(rows["experts"]) == 3
