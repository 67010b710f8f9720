"""The optimizer on the host: what a rank and its host hold, the copies between them, their time, and refusals.

Megatron-Core's `HybridDeviceOptimizer` keeps fp32 weights, two moments and gradients on the host: 16 bytes a number.
Four bytes go down for each number of a rank's part, four come back, and an update reads 16 and writes 12.
"""

import dataclasses
import json
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering import Program
from stagedb.memory import Category, memory_of
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.systems import load_system, parse_system
from stagedb.systems.system import Curve, Host
from stagedb.timing import profile_job
from tests import lowered
from tests.ir.tiny import card
from tests.semantics.running import example
from tests.semantics.test_experts import assert_same

WORDS: dict[str, Any] = {"recipe": "megatron", "zero": 1, "seq_len": 8}
DEGREES: list[dict[str, Any]] = [{"dp": 2}, {"dp": 4, "tp": 2, "sp": True}, {"dp": 2, "pp": 2}, {"dp": 2, "cp": 2}]
TIES = [{}, {"tied": True}]


def tiny(**words: Any) -> Card:
    return dataclasses.replace(card("llama", layers=4, kv_heads=4), **words)


def made(model: Card | None = None, /, **words: Any) -> Program:
    return lowered.program(tiny() if model is None else model, **{**WORDS, "offload": "optimizer", **words})


def moved(program: Program, number: int, kind: str) -> int:
    """Bytes of the operators of a kind in a class."""
    ops = program.workload.class_of(number).ops
    return sum(int(size) for size, each in zip(ops.bytes, ops.kind, strict=True) if each == kind)


@pytest.mark.parametrize("ties", TIES, ids=str)
@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_the_host_holds_what_the_accelerator_does_not(degrees: dict[str, Any], ties: dict[str, Any]) -> None:
    model = tiny(**ties)
    usual, offloaded = memory_of(made(model, offload="none", **degrees)), memory_of(made(model, **degrees))
    for before, after in zip(usual, offloaded, strict=True):
        there, here, host = before.usage.before(), after.usage.before(), after.usage.on_host()
        states = {Category.OPTIMIZER, Category.MASTER}
        assert here == {category: size for category, size in there.items() if category not in states}
        assert {category: host[category] for category in states} == {category: there[category] for category in states}
        assert host[Category.GRADIENTS] == host[Category.MASTER] == host[Category.OPTIMIZER] // 2
        assert before.usage.on_host() == {}
        assert dict(after.ends())["host"] == {str(category): size for category, size in host.items()}
        saved = sum(there[category] for category in states)
        peaks = [dict(each.peaks()) for each in (before, after)]
        for phase in ("forward_peak", "backward_peak"):
            assert sum(peaks[0][phase].values()) - sum(peaks[1][phase].values()) == saved


def test_one_weight_at_a_time_comes_back() -> None:
    """In fp32: the largest part, of the embedding, is there between its copy and its cast."""
    (found,) = memory_of(made(dp=2))
    model = tiny()
    assert dict(found.peaks())["optimizer_peak"]["temporaries"] == 4 * model.vocab * model.hidden // 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_sixteen_bytes_a_number_are_on_the_host(ranks: int) -> None:
    """The buckets of this model have next to no padding, which is held there too."""
    model = tiny(layers=2)
    (found,) = memory_of(made(model, dp=ranks))
    padding = found.usage.before()[Category.PARAMETERS] // 2 - model.count_parameters()
    assert sum(found.usage.on_host().values()) == 16 * (model.count_parameters() + padding) // ranks


def test_copies_have_the_bytes_of_the_link_and_the_update_those_of_memory() -> None:
    """Megatron-Core copies fp32 both ways (`copy_` with `non_blocking` casts on the accelerator)."""
    program, model = made(dp=2), tiny()
    part = model.count_parameters() // 2
    assert moved(program, 0, "copy_to_host") == moved(program, 0, "copy_from_host") == 4 * part
    assert moved(program, 0, "host_optimizer") == (16 + 12) * part
    ops = program.workload.class_of(0).ops
    casts = [int(size) for size, name in zip(ops.bytes, ops.name, strict=True) if name.endswith(".weight.write")]
    assert sum(casts) == (4 + 2) * part
    assert moved(program, 0, "optimizer") == 0
    assert all(phase == "optimizer" for phase, kind in zip(ops.phase, ops.kind, strict=True) if "host" in kind)


