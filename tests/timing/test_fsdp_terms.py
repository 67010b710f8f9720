"""What FSDP copies, what is gathered in fp8, and the clock of a limited power, by hand."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.frameworks.profiles import find_profile
from stagedb.lowering.columns import COLLECTIVE, COMPUTE
from stagedb.systems import Durations, Measured, System, load_system, parse_system
from stagedb.systems.cost_model import Costs, Work
from stagedb.systems.system import PowerLimit, inverse
from stagedb.timing import profile_job, timed_step
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.node_graph import node_graph_of
from stagedb.timing.op_durations import casts_made, gathered_casts, time_ops
from stagedb.timing.whatif import Scaling
from tests.timing.test_framework_terms import run
from tests.timing.test_hidden_communication import on, workload


def moving(system: System, size: int) -> int:
    memory = system.accelerator
    return round(size / memory.memory.at(size) * inverse(memory.bandwidth))


def test_fully_shard_copies_out_of_each_gather_and_into_each_reduction() -> None:
    system = on(copies="parameters")
    columns, ns = run(workload(recipe="torch", dp=4, zero=3, reduce_dtype="fp32", param_dtype="fp32"), system)
    ops, edges = columns.ops, columns.edges
    more = np.zeros(len(ns), np.int64)
    for op in np.flatnonzero(ops.type == COLLECTIVE).tolist():
        if ops.axis[op] == "dp" and ops.kind[op] == "all_gather":
            readers = [t for t in edges.target[edges.source == op].tolist() if ops.type[t] == COMPUTE]
            more[min(readers)] += moving(system, 2 * int(ops.result[op]))
        elif ops.axis[op] == "dp" and ops.kind[op] == "reduce_scatter":
            makers = [t for t in edges.source[edges.target == op].tolist() if ops.type[t] == COMPUTE]
            assert ops.dtype[op] == "fp32"
            more[max(makers)] += moving(system, int(ops.operand[op]) // 4 * (2 + 4))
    assert np.count_nonzero(more) > 8
    assert (ns - 1000).tolist() == more.tolist()


@pytest.mark.parametrize(("reduced", "an_element"), [("fp32", 2 + 2 + 2 + 4 + 4 + 4), ("bf16", 2 + 2 + 2 + 2)])
def test_a_flat_parameter_joins_casts_and_divides_its_gradients(reduced: str, an_element: int) -> None:
    system = on(copies="flat")
    columns, ns = run(workload(recipe="torch", dp=4, zero=3, reduce_dtype=reduced, param_dtype="fp32"), system)
    ops = columns.ops
    width = {"fp32": 4, "bf16": 2}[reduced]
    scatters = [op for op in range(len(ops)) if ops.kind[op] == "reduce_scatter" and ops.axis[op] == "dp"]
    expected = sorted(moving(system, int(ops.operand[op]) // width * an_element) for op in scatters)
    assert sorted((ns[ns > 1000] - 1000).tolist()) == expected
    assert len(expected) > 4


def test_gradients_that_wait_for_the_last_micro_batch_are_added_up() -> None:
    plan = {"dp": 2, "pp": 2, "zero": 2, "global_batch_size": 8, "reduce_dtype": "fp32", "param_dtype": "fp32"}
    made = workload(recipe="torch", **plan)
    columns, ns = run(made, on(copies="parameters"))
    ops, edges = columns.ops, columns.edges
    last = next(op for op in range(len(ops)) if ops.kind[op] == "reduce_scatter" and ops.axis[op] == "dp")
    makers = [t for t in edges.source[edges.target == last].tolist() if ops.type[t] == COMPUTE]
    elements = int(ops.operand[last]) // 4
    system = on(copies="parameters")
    assert ns[last] == 1000 + moving(system, elements * (2 + 4))
    assert ns[max(makers)] == 1000 + moving(system, elements * (2 + 4 + 4))


def test_tp_gathers_in_fp8_what_only_casts_read() -> None:
    made = workload(recipe="torch", tp=2, sp=True, matmul_dtype="fp8")
    wide, narrow = (
        time_ops(made, node_graph_of(made, "axis", each.network(2)).lanes, each).lanes[0]
        for each in (on(), on(casts="shards"))
    )
    columns = made.classes[0]
    ops = columns.ops
    gathers = gathered_casts(columns)
    assert {ops.name[op] for op in gathers} >= {"layer.0.ffn_norm.all_gather.tp", "layer.0.attn_norm.all_gather.tp"}
    costs = Costs(on(), 2)
    for op in range(len(ops)):
        if op in gathers:
            half = costs.placed("all_gather", int(ops.size[op]) // 2, costs.placement((0, 1)))
            assert (narrow.ns[op], narrow.wires[op]) == (half.ns, half.wires)
        else:
            assert narrow.ns[op] == wide.ns[op]


def test_a_tensor_is_cast_once_and_a_gathered_one_as_shares() -> None:
    columns, ns = run(workload(recipe="torch", tp=2, sp=True, matmul_dtype="fp8", dp=1), on(casts="shards"))
    took = dict(zip(columns.ops.name, ns.tolist(), strict=True))
    assert [took[f"layer.0.attn.{word}.cast_input"] for word in ("wq", "wk", "wv")] == [500, 0, 0]
    assert took["layer.0.attn.wo.cast_input"] == 1000
    assert took["layer.0.ffn.w2.cast_gradient"] == 500
    assert set(casts_made(columns, 2).values()) == {0, 1, 2}


def test_the_clock_of_measured_kernels_falls_with_the_cube_root_of_the_power() -> None:
    system = load_system("h100")
    less = replace(system, accelerator=replace(system.accelerator, power=PowerLimit(Fraction(350), Fraction(2800))))
    assert less.accelerator.power is not None and less.accelerator.power.clock == Fraction(1, 2)
    assert PowerLimit(Fraction(700), Fraction(500)).clock == 1
    square = Work("matmul", "bf16", 2 * 4096**3, 6 * 4096**2, (4096, 4096, 4096))
    attention = Work("attention", "bf16", 4 * 32 * 8192**2 * 128, 4 * 32 * 8192 * 256, (1, 32, 8, 8192, 8192, 128))
    for work in (square, attention):
        full, half = (Costs(each, 8).work(work) for each in (system, less))
        assert full.rule.startswith("table:")
        assert abs(half.ns - 2 * full.ns) <= 2
    assert parse_system(json.dumps(less.to_dict()), "it") == less
    assert load_system("h100-hbm2e").accelerator.power == PowerLimit(Fraction(500), Fraction(700))


def test_terms_are_words_of_a_file() -> None:
    system = on(copies="flat", casts="shards")
    assert parse_system(json.dumps(system.to_dict()), "it") == system
    text = json.dumps({**system.to_dict(), "overlap": {"copies": "some"}})
    with pytest.raises(UsageError, match=r"overlap\.copies"):
        parse_system(text, "it")


@pytest.mark.parametrize(
    ("framework", "plan"),
    [
        ("torchtitan", {"recipe": "torch", "dp": 4, "zero": 3, "matmul_dtype": "fp8", "reduce_dtype": "fp32"}),
        ("llm-foundry", {"recipe": "torch", "dp": 4, "zero": 3}),
        ("nemo", {"tp": 2, "sp": True, "dp": 2, "zero": 1, "matmul_dtype": "fp8"}),
    ],
)
def test_a_step_replayed_with_its_durations_takes_as_long(framework: str, plan: dict[str, object]) -> None:
    made = workload(**plan, global_batch_size=8)
    system = as_used_by(load_system("h100"), find_profile(framework))
    durations, step = timed_step(made, system, None, ())
    lane = step.network.lanes[0]
    names = {each.number: each for each in made.classes}[lane.rank_class].ops.name
    took = dict(zip(names, durations.lanes[0].ns.tolist(), strict=True))
    rows = Durations(Measured(f"row {at}", Fraction(ns), name=name) for at, (name, ns) in enumerate(took.items()))
    again, replayed = timed_step(made, system, rows, ())
    assert again.coverage.measured_ops == again.coverage.ops
    assert replayed.step == step.step


def test_what_ifs_and_terms_are_of_one_step() -> None:
    made = workload(recipe="torch", dp=4, zero=3, global_batch_size=8)
    job = profile_job(made, as_used_by(load_system("h100"), find_profile("llm-foundry")))
    half = profile_job(made, job.system, scalings=[Scaling.parse("compute=0")])
    assert half.unscaled == job.step > half.step
