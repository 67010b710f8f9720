"""The order in which a framework's runtime issues what a rank runs: with a message where it is posted.

Most runtimes issue a message with the task that reads or makes it. PyTorch's runtime for several chunks posts receives,
gathers of parameters and reductions of gradients apart from the tasks (`stagedb.schedules.posted`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stagedb.plans import Plan
from stagedb.schedules import PostedGathers, PostedReceive, PostedReductions, Posting, Task, posted, whole
from stagedb.workload.instance_columns import COMPUTE, RECV, ClassColumns, Ints, Ops
from stagedb.workload.issue_order import Sequence, sequence

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