def test_gradients_go_down_when_they_are_reduced_and_weights_are_gathered_when_they_are_back() -> None:
    columns = made(dp=2).workload.class_of(0)
    edges, names = columns.edges, columns.ops.name
    pairs = {(names[a], names[b]) for a, b in zip(edges.source.tolist(), edges.target.tolist(), strict=True)}
    for layer in range(4):
        weight, update = f"layer.{layer}.ffn.w2.weight", f"layer.{layer}.optimizer"
        chain = [f"{weight}.to_host", update, f"{weight}.from_host", f"{weight}.write"]
        assert all(pair in pairs for pair in pairwise(chain))
        before = {source for source, target in pairs if target == f"{weight}.to_host"}
        assert any(source.startswith("bucket.gradients") for source in before)
        after = {target for source, target in pairs if source == f"{weight}.write"}
        assert any(target.startswith("bucket.parameters") for target in after)


@pytest.mark.parametrize("pp", [1, 2])
def test_a_tied_copy_goes_to_the_host_of_its_own_stage(pp: int) -> None:
    program = made(tiny(tied=True), dp=2, pp=pp)
    columns = next(each for each in program.workload.classes if pp - 1 in each.stages)
    found = [name for name in columns.ops.name if name.startswith("head.") and name.endswith(("host", "write"))]
    copies = [
        f"head.{weight}.weight.{word}" for weight in ("out", "norm") for word in ("to_host", "from_host", "write")
    ]
    assert sorted(found) == sorted(each for each in copies if pp == 2 or ".out." not in each)


def test_all_gradients_reach_the_optimizer() -> None:
    model = card("llama", kv_heads=4)
    whole = example(build_graph(model, GraphOptions(recipe="megatron")))
    graph = build_graph(model, GraphOptions(recipe="megatron", zero=1, offload="optimizer"))
    assert_same(dataclasses.replace(whole, graph=graph).run(2, 2), whole.run_whole())


HOST = Host(Fraction(20), Fraction(3000), Fraction(50))


def test_a_step_waits_for_the_link_and_the_processor() -> None:
    """Copies and updates run one after the other: each copy at the link's rate, the updates at the memory's."""
    program = made(dp=2)
    system = dataclasses.replace(load_system("h100"), host=HOST)
    free = dataclasses.replace(system, host=Host(float("inf"), Fraction(0), float("inf")))
    ops = program.workload.class_of(0).ops
    wanted = 0
    for size, kind in zip(ops.bytes.tolist(), ops.kind, strict=True):
        if kind in ("copy_to_host", "copy_from_host"):
            wanted += int(3000 + Fraction(size, 20) + Fraction(1, 2))
        elif kind == "host_optimizer":
            wanted += int(Fraction(size, 50) + Fraction(1, 2))
    slow, fast = (profile_job(program.workload, each).merit.step for each in (system, free))
    assert slow - fast == wanted


def test_a_system_without_a_host_is_refused() -> None:
    with pytest.raises(UsageError, match=r"has no host that could .* add host .* or take --offload none"):
        profile_job(made(dp=2).workload, dataclasses.replace(load_system("h100"), host=None))
    profile_job(made(dp=2, offload="none").workload, dataclasses.replace(load_system("h100"), host=None))


def test_a_file_has_the_host_of_its_system() -> None:
    curve = Curve(((Fraction(1000), Fraction(1, 10)), (Fraction(10**6), Fraction(1, 2))))
    for host in (None, HOST, dataclasses.replace(HOST, efficiency=curve)):
        system = dataclasses.replace(load_system("h100"), host=host)
        assert parse_system(json.dumps(system.to_dict())) == system
        assert ("host" in system.to_dict()) == (host is not None)
    content = load_system("h100").to_dict()
    for wrong, reason in (
        ({"link": 0, "latency": 1, "bandwidth": 1}, "link"),
        ({"link": 1, "latency": -1, "bandwidth": 1}, "latency"),
        ({"link": 1, "latency": 1}, "bandwidth"),
    ):
        with pytest.raises(UsageError, match=reason):
            parse_system(json.dumps({**content, "host": wrong}))


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ({"recipe": "torch", "dp": 2}, "exist only in Megatron: --offload optimizer needs --recipe megatron"),
        ({"zero": 0}, "needs --zero 1, not 0"),
        ({"zero": 3, "dp": 2}, "needs --zero 1, not 3"),
        ({"dp": 2, "optimizer": "sgd"}, "needs --optimizer adamw"),
        ({"dp": 2, "dtype": "fp32"}, "needs --dtype bf16"),
        ({"dp": 2, "grad_dtype": "bf16"}, "needs --grad-dtype fp32, not bf16"),
        ({"dp": 2, "opt_dtype": "bf16"}, "needs --opt-dtype fp32, not bf16"),
        ({"dp": 2, "offload": "weights"}, "--offload is none, optimizer or activations"),
    ],
)
def test_what_no_framework_offloads_is_refused(words: dict[str, Any], way: str) -> None:
    with pytest.raises(UsageError, match=way):
        made(**words)
