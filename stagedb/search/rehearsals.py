"""A pipeline's tasks in their order, each with the least time that it takes: a bound of the step with its bubbles.

A rank runs its tasks one after the other, and a task needs the message of its neighbour. What a task does to the clocks
of its rank is a map (`stagedb.search.transfers`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stagedb.plans import Plan
from stagedb.schedules import Order, Task, TaskPosition, task_positions
from stagedb.search.transfers import COMPUTED, NEVER, READ, STREAMS, ClockMap


class TaskSort(NamedTuple):
    """Tasks that take the same time.

    kind: name of the kind of task. chunk: its number in the pipeline. opened, last: as in
    `stagedb.schedules.TaskPosition`. stage: the rank's place in the pipeline. hop: stages from the rank that sends it a
    message; 0 without a message.
    """

    kind: str
    chunk: int
    opened: bool
    last: bool
    stage: int
    hop: int


@dataclass(frozen=True)
class TaskMap:
    """What a task does to the clocks of its rank. message: ns of the message that it waits for."""

    message: int
    transfer: ClockMap


@dataclass(frozen=True)
class TaskOrder:
    """The tasks of all stages, in an order in which each comes after those that it waits for.

    sorts: each once. sort: the index of each task's. source: the task whose message it receives, or -1. joined: whether
    it runs together with the task before it on its stage.
    """

    stages: int
    sorts: tuple[TaskSort, ...]
    sort: tuple[int, ...]
    source: tuple[int, ...]
    joined: tuple[bool, ...]

    @classmethod
    def of(cls, plan: Plan) -> "TaskOrder":
        """The order of a plan's tasks, without those that run once a step."""
        orders = [[task for task in order if not task.kind.once] for order in plan.tasks()]
        numbers = [plan.placement.chunks_of(stage, plan.pp, plan.virtual_stages) for stage in range(plan.pp)]
        sorts: dict[TaskSort, int] = {}
        stage_of: list[int] = []
        sort, source, joined = [], [], []
        for stage, task, mark, sent_by in _in_turn(orders, numbers):
            hop = 0 if sent_by < 0 else stage - stage_of[sent_by]
            one = TaskSort(task.kind.name, numbers[stage][task.chunk], mark.opened, mark.last, stage, hop)
            sort.append(sorts.setdefault(one, len(sorts)))
            source.append(sent_by)
            joined.append(task.joined)
            stage_of.append(stage)
        return cls(plan.pp, tuple(sorts), tuple(sort), tuple(source), tuple(joined))

    def ends(self, times: Sequence[TaskMap]) -> list[list[int]]:
        """The clocks of each stage after its tasks, at the earliest: COMPUTED, and those of the streams.

        times: those of each sort.
        """
        if any(self.joined):
            return self._ends_of_pairs(times)
        states = len(times[0].transfer)
        kept = [COMPUTED, *range(STREAMS, states)]
        stage, message = [each.stage for each in self.sorts], [each.message for each in times]
        # Most entries are NEVER.
        rows = [
            [[(j, int(row[j])) for j in range(states) if row[j] > NEVER // 2] for row in each.transfer]
            for each in times
        ]
        clocks = [[0 if state == COMPUTED else NEVER for state in range(states)] for _ in range(self.stages)]
        sent: list[int] = []
        for number, source in zip(self.sort, self.source, strict=True):
            clock = clocks[stage[number]]
            clock[READ] = sent[source] + message[number] if source >= 0 else NEVER
            new = [max([clock[j] + ns for j, ns in row], default=NEVER) for row in rows[number]]
            sent.append(new[READ])
            clocks[stage[number]] = new
        return [[clock[state] for state in kept] for clock in clocks]

    def _ends_of_pairs(self, times: Sequence[TaskMap]) -> list[list[int]]:
        """The clocks of `ends`, where some tasks run together: each starts with its own message, and all end when the
        time of all is over.
        """
        stage = [each.stage for each in self.sorts]
        computed, before, busy = [0] * self.stages, [0] * self.stages, [0] * self.stages
        sent: list[int] = []
        for number, source, joined in zip(self.sort, self.source, self.joined, strict=True):
            at, one = stage[number], times[number].transfer
            if not joined:
                before[at], busy[at] = computed[at], 0
            arrived = sent[source] + times[number].message if source >= 0 else NEVER
            busy[at] += int(one[COMPUTED, COMPUTED])
            computed[at] = max(
                computed[at],
                before[at] + int(one[COMPUTED, COMPUTED]),
                arrived + int(one[COMPUTED, READ]),
                before[at] + busy[at],
            )
            sent.append(max(before[at] + int(one[READ, COMPUTED]), arrived + int(one[READ, READ])))
        return [[each] for each in computed]


def _in_turn(
    orders: Sequence[Order], numbers: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Task, TaskPosition, int]]:
    """The stage, the task, its position and the place of what it receives from, each task after that one.

    numbers: by stage and chunk, the number in the pipeline. Raises ValueError for orders that cannot end.
    """
    made: dict[tuple[bool, int, int], int] = {}
    waiting: dict[tuple[bool, int, int], int] = {}
    rows = [list(zip(order, task_positions(order), strict=True)) for order in orders]
    last = max(map(max, numbers))
    done, count, ready = [0] * len(orders), 0, list(range(len(orders)))
    while ready:
        stage = ready.pop()
        row, own = rows[stage], numbers[stage]
        while done[stage] < len(row):
            task, mark = row[done[stage]]
            number, hop = own[task.chunk], task.kind.hop
            needs = (hop > 0, task.microbatch, number - hop)
            source = made.get(needs, -1) if hop else -1
            if hop and source < 0 and 0 <= number - hop <= last:
                waiting[needs] = stage
                break
            yield stage, task, mark, source
            if hop:
                key = (hop > 0, task.microbatch, number)
                made[key] = count
                if key in waiting:
                    ready.append(waiting.pop(key))
            done[stage] += 1
            count += 1
    if count < sum(map(len, rows)):
        raise ValueError("these orders of tasks never end")
