"""A run matched with a plan: every rank and step, what differs, and which ranks are late."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import numpy as np

from stagedb.collectives import KINDS
from stagedb.errors import UsageError
from stagedb.lowering import Program
from stagedb.runs.clocks import MESSAGES
from stagedb.runs.rank_match import MATMUL, WORK, Known, PlannedOp, PlannedRun, RankMatch, SeenOp, match_rank, seen_ops
from stagedb.runs.rank_trace import Integers, rows_of
from stagedb.runs.stored_run import StoredRun

# What differs between a rank's ops and its plan, as findings: what, where, on which ranks, and what the plan's reason
# for it is.

FINDINGS: Mapping[str, str] = {
    "missing": "the plan has it, and the run does not",
    "extra": "the run has it, and the plan does not",
    "size": "another number of bytes",
    "format": "another format of its elements",
    "group": "other ranks",
    "kind": "another collective",
    "shape": "another shape",
    "moved": "somewhere else in the order",
    "order": "tasks of micro-batches in another order",
    "late": "a rank runs nothing while others wait for it",
    "slow": "a rank computes longer than the others",
}
"""Kinds of findings, and what each of them is."""


@dataclass(frozen=True)
class Finding:
    """A difference between a run and its plan.

    kind: of `FINDINGS`. ranks: that have it, ascending. module: where, as a path such as `layer.1.attn.wq`. phase:
    forward, backward … planned, seen: in words; empty if there is none. reason: why the plan has it. count: of ops on
    each rank. ns: time of each rank, where the finding is about time. critical: ns of its ops, or of its gap, on the
    critical path of the run, which is on one rank at a time; None: nothing of it ran.
    """

    kind: str
    ranks: tuple[int, ...]
    module: str
    phase: str
    planned: str
    seen: str
    reason: str
    count: int = 1
    ns: int = 0
    critical: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        times = f" ({self.count} of them)" if self.count > 1 else ""
        both = f"planned {self.planned or 'nothing'}, seen {self.seen or 'nothing'}{times}"
        return f"{self.kind}, {self.module}, {self.phase}, {ranks_text(self.ranks)}: {both}; {self.reason}"


@dataclass(frozen=True)
class RankFindings:
    """The differences between the ops of one rank and its plan, in the order of the run.

    planned: what the plan expects. match: of the rank's ops. on_path: ns on the critical path, by op of the rank's
    lane; ops that are not on it may be absent.
    """

    planned: PlannedRun
    rank: int
    match: RankMatch
    on_path: Mapping[int, int]

    def all(self) -> list[Finding]:
        """All findings of the rank. Several of one kind, in one module and phase and on one kind of op, are one."""
        found = [*self._changed(), *self._missing(), *self._extra()]
        found += self._order() if self.match.reordered else self._moved()
        return of_layers(merged(found))

    def _changed(self) -> Iterator[Finding]:
        for pair in self.match.changed:
            planned, seen = self.match.planned[pair.planned], self.match.seen[pair.seen]
            kind, wanted, found = _difference(planned, seen)
            yield self._finding(kind, planned, wanted, found, seen)
        for pair in self.match.matched:
            planned, seen = self.match.planned[pair.planned], self.match.seen[pair.seen]
            if planned.kind not in WORK and seen.dtype and planned.dtype and seen.dtype != planned.dtype:
                yield self._finding("format", planned, planned.dtype, seen.dtype, seen)

    def _missing(self) -> Iterator[Finding]:
        for place in self.match.missing:
            planned = self.match.planned[place]
            yield self._finding("missing", planned, planned_text(planned), "")

    def _extra(self) -> Iterator[Finding]:
        before = _Before(self.match)
        for place in self.match.beyond_plan(self.planned.stops_early):
            seen = self.match.seen[place]
            near = before.planned(place)
            module = "the begin of the step" if near is None else f"after {self.module(near)}"
            yield Finding("extra", (self.rank,), module, seen.phase if near is None else near.phase, "",
                          seen_text(seen), "the plan has no such op here", critical=self._cost(seen))  # fmt: skip

    def _moved(self) -> Iterator[Finding]:
        before = _Before(self.match)
        for pair in self.match.matched:
            planned = self.match.planned[pair.planned]
            if pair.moved and planned.kind not in WORK:
                near = before.planned(pair.seen)
                after = "at the begin of the step" if near is None else f"after {self.module(near)}, {near.phase}"
                previous = self.match.planned[pair.planned - 1] if pair.planned else None
                wanted = "first" if previous is None else f"after {self.module(previous)}, {previous.phase}"
                yield self._finding("moved", planned, f"{planned_text(planned)} {wanted}", after,
                                    self.match.seen[pair.seen])  # fmt: skip

    def _order(self) -> list[Finding]:
        """The order of the tasks of micro-batches, where it is another one."""
        tasks = self.planned.tasks_of(self.rank)
        run = list(dict.fromkeys(op.task for op in self.match.planned))
        wanted, seen = (" ".join(tasks[task].kind.name[0].upper() for task in order) for order in (sorted(run), run))
        stage, plan = self.planned.stage_of(self.rank), self.planned.program.plan
        return [Finding("order", (self.rank,), f"stage {stage}", "step", wanted, seen, f"schedule {plan.schedule}")]

    def _finding(self, kind: str, planned: PlannedOp, wanted: str, found: str, seen: SeenOp | None = None) -> Finding:
        """A finding about a planned op. seen: the op that is there instead."""
        about = self.module(planned), planned.phase, wanted, found, self.reason(planned)
        return Finding(kind, (self.rank,), *about, critical=None if seen is None else self._cost(seen))

    def _cost(self, seen: SeenOp) -> int:
        """Ns of an op on the critical path."""
        return self.on_path.get(seen.place, 0)

    def module(self, op: PlannedOp) -> str:
        """The module of an op, without what it does there; of a bucket, the layers of its weights."""
        if not op.name.startswith("bucket."):
            return _module(op.name)
        weights = self._weights(op)
        modules = dict.fromkeys(each if each.startswith("layer.") else each.split(".")[0] for each in weights)
        layers = list(dict.fromkeys(".".join(each.split(".")[:2]) for each in modules))
        return " and ".join(layers) if len(layers) < 4 else f"{layers[0]} to {layers[-1]}"

    def _weights(self, op: PlannedOp) -> list[str]:
        """Names of the weights of a bucket, with the numbers of their layers."""
        columns, stage = self.planned.program.workload.class_of(self.rank), self.planned.stage_of(self.rank)
        layers = {}
        for row, position in enumerate(columns.origins.position.tolist()):
            number = columns.layer_in_model(row, stage)
            if number is not None:
                layers[int(columns.ops.chunk[row]), position] = number
        carried = self.planned.program.carried[columns.number].get(op.op, ())
        return [
            f"layer.{layers[chunk, position]}.{name.partition('.')[2]}" if name.startswith("layer.") else name
            for position, name, chunk in carried
        ]

    def reason(self, op: PlannedOp) -> str:
        """Why the plan has an op, in words, such as the collective of a bucket of gradients."""
        plan = self.planned.program.plan
        if op.kind in WORK:
            return "recomputation" if op.phase == "recompute" else "the model"
        if op.kind in MESSAGES:
            return f"schedule {plan.schedule}" if op.axis == "pp" else f"{op.axis}: keys and values go around a ring"
        if op.name.startswith("bucket."):
            count = len(self._weights(op))
            what = "parameters" if "parameters" in op.name else "gradients"
            return f"{what} of {count} weights, {op.axis}, zero {plan.options.zero}"
        return f"{op.axis}: the layout of {_module(op.name)}"


def merged(found: Sequence[Finding]) -> list[Finding]:
    """Findings that differ only in ranks as one, and those of one rank that are alike with their number.

    found: the findings of all ranks.
    """
    alike: dict[Finding, list[Finding]] = defaultdict(list)
    for each in found:
        alike[each].append(each)
    ranks: dict[Finding, list[Finding]] = defaultdict(list)
    for each, several in alike.items():
        ranks[replace(each, ranks=(), count=each.count * len(several))] += several
    return [
        replace(each, ranks=tuple(sorted({rank for own in several for rank in own.ranks})), critical=_sum(several))
        for each, several in ranks.items()
    ]


def _sum(found: Iterable[Finding]) -> int | None:
    """Their time on the critical path; None if nothing of them ran."""
    known = [each.critical for each in found if each.critical is not None]
    return sum(known) if known else None


MOST_OF_A_LAYER = 3
"""Up to this number of matmuls that differ in a layer and phase, each is a finding of its own."""


def of_layers(found: Sequence[Finding]) -> list[Finding]:
    """The findings, where those on many matmuls of one layer and phase are joined to one."""
    layers: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for each in found:
        if each.kind in ("missing", "extra", "shape") and each.planned.startswith(WORK):
            layers[each.kind, ".".join(each.module.split(".")[:2]), each.phase].append(each)
    done = list(found)
    for (_, layer, _), several in layers.items():
        if len(several) > MOST_OF_A_LAYER:
            done = [each for each in done if each not in several]
            count = sum(each.count for each in several)
            first = several[0]
            more = f"{first.planned} and {count - 1} more"
            done.append(replace(first, module=layer, planned=more, count=count, critical=_sum(several)))
    return done


def planned_text(op: PlannedOp) -> str:
    """A planned op in words."""
    if op.kind in WORK:
        return f"{op.kind} {'x'.join(map(str, op.dims))}"
    if op.kind in MESSAGES:
        return f"{op.kind} of {max(op.sent, op.received):,} B {'to' if op.kind == 'send' else 'from'} {op.group[1]}"
    return f"{op.kind} of {op.sent:,} B over {op.axis} ({len(op.group)} ranks)"


def seen_text(op: SeenOp) -> str:
    """A seen op in words."""
    if op.kind in WORK:
        return f"{op.kind} {'x'.join(map(str, op.dims))}" if op.dims else op.name
    size = "" if op.sent is None else f" of {op.sent:,} B"
    group = "" if op.group is None else f" over {len(op.group)} ranks"
    return f"{op.kind}{size}{group}"


def _difference(planned: PlannedOp, seen: SeenOp) -> tuple[str, str, str]:
    """The kind of the difference of an op that is there on both sides, and both sides in words."""
    if planned.kind != seen.kind:
        return "kind", planned_text(planned), seen_text(seen)
    if planned.kind in WORK:
        return "shape", planned_text(planned), seen_text(seen)
    if seen.group is not None and sorted(planned.group) != sorted(seen.group):
        return "group", f"{planned.kind} over {ranks_text(planned.group)}", f"over {ranks_text(seen.group)}"
    if seen.dtype and planned.dtype and seen.dtype != planned.dtype:
        return "format", f"{planned.kind} of {planned.dtype}", seen.dtype
    return "size", planned_text(planned), seen_text(seen)


def ranks_text(group: Sequence[int]) -> str:
    """Ranks in words: `ranks 0, 1, 3`; of many, the first eight. group: ascending."""
    shown = ", ".join(map(str, sorted(group)[:8]))
    more = f" and {len(group) - 8} more" if len(group) > 8 else ""
    return f"rank{'' if len(group) == 1 else 's'} {shown}{more}"


class _Before:
    """The planned ops that are matched around a place of the run."""

    def __init__(self, match: RankMatch) -> None:
        self.match, self.pairs = match, match.pairs
        self.places = [each.seen for each in self.pairs]

    def planned(self, place: int) -> PlannedOp | None:
        """The last one that ran before."""
        at = bisect_left(self.places, place)
        return self.match.planned[self.pairs[at - 1].planned] if at else None


_DOINGS = frozenset(("recompute", "weight_gradient", "input_gradient", "gradient_sum", *MESSAGES, "forward", *KINDS))
"""Words of the name of an op for what it does in its module."""


def _module(name: str) -> str:
    """The path of the module in an op's name."""
    words = name.split(".")
    end = next((place for place, word in enumerate(words) if word in _DOINGS), len(words))
    return ".".join(words[: max(end, 1)])


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
