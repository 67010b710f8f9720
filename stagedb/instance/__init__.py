"""Instances: a stored graph under a plan, copied by Cypher inside the store to one subgraph a rank class."""

from stagedb.instance.classes import RankClass
from stagedb.instance.copies import TEMPLATES, stands_at
from stagedb.instance.instantiate import Progress, in_full, instantiate, rank_classes

__all__ = ["TEMPLATES", "Progress", "RankClass", "in_full", "instantiate", "rank_classes", "stands_at"]
