"""From a class's templates and tasks to nodes in issue order, and the dependencies of each node.

Most tasks of one kind repeat each other with shifted ids. A `NodeLayout` has the nodes and dependencies of a task with
every id written as (reference, offset): the first id of the task itself, of the task before, of the forward of the same
microbatch … So a step of many microbatches has about ten layouts, and a row of references for each task.

Tasks that run together are in parts (`overlapped_pairs`), each laid out as a task of its own. A part waits for those
before it in both tasks, as a task does; but its communication only waits for what it reads.

A node is an op. With granularity `block` it is all compute of a task between two communications that is of one phase:
an op of its own, with the sums of the ops that it represents.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagedb.errors import StagedbError
from stagedb.ir.facts import NO_FACTS
from stagedb.lowering.columns import (
    CLOSED,
    COLLECTIVE,
    COMPUTE,
    DATA,
    FIRST,
    LAST,
    ONCE,
    ONCE_A_STEP,
    PROGRAM,
    RECV,
    RUNS,
    SEND,
    UPWARD,
    ClassColumns,
    Ints,
    Ops,
)
from stagedb.lowering.overlapped_pairs import interleaved
from stagedb.mentions import Word, call
from stagedb.plans import Plan
from stagedb.schedules import PostedGathers, PostedReceive, PostedReductions, Posting, Task, posted, whole

CTRL_DEPS, DATA_DEPS = 0, 1

GRANULARITIES = ("op", "block")


@dataclass(frozen=True)
class NodeLayout:
    """The nodes of some tasks, in issue order, with their dependencies by relative ids.

    ops: rows of the sequence's Ops, one a node. A dependency is sorted by node and has four columns: node `row` waits
    for the node `offset` after the first node of the task in column `ref` of `Sequence.sources`; `field` is the list
    that it is in, `data_deps` or `ctrl_deps`.
    """

    ops: Ints
    row: Ints
    field: Ints
    ref: Ints
    offset: Ints


@dataclass(frozen=True)
class Sequence:
    """All nodes of a rank class, task by task.

    ops: the class's ops, followed by ops that represent several. layouts: the distinct layouts of tasks. layout, base,
    task: by row, its layout, the id of its first node, and its task; tasks that run together have a row for each of
    their parts. sources: by row, the tasks that the layout refers to, itself first; -1 for none. nodes: their number.
    merged: the rows of `ops` that each op which represents several has the sum of.
    """

    ops: Ops
    layouts: tuple[NodeLayout, ...]
    layout: Ints
    base: Ints
    sources: Ints
    nodes: int
    task: Ints
    merged: tuple[tuple[int, ...], ...] = ()

    def with_sums(self, column: Ints) -> Ints:
        """A column of the class's ops for all of `ops`: an op that represents several has their sum."""
        return _with_sums(column, self.merged)


def sequence(columns: ClassColumns, granularity: str = "op") -> Sequence:
    """Lay out every task of a class.

    granularity: `op`, or `block` for nodes that represent all compute between messages. Raises StagedbError if the
    store's order contradicts its edges.
    """
    return _Sequencer(columns, granularity == "block").run()


ITSELF, PREVIOUS_COMPUTE, PREVIOUS_COMMUNICATION = 0, 1, 2
"""References that every task has: itself, and the latest tasks before it that compute and communicate."""

THE_LAST = -1
"""A marker in place of an op: the last op among those of the reference."""


@dataclass(frozen=True)
class _Slots:
    """Possible dependencies of a variant: node `row` waits, in `field`, for `op` as it ran in reference `ref`."""

    row: Ints
    field: Ints
    ref: Ints
    op: Ints

    @classmethod
    def control(cls, row: Ints, ref: int, op: Ints) -> "_Slots":
        """Control dependencies on one reference."""
        return cls(row, np.full(len(row), CTRL_DEPS), np.full(len(row), ref), op)

    @classmethod
    def all(cls, parts: "list[_Slots]") -> "_Slots":
        """The slots of all parts, concatenated."""
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in ("row", "field", "ref", "op")))


