"""Which rank of dp updates which weights, where each of them updates whole weights of its own.

Megatron-Core 0.16.1, `LayerWiseDistributedOptimizer.shard_params` in megatron/core/optimizer/layer_wise_optimizer.py:
the parameters of a stage in ascending order of their elements are dealt to the ranks there and back (the first to rank
0, …, n - 1, then n - 1, …, 0). Those of experts that ranks of ep divide are dealt to the ranks with the same experts,
others to the ranks of dp and cp. Equal ones are in the order of the optimizer's parameter groups (matrices of Muon,
then those of AdamW, then its vectors and biases), and there in that of the model.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.graphs.owned_layers import EXPERTS, owned_symbol
from stagedb.lowering.class_digests import Member
from stagedb.plans import Mesh, Plan, groups
from stagedb.plans.mesh import OWNED_AXES

Weight = tuple[int, int, str]
"""A weight of a stage: its chunk, its position there, and its name."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of the framework that a weight is: one, or the matrices of several experts.

    weight: which one. elements: those of each parameter. count: how many there are. group: the place of
    their parameter group among those of the optimizer (`parameter_group`).
    """

    weight: Weight
    elements: int
    count: int
    group: int


def parameter_group(name: str, axes: Sequence[str], muon: bool) -> int:
    """The place of a weight's parameter group among those of the optimizer, by which equal parameters are ordered.

    name: of the weight. axes: its axes. muon: whether Muon updates it. Returns 0 for those of Muon, 1 for other
    matrices, 2 for vectors and biases, which have no weight decay (`get_standard_config_overrides`).
    """
    own = [axis for axis in axes if axis != EXPERTS]
    return 0 if muon else 2 if len(own) < 2 or name.endswith(".bias") else 1


def dealt(parameters: Sequence[Parameters], ranks: int) -> tuple[Counter[Weight], ...]:
    """For each rank, how many parameters of each weight it updates.

    parameters: all of one group of ranks, in the order of the model. ranks: how many there are.
    """
    each = [one for one in parameters for _ in range(one.count)]
    each.sort(key=lambda one: (one.elements, one.group))
    turns = [*range(ranks), *reversed(range(ranks))]
    found: list[Counter[Weight]] = [Counter() for _ in range(ranks)]
    for number, one in enumerate(each):
        found[turns[number % len(turns)]][one.weight] += 1
    return tuple(found)


def owner_places(plan: Plan, member: Member) -> Mapping[str, int]:
    """The place of a rank among those that share weights (`dp`) and experts (`edp`), by axis; none where it is alone.

    member: its coordinates on cp, ep and dp.
    """
    rank = Mesh.of(plan).rank(cp=member[0], dp=member[2])
    return {group.axis: rank // group.stride % group.size for group in groups(plan, 1, OWNED_AXES)}


def symbols_of_owned(blocks: Iterable[str], weights: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """By block and name of a weight, the symbol of how many of its parameters are a rank's own.

    blocks: the names of a graph's blocks, in their order. weights: the rows of its weights.
    """
    numbers = {block: number for number, block in enumerate(blocks)}
    return {(row["block"], row["name"]): owned_symbol(numbers[row["block"]], row["order"]) for row in weights}


def all_owned(
    plan: Plan, env: Mapping[str, int], blocks: Iterable[str], weights: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """The values of these symbols on a rank that updates all weights of its stage.

    env: the values of other symbols. blocks, weights: as in `symbols_of_owned`.
    """
    named = symbols_of_owned(blocks, weights)
    found = {}
    for row in weights:
        there = row["present"] is None or plan.evaluate(row["present"], env) > 0
        elements, each = (plan.evaluate(row[column], env) for column in ("elements", "shard"))
        found[named[row["block"], row["name"]]] = 1 + (elements // each if there else 0)
    return found
