"""Durations of all ops that an instance's lanes run: compute, collectives and messages, by the cost model of a system.

The ops of a class take equally long on all of its ranks, except where the network positions of groups and neighbours
differ. So durations belong to a lane. Measured durations replace those of the model.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from stagedb import workflows
from stagedb.collectives import KINDS, exchanges, gathers
from stagedb.errors import UsageError
from stagedb.files import did_you_mean
from stagedb.ir.facts import Casts
from stagedb.ir.packed_weights import PACKED
from stagedb.lowering.columns import (
    COLLECTIVE,
    COMPUTE,
    DATA,
    ONCE_A_STEP,
    RECV,
    RUNS,
    SEND,
    ClassColumns,
    Ints,
    Ops,
    Workload,
)
from stagedb.mentions import Word
from stagedb.plans import FORMAT_BYTES
from stagedb.plans.graph_options import RINGS
from stagedb.systems import (
    Costs,
    Coverage,
    Dimension,
    Durations,
    Measured,
    Placement,
    Subject,
    System,
    Timed,
    Transfer,
    Wires,
    Work,
)
from stagedb.systems.cost_model import read_work, unmasked_flops
from stagedb.systems.measured_durations import MEASURED, described
from stagedb.systems.system import Accelerator, Overlap, inverse
from stagedb.timing.lanes import Lane, group_of, lane_numbers
from stagedb.timing.network_position import NEIGHBOURS

# Gathers of tensor-parallel ranks whose result only fp8 matmuls read: each rank casts its part, and fp8 is gathered.
#
# torchao's Float8ColwiseParallel, Float8RowwiseParallel and PrepareFloat8ModuleInput do so
# (torchao/float8/float8_tensor_parallel.py).

SHARDS = "shards"
"""The word of `overlap.casts` for it."""

_CASTS = (Casts.INPUT, Casts.GRADIENT)
"""Casts of what is gathered."""


def gathered_casts(columns: ClassColumns) -> dict[int, tuple[int, ...]]:
    """For each gather of tp that is in fp8, the casts that read it. With any other reader it is in its own format."""
    ops, edges = columns.ops, columns.edges
    gathers = [op for op in np.flatnonzero(ops.type == COLLECTIVE).tolist() if _may_be(columns, op)]
    if not gathers:
        return {}
    readers = defaultdict[int, list[int]](list)
    data = (edges.kind == DATA) & np.isin(edges.source, gathers)
    for source, target in zip(edges.source[data].tolist(), edges.target[data].tolist(), strict=True):
        if ops.type[target] == COMPUTE and ops.template[target] == ops.template[source]:
            readers[source].append(target)
    return {
        gather: tuple(casts)
        for gather, casts in readers.items()
        if all(ops.facts[cast].casts in _CASTS for cast in casts)
    }


def casts_made(columns: ClassColumns, ranks: int) -> dict[int, int]:
    """How many times less than its operator a cast takes; 0 for one that is not made. ranks: those of tp.

    Casts of one tensor for several matmuls are one kernel. What is gathered in fp8 is cast as a share of each rank.
    """
    ops, edges = columns.ops, columns.edges
    shared = {cast: gather for gather, casts in gathered_casts(columns).items() for cast in casts}
    data = edges.kind == DATA
    made: set[tuple[int, int]] = set()
    shares: dict[int, int] = {}
    for op in np.flatnonzero(ops.type == COMPUTE).tolist():
        if ops.facts[op].casts not in _CASTS:
            continue
        source = shared[op] if op in shared else int(edges.source[data & (edges.target == op)].min(initial=-1))
        key = (source, int(ops.template[op]))
        again = source >= 0 and key in made
        shares[op] = 0 if again else ranks if op in shared else 1
        made.add(key)
    return shares


def _may_be(columns: ClassColumns, op: int) -> bool:
    ops = columns.ops
    return bool(gathers(ops.kind[op]) and ops.axis[op] == "tp" and not ops.dtype[op].startswith("fp8"))


# Keys and values that a framework repeats for every head of the queries, before attention.
#
# torchtitan's models do so until SDPA is called with enable_gqa (`repeat_kv` in
# torchtitan/models/llama3/model/model.py, 0.1.0): a forward copies keys and values to all heads, and a backward sums
# their gradients over the heads of a group. The ring of context-parallel ranks then sends keys, values and their
# gradients for all heads.

REPEATED = "repeated"
"""The word of `overlap.keys` for it."""

_BYTES = 2
"""Bytes an element of keys and values, which are in a half-precision format."""


def ring_repeats(columns: ClassColumns) -> dict[int, int]:
    """For each collective of a ring, how many times more it sends with repeated keys."""
    ops, layers = columns.ops, columns.origins.layer

    def ring(op: int) -> tuple[int, int, str | None]:
        return int(ops.chunk[op]), int(layers[op]), ops.facts[op].ring

    rings = [op for op in range(len(ops)) if ops.facts[op].ring is not None]
    groups = {ring(op): ops.dims[op][1] // ops.dims[op][2] for op in rings if _is_grouped(ops, op)}
    return {op: groups[ring(op)] for op in rings if ops.type[op] == COLLECTIVE and ring(op) in groups}


def repeat_ns(ops: Ops, op: int, accelerator: Accelerator) -> int:
    """ns in which an attention's keys and values are copied to all heads, or their gradients summed; 0 for other ops.

    op: its place among `ops`. In a ring of cp only the attention of the rank's own keys copies; the later ones read its
    copy.
    """
    if not _is_grouped(ops, op) or ops.turn[op] > 0:
        return 0
    batch, heads, kv_heads, _, keys, width = ops.dims[op][:6]
    size = 2 * _BYTES * batch * (heads + kv_heads) * keys * width
    return round(size / accelerator.memory.at(max(size, 1)) * inverse(accelerator.bandwidth))


def _is_grouped(ops: Ops, op: int) -> bool:
    """Whether an op is an attention whose heads share keys. dims: batch, heads, heads of keys, queries, keys, width."""
    dims = ops.dims[op]
    return ops.kind[op].startswith("attention") and len(dims) > 5 and dims[1] > dims[2] > 0


_WEIGHTS = np.array([template.gradients == "weights" for template in workflows.TEMPLATES.values()])
"""Whether a template makes gradients of weights; by index of TEMPLATES."""

NOTHING = Timed(0, "")
"""The duration of a receive: it takes no time, its message does."""


LONGEST_RUN = 1 << 60
"""ns that one run of an op may take: 36 years."""


def whole_ns(took: Sequence[int], columns: ClassColumns) -> Ints:
    """Durations of a class's ops as a column [ns].

    UsageError for one longer than `LONGEST_RUN`. took: ns of each op.
    """
    for op, ns in enumerate(took):
        if ns > LONGEST_RUN:
            raise UsageError(
                f"one run of {columns.ops.name[op]} takes more than 36 years, longer than stagedb counts: look for it "
                f"in the system's file ({Word('system')}), the measured durations and the scalings"
            )
    return np.array(took, np.int64)


@dataclass(frozen=True)
class LaneDurations:
    """For each op of a lane's class: `ns`, its source (`Timed.rule`, `Timed.dimension`), and bytes sent (`wires`).

    waits: how much of `ns` an op waits for the host to issue it; None: nothing does. spared: how much less `ns` is as
    computing hides buckets; None: it hides none.
    """

    ns: Ints
    rule: tuple[str, ...]
    dimension: tuple[str | None, ...]
    wires: tuple[Wires, ...]
    waits: Ints | None = None
    spared: Ints | None = None

    @property
    def measured(self) -> npt.NDArray[np.bool_]:
        """Which ops have a duration that was measured in their own step."""
        return np.array([rule == MEASURED for rule in self.rule], bool)

    @property
    def kernels(self) -> Ints:
        """`ns` without the waits for the host, and with what computing hides of buckets."""
        kernels = self.ns if self.waits is None else self.ns - self.waits
        return kernels if self.spared is None else kernels + self.spared


@dataclass(frozen=True)
class JobDurations:
    """The durations of all lanes of a job.

    lanes: by number. coverage: how much of the step was measured, each op counted as often as it runs. unmatched:
    measured rows that no op matched.
    """

    lanes: tuple[LaneDurations, ...]
    coverage: Coverage
    unmatched: tuple[Measured, ...] = ()
    """Measured rows that match no op of the job."""

    @property
    def ns(self) -> tuple[Ints, ...]:
        """The durations that a timeline is computed from."""
        return tuple(lane.ns for lane in self.lanes)

    @property
    def kernels(self) -> tuple[Ints, ...]:
        """The same without waits for the host, and with what computing hides of buckets."""
        return tuple(lane.kernels for lane in self.lanes)


def time_ops(
    workload: Workload, lanes: Sequence[Lane], system: System, measured: Durations | None = None
) -> JobDurations:
    """The durations of an instance's ops on a system.

    Raises UsageError if the system's network is too small for the job, if the system has no rate for a format of the
    FLOPs, and if two measured rows match an op equally well.
    """
    workflow = workflows.find_workflow(str(workload.plan["workflow"]))
    costs = Costs(_started(workflow, system), len(workload.ranks), engine=workflow.caches)
    by_number = {each.number: each for each in workload.classes}
    ranks = _representative_ranks(workload, lanes, measured, costs.network)
    pairs: list[tuple[Timed, Timed, int]] = []
    rows = []
    matched: set[Measured | None] = set()
    computed: dict[int, dict[int, Timed]] = {}  # by the ops, which stages share that differ in their tasks alone
    for lane in lanes:
        columns = by_number[lane.rank_class]
        position = _Position.of(workload, lane, columns, costs)
        if id(columns.ops) not in computed:
            computed[id(columns.ops)] = _computed(costs, columns, position.rings)
        computes = computed[id(columns.ops)]
        sizes = _sizes_sent(columns, system.overlap)
        modelled = [
            computes[op] if op in computes else _communicated(costs, columns, op, position, sizes.get(op))
            for op in range(len(columns.ops))
        ]
        taken = modelled
        if measured is not None:
            subjects = _subjects(columns, ranks[lane.number])
            taken = [_taken(measured, subject, model) for subject, model in zip(subjects, modelled, strict=True)]
            matched |= {measured.find(subject) for subject in subjects if subject is not None}
        rows.append(
            LaneDurations(
                whole_ns([each.ns for each in taken], columns),
                tuple(each.rule for each in taken),
                tuple(each.dimension for each in taken),
                tuple(each.wires for each in taken),
            )
        )
        runs = runs_of(columns)
        pairs += [
            (model, take, runs[op] * lane.ranks)
            for op, (model, take) in enumerate(zip(modelled, taken, strict=True))
            if columns.ops.type[op] != RECV
        ]
    unmatched = () if measured is None else tuple(row for row in measured.rows if row not in matched)
    if measured is not None and len(unmatched) == len(measured.rows):
        raise UsageError(f"the measured durations are of nothing that runs here: {_no_match(workload, unmatched[0])}")
    return JobDurations(tuple(rows), Coverage.of(pairs), unmatched)


def _started(workflow: workflows.Workflow, system: System) -> System:
    """The system with the launches of the job: a step that goes on with answers runs from a CUDA graph."""
    if not workflow.decodes:
        return system
    return replace(system, accelerator=system.accelerator.from_graphs)


@dataclass(frozen=True)
class _Position:
    """Positions of a lane's groups, by axis, and the ranks at the other ends of its messages.

    The ranks are by whether the message is around a ring, and by direction. around: which ops are such messages. rings:
    whether attentions take turns around a ring.
    """

    rank: int
    groups: Mapping[str, Placement]
    peers: Mapping[tuple[bool, int], int]
    around: npt.NDArray[np.bool_]
    rings: bool

    @classmethod
    def of(cls, workload: Workload, lane: Lane, columns: ClassColumns, costs: Costs) -> "_Position":
        ops, ranks = columns.ops, workload.ranks
        axes = sorted({ops.axis[op] for op in np.flatnonzero(ops.type == COLLECTIVE).tolist()})
        groups = {axis: costs.placement(group_of(workload.groups, axis, lane.rank)) for axis in axes}
        peers = {which: int(getattr(ranks, name)[lane.rank]) for which, name in NEIGHBOURS.items()}
        return cls(lane.rank, groups, peers, ops.rings, str(workload.plan.get("cp_kind", "")) in RINGS)


def _sizes_sent(columns: ClassColumns, overlap: Overlap) -> dict[int, int]:
    """The bytes of collectives that a framework sends in another format, or with repeated keys."""
    ops = columns.ops
    narrow = gathered_casts(columns) if overlap.casts == SHARDS else {}
    wide = ring_repeats(columns) if overlap.keys == REPEATED else {}
    sizes = {op: int(ops.size[op]) // FORMAT_BYTES[ops.dtype[op]] for op in narrow}
    return sizes | {op: int(ops.size[op]) * times for op, times in wide.items()}


def _computed(costs: Costs, columns: ClassColumns, rings: bool) -> dict[int, Timed]:
    """The times of the ops of a class that compute. rings: as in `_work`."""
    works = {op: _work(columns, op, rings) for op in np.flatnonzero(columns.ops.type == COMPUTE).tolist()}
    costs.learn(works.values())
    return {op: costs.work(work) for op, work in works.items()}


def _communicated(costs: Costs, columns: ClassColumns, op: int, position: _Position, size: int | None = None) -> Timed:
    """The time of an op that does not compute. size: bytes of a collective, where they are not those of its graph."""
    ops = columns.ops
    kind = int(ops.type[op])
    if kind == COLLECTIVE:
        if size is not None:
            return costs.placed(ops.kind[op], size, position.groups[ops.axis[op]])
        timed = costs.placed(ops.kind[op], int(ops.size[op]), position.groups[ops.axis[op]])
        if ops.operand[op] != ops.size[op]:
            # A rank waits for the fullest member of its group, and sends only its own part.
            own = costs.placed(ops.kind[op], int(ops.operand[op]), position.groups[ops.axis[op]])
            timed = replace(timed, wires=own.wires)
        if exchanges(ops.kind[op]) and ops.result[op] > ops.size[op]:
            # With an uneven load the fullest experts receive more than each rank sends, and all ranks wait for them.
            return replace(timed, ns=costs.placed(ops.kind[op], int(ops.result[op]), position.groups[ops.axis[op]]).ns)
        return timed
    if kind == RECV:
        return NOTHING
    target = position.peers[bool(position.around[op]), int(ops.towards[op])]
    return costs.transfer(Transfer(int(ops.size[op]), position.rank, target))


def _work(columns: ClassColumns, op: int, rings: bool) -> Work:
    """An operator of a class. rings: attentions take turns around a ring of cp; only the first one has a mask."""
    ops = columns.ops
    dims, kind = ops.dims[op], ops.kind[op]
    if not dims:
        return Work(kind, ops.dtype[op], int(ops.flops[op]), int(ops.bytes[op]))
    return Work(
        kind,
        ops.dtype[op],
        int(ops.flops[op]),
        int(ops.bytes[op]),
        dims,
        grouped=ops.facts[op].of_experts,
        weights=bool(_WEIGHTS[ops.template[op]]),
        causal=not (rings and kind.startswith("attention") and not _own_turn(ops, op)),
        spared=_spared(ops.facts[op].packed, dims),
        stored=ops.facts[op].packed or "",
    )


def unread_bytes(columns: ClassColumns) -> int:
    """The bytes of weights that a rank of an engine does not read in a step: those of experts without a token.

    columns: of its class.
    """
    works = (_work(columns, op, False) for op in np.flatnonzero(columns.ops.type == COMPUTE).tolist())
    return sum(work.bytes - read_work(work).bytes for work in works if work.grouped)


def _spared(packed: str | None, dims: tuple[int, ...]) -> int:
    """The bytes that the weight of a matmul in 4 bits has less than one in 16. dims: `[batch,] m, n, k`."""
    if packed is None:
        return 0
    matrices = dims[0] if len(dims) > 3 else 1
    return PACKED[packed].spared(matrices * dims[-2] * dims[-1], matrices)


def computed_flops(columns: ClassColumns, op: int, cp_kind: str) -> int:
    """The FLOPs of an operator of a class without what its causal mask hides. cp_kind: the plan's word.

    op: its row in the class.
    """
    return unmasked_flops(_work(columns, op, cp_kind in RINGS))


def _own_turn(ops: Ops, op: int) -> bool:
    """Whether a turn of a ring has the rank's own keys: a forward's first one. What takes no turns has them.

    A backward may take the turns in another order. Where chunks are balanced, only the own turn has as many queries as
    keys.
    """
    turn, dims = int(ops.turn[op]), ops.dims[op]
    if turn < 0 or len(dims) < 5 or dims[3] != dims[4]:
        return turn < 0
    return turn == 0 or ops.facts[op].origin is not None


def _representative_ranks(
    workload: Workload, lanes: Sequence[Lane], measured: Durations | None, network: Sequence[Dimension]
) -> list[int]:
    """For each lane the smallest rank that was measured on its own; without one, its first rank."""
    ranks = [lane.rank for lane in lanes]
    if measured is not None and measured.ranks:
        numbers = lane_numbers(workload, network)
        for rank in sorted(measured.ranks, reverse=True):
            if rank < len(numbers):
                ranks[numbers[rank]] = rank
    return ranks


def _subjects(columns: ClassColumns, rank: int) -> list[Subject | None]:
    """For each op the key of its measured durations, on a rank where ranks differ; None for receives."""
    ops = columns.ops
    subjects: list[Subject | None] = []
    for op in range(len(ops)):
        computes = ops.type[op] == COMPUTE
        subject = Subject(
            name=ops.name[op],
            kind=ops.kind[op],
            flops=int(ops.flops[op]) if computes else None,
            bytes=int(ops.bytes[op]) if computes else None,
            message=None if computes else int(ops.size[op]),
            rank=rank,
        )
        subjects.append(None if ops.type[op] == RECV else subject)
    return subjects


def _taken(measured: Durations, subject: Subject | None, model: Timed) -> Timed:
    return model if subject is None else measured.time(subject, model)


def _no_match(workload: Workload, row: Measured) -> str:
    """A measured row that matches no op, and the nearest names."""
    text = f"{row.where} ({described(row)})"
    for word in ("name", "kind"):
        there = {each for columns in workload.classes for each in getattr(columns.ops, word)}
        wanted = getattr(row, word)
        if wanted is not None and wanted not in there:
            meant = did_you_mean(wanted, sorted(there), "{}", most=3, between=", ")
            hint = meant or f"there are {', '.join(sorted(there)[:8])} …"
            return f"{text}: no {word} is {wanted}; {hint}"
    return text


def runs_of(columns: ClassColumns) -> list[int]:
    """How often a rank runs each op in a step."""
    ops, tasks = columns.ops, columns.tasks
    opened, count = tasks.opened, np.zeros(len(ops), np.int64)
    for kind, templates in RUNS.items():
        for chunk in np.unique(tasks.chunk).tolist():
            # The task that ends a step is of all chunks.
            chosen = (tasks.kind == kind) & ((tasks.chunk == chunk) | bool(ONCE_A_STEP[kind]))
            marks = (True, tasks.first, tasks.last, ~opened)
            times = np.array([(chosen & mark).sum() for mark in marks], np.int64)
            of = (ops.chunk == chunk) & np.isin(ops.template, templates)
            count += np.where(of, times[ops.when], 0)
    return [int(each) for each in count]


# The bytes that a rank sends in a step: all of its collectives and messages, on any system.
#
# A ring sends them, and no algorithm without help of the network sends fewer: `CollectiveKind` has how many messages a
# member sends and how large they are. `wire_bytes_by_axis` counts the same of a stored instance, all ranks together.


def sent_by_member(kind: str, size: Fraction, members: int) -> Fraction:
    """Bytes that a member of a group sends in a collective.

    kind: of the collective. size: bytes that the member passes in. members: ranks of the group.
    """
    collective = KINDS[kind]
    return collective.messages(members) * collective.message(size, members)


def most_sent(workload: Workload) -> int:
    """Bytes that the rank that sends most sends in a step."""
    return max(sent_by_classes(workload).values(), default=0)


def sent_by_classes(workload: Workload) -> dict[int, int]:
    """Bytes that each rank of a class sends in a step, by the number of the class. Parts of a byte are left out."""
    return {columns.number: int(sum(sent_of_ops(workload, columns).values())) for columns in workload.classes}


def sent_of_ops(workload: Workload, columns: ClassColumns) -> dict[int, Fraction]:
    """Bytes that a rank of a class sends in a step, by the collective or message: its row among the ops."""
    ops, members, runs = columns.ops, members_of(workload, columns), runs_of(columns)
    sent = {}
    for row in np.flatnonzero((ops.type == COLLECTIVE) | (ops.type == SEND)).tolist():
        size = Fraction(int(ops.operand[row]))
        if int(ops.type[row]) == COLLECTIVE:
            size = sent_by_member(ops.kind[row], size, members[ops.axis[row]])
        sent[row] = runs[row] * size
    return sent


def members_of(workload: Workload, columns: ClassColumns) -> Mapping[str, int]:
    """The number of ranks in the groups of a class, by axis."""
    rank, world = int(np.flatnonzero(workload.ranks.number == columns.number)[0]), len(workload.ranks)
    sizes = dict(zip(workload.groups.gid.tolist(), workload.groups.sizes.tolist(), strict=True))
    groups = {axis: int(workload.groups.of_axis(axis, world)[rank]) for axis in sorted(set(workload.groups.axis))}
    return {axis: sizes.get(group, 1) for axis, group in groups.items()}
