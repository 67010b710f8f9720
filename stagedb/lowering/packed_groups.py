"""Weights in 4 bits whose groups of numbers share a scale: no rank has a part of a group.

Engines refuse such parts too: vLLM's AWQ and GPTQ name a tensor parallelism that is too large
(`The input size is not aligned with the quantized weight shape`).
"""

from collections.abc import Mapping
from typing import Any

from stagedb.ir.packed_weights import PACKED
from stagedb.lowering.graph_values import GraphRows
from stagedb.mentions import Word
from stagedb.plans import Plan
from stagedb.plans.nearest_plans import Change, Misfit, Way, nearest


def check_groups(graph: GraphRows, plan: Plan) -> None:
    """Raise UsageError, with the nearest valid plan, if ranks of a plan would have parts of a group.

    graph: with the matmuls that read such weights. plan: checked for the graph's model.
    """

    def tried(change: Change) -> None:
        other = plan.changed(change)
        other.check(graph.sizes)
        if other.options == plan.options:  # others have another graph, whose experts or weights are whole
            _check(graph, other)

    try:
        _check(graph, plan)
    except Misfit as misfit:
        raise misfit.tried(tried) from None


def _check(graph: GraphRows, plan: Plan) -> None:
    env = plan.env(graph.sizes)
    for op in graph.ops:
        reason = _reason(op, plan, env)
        if reason:
            divides = op["experts"] and plan.tp > 1 and not _reason(op, plan, {**env, "tp": 1})
            experts = [Way({"ep": plan.tp, "expert_tp": False})] if divides else []
            raise Misfit(
                f"{_place(op, plan)} has {reason}",
                nearest("tp", plan.tp, plan.tp, lambda tp: True),
                [*experts, Way({"weight_dtype": "same"})],
            )


def _place(op: Mapping[str, Any], plan: Plan) -> str:
    if plan.tp == 1:
        return f"the weight of {op['name']}"
    return f"with tp {plan.tp} a rank's part of the weight of {op['name']}"


def _reason(op: Mapping[str, Any], plan: Plan, env: Mapping[str, int]) -> str:
    """What is no whole number of groups in a matmul's weight; empty if all are whole. env: the values of symbols."""
    if op["packed"] is None:
        return ""
    rows, inputs = (plan.evaluate(text, env) for text in op["dims"][-2:])  # of one matrix on one rank
    of = PACKED[op["packed"]]
    word = Word("weight_dtype", of.name)
    if inputs % of.group:
        return f"{inputs:,} inputs, and {word} has groups of {of.group} that share a scale"
    if rows % of.together:
        return f"{rows:,} outputs, and {word} stores {of.together} of them in one integer"
    return ""
