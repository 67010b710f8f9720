"""Instances: a stored graph under a plan, copied by Cypher inside the store to one subgraph a rank class."""

from stagedb.instance.buckets import Bucket
from stagedb.instance.classes import RankClass
from stagedb.instance.instantiate import Progress, in_full, instantiate, rank_classes
from stagedb.instance.layout import Place

__all__ = ["Bucket", "Place", "Progress", "RankClass", "in_full", "instantiate", "rank_classes"]
