"""A run matched with a plan: every rank and step, what differs, and which ranks are late."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from stagedb.errors import UsageError
from stagedb.lowering import Program
from stagedb.matching.findings import Finding, RankFindings, merged, planned_text
from stagedb.matching.planned_ops import MATMUL, PlannedOp, PlannedRun
from stagedb.matching.rank_match import Known, RankMatch, match_rank
from stagedb.matching.seen_ops import SeenOp, seen_ops
from stagedb.runs.rank_trace import Integers
from stagedb.runs.stored_run import StoredRun

LATE = 0.1
"""A rank is late if it runs nothing for this share of the step, and the others with the same op do not."""

SLOW = 1.5
"""A rank is slow if its matmuls take so many times the median of the ranks."""


@dataclass(frozen=True)
class RunMatch:
    """A run and a plan. ranks: by rank and step, the step as the profiler numbers it, None if it has no number."""

    run: StoredRun
    planned: PlannedRun
    ranks: Mapping[tuple[int, int | None], RankMatch]

    @cached_property
    def findings(self) -> list[Finding]:
        """All that differs, those of several ranks as one."""
        found = [each for (rank, _), match in self.ranks.items()
                 for each in RankFindings(self.planned, rank, match).all()]  # fmt: skip
        return [*merged(found), *self._late(), *self._slow()]

    def _late(self) -> list[Finding]:
        """Ranks that run nothing before an op for much longer than the others before theirs."""
        idle: dict[tuple[int | None, str, str, int], dict[int, tuple[int, PlannedOp]]] = defaultdict(dict)
        for (rank, step), match in self.ranks.items():
            before = self._idle_before(rank)
            turn: dict[tuple[str, str], int] = defaultdict(int)
            last = -1
            for pair in match.pairs:
                op, seen = match.planned[pair.planned], match.seen[pair.seen]
                key = op.name, op.phase
                waited = int(before[last + 1 : seen.place + 1].max(initial=0)) if last >= 0 else 0
                idle[step, *key, turn[key]][rank] = waited, op
                turn[key] += 1
                last = max(last, seen.place)
        found = []
        for (step, *_), ranks in idle.items():
            length = self._lengths[step]
            for rank, (ns, op) in ranks.items():
                others = [each for other, (each, _) in ranks.items() if other != rank]
                if ns > LATE * length and others and ns > 2 * max(others):
                    found.append(self._finding("late", rank, op, ns, f"nothing runs for {ns / 1e6:.1f} ms before it"))
        return found

    def _slow(self) -> list[Finding]:
        """Ranks whose matmuls take longer than those of the others with the same ones."""
        totals: dict[tuple[tuple[int, int], int | None], dict[int, int]] = defaultdict(dict)
        for (rank, step), match in self.ranks.items():
            work = [match.seen[each.seen] for each in match.matched if match.seen[each.seen].kind == MATMUL]
            totals[self.planned.alike(rank), step][rank] = sum(each.end - each.start for each in work)
        found = []
        for (_, step), ranks in totals.items():
            usual = median(ranks.values())
            for rank, ns in ranks.items():
                if len(ranks) > 2 and ns > SLOW * usual and ns - usual > LATE * self._lengths[step]:
                    text = f"its matmuls take {ns / usual:.2f} times the median of {len(ranks)} ranks"
                    found.append(Finding("slow", (rank,), "the step", "step", "", text, "all do the same", 1,
                                         int(ns - usual)))  # fmt: skip
        return found

    def _finding(self, kind: str, rank: int, op: PlannedOp, ns: int, seen: str) -> Finding:
        about = RankFindings(self.planned, rank, RankMatch((), ()))
        return Finding(kind, (rank,), about.module(op), op.phase, planned_text(op), seen, about.reason(op), 1, ns)

    @cached_property
    def _lengths(self) -> Mapping[int | None, int]:
        """Ns of each step."""
        ends: dict[int | None, tuple[int, int]] = {}
        for (_, step), match in self.ranks.items():
            if match.seen:
                begin, end = ends.get(step, (match.seen[0].start, match.seen[-1].end))
                ends[step] = min(begin, match.seen[0].start), max(end, match.seen[-1].end)
        return {step: end - begin for step, (begin, end) in ends.items()}

    def _idle_before(self, rank: int) -> Integers:
        """For each op of a rank, by start, how long nothing of this rank has run when it begins."""
        timed = self.run.timed[rank]
        latest = np.maximum.accumulate(timed.end)
        found: Integers = np.maximum(timed.start - np.concatenate(([timed.start[0]], latest[:-1])), 0)
        return found


def match_run(run: StoredRun, program: Program) -> RunMatch:
    """Match a run with a plan. Raises UsageError for a run of more or fewer ranks than the plan has."""
    planned = PlannedRun(program)
    if run.job_ranks != planned.world:
        raise UsageError(
            f"the run is of a job of {run.job_ranks:,} ranks, and the plan has {planned.world:,}: match it with an "
            "instance of as many ranks"
        )
    found: dict[tuple[int, int | None], RankMatch] = {}
    known: Known | None = None
    for rank in run.timed:
        seen = seen_ops(run, rank)
        known = known or Known.of(seen)
        ops = planned.ops(rank)
        for step, each in _steps(seen).items():
            found[rank, step] = match_rank(ops, each, known)
    return RunMatch(run, planned, found)


def _steps(seen: Sequence[SeenOp]) -> dict[int | None, list[SeenOp]]:
    """Ops by step. Those between steps are left out, if the profiler has numbered steps."""
    found: dict[int | None, list[SeenOp]] = defaultdict(list)
    for each in seen:
        found[each.step].append(each)
    if len(found) > 1:
        found.pop(None, None)
    return dict(found)
