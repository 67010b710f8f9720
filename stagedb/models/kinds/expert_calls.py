"""What the module of a layer's experts runs, by the names of operators: their exchanges and their matmuls."""

import re

from stagedb.collectives import ALL_TO_ALL
from stagedb.models.kinds.experts import EXPERT_MATMULS

_INSIDE = re.compile(rf"\.(ffn\.dispatch|ffn\.back|{EXPERT_MATMULS})\b|\.ffn\.combine\.input_gradient\.")
"""What its results become is outside, and so is the gradient of that, before it is sent to the experts."""


def in_experts(name: str) -> bool:
    """Whether an operator, or a weight, of this name is in the module of a layer's experts."""
    return _INSIDE.search(name) is not None


def leaves_experts(name: str) -> bool:
    """Whether an operator of this name sends back what experts have made, in a forward or in one that runs again."""
    return f".{EXPERT_MATMULS}.w2.{ALL_TO_ALL.name}." in name