class _Sequencer:
    """The tables for laying out tasks.

    By variant: `run_ops` are the ops that its tasks run, `rows` the nodes of its tasks as rows of `ops`, and `place`
    the node of each op of the class. There is a row for each task, or for each part of tasks that run together: `task`
    is its task. `runs_in`: equal for ops that run in the same variants.
    """

    def __init__(self, columns: ClassColumns, merge: bool) -> None:
        self.columns = columns
        ops, tasks = columns.ops, columns.tasks
        self.communicates = _communicate(ops.type)
        # Few plans have ops that run only where units are closed.
        opened = tasks.opened & (ops.when == CLOSED).any()
        keys = np.stack([tasks.kind, tasks.chunk, tasks.first, tasks.last, opened], axis=1).astype(np.int64)
        found, variant = np.unique(keys, axis=0, return_inverse=True)
        self.variant: Ints = variant.reshape(-1).astype(np.int64)
        self.run_ops = [self._rows_of(*(int(part) for part in key)) for key in found]
        self.task = np.arange(len(tasks))
        self.later_parts = np.zeros(len(found), bool)
        if columns.pairs:
            self._take_turns()
        nodes = [_blocks(ops, rows) if merge else np.arange(len(rows)) for rows in self.run_ops]
        self.place = np.full((len(self.run_ops), len(ops)), -1, np.int64)
        for index, rows in enumerate(self.run_ops):
            self.place[index, rows] = nodes[index]
        # Ops of one chunk, template and `when` run in the same tasks, but not in the same parts.
        pattern = self.place >= 0 if columns.pairs else np.zeros((1, len(ops)), bool)
        self.runs_in: Ints = np.unique(pattern, axis=1, return_inverse=True)[1].reshape(-1)
        self.merged, self.rows = _merged(ops, self.run_ops, nodes) if merge else ((), self.run_ops)
        self.ops = _with_merged(ops, self.merged)
        counts = np.array([len(rows) for rows in self.rows], np.int64)[self.variant]
        self.base: Ints = 1 + np.cumsum(counts) - counts
        types = self.ops.type
        self.last_compute = np.array([_last(types[rows] == COMPUTE) for rows in self.rows], np.int64)
        self.last_communication = np.array([_last(_communicate(types[rows])) for rows in self.rows], np.int64)
        self.nodes = int(counts.sum())

    def run(self) -> Sequence:
        tasks = len(self.task)
        layouts: list[NodeLayout] = []
        layout = np.zeros(tasks, np.int64)
        sources: list[tuple[Ints, Ints]] = []
        for variant in range(len(self.rows)):
            chosen = np.flatnonzero(self.variant == variant)
            table, slots = self._slots(variant, chosen)
            # Tasks share a layout if three things are equal: the variants of the tasks that they refer to (they decide
            # offsets), which references are one task (they decide duplicates), and the order of these tasks (it decides
            # the order of dependencies).
            same = np.array([[(row == task).argmax() for task in row] for row in table], np.int64)
            ranks = np.argsort(np.argsort(table, axis=1, kind="stable"), axis=1, kind="stable")
            key = np.concatenate([np.where(table < 0, -1, self.variant[table]), same, ranks], axis=1)
            _, first, group = np.unique(key, axis=0, return_index=True, return_inverse=True)
            for number, example in enumerate(first):
                layout[chosen[group.reshape(-1) == number]] = len(layouts)
                layouts.append(self._layout(variant, table[example], same[example], slots))
            sources.append((chosen, table))
        width = max((table.shape[1] for _, table in sources), default=1)
        all_sources = np.full((tasks, width), -1, np.int64)
        for chosen, table in sources:
            all_sources[chosen, : table.shape[1]] = table
        return Sequence(self.ops, tuple(layouts), layout, self.base, all_sources, self.nodes, self.task, self.merged)

    def _take_turns(self) -> None:
        """Replace tasks that run together by their parts, in the order of these."""
        alone, known = len(self.run_ops), dict[tuple[int, ...], list[tuple[int, int]]]()
        rows: list[tuple[int, int]] = []
        end = 0
        for begin, stop in self.columns.pairs:
            rows += [(task, int(self.variant[task])) for task in range(end, begin)]
            pair, end = tuple(self.variant[begin:stop].tolist()), stop
            if pair not in known:
                parts = interleaved(self.columns, [self.run_ops[each] for each in pair])
                first = len(self.run_ops)
                known[pair] = [(number, first + at) for at, (number, _) in enumerate(parts)]
                self.run_ops += [ops for _, ops in parts]
                _check_parts(self.columns, [self.run_ops[each] for _, each in known[pair]])
            rows += [(begin + number, variant) for number, variant in known[pair]]
        rows += [(task, int(self.variant[task])) for task in range(end, len(self.columns.tasks))]
        self.task, variant = (np.array(each, np.int64) for each in zip(*rows, strict=True))
        # Some tasks run in pairs only.
        used, self.variant = np.unique(variant, return_inverse=True)
        firsts = {parts[0][1] for parts in known.values()}
        self.later_parts = np.array([at >= alone and at not in firsts for at in used.tolist()])
        self.run_ops = [self.run_ops[at] for at in used.tolist()]

    def _rows_of(self, kind: int, chunk: int, first: int, last: int, opened: int) -> Ints:
        """The ops that a task of this variant runs, in issue order."""
        ops = self.columns.ops
        # A step runs the ops of all chunks of the stage, one chunk after the other.
        runs = ((ops.chunk == chunk) | ONCE[ops.template]) & np.isin(ops.template, RUNS[kind])
        runs &= ((ops.when != FIRST) | bool(first)) & ((ops.when != LAST) | bool(last))
        runs &= (ops.when != CLOSED) | (not opened)
        rows = np.flatnonzero(runs)
        return rows[np.lexsort((ops.order[rows], ops.chunk[rows]))].astype(np.int64)

    def _before(self, chosen: Ints, has: npt.NDArray[np.bool_]) -> Ints:
        """For each task the latest earlier task that `has` marks; -1 for none."""
        tasks = np.flatnonzero(has)
        at = np.searchsorted(tasks, chosen) - 1
        return np.where(at >= 0, tasks[at], -1) if len(tasks) else np.full(len(chosen), -1, np.int64)

    def _slots(self, variant: int, chosen: Ints) -> tuple[Ints, "_Slots"]:
        """References of the chosen tasks of a variant, and its possible dependencies."""
        edges, ops = self.columns.edges, self.columns.ops
        place = self.place[variant]
        rows = self.rows[variant]
        mine = place[edges.target] >= 0
        # The chain over all tasks replaces these edges inside one task.
        mine &= ~((edges.kind == PROGRAM) & self.communicates[edges.source] & self.communicates[edges.target])
        source, target, kind = edges.source[mine], edges.target[mine], edges.kind[mine]
        inside = place[source] >= 0
        waits = np.zeros(len(ops), bool)
        waits[target[inside & (ops.type[source] != RECV)]] = True
        run = self.run_ops[variant]
        begins = ~waits[run] & (ops.type[run] != RECV)
        if self.later_parts[variant]:
            begins &= ops.type[run] == COMPUTE
        roots = np.unique(place[run[begins]])
        apart = ~inside | (place[source] != place[target]) | (source == target)
        source, target, kind, inside = source[apart], target[apart], kind[apart], inside[apart]
        if (inside & (place[source] >= place[target])).any():
            at = int(np.flatnonzero(inside & (place[source] >= place[target]))[0])
            raise StagedbError(
                f"class {self.columns.number}: {ops.name[target[at]]} waits for {ops.name[source[at]]}, which is "
                f"issued later in the same task: the instance is broken; remove it with {call('rm')} and make it again"
            )
        field = np.where(kind == DATA, DATA_DEPS, CTRL_DEPS)
        chain = np.flatnonzero(_communicate(self.ops.type[rows]))
        table = [
            chosen,
            self._before(chosen, self.last_compute[self.variant] >= 0),
            self._before(chosen, self.last_communication[self.variant] >= 0),
        ]
        reference = np.zeros(len(source), np.int64)
        outside = np.flatnonzero(~inside)
        runs = np.stack([ops.chunk[source], ops.template[source], ops.when[source], self.runs_in[source]], axis=1)
        found, which = np.unique(runs[outside], axis=0, return_inverse=True)
        for number, (_, template, _, _) in enumerate(found):
            one = outside[which.reshape(-1) == number]
            reference[one] = len(table)
            table.append(self._source_tasks(chosen, int(source[one[0]]), int(template)))
        before = rows[chain[:-1]]
        parts = [
            _Slots(place[target], field, reference, source),
            _Slots.control(roots, PREVIOUS_COMPUTE, np.full(len(roots), THE_LAST)),
            _Slots.control(chain[:1], PREVIOUS_COMMUNICATION, np.full(len(chain[:1]), THE_LAST)),
            _Slots.control(chain[1:], ITSELF, before),
        ]
        return np.stack(table, axis=1), _Slots.all(parts)

    def _source_tasks(self, chosen: Ints, op: int, template: int) -> Ints:
        """For each chosen task, the other task in which this op ran for it.

        It is the task of the same microbatch, if the op ran there. Otherwise (the step, ops of the first microbatch
        only) it is the latest one before.
        """
        tasks = self.columns.tasks
        runs = self.place[self.variant, op] >= 0
        latest = self._before(chosen, runs)
        if ONCE[template] or ONCE_A_STEP[tasks.kind[self.task[chosen]]].any():
            return latest
        where = np.flatnonzero(runs)
        same = np.full(int(tasks.microbatch.max()) + 1, -1, np.int64)
        same[tasks.microbatch[self.task[where]]] = where
        wanted = same[tasks.microbatch[self.task[chosen]]]
        return np.where((wanted >= 0) & (wanted < chosen), wanted, latest)

    def _layout(self, variant: int, sources: Ints, same: Ints, slots: "_Slots") -> NodeLayout:
        there = sources[slots.ref] >= 0
        row, field, ref, op = slots.row[there], slots.field[there], slots.ref[there], slots.op[there]
        of = self.variant[sources[ref]]
        last = np.where(ref == PREVIOUS_COMPUTE, self.last_compute[of], self.last_communication[of])
        offset = np.where(op == THE_LAST, last, self.place[of, op])
        ref = same[ref]
        # Each id occurs once. If data and control dependencies name the same node, the data dependency is kept.
        order = np.lexsort((-field, offset, ref, row))
        row, field, ref, offset = row[order], field[order], ref[order], offset[order]
        fresh = np.ones(len(row), bool)
        fresh[1:] = (row[1:] != row[:-1]) | (ref[1:] != ref[:-1]) | (offset[1:] != offset[:-1])
        row, field, ref, offset = row[fresh], field[fresh], ref[fresh], offset[fresh]
        order = np.lexsort((self.base[sources[ref]] + offset, field, row))
        return NodeLayout(self.rows[variant], row[order], field[order], ref[order], offset[order])


