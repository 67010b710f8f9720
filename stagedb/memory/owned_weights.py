"""What a rank of dp has of weights that it updates whole, and holds while updated weights are gathered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.lowering.rank_classes import Parameters, Weight, dealt, owner_places
from stagedb.plans import Plan


@dataclass(frozen=True)
class OwnedGather:
    """A gather of updated weights.

    shares: by weight, the part of its parameters that is the rank's own. held: numbers that it holds until the weights
    are written: its own weights in one tensor, which is a copy unless there is only one (`_flatten_dense_tensors`), a
    tensor for the weights of each rank, and, where these are of one size, the one result of NCCL's all-gather
    (`ProcessGroupNCCL::allgather`).
    """

    shares: Mapping[Weight, Fraction]
    held: int


def owned_gather(plan: Plan, member: tuple[int, int, int], axis: str, parameters: Sequence[Parameters]) -> OwnedGather:
    """What a rank has of the weights that a gather carries.

    plan: of the step. member: its coordinates on cp, ep and dp. axis: of the gather. parameters: those of the weights,
    in the order of the model. Source: Megatron-Core 0.16.1, `LayerWiseDistributedOptimizer.allgather_params` in
    megatron/core/optimizer/layer_wise_optimizer.py.
    """
    of_ranks = dealt(parameters, plan.shards if axis == "dp" else plan.edp)
    sizes = {each.weight: each.elements for each in parameters}
    totals = [sum(sizes[weight] * count for weight, count in own.items()) for own in of_ranks]
    place = owner_places(plan, member)[axis]
    own = of_ranks[place]
    flat = totals[place] if own.total() > 1 else 0
    results = sum(totals) * (2 if len({*totals}) == 1 else 1)
    return OwnedGather({each.weight: Fraction(own[each.weight], each.count) for each in parameters}, flat + results)
