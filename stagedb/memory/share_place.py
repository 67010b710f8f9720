"""Which part of what ranks share one of them has."""

from dataclasses import dataclass

from stagedb.ir.layouts import parse_layout
from stagedb.ir.symbolic_graph import SymTensor
from stagedb.plans import Plan, groups


@dataclass(frozen=True)
class SharePlace:
    """The part of sharded weights that a rank has.

    dense: its place among the ranks that share weights. experts: among those that share experts which ranks divide.
    """

    dense: int = 0
    experts: int = 0

    @classmethod
    def of_rank(cls, plan: Plan, rank: int) -> "SharePlace":
        """The place of a rank of a plan."""
        place_on = {group.axis: rank // group.stride % group.size for group in groups(plan, 1, ("dp", "edp"))}
        return cls(place_on.get("dp", 0), place_on.get("edp", 0))

    def of(self, weight: SymTensor, plan: Plan) -> int:
        """The place among those that share this weight."""
        divided = plan.ep > 1 and parse_layout(weight.layout).on("ep") is not None
        return self.experts if divided else self.dense


FIRST = SharePlace()
