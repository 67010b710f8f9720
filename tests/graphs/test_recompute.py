"""Recomputing operators that are named: which names mean what, and which are refused."""

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.plans import GraphOptions
from tests.ir.tiny import card


def graph(*names: str, style: str = "llama", **more: object) -> SymGraph:
    options = GraphOptions(recompute="operators", recompute_operators=names, **more)  # type: ignore[arg-type]
    return build_graph(card(style), options)


def again(graph: SymGraph) -> set[str]:
    """Names of the layer's operators that are run again."""
    return {op.name.removeprefix("layer.") for op in graph.ops if op.phase == "recompute"}


def test_a_name_is_of_one_operator_or_of_all_under_it() -> None:
    assert again(graph("ffn.gate")) == {"ffn.gate.recompute"}
    assert again(graph("attn_norm", "ffn.gate", sp=True)) == {
        "attn_norm.recompute",
        "attn_norm.all_gather.tp.recompute",
        "ffn.gate.recompute",
    }
    # A matmul is computed again where something of the backward reads what it makes: here the gate.
    assert again(graph("ffn")) == {f"ffn.{name}.recompute" for name in ("w1", "w3", "gate")}
    assert again(graph("attn.core")) == {"attn.core.recompute"}
    whole = again(graph("ffn", early_stop=False))
    assert "ffn.w2.recompute" in whole


def test_what_is_not_named_is_kept() -> None:
    made = graph("ffn.gate")
    (copy,) = [op for op in made.ops if op.phase == "recompute"]
    assert copy.reads == ("layer.ffn.w1", "layer.ffn.w3")
    (row,) = [tensor for tensor in made.tensors if tensor.repeats is not None]
    assert (row.name, row.repeats, row.present) == ("layer.ffn.gate.recompute", "layer.ffn.gate", "runs - 1")
    readers = {op.name for op in made.ops if row.name in op.reads}
    assert readers == {"layer.ffn.w2.weight_gradient"}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("atn.core",), "a layer has no operator 'atn.core': did you mean attn.core"),
        (("ffn.gat",), "did you mean ffn.gate"),
        (("layer.ffn.gate",), "did you mean ffn.gate"),
        (("ffn.g",), "--recompute-operators takes attn_norm, attn.wq, attn.wk, attn.wv, attn.rotary_q, "),
        (("ffn.gate", "head"), "a layer has no operator 'head'"),
        (("ffn.add",), "the backward reads nothing that ffn.add makes, so that nothing would be recomputed"),
    ],
)
def test_names_without_effect_are_refused(names: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        graph(*names)
    assert reason in str(caught.value)
