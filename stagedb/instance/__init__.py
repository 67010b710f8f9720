"""Instances: a stored graph under a plan, copied by Cypher inside the store to one subgraph a rank class."""

from stagedb.instance.instantiate import Progress, instantiate

__all__ = ["Progress", "instantiate"]
