"""Collective algorithms, a file each: which collectives and groups they suit, their time, and what they send.

A new algorithm is a file with an `Algorithm`, and a line in the imports and in the tuple below.
"""

from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.algorithms.direct import DIRECT
from stagedb.systems.algorithms.hierarchical import HIERARCHICAL
from stagedb.systems.algorithms.nvls import NVLS
from stagedb.systems.algorithms.ring import RING
from stagedb.systems.algorithms.tree import TREE

ALGORITHMS: tuple[Algorithm, ...] = (RING, TREE, HIERARCHICAL, DIRECT, NVLS)
"""All algorithms. Of those that are equally fast the first is taken."""

COLLECTIVES = tuple(dict.fromkeys(kind for each in ALGORITHMS for kind in each.kinds))
"""Kinds of collective that have a cost."""

HARDWARE = tuple(each.name for each in ALGORITHMS if each.hardware)
"""Names of the algorithms that a dimension of a network must have hardware for."""

__all__ = ["ALGORITHMS", "COLLECTIVES", "HARDWARE", "Algorithm"]
