"""A match that is made up: of a small run and any program, with one op of each outcome."""

from stagedb.lowering import Program
from stagedb.runs.rank_match import OpPair, PlannedRun, RankMatch, seen_ops
from stagedb.runs.run_match import RunMatch
from stagedb.runs.stored_run import StoredRun


def small_match(run: StoredRun, program: Program) -> RunMatch:
    """Rank 0: the first op is as planned, the second one is changed, all others of the plan are missing."""
    planned = PlannedRun(program)
    ops, seen = planned.ops(0), seen_ops(run, 0)
    found = RankMatch(ops, seen, [OpPair(0, 0)], [OpPair(1, 1)], [*range(2, len(ops))], [*range(2, len(seen))])
    return RunMatch(run, planned, {(0, None): found})