def _check_parts(columns: ClassColumns, parts: list[Ints]) -> None:
    """Raise StagedbError if an op of tasks that run together comes before what it reads."""
    place = np.full(len(columns.ops), -1, np.int64)
    place[np.concatenate(parts)] = np.arange(sum(map(len, parts)))
    source, target = columns.edges.source, columns.edges.target
    both = (place[source] >= 0) & (place[target] >= 0)
    # The forward of a pair is of another micro-batch or chunk than the backward.
    forward = UPWARD[columns.ops.template]
    wrong = np.flatnonzero(both & (forward[source] == forward[target]) & (place[source] >= place[target]))
    if len(wrong):
        first, second = (columns.ops.name[int(each[wrong[0]])] for each in (source, target))
        raise StagedbError(
            f"class {columns.number}: {second} waits for {first}, which is issued later in tasks that run together: "
            f"leave {Word('overlap_experts', True)} out"
        )


def _communicate(types: Ints) -> npt.NDArray[np.bool_]:
    """Which operators are in the one chain of a rank's communication: collectives and sends, but not receives."""
    return np.isin(types, (COLLECTIVE, SEND))


def _last(chosen: npt.NDArray[np.bool_]) -> int:
    places = np.flatnonzero(chosen)
    return int(places[-1]) if len(places) else -1


