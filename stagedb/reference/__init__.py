"""stagedb held against what real frameworks did: records of single steps, counted on one rank.

`read_records` reads a file of them, `check_records` runs each configuration through build, instantiate and export and
compares the counts. It uses the API and stands above it.
"""

from stagedb.reference.check import Checked, check_records, counts_of, select, trace_counts
from stagedb.reference.counts import Counts, Difference, Message, compare
from stagedb.reference.records import Record, read_records

__all__ = [
    "Checked",
    "Counts",
    "Difference",
    "Message",
    "Record",
    "check_records",
    "compare",
    "counts_of",
    "read_records",
    "select",
    "trace_counts",
]
