"""Experts as units of their own: where they, and the other units of a stage that has such, are gathered and reduced.

A stage gathers the next layer's units where a layer begins: first what is outside its experts, then these (torchtitan
sets this prefetch). The first layer's units are gathered where the model begins, except its experts, which are gathered
right before what they compute, exchanges included. Nothing is set for the backward of a single layer, and FSDP2 gathers
by itself what ended before: the experts, where the layer begins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.lowering.stage_blocks import BUCKET, IssueOrder
from stagedb.workflows import RECOMPUTE, Template


@dataclass(frozen=True)
class ExpertSpan:
    """The experts of a block: by phase, the orders of their first and of their last op."""

    first: Mapping[str, int]
    last: Mapping[str, int]


def spans(ops: Iterable[Mapping[str, Any]]) -> dict[str, ExpertSpan]:
    """The experts of each block that has some, from the rows of a graph's ops."""
    orders_of: dict[str, dict[str, list[int]]] = {}
    for op in ops:
        if op["block"] != BUCKET and op["experts"] is not None:
            orders_of.setdefault(op["block"], {}).setdefault(op["phase"], []).append(int(op["order"]))
    return {
        block: ExpertSpan(*({phase: pick(orders) for phase, orders in by_phase.items()} for pick in (min, max)))
        for block, by_phase in orders_of.items()
    }


@dataclass(frozen=True)
class ExpertUnits:
    """The FSDP units of a stage whose experts are units of their own.

    order: the issue numbers of the stage. spans: the experts, by the position of their layer. layers: the positions of
    all layers. again: the positions of layers whose forward the backward computes again, experts included.
    """

    order: IssueOrder
    spans: Mapping[int, ExpertSpan]
    layers: frozenset[int]
    again: frozenset[int]

    def passes(self, unit: int | None, template: Template, again: bool) -> bool:
        """Whether a unit of experts is gathered by an op of a template that is among those that compute again, or not.

        Where a backward begins with experts that are computed again, that comes first.
        """
        if template.upward or unit is None:
            return not again
        return again == (unit in self.again and unit + 1 not in self.layers and unit - 1 in self.layers)

    def gathered(self, unit: int, template: Template, experts: bool, again: bool) -> int | None:
        """The number after which a unit of a layer is gathered; None where a backward's first gather has its place.

        experts: of its layer. again: they are computed again.
        """
        before = unit - 1 if template.upward else unit + 1
        towards = self.order.upward if template.upward else self.order.downward
        if before in self.layers:
            return towards(before) - 1
        if experts and not template.upward and unit - 1 not in self.layers:
            return towards(unit) - 1
        if experts:
            return towards(unit) + self.spans[unit].first[RECOMPUTE if again else template.phase] - 1
        return towards(0) - 2 if template.upward else None

    def reduced(self, unit: int, template: Template) -> int:
        """The number after which the gradients of a layer's experts are reduced.

        unit: the layer, by its place on the chunk. template: of the operators that make the gradients.
        """
        return self.order.downward(unit) + self.spans[unit].last[template.phase]
