"""What differs between a rank's ops and its plan, as findings: what, where, on which ranks, and what the plan's reason
for it is."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagedb.collectives import KINDS
from stagedb.matching.planned_ops import WORK, PlannedOp, PlannedRun
from stagedb.matching.rank_match import RankMatch
from stagedb.matching.seen_ops import SeenOp
from stagedb.runs.clocks import MESSAGES

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
