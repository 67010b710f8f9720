"""A graph under a plan, lowered to a program: the columns of what each rank class runs, and its nodes in issue order.

`lower` does it in memory. The same copy is made inside a store by the statements of `cypher/instantiate`, for which the
rows are made here (`stagedb.store.contents.instances`). Traces are written from the columns, and timelines are computed
from them.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.lowering.columns import Program
    from stagedb.lowering.preparing import instance_id, with_all_words
    from stagedb.lowering.program import IndexedGraph, lower, program_of
    from stagedb.lowering.rank_classes import RankClass

__all__ = [
    "IndexedGraph",
    "Program",
    "RankClass",
    "instance_id",
    "lower",
    "program_of",
    "with_all_words",
]

_MODULES = {
    "columns": ("Program",),
    "preparing": ("instance_id", "with_all_words"),
    "program": ("IndexedGraph", "lower", "program_of"),
    "rank_classes": ("RankClass",),
}

# Traces and runs have columns, and need nothing that makes them from a graph.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
