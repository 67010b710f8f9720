"""Rank classes: they part the stages by what these do, and their tasks feed each other as the stages' do."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.lowering.rank_classes import ChunkWork, RankClass, StageWork, classify, feeds, work_digest
from stagedb.lowering.stage_blocks import Block, IssueOrder, lay_out
from stagedb.schedules import SCHEDULES, ChunkPlacement, ChunkRoute, Task, placement_of, receiver, stage_orders

Schedule = tuple[str, int, int, int]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A name, stages, micro-batches and chunks that go together."""
    name, p = draw(st.sampled_from(sorted(SCHEDULES))), draw(st.integers(1, 8))
    if SCHEDULES[name].several_chunks:
        m = p * draw(st.integers(1, 2).filter(lambda times: not SCHEDULES[name].misfit(max(p, 2), times * max(p, 2))))
        return name, p, m, SCHEDULES[name].chunks or draw(st.integers(2, 3))
    return name, p, draw(st.integers(1, 10)), 1


def works(schedule: Schedule, layers: list[int]) -> list[StageWork]:
    """The work of each stage of a model without buckets; layers by number in the pipeline."""
    name, p, m, v = schedule
    blocks = (Block("embedding", None), Block("layer", sum(layers)), Block("head", None))
    placement = placement_of(name)
    numbers = lay_out(blocks, layers, chunks=v, placement=placement)
    chunks = [
        ChunkWork(each, IssueOrder(len(each.places), 4, 2), (), *ways(placement, at, p, v))
        for at, each in enumerate(numbers)
    ]
    return [
        StageWork(at, tuple(chunks[number] for number in placement.chunks_of(at, p, v)), order)
        for at, order in enumerate(stage_orders(name, p, m, v))
    ]


def ways(placement: ChunkPlacement, number: int, p: int, v: int) -> list[ChunkRoute | None]:
    """The ways from a number to the one before and the one after."""
    return [placement.route(number, towards, p) if 0 <= number + towards < p * v else None for towards in (-1, 1)]


def classes(schedule: Schedule, layers: list[int]) -> tuple[RankClass, ...]:
    """Their classes."""
    return classify(works(schedule, layers), {"values": [{}]})


def content(work: StageWork) -> list[object]:
    """What a stage does, without a digest."""
    chunks = [[place.block for place in chunk.stage.with_cuts()] for chunk in work.chunks]
    beyond = [[None if way is None else _way(way) for way in (chunk.before, chunk.after)] for chunk in work.chunks]
    return [chunks, beyond, work.tasks]


def _way(way: ChunkRoute) -> tuple[int, int]:
    """The direction of a way, and its step. Around the ends of a loop it leads to another chunk."""
    return (0 if way.step and way.hop else way.hop, way.step)


@settings(deadline=None)
@given(schedules(), st.data())
def test_stages_share_a_class_exactly_when_they_do_the_same(schedule: Schedule, data: st.DataObject) -> None:
    _, p, _, v = schedule
    layers = data.draw(st.lists(st.integers(1, 2), min_size=p * v, max_size=p * v))
    each, made = works(schedule, layers), classes(schedule, layers)
    assert sorted(stage for one in made for stage in one.stages) == list(range(p))
    number = {stage: one.number for one in made for stage in one.stages}
    for a in range(p):
        for b in range(p):
            assert (number[a] == number[b]) == (content(each[a]) == content(each[b]))
    # Every layer of the model is on one chunk of one stage, under the number that its class gives it.
    found = [
        one.first_layers[at * v + chunk] + place.layer
        for one in made
        for at in range(len(one.stages))
        for chunk, work in enumerate(one.work.chunks)
        for place in work.stage.places
        if place.layer is not None
    ]
    assert sorted(found) == list(range(sum(layers)))


@settings(deadline=None)
@given(schedules())
def test_feeds_of_classes_are_those_of_their_stages(schedule: Schedule) -> None:
    name, p, m, v = schedule
    made = classes(schedule, [1] * p * v)
    number = {stage: one.number for one in made for stage in one.stages}
    orders: tuple[tuple[Task, ...], ...] = stage_orders(name, p, m, v)
    expected = set()
    for stage, order in enumerate(orders):
        for index, task in enumerate(order):
            to = receiver(task, stage, p, v, placement_of(name))
            if to is not None:
                expected.add((number[stage], index, number[to[0]], orders[to[0]].index(to[1]), to[0] - stage))
    found = [
        (feed.source_class, feed.source, feed.target_class, feed.target, feed.hop)
        for feed in feeds(made, placement_of(name))
    ]
    assert sorted(found) == sorted(expected)


def test_the_digest_is_of_the_values_too() -> None:
    (work,) = works(("1f1b", 1, 1, 1), [1])
    assert work_digest(work, {"values": [{"B": 1}]}) == work_digest(work, {"values": [{"B": 1}]})
    assert work_digest(work, {"values": [{"B": 1}]}) != work_digest(work, {"values": [{"B": 2}]})
