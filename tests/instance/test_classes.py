"""Rank classes: they part the stages by what these do, and their tasks feed each other as the stages' do."""

from hypothesis import given
from hypothesis import strategies as st

from stagedb.instance.classes import RankClass, StageWork, classify, feeds, work_digest
from stagedb.instance.layout import Block, IssueOrder, lay_out
from stagedb.parallel import SCHEDULES, Plan, receiver, stage_orders

schedules = st.sampled_from(sorted(SCHEDULES))


def works(schedule: str, stages: int, microbatches: int, layers: int) -> list[StageWork]:
    """The work of each stage of a model without buckets."""
    blocks = (Block("embedding", None), Block("layer", layers), Block("head", None))
    laid_out = lay_out(blocks, Plan(pp=stages).stage_layers(layers))
    orders = stage_orders(schedule, stages, microbatches)
    return [
        StageWork(stage, IssueOrder(len(stage.places), 4, 2), (), tasks)
        for stage, tasks in zip(laid_out, orders, strict=True)
    ]


def classes(schedule: str, stages: int, microbatches: int, layers: int) -> tuple[RankClass, ...]:
    """Their classes."""
    return classify(works(schedule, stages, microbatches, layers), {"values": [{}]})


@given(schedules, st.integers(1, 8), st.integers(1, 10), st.integers(0, 9))
def test_stages_share_a_class_exactly_when_they_do_the_same(name: str, p: int, m: int, more: int) -> None:
    each = works(name, p, m, p + more)
    made = classes(name, p, m, p + more)
    assert sorted(stage for one in made for stage in one.stages) == list(range(p))
    number = {stage: one.number for one in made for stage in one.stages}
    for a in range(p):
        for b in range(p):
            blocks = [[place.block for place in each[at].stage.with_cuts()] for at in (a, b)]
            ends = [(each[at].stage.has_previous, each[at].stage.has_next) for at in (a, b)]
            same = blocks[0] == blocks[1] and ends[0] == ends[1] and each[a].tasks == each[b].tasks
            assert (number[a] == number[b]) == same


@given(schedules, st.integers(1, 8), st.integers(1, 10))
def test_feeds_of_classes_are_those_of_their_stages(name: str, p: int, m: int) -> None:
    made = classes(name, p, m, p)
    number = {stage: one.number for one in made for stage in one.stages}
    orders = stage_orders(name, p, m)
    expected = set()
    for stage, order in enumerate(orders):
        for index, task in enumerate(order):
            to = receiver(task, stage, p)
            if to is not None:
                expected.add((number[stage], index, number[to[0]], orders[to[0]].index(to[1]), to[0] - stage))
    found = [(feed.source_class, feed.source, feed.target_class, feed.target, feed.hop) for feed in feeds(made)]
    assert sorted(found) == sorted(expected)


def test_the_digest_is_of_the_values_too() -> None:
    (work,) = works("1f1b", 1, 1, 1)
    assert work_digest(work, {"values": [{"B": 1}]}) == work_digest(work, {"values": [{"B": 1}]})
    assert work_digest(work, {"values": [{"B": 1}]}) != work_digest(work, {"values": [{"B": 2}]})