def _blocks(ops: Ops, rows: Ints) -> Ints:
    """The node of each op of a task, in issue order: consecutive compute ops of one phase are one node."""
    if not len(rows):
        return rows
    phases = np.array([ops.phase[row] for row in rows])
    computes = ops.type[rows] == COMPUTE
    same = computes[1:] & computes[:-1] & (phases[1:] == phases[:-1])
    return np.concatenate([[0], np.cumsum(~same)]).astype(np.int64)


def _merged(ops: Ops, run: list[Ints], nodes: list[Ints]) -> tuple[tuple[tuple[int, ...], ...], list[Ints]]:
    """The ops of each node that represents several, and the nodes of each variant as rows of ops and of these."""
    numbers: dict[tuple[int, ...], int] = {}
    rows_of = []
    for rows, node in zip(run, nodes, strict=True):
        firsts = np.flatnonzero(np.diff(node, prepend=-1))
        ends = np.append(firsts[1:], len(rows))
        chosen = rows[firsts].copy()
        for at in np.flatnonzero(ends - firsts > 1).tolist():
            one = tuple(rows[firsts[at] : ends[at]].tolist())
            chosen[at] = len(ops) + numbers.setdefault(one, len(numbers))
        rows_of.append(chosen)
    return tuple(numbers), rows_of


