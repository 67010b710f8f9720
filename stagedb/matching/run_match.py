"""A run matched with a plan: every rank and step, what differs, and which ranks are late."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from stagedb.errors import UsageError
from stagedb.lowering import Program
from stagedb.matching.findings import Finding, RankFindings, merged, ranks_text
from stagedb.matching.planned_ops import MATMUL, PlannedOp, PlannedRun
from stagedb.matching.rank_match import Known, RankMatch, match_rank
from stagedb.matching.seen_ops import SeenOp, seen_ops
from stagedb.runs.rank_trace import Integers, rows_of
from stagedb.runs.stored_run import StoredRun

LATE = 0.1
"""A rank is late if it runs nothing for this share of the step, and the others with the same op do not."""

SLOW = 1.5
"""A rank is slow if its matmuls take this many times as long as the median of the ranks."""


@dataclass(frozen=True)
class _Gap:
    """How long a rank runs nothing between two planned ops, in ns, and the op of its lane that runs then."""

    ns: int
    place: int
    previous: PlannedOp | None
    op: PlannedOp


@dataclass(frozen=True)
class RunMatch:
    """A run matched with a plan.

    planned: what the plan expects of each rank. ranks: by rank and step (as the profiler numbers it, None without a
    number), the matched ops.
    """

    run: StoredRun
    planned: PlannedRun
    ranks: Mapping[tuple[int, int | None], RankMatch]

    @cached_property
    def findings(self) -> list[Finding]:
        """All that differs, those of several ranks as one: what costs most on the critical path first.

        In a run without times nothing is known to be late, to be slow, or to cost anything.
        """
        found = [each for rank, step in self.ranks for each in self._about(rank, step).all()]
        if not self.run.has_times:
            return [replace(each, critical=None) for each in merged(found)]
        every = [*merged(found), *self._late(), *self._slow()]
        return sorted(every, key=lambda each: -(each.critical or 0))

    def _about(self, rank: int, step: int | None) -> RankFindings:
        return RankFindings(self.planned, rank, self.ranks[rank, step], self._on_path[rank])

    @cached_property
    def _on_path(self) -> Mapping[int, Mapping[int, int]]:
        """By rank, ns of each op on the critical path."""
        path = self.run.path
        return self._sums_of_path(path.end - path.start)

    @cached_property
    def _gaps_on_path(self) -> Mapping[int, Mapping[int, int]]:
        """By rank, ns of the gap of the critical path before each op."""
        return self._sums_of_path(self.run.path.idle)

    def _sums_of_path(self, ns: Integers) -> Mapping[int, Mapping[int, int]]:
        found: dict[int, dict[int, int]] = {rank: defaultdict(int) for rank in self.run.timed}
        if not self.run.has_times:
            return found
        for rank, op, each in rows_of(self.run.path.rank, self.run.path.op, ns):
            found[rank][op] += each
        return found

    def _late(self) -> list[Finding]:
        """Ranks that run nothing before an op for much longer than the others before theirs."""
        gaps: dict[tuple[int | None, str, str, int], dict[int, _Gap]] = defaultdict(dict)
        for (rank, step), match in self.ranks.items():
            before = self._idle_before(rank)
            turn: dict[tuple[str, str], int] = defaultdict(int)
            last, previous = -1, None
            for pair in match.pairs:
                op, seen = match.planned[pair.planned], match.seen[pair.seen]
                between = before[last + 1 : seen.place + 1] if last >= 0 else before[:0]
                at = int(between.argmax()) if len(between) else 0
                ns = int(between[at]) if len(between) else 0
                gaps[step, op.name, op.phase, turn[op.name, op.phase]][rank] = _Gap(ns, last + 1 + at, previous, op)
                turn[op.name, op.phase] += 1
                last, previous = max(last, seen.place), op
        found = []
        for (step, *_), ranks in gaps.items():
            for rank, gap in ranks.items():
                others = [each.ns for other, each in ranks.items() if other != rank]
                if gap.ns > LATE * self._lengths[step] and others and gap.ns > 2 * max(others):
                    found.append(self._late_finding(rank, step, gap, max(others)))
        return found

    def _late_finding(self, rank: int, step: int | None, gap: "_Gap", others: int) -> Finding:
        """A gap: where it is, what runs after it, and who waits for that. others: ns of theirs at most."""
        about = self._about(rank, step)
        op = self.run.lane_of[rank].ops[gap.place]
        where = f" ({op.block})" if op.block else ""
        seen = f"rank {rank} runs nothing for {gap.ns / 1e6:.1f} ms before {op.name}{where}; "
        previous = None if gap.previous is None else about.module(gap.previous)
        reason = f"the others run nothing there for {others / 1e6:.1f} ms at most"
        return Finding("late", (rank,), _between(previous, about.module(gap.op)), gap.op.phase, "",
                       seen + self._waiting(rank, gap.place, about), reason, 1, gap.ns,
                       self._gaps_on_path[rank].get(gap.place, 0))  # fmt: skip

    def _waiting(self, rank: int, place: int, about: RankFindings) -> str:
        """Who waits for a rank in the first collective or message that it comes last to, from an op on."""
        after = int(self.run.timed[rank].start[place])
        for each in sorted(self.run.collectives, key=lambda each: each.ready):
            members = each.joint.members
            if each.last == rank and each.ready >= after and each.waited > 0 and len(members) > 1:
                waits = each.ready - min(int(self.run.timed[other].start[at]) for other, at in members.items())
                planned = next((pair.planned for pair in about.match.pairs
                                if about.match.seen[pair.seen].place == members[rank]), None)  # fmt: skip
                of = f"over {each.axis}" if planned is None else f"of {about.module(about.match.planned[planned])}"
                names = ranks_text([other for other in members if other != rank])
                return f"{names} wait for it in {each.joint.collective.kind} {of}, {waits / 1e6:.1f} ms at most"
        return "nobody waits for it"

    def _slow(self) -> list[Finding]:
        """Ranks whose matmuls take longer than those of the others with the same ones."""
        totals: dict[tuple[tuple[int, int], int | None], dict[int, int]] = defaultdict(dict)
        for (rank, step), match in self.ranks.items():
            totals[self.planned.alike(rank), step][rank] = sum(each.end - each.start for each in _matmuls(match))
        found = []
        for (_, step), ranks in totals.items():
            usual = median(ranks.values())
            for rank, ns in ranks.items():
                if len(ranks) > 2 and ns > SLOW * usual and ns - usual > LATE * self._lengths[step]:
                    text = f"its matmuls take {ns / usual:.2f} times the median of {len(ranks)} ranks"
                    on_path = sum(self._on_path[rank].get(each.place, 0) for each in _matmuls(self.ranks[rank, step]))
                    found.append(Finding("slow", (rank,), "the step", "step", "", text, "all do the same", 1,
                                         int(ns - usual), on_path))  # fmt: skip
        return found

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


def _matmuls(match: RankMatch) -> list[SeenOp]:
    """The recorded matmuls of a rank that are as planned."""
    return [seen for each in match.matched if (seen := match.seen[each.seen]).kind == MATMUL]


def _between(previous: str | None, module: str) -> str:
    """The module in which a gap before an op of a module is: the one that both ops around it are in.

    Without one it is the layer of the op, or the part of the model outside layers.
    """
    if " " in module:
        # A bucket of several layers, such as `layer.1 to layer.4`.
        return module
    words = module.split(".")
    common = 0
    for one, other in zip(words, (previous or "").split("."), strict=False):
        if one != other:
            break
        common += 1
    return ".".join(words[: max(common, 2 if words[0] == "layer" else 1)])


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
