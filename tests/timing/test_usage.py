"""Live bytes added up from lives equal those of a step walked through item by item."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.memory.lifetimes import Category, Life, Lives, Moment, State, TaskSelector
from stagedb.memory.usage import Point, Usage
from stagedb.schedules import stage_orders, task_positions
from stagedb.workflows import TaskKind
from stagedb.workflows.training import BACKWARD_TASK, FORWARD_TASK, STEP_TASK

FORWARD, BACKWARD, STEP = FORWARD_TASK, BACKWARD_TASK, STEP_TASK
LENGTHS = {FORWARD: 4, BACKWARD: 5, STEP: 3}


def at(kind: TaskKind, index: int, which: TaskSelector = TaskSelector.EVERY) -> Moment:
    """A moment of the only chunk."""
    return Moment(kind, index, which, 0)


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """A tensor of one of the kinds that there are: within a task, saved, made once, added up."""
    size, category = draw(st.integers(1, 100)), draw(st.sampled_from(list(Category)))
    kind = draw(st.sampled_from([FORWARD, BACKWARD]))
    begin = draw(st.integers(0, LENGTHS[kind] - 1))
    shape = draw(st.sampled_from(["within", "saved", "once", "later", "for good"]))
    if shape == "saved":
        ends: tuple[Moment, ...] = (at(BACKWARD, draw(st.integers(0, LENGTHS[BACKWARD]))),)
        return Life("x", 0, size, category, at(FORWARD, begin), ends)
    if shape == "once":
        end = at(STEP, draw(st.integers(0, LENGTHS[STEP])))
        return Life("x", None, size, category, at(kind, begin, TaskSelector.FIRST), (end,))
    if shape == "for good":
        return Life("x", None, size, category, at(kind, begin, TaskSelector.LAST), ())
    which = TaskSelector.LATER if shape == "later" else TaskSelector.EVERY
    end = at(kind, draw(st.integers(begin + 1, LENGTHS[kind])), which)
    return Life("x", 1, size, category, at(kind, begin, which), (end,))


@settings(max_examples=150, deadline=None)
@given(
    found=st.lists(lives(), min_size=1, max_size=6),
    states=st.lists(st.integers(0, 50), max_size=2),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 6),
    data=st.data(),
)
def test_levels_are_those_of_a_walk(
    found: list[Life], states: list[int], schedule: str, stages: int, microbatches: int, data: st.DataObject
) -> None:
    tasks = stage_orders(schedule, stages, microbatches)[data.draw(st.integers(0, stages - 1))]
    held = Lives(tuple(State("s", None, size, Category.PARAMETERS) for size in states), tuple(found))
    usage = Usage(held, tasks, {(kind, 0): length for kind, length in LENGTHS.items()})
    live = Counter({Category.PARAMETERS: sum(states)})
    counts = [0] * len(found)
    levels: dict[Point, Counter[Category]] = {}
    for number, (task, mark) in enumerate(zip(tasks, task_positions(tasks), strict=True)):
        for index in range(LENGTHS[task.kind] + 1):
            for at, life in enumerate(found):
                for sign, moments in ((1, (life.begin,)), (-1, life.ends)):
                    for moment in moments:
                        if (moment.kind, moment.index) == (task.kind, index) and moment.which.fits(mark):
                            counts[at] += sign
                            live[life.category] += sign * life.bytes
            levels[Point(number, index)] = live.copy()
            assert usage.at(Point(number, index)) == +live
        assert usage.after(number) == +live
        chosen = Point(number, data.draw(st.integers(0, LENGTHS[task.kind])))
        alive = sum(each.bytes for each in usage.alive(chosen))
        assert alive == levels[chosen].total()
    top = max(level.total() for level in levels.values())
    assert usage.at(usage.peak()) == +levels[usage.peak()]
    assert levels[usage.peak()].total() == top
    assert usage.peak() == next(point for point, level in levels.items() if level.total() == top)
    backward = max(level.total() for point, level in levels.items() if tasks[point.task].kind is BACKWARD)
    assert levels[usage.peak([BACKWARD])].total() == backward