def _with_sums(column: Ints, sets: tuple[tuple[int, ...], ...]) -> Ints:
    return np.concatenate([column, np.array([int(column[list(rows)].sum()) for rows in sets], np.int64)])


def _one_format(formats: list[str]) -> str:
    """The format of all FLOPs of a set of ops; empty where they have several, or no FLOPs."""
    found = {*formats} - {""}
    return found.pop() if len(found) == 1 else ""


def _with_merged(ops: Ops, sets: tuple[tuple[int, ...], ...]) -> Ops:
    """The ops, followed by one op for each set of rows, which computes the work of the whole set."""
    if not sets:
        return ops
    first = np.array([rows[0] for rows in sets], np.int64)

    def numbers(column: Ints) -> Ints:
        return np.concatenate([column, column[first]])

    def texts(column: tuple[str, ...]) -> tuple[str, ...]:
        return (*column, *(column[row] for row in first))

    return Ops(
        name=(*ops.name, *(f"{ops.name[rows[0]]} .. {ops.name[rows[-1]]}" for rows in sets)),
        chunk=numbers(ops.chunk),
        template=numbers(ops.template),
        order=numbers(ops.order),
        type=numbers(ops.type),
        when=numbers(ops.when),
        kind=(*ops.kind, *("block" for _ in sets)),
        phase=texts(ops.phase),
        axis=texts(ops.axis),
        dtype=(*ops.dtype, *(_one_format([ops.dtype[row] for row in rows]) for rows in sets)),
        flops=_with_sums(ops.flops, sets),
        bytes=_with_sums(ops.bytes, sets),
        size=numbers(ops.size),
        operand=numbers(ops.operand),
        result=numbers(ops.result),
        peer=numbers(ops.peer),
        towards=numbers(ops.towards),
        step=numbers(ops.step),
        dims=(*ops.dims, *(() for _ in sets)),
        turn=numbers(ops.turn),
        facts=(*ops.facts, *(NO_FACTS for _ in sets)),
    )


# The order in which a framework's runtime issues what a rank runs: with a message where it is posted.
#
# Most runtimes issue a message with the task that reads or makes it. PyTorch's runtime for several chunks posts
# receives, gathers of parameters and reductions of gradients apart from the tasks (`stagedb.schedules.posted`).

Apart = type[PostedGathers] | type[PostedReductions]
"""What a runtime posts apart from the tasks of a chunk."""


