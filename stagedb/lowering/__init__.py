"""A graph under a plan, lowered to a program: the columns of what each rank class runs.

`lower` does it in memory. The same copy is made inside a store by the statements of `cypher/instantiate`, for which the
rows are made here (`stagedb.store.contents.instances`).
"""

from stagedb.lowering.class_digests import RankClass
from stagedb.lowering.copied_rows import IndexedGraph
from stagedb.lowering.preparing import instance_id, with_all_words
from stagedb.lowering.program import Program, lower, program_of

__all__ = [
    "IndexedGraph",
    "Program",
    "RankClass",
    "instance_id",
    "lower",
    "program_of",
    "with_all_words",
]
