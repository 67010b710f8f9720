"""Plans whose forwards and backwards run together: which are refused, with which way out, and which stay."""

from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.plans.plan import plan_for
from stagedb.schedules import pairs
from stagedb.search.advising import neighbours

EXPERTS: dict[str, Any] = {"dp": 4, "ep": 2, "overlap_experts": True, "global_batch_size": 32}
CHUNKS: dict[str, Any] = {"pp": 2, "virtual_stages": 2}
LEAVE = "leave --overlap-experts out"


@pytest.mark.parametrize(
    ("words", "reason", "ways"),
    [
        ({"ep": 1}, "with ep 1 no tokens are exchanged", f"the nearest is --ep 2, or {LEAVE}"),
        ({"pp": 2}, "1f1b warms up too little with pp 2", f"--schedule interleaved --virtual-stages 2, or {LEAVE}"),
        (
            {"pp": 2, "schedule": "zb-h1"},
            "schedule zb-h1 has no pairs",
            f"take --schedule interleaved --virtual-stages 2, or {LEAVE}",
        ),
        (
            {"pp": 3, "schedule": "gpipe", "global_batch_size": 4},
            "schedule gpipe has no pairs",
            f"--schedule interleaved --virtual-stages 2 --global-batch-size 24, or {LEAVE}",
        ),
        ({"schedule": "gpipe"}, "schedule gpipe has no pairs", f"take --schedule 1f1b without chunks, or {LEAVE}"),
        (
            {"schedule": "explicit", "task_order": ["F0 F1 B0 B1"], "global_batch_size": 8},
            "an order of tasks of one's own has no pairs",
            LEAVE,
        ),
        (
            {"global_batch_size": 4},
            "with 1 micro-batches all forwards",
            f"take --global-batch-size 8, or {LEAVE}",
        ),
        ({"zero": 3}, "each half of a pair gathers the parameters", f"take --zero 1, or {LEAVE}"),
        ({"zero": 2}, "each half of a pair gathers the parameters", f"take --zero 1, or {LEAVE}"),
        ({"zero": 3, **CHUNKS}, "each half of a pair gathers the parameters", f"take --zero 2, or {LEAVE}"),
    ],
)
def test_what_cannot_run_together_is_refused_with_a_way_out(words: dict[str, Any], reason: str, ways: str) -> None:
    with pytest.raises(UsageError) as refused:
        Plan.from_mapping({**EXPERTS, **words})
    assert reason in str(refused.value)
    assert str(refused.value).endswith(ways)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"zero": 1},
        {**CHUNKS, "zero": 2},
        {**CHUNKS, "schedule": "dualpipev", "zero": 3},
        {"pp": 4, "virtual_stages": 3, "global_batch_size": 48, "recipe": "megatron"},
        {"recompute": "full"},
    ],
)
def test_other_plans_have_pairs_and_return_from_their_words(words: dict[str, Any]) -> None:
    plan = Plan.from_mapping({**EXPERTS, **words})
    assert all(list(pairs(order)) for order in plan.tasks())
    assert Plan.from_mapping(plan.to_dict()).tasks() == plan.tasks()
    without = plan.changed({"overlap_experts": False})
    assert plan.digest != without.digest
    assert without.to_dict()["overlap_experts"] is False
    assert not any(list(pairs(order)) for order in without.tasks())


def test_a_model_without_experts_has_nothing_to_exchange() -> None:
    sizes = {"L": 8, "A": 4, "KV": 4, "F": 64, "H": 16, "V": 512}
    with pytest.raises(UsageError, match="are for a model with experts, and this one has none: leave --ep"):
        plan_for(EXPERTS, sizes)


def test_pairs_are_tried_where_the_schedule_has_them() -> None:
    plan = Plan.from_mapping({**EXPERTS, **CHUNKS})
    without = plan.changed({"overlap_experts": False})
    assert {"overlap_experts": True} in neighbours(without, {"E": 8})
    assert {"overlap_experts": None} in neighbours(plan, {"E": 8})
    for change in ({"ep": 1}, {"virtual_stages": 1, "schedule": "zb-h1"}):
        assert {"overlap_experts": True} not in neighbours(without.changed(change), {"E": 8})
