"""What operators and tensors are to their model: facts of graphs, and that nothing above takes a name apart."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.facts import Casts, InExperts
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.columns import turn_of
from stagedb.models.card_library import load_card
from stagedb.models.named_facts import op_facts, tensor_facts
from stagedb.plans.graph_options import GraphOptions

ROOT = Path(__file__).parents[2] / "stagedb"
READERS = ("lowering", "memory", "timing", "traces")

KNOWN = ["lowering/issue_order.py:.experts"]
"""Gathers of a unit of experts come after those of its layer, and no property marks them yet."""

PARTS = re.compile(
    r"(^|\.)(turn|exchange|return|attn|ffn|cast_(input|weight|gradient)|input_gradient|wqkv|experts|dispatch|further)"
    r"(\.|$)|^bucket\.|_gradient\.?$|^\.again$"
)
"""Pieces of operators' names."""

TEMPLATES_AND_PORTS = {"input_gradient", "weight_gradient"}
"""Templates, kinds of tasks and regions: words of their own."""

SEARCHES = ("endswith", "startswith", "partition", "rpartition", "removeprefix", "removesuffix")
RULES = {"in_experts", "depth_of", "EXPERT_MATMULS"}
"""What takes names apart, for this package and the builder alone."""


def texts(node: ast.AST) -> Iterator[str]:
    """The texts that code has in a piece of it."""
    return (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def taken_apart(source: str) -> Iterator[str]:
    """Comparisons and searches of a text with a piece of a name: `"x" in name`, `name.endswith("x")`, …

    Constants of a module that begin like the end of a name, and the rules that graphs are built with, count too.
    """
    tree = ast.parse(source)
    searched: list[str] = []
    for top in tree.body:
        if isinstance(top, ast.ImportFrom):
            yield from (each.name for each in top.names if each.name in RULES)
        elif isinstance(top, ast.Assign):
            searched += [text for text in texts(top.value) if text.startswith(".")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in SEARCHES or node.func.attr == "compile":
                searched += [text for each in node.args for text in texts(each)]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            searched += texts(node.left)
    for text in searched:
        if PARTS.search(text.replace("\\", "")) and text not in TEMPLATES_AND_PORTS:
            yield text


def test_no_reader_takes_a_name_apart() -> None:
    files = [path for package in READERS for path in sorted((ROOT / package).rglob("*.py"))]
    assert {path.relative_to(ROOT).parts[0] for path in files} == {*READERS}
    found = [f"{path.relative_to(ROOT)}:{each}" for path in files for each in taken_apart(path.read_text("utf-8"))]
    assert found == KNOWN


@pytest.mark.parametrize(
    "line",
    [
        'CASTS = (".cast_input", ".x")',
        "from stagedb.models.kinds.experts import EXPERT_MATMULS",
        'name.endswith("attn.wqkv.weight")',
        'name.rpartition("_gradient")',
        '".cast_input" in name',
        'f".{x}.turn." in n',
    ],
)
def test_a_name_that_is_taken_apart_is_found(line: str) -> None:
    assert [*taken_apart(line)]


def graph(model: str, **options: object) -> SymGraph:
    return build_graph(load_card(model), GraphOptions(**options))  # type: ignore[arg-type]


def test_gradients_have_the_operators_that_they_differentiate() -> None:
    """Every operator of a backward that computes, but no other, differentiates one of the forward."""
    made = graph("llama3.2-1b")
    names = {op.name for op in made.ops}
    for op in made.ops:
        origin = op_facts(op.name).origin
        assert origin is None or origin in names
        if op.template.gradients == "weights" and op.block != "bucket":
            assert origin is not None, op.name


def test_experts_are_a_module() -> None:
    made = graph("deepseek-moe-16b")
    found = {op.name: op_facts(op.name).experts for op in made.ops}
    assert {InExperts.MODULE, InExperts.MATMUL, InExperts.RETURN} < {*found.values()}
    for op in made.ops:
        if op.kind == "all_to_all":
            assert found[op.name] is not None, op.name
        if found[op.name] is InExperts.RETURN:
            assert op.kind == "all_to_all"
    weights = [each for each in made.tensors if each.parameter is not None and "experts" in each.axes]
    assert [each.name for each in weights if not tensor_facts(each.name, each.role).experts] == [
        "layer.ffn.router.weight"
    ]


@pytest.mark.parametrize(
    ("name", "casts"),
    [
        ("layer.attn.wq.cast_input", Casts.INPUT),
        ("layer.attn.wq.cast_weight", Casts.WEIGHT),
        ("layer.attn.wq.cast_weight.again", Casts.WEIGHT_AGAIN),
        ("layer.attn.wq.cast_gradient", Casts.GRADIENT),
        ("layer.attn.wq", None),
    ],
)
def test_casts(name: str, casts: Casts | None) -> None:
    assert op_facts(name).casts is casts


def test_calls_are_those_of_modules() -> None:
    assert op_facts("layer.ffn.w2.reduce_scatter.tp").module == "layer.ffn.w2"
    assert op_facts("layer.ffn.add").module is None and op_facts("layer.ffn.add").part == "ffn"
    assert op_facts("layer.attn_norm").module is None and op_facts("head.out").part is None


def test_turns_are_those_of_loops() -> None:
    assert turn_of("g/layer.attn.core.turn", "layer.3.attn.core.turn.2", "layer") == 2
    assert turn_of("g/layer.add.broadcast_gradient.0", "layer.3.add.broadcast_gradient.0", "layer") == -1
    assert turn_of("g/bucket.gradients.dp", "bucket.gradients.dp.2", "bucket") == -1
    assert (
        op_facts("layer.attn.core.turn.recompute").ring
        == "layer.attn.core"
        == op_facts("layer.attn.core.exchange").ring
    )
    assert op_facts("layer.attn.k.all_gather.cp").ring is None


def test_states_have_owners() -> None:
    facts = tensor_facts("layer.attn.wq.weight.master", "optimizer_state")
    assert (facts.owner, facts.word) == ("layer.attn.wq.weight", "master")
    assert tensor_facts("layer.attn.wqkv.weight", "weight").joined
