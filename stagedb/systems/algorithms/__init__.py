"""Collective algorithms, a file each: the collectives and groups they suit, their time, and what they send.

A new algorithm is a file with an `Algorithm`, and a line in the imports and in the tuple below.
"""

from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.algorithms.direct import DIRECT
from stagedb.systems.algorithms.hierarchical import HIERARCHICAL
from stagedb.systems.algorithms.nvls import NVLS
from stagedb.systems.algorithms.ring import RING
from stagedb.systems.algorithms.tree import TREE

ALGORITHMS: tuple[Algorithm, ...] = (RING, TREE, HIERARCHICAL, DIRECT, NVLS)
"""All algorithms. The first of those that are equally fast is used."""

COLLECTIVES = tuple(dict.fromkeys(kind.name for each in ALGORITHMS for kind in each.kinds))
"""Names of the kinds of collective that have a cost."""

HARDWARE = tuple(each.name for each in ALGORITHMS if each.hardware)
"""Names of the algorithms that need hardware in each dimension of the network that a group spans."""

__all__ = ["ALGORITHMS", "COLLECTIVES", "HARDWARE", "Algorithm"]
