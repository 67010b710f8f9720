"""The derivative of a step by each number of its system, against closed forms of systems on which few things cost."""

import dataclasses
import json
import math
from fractions import Fraction
from typing import Any

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.search.sweeping import Sensitivity, sensitivity
from stagedb.search.trials import Trials
from stagedb.search.what_ifs import durations_on
from stagedb.systems import System, load_system
from stagedb.systems.system_files import parse_system
from stagedb.systems.system_numbers import with_numbers
from stagedb.timing import profile_job
from tests import lowered

H100 = load_system("h100")
CARD = dataclasses.replace(load_card("llama3-8b"), layers=2, name="llama3-8b-2")
WORDS = {"tp": 4, "pp": 2, "dp": 2, "sp": True, "global_batch_size": 8, "seq_len": 4096}

FREE: dict[str, Any] = {
    "bf16": ".inf",
    "fp32": ".inf",
    "memory": ".inf",
    "launch": 0,
    "bandwidth": ".inf",
    "latency": 0,
}
"""A system on which nothing takes time."""


def simple(**costs: Any) -> System:
    """A system on which only these cost time: without curves, tables and rules of frameworks."""
    has = {**FREE, **costs}
    content = {
        "name": "simple",
        "sources": ["a system for tests"],
        "accelerator": {
            "name": "simple",
            "peak": {"bf16": has["bf16"], "fp32": has["fp32"]},
            "memory": {"bandwidth": has["memory"], "capacity": ".inf"},
            "launch": has["launch"],
        },
        "network": [
            {"name": "net", "size": None, "kind": "switch", "bandwidth": has["bandwidth"], "latency": has["latency"]}
        ],
    }
    return parse_system(json.dumps(content))


def found(system: System, processes: int = 1, **words: Any) -> Sensitivity:
    plan = Plan.from_mapping({**WORDS, **words})
    graph = build_graph(CARD, plan.options)
    return sensitivity(Trials(lambda options: graph, graph.sizes, system, processes=processes), plan)


def signed(gains: Sensitivity) -> float:
    """The sum of the elasticities, those of times with the other sign."""
    return sum(-each.elasticity if each.number.is_time else each.elasticity for each in gains.gains)


ONE_COST = {
    "bf16": ({"bf16": 2}, "accelerator.peak.bf16", -1),
    "memory": ({"memory": 100}, "accelerator.memory.bandwidth", -1),
    "launch": ({"launch": 5_000_000}, "accelerator.launch", 1),
    "bandwidth": ({"bandwidth": 1}, "network.net.bandwidth", -1),
    "latency": ({"latency": 5_000_000}, "network.net.latency", 1),
}
"""The only cost of a system, its path, and the elasticity that follows: the step is a constant times or over it."""


@pytest.mark.parametrize("name", list(ONE_COST))
def test_a_step_of_one_cost_has_its_elasticity(name: str) -> None:
    costs, path, elasticity = ONE_COST[name]
    made = found(simple(**costs))
    (gain,) = made.gains
    assert gain.number.path == path
    assert gain.elasticity == pytest.approx(elasticity, abs=1e-5)
    assert gain.little == pytest.approx(made.step / 1.01, rel=1e-5)
    assert gain.much == pytest.approx(made.step / 1.1, rel=1e-5)


@pytest.mark.parametrize("pp", [1, 2])
def test_elasticities_of_a_system_without_latencies_add_up_to_minus_one(pp: int) -> None:
    made = found(simple(bf16=400, fp32=50, memory=1000, bandwidth=20), pp=pp)
    assert {each.number.path for each in made.gains} == {
        "accelerator.peak.bf16",
        "accelerator.peak.fp32",
        "accelerator.memory.bandwidth",
        "network.net.bandwidth",
    }
    assert sum(each.elasticity for each in made.gains) == pytest.approx(-1, abs=1e-4)
    assert min(each.elasticity for each in made.gains) > -0.9  # no number alone is all of it


def test_elasticities_of_a_measured_system_add_up_with_those_of_times() -> None:
    made = found(H100)
    assert signed(made) == pytest.approx(-1, abs=2e-3)
    assert made.gains[0].number.path == "accelerator.peak.bf16"
    by_path = {each.number.path: each for each in made.gains}
    # The matmuls have measured times, which change as their formula does.
    assert by_path["accelerator.peak.bf16"].elasticity < -0.2
    assert by_path["accelerator.peak.fp8"].elasticity == 0
    assert by_path["accelerator.memory.capacity"].much == made.step


def test_gains_are_sorted_by_the_step_with_ten_percent_more() -> None:
    steps = [each.much for each in found(H100).gains]
    assert steps == sorted(steps)


def test_several_processes_give_what_one_gives() -> None:
    assert found(H100, 3) == found(H100, 1)


def test_on_the_measured_system_itself_the_step_is_that_of_a_profile() -> None:
    workload = lowered.workload(CARD, **WORDS)
    assert found(H100).step == profile_job(workload, H100).step


FASTER = {
    "network.infiniband.bandwidth": Fraction(100),
    "network.infiniband.latency": Fraction(100),
    "accelerator.sustained": Fraction(1),
    "collectives.parts": Fraction(1),
}
"""Numbers on which no measured time depends."""


@pytest.mark.parametrize("path", list(FASTER))
def test_where_no_table_depends_on_a_number_durations_are_those_of_a_profile(path: str) -> None:
    workload = lowered.workload(CARD, **{**WORDS, "dp": 4})
    system = with_numbers(H100, {path: FASTER[path]})
    ours = durations_on(workload, system, H100)
    theirs = profile_job(workload, system).durations
    assert [each.ns.tolist() for each in ours.lanes] == [each.ns.tolist() for each in theirs.lanes]


def test_measured_matmuls_gain_by_a_peak_as_their_formula_does() -> None:
    workload = lowered.workload(CARD, **WORDS)
    double = with_numbers(H100, {"accelerator.peak.bf16": Fraction(989.4 * 2)})
    before, after = profile_job(workload, H100), durations_on(workload, double, H100)
    columns = before.times.network.columns[0]
    matmuls = [at for at, kind in enumerate(columns.ops.kind) if kind == "matmul"]
    old, new = before.durations.lanes[0], after.lanes[0]
    assert matmuls and all(old.rule[at] == "table:matmul" for at in matmuls)
    bare = dataclasses.replace(H100, tables=()), dataclasses.replace(double, tables=())
    modelled = [profile_job(workload, each).durations.lanes[0].ns for each in bare]
    for at in matmuls:
        share = modelled[1][at] / modelled[0][at]
        assert share < 1
        assert new.ns[at] == pytest.approx(old.ns[at] * share, abs=1)
    assert math.isclose(min(modelled[1][at] / modelled[0][at] for at in matmuls), 0.5, abs_tol=0.02)
