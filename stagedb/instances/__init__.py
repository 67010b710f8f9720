"""Instances: a stored graph under a plan. Cypher copies it inside the store to one subgraph a rank class."""

from stagedb.instances.class_digests import RankClass
from stagedb.instances.copies import is_at_end
from stagedb.instances.instantiation import (
    Progress,
    earlier_ids,
    instance_id,
    instantiate,
    rank_classes,
    with_all_words,
)

__all__ = [
    "Progress",
    "RankClass",
    "earlier_ids",
    "instance_id",
    "instantiate",
    "is_at_end",
    "rank_classes",
    "with_all_words",
]
