"""Collectives: a kind is one object, with all that differs from kind to kind.

A new kind is a `CollectiveKind` and its place in the tuple of `kinds.py`. Code asks the object and compares no names.
"""

from stagedb.collectives.kind import CollectiveKind, HeldAs
from stagedb.collectives.kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    KINDS,
    REDUCE_SCATTER,
    SIMULATED,
    exchanges,
    gathers,
    kind_between,
    resizes,
    scatters,
)

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "KINDS",
    "REDUCE_SCATTER",
    "SIMULATED",
    "CollectiveKind",
    "HeldAs",
    "exchanges",
    "gathers",
    "kind_between",
    "resizes",
    "scatters",
]
