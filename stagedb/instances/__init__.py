"""Instances: a stored graph under a plan. Cypher copies it inside the store to one subgraph a rank class."""

from stagedb.instances.class_digests import RankClass
from stagedb.instances.copies import stands_at
from stagedb.instances.instantiation import Progress, in_full, instantiate, rank_classes

__all__ = ["Progress", "RankClass", "in_full", "instantiate", "rank_classes", "stands_at"]
