"""Frameworks are asked for what they do, never for their names, and a further one takes an object alone."""

import ast
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.collectives import REDUCE_SCATTER
from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS, POLICIES, Bucketing, Framework, find_framework
from stagedb.frameworks.bucket_policies import DDP, EACH, ONE, UNIT
from stagedb.frameworks.megatron import MEGATRON
from stagedb.frameworks.torch import TORCH
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.plans import Dtypes, Plan
from stagedb.plans.graph_options import CP_KINDS, GraphOptions
from stagedb.store import Store
from tests.ir.tiny import card

ROOT = Path(__file__).parents[2]
OUTSIDE = sorted(
    path
    for folder in ("stagedb", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if path.parent != ROOT / "stagedb" / "frameworks"
)

Register = Callable[[Framework], Framework]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Adds a framework for the time of a test."""

    def add(framework: Framework) -> Framework:
        monkeypatch.setitem(FRAMEWORKS, framework.name, framework)
        # Graphs are remembered by the name of their framework, which was another one in another test.
        build_graph.cache_clear()
        return framework

    return add


def constants(node: ast.AST) -> Iterator[object]:
    """The constants of an operand, those in a tuple, list or set too."""
    if isinstance(node, ast.Constant):
        yield node.value
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from constants(item)


def comparisons(source: str) -> list[str]:
    """Where code decides by the name of a framework, or of a bucket policy."""
    found = []
    for node in ast.walk(ast.parse(source)):
        words: set[object] = set()
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            words = {word for operand in operands for word in constants(operand)}
            policies = any(isinstance(each, ast.Attribute) and each.attr in ("bucket", "rule") for each in operands)
            words &= FRAMEWORKS.keys() | (POLICIES.keys() if policies else set())
        elif isinstance(node, ast.MatchValue):
            words = set(constants(node.value)) & FRAMEWORKS.keys()
        elif isinstance(node, ast.Dict):
            words = {word for key in node.keys if key for word in constants(key)} & FRAMEWORKS.keys()
        elif isinstance(node, ast.ImportFrom):
            # A single framework's object could be compared as well as its name.
            words = {each for each in FRAMEWORKS if node.module == f"stagedb.frameworks.{each}"}
        found += [f"{getattr(node, 'lineno', 0)}: {word}" for word in sorted(map(str, words))]
    return found


def test_no_code_asks_for_a_framework_by_name() -> None:
    found = {path: comparisons(path.read_text(encoding="utf-8")) for path in OUTSIDE}
    assert {str(path): each for path, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "source",
    [
        "if recipe == 'megatron': pass",
        "least = 1 if 'torch' != plan.options.recipe else 2",
        "if recipe not in ('torch', 'megatron'): pass",
        "match recipe:\n  case 'torch': pass",
        "size = {'torch': 1, 'megatron': 128}[recipe]",
        "from stagedb.frameworks.torch import TORCH",
        "if op.bucket == 'ddp': pass",
        "if op.rule in ('unit', 'each'): pass",
    ],
)
def test_a_comparison_is_found(source: str) -> None:
    assert comparisons(source)


def test_other_words_are_no_names_of_frameworks() -> None:
    assert not comparisons("words = {'recipe': 'torch'}\nif streams == 'one': pass\nplan(recipe='megatron')")


def test_names_belong_to_their_frameworks() -> None:
    assert {name: framework.name for name, framework in FRAMEWORKS.items()} == {name: name for name in FRAMEWORKS}
    assert {name: policy.name for name, policy in POLICIES.items()} == {name: name for name in POLICIES}
    with pytest.raises(UsageError, match="unknown recipe 'jax': --recipe is torch or megatron"):
        find_framework("jax")


def test_every_choice_is_that_of_a_framework() -> None:
    """Errors name a framework that has what another one refuses: there must be one."""
    frameworks = FRAMEWORKS.values()
    assert {kind for each in frameworks for kind in each.cp_kinds} == {*CP_KINDS} - {"none"}
    assert {stage for each in frameworks for stage in each.zero_stages} == {0, 1, 2, 3}
    for each in frameworks:
        assert {0} < {*each.zero_stages}
        assert {*each.hybrid_stages} <= {*each.zero_stages} - {0}
        used = (each.buckets.gradients, each.buckets.optimizer, each.buckets.units, each.buckets.regathered)
        assert all(POLICIES[policy.name] is policy for policy in used)


def rows(graph: SymGraph) -> tuple[object, ...]:
    return graph.sizes, graph.tensors, graph.ops, graph.edges


@pytest.mark.parametrize(
    ("base", "style", "words", "changes"),
    [
        ("megatron", "llama", {}, {"fused_projections": "learned"}),
        ("megatron", "gpt", {"sp": True}, {"row_bias": "inside"}),
        ("megatron", "llama", {}, {"weight_gradient_first": True}),
        ("megatron", "llama", {}, {"whole_backward": True}),
        ("megatron", "llama", {"sp": True}, {"regather": False}),
        ("megatron", "llama", {"sp": True, "dropout": 0.1}, {"embedding_dropout": "embedding"}),
        ("megatron", "llama", {}, {"vocabulary_multiple": 64}),
        ("megatron", "llama", {}, {"vocabulary_multiple": None}),
        ("megatron", "llama", {}, {"composite_kernels": True}),
        ("megatron", "llama", {}, {"embedding_gradient": "whole"}),
        ("torch", "gpt", {"recompute": "full"}, {"early_stop": False}),
        ("torch", "moe", {}, {"routing_tables": False}),
        ("torch", "llama", {}, {"buckets": Bucketing(gradients=ONE)}),
        ("torch", "llama", {"zero": 1}, {"buckets": Bucketing(gradients=DDP, optimizer=EACH)}),
        ("torch", "llama", {"zero": 2}, {"buckets": Bucketing(gradients=DDP, units=EACH)}),
        ("torch", "llama", {"zero": 3}, {"buckets": Bucketing(gradients=DDP, regathered=UNIT)}),
        ("torch", "llama", {"zero": 1}, {"optimizer_sharding": REDUCE_SCATTER}),
        ("torch", "llama", {"zero": 2, "sp": True}, {"partial_in_backward": False}),
        ("torch", "llama", {"zero": 3}, {"pipelined_sync": "every"}),
        ("torch", "llama", {"sp": True}, {"sequence_parallel_gradients": "one"}),
        ("torch", "llama", {"cp_kind": "allgather-kv"}, {"explicit_mask": False}),
    ],
)
def test_a_graph_follows_each_field(
    register: Register, base: str, style: str, words: dict[str, Any], changes: dict[str, Any]
) -> None:
    same = register(dataclasses.replace(FRAMEWORKS[base], name="same"))
    other = register(dataclasses.replace(FRAMEWORKS[base], name="other", **changes))
    graphs = [build_graph(card(style), GraphOptions(recipe=name, **words)) for name in (base, same.name, other.name)]
    assert [graph.recipe for graph in graphs] == [base, "same", "other"]
    assert len({graph.key for graph in graphs}) == 3
    assert rows(graphs[0]) == rows(graphs[1])
    assert rows(graphs[0]) != rows(graphs[2])


def test_a_plan_follows_a_further_framework(register: Register) -> None:
    wide = {"bf16": "fp32"}
    formats = dataclasses.replace(TORCH.formats, gradients=wide, master=wide, wide_gradients=True)
    third = dataclasses.replace(
        TORCH,
        name="third",
        title="Third",
        fused_projections="always",
        zero_stages=(0, 1, 2),
        hybrid_stages=(1,),
        cuts_columns=False,
        expert_units=False,
        reshards_to=False,
        has_fsdp1=False,
        cp_kinds=("ulysses", "allgather-kv"),
        scatter_gather=True,
        formats=formats,
    )
    register(third)
    plan = Plan.from_mapping({"recipe": "third", "cp": 2, "dp": 4, "hsdp": 2, "zero": 1})
    assert plan.options.cp_kind == "ulysses"
    assert plan.dtypes == Dtypes(param="bf16", grad="fp32", reduce="fp32", opt="bf16", master="fp32")
    Plan.from_mapping({"recipe": "third", "tp": 2, "pp": 2, "scatter_gather": True})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"recipe": "fourth"}, "unknown recipe 'fourth': --recipe is torch, megatron or third"),
        (
            {"recipe": "third", "zero": 3, "dp": 2},
            "Third shards gradients too (--zero 2): --zero 3 needs --recipe torch",
        ),
        ({"recipe": "megatron", "zero": 2, "dp": 2}, "--zero 2 needs --recipe torch or third"),
        (
            {"scatter_gather": True},
            "messages exist only in Megatron and Third: --scatter-gather needs --recipe megatron or third, or leave",
        ),
        (
            {"recipe": "third", "cp": 2, "cp_kind": "ring-p2p"},
            "ring-p2p exists only in PyTorch and Megatron: --recipe third takes --cp-kind ulysses",
        ),
        ({"recipe": "third", "shared_input": False}, "the third recipe has one fused matmul for q, k, v"),
        ({"recipe": "third", "dp": 4, "hsdp": 2, "zero": 2}, "no such copies in the third recipe: leave --hsdp out"),
        ({"recipe": "third", "param_dtype": "fp32", "dtype": "fp16"}, "third has no fp32 parameters"),
        ({"grad_dtype": "fp32"}, "take --grad-dtype bf16, --param-dtype fp32, or --recipe megatron or third"),
    ],
)
def test_refusals_name_a_further_framework(register: Register, words: dict[str, object], expected: str) -> None:
    formats = dataclasses.replace(
        MEGATRON.formats, refused_parameters={"fp32": "third has no fp32 parameters: take --param-dtype bf16"}
    )
    third = dataclasses.replace(
        MEGATRON,
        name="third",
        title="Third",
        zero_stages=(0, 2),
        hybrid_stages=(),
        cuts_columns=False,
        expert_units=False,
        reshards_to=False,
        has_fsdp1=False,
        cp_kinds=("ulysses",),
        formats=formats,
    )
    register(third)
    with pytest.raises(UsageError) as refused:
        Plan.from_mapping(words)
    assert expected in str(refused.value)


def test_an_instance_and_its_memory_follow_a_further_framework(register: Register, embedded_store: Store) -> None:
    """A bucket for each weight instead of copies in DDP's, and a buffer of gradients that exists before the step."""
    memory = dataclasses.replace(TORCH.memory, gradient_buffer=True, optimizer_scalar=0)
    register(dataclasses.replace(TORCH, name="third", buckets=Bucketing(gradients=EACH), memory=memory))
    db, model = Stagedb(embedded_store), card("llama")
    found: dict[str, tuple[int, dict[tuple[str, str], int]]] = {}
    for recipe in ("torch", "third"):
        words: dict[str, Any] = {"recipe": recipe, "dp": 2, "seq_len": 8}
        instance = db.instantiate(model, **words)
        buckets = embedded_store.query(
            "MATCH (o:Collective {instance: $id}) WHERE o.name STARTS WITH 'bucket.gradients' RETURN count(o)",
            {"id": instance.id},
        ).rows
        levels = {(row["category"], row["moment"]): row["bytes"] for row in db.memory(instance.id).levels}
        found[recipe] = (buckets[0][0], levels)
    weights = 1 + 9 * model.layers + 2
    (one, torch), (each, third) = found["torch"], found["third"]
    assert (one, each) == (1, weights)
    parameters = model.count_parameters()
    assert third["gradients", "start"] == 2 * parameters
    assert ("gradients", "start") not in torch
    buffers = ("communication_buffers", "start")
    assert torch[buffers] - third.get(buffers, 0) == 2 * parameters
    assert torch["optimizer_state", "start"] - third["optimizer_state", "start"] == 4 * weights