@dataclass(frozen=True)
class Issued:
    """The nodes of a rank in the order in which they are issued.

    node: their ids, as in traces. op: rows of the class's `Ops`. task: places in its `Tasks`.
    """

    node: Ints
    op: Ints
    task: Ints

    def __len__(self) -> int:
        return len(self.node)


def issued(plan: Plan, columns: ClassColumns, stage: int) -> Issued:
    """What a rank of a class runs on one of its stages, in the order in which it is issued.

    stage: its number in the pipeline.
    """
    nodes = sequence(columns)
    in_program = _in_tasks(nodes)
    if not plan.posts_ahead:
        return in_program
    order = _as_posted(plan, columns, stage, nodes, in_program)
    return Issued(in_program.node[order], in_program.op[order], in_program.task[order])


def _in_tasks(nodes: Sequence) -> Issued:
    rows = [nodes.layouts[layout].ops for layout in nodes.layout.tolist()]
    counts = np.array([len(each) for each in rows], np.int64)
    ids = [base + np.arange(count) for base, count in zip(nodes.base.tolist(), counts.tolist(), strict=True)]
    none = np.zeros(0, np.int64)
    return Issued(np.concatenate(ids or [none]), np.concatenate(rows or [none]), np.repeat(nodes.task, counts))


def _as_posted(plan: Plan, columns: ClassColumns, stage: int, nodes: Sequence, found: Issued) -> Ints:
    """The places of nodes in the order of the postings of a stage."""
    order = _postings(plan, stage)
    tasks = [each for each in order if isinstance(each, Task)]
    ops, apart = nodes.ops, _apart(plan, nodes.ops)
    places: dict[Posting, list[int]] = {each: [] for each in order}
    for at, (op, number) in enumerate(zip(found.op.tolist(), found.task.tolist(), strict=True)):
        task, posting = tasks[number], apart.get(op)
        if ops.type[op] == RECV and ops.axis[op] == "pp":
            places[PostedReceive(task)].append(at)
        elif posting is not None and posting(task.chunk) in places and _in_time(posting, task, tasks):
            places[posting(task.chunk)].append(at)
        else:
            places[task].append(at)
    for each in order:
        if isinstance(each, PostedGathers):
            # Gathers follow the order of their modules; those of experts come after those of their layer.
            places[each].sort(key=lambda at: _module(columns, int(found.op[at])))
    return np.array([at for each in order for at in places[each]], np.int64)


def _module(columns: ClassColumns, op: int) -> tuple[int, bool]:
    return int(columns.origins.position[op]), ".experts" in columns.ops.name[op]


def _in_time(apart: Apart, task: Task, tasks: "list[Task]") -> bool:
    """Whether it is posted apart: reductions always, gathers those of a chunk's first task."""
    first = next(each for each in tasks if each.chunk == task.chunk)
    return apart is not PostedGathers or task == first


def _apart(plan: Plan, ops: Ops) -> Mapping[int, Apart]:
    """The gathers and reductions of FSDP's units, which the runtime posts apart from tasks."""
    words: Mapping[str, Apart] = {"bucket.parameters": PostedGathers, "bucket.gradients": PostedReductions}
    if plan.options.zero < 2:
        return {}
    return {
        op: words[prefix]
        for op in np.flatnonzero(ops.type != COMPUTE).tolist()
        if (prefix := ".".join(ops.name[op].split(".")[:2])) in words and "regather" not in ops.name[op]
    }


def _postings(plan: Plan, stage: int) -> tuple[Posting, ...]:
    """The tasks of a stage and its messages where they are posted. What is posted follows from the schedule's tasks."""
    postings = posted(plan.orders(), plan.virtual_stages, plan.placement)[stage]
    run = set(plan.tasks()[stage])

    def as_run(task: Task) -> Task:
        return task if task in run else whole(task)

    def kept(each: Posting) -> Iterator[Posting]:
        if isinstance(each, PostedReceive):
            yield PostedReceive(as_run(each.task))
        elif not isinstance(each, Task):
            yield each
        elif each in run or not each.kind.sends:
            yield as_run(each)

    return tuple(one for each in postings for one in kept(each))
