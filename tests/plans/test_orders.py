"""Orders of tasks as text and from files; what of plans and schedules is refused, and with which advice."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.lowering.preparing import with_all_words
from stagedb.plans import Plan
from stagedb.plans.order_files import read_schedule_file
from stagedb.schedules import SCHEDULES, order_text, parse_order, splits, stage_orders

ONE_FORWARD = ("F0 F1 B0 B1", "F0 B0 F1 B1")
DEADLOCK = """
stages:
  - F0 B0 F1 B1
  - F1 F0 B0 B1
"""


@settings(deadline=None)
@given(st.sampled_from([*SCHEDULES]), st.integers(2, 5), st.integers(1, 3))
def test_text_has_the_whole_order(name: str, p: int, groups: int) -> None:
    for order in stage_orders(name, p, groups * p, 2):
        assert parse_order(order_text(order), "here") == order


def words(path: Path, **more: Any) -> dict[str, Any]:
    return {"pp": 2, "global_batch_size": 2, "schedule": str(path), **more}


def test_a_file_is_the_order_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "order.yaml"
    path.write_text("stages:\n- F0 F1 B0 B1\n- [F0, B0, F1, B1]\n")
    plan = Plan.from_mapping(words(path))
    assert plan.orders() == stage_orders("1f1b", 2, 2)
    again = tmp_path / "order.json"
    again.write_text('{"stages": [["F0", "F1", "B0", "B1"], "F0  B0 F1 B1"]}')
    assert Plan.from_mapping(words(again)) == plan
    # The plan has the content of the file, so it does not change with the file.
    path.write_text("stages: []")
    assert Plan.from_mapping(plan.to_dict()) == plan
    other = tmp_path / "other.yaml"
    other.write_text("stages: [F0 F1 B1 B0, F0 F1 B1 B0]")
    assert Plan.from_mapping(words(other)).digest != plan.digest


def test_chunks_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "order.yml"
    path.write_text("stages: [F0 F0.1 B0.1 B0, F0 F0.1 B0.1 B0]")
    assert Plan.from_mapping(words(path, global_batch_size=1)).virtual_stages == 2
    with pytest.raises(
        UsageError, match="has 2 chunks a stage, the plan has virtual_stages 3: take --virtual-stages 2"
    ):
        Plan.from_mapping(words(path, global_batch_size=1, virtual_stages=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEADLOCK, "never ends: stage 0 waits to run backward of micro-batch 0; stage 1 waits to run forward of micro"),
        ("stages:\n- F0 F1 B0 B1\n- F0 X0 F1 B1", r"line 3, stages\[1\]: 'X0' is no task"),
        ("stages:\n- F0 F1 B0 B1\n- [F0, B0,\n   [F1], B1]", r"line 4, stages\[1\]: an order is a text or a list"),
        ("# orders\nstage: 3", "line 2: 'stage' is unknown or appears twice; the keys are stages and chunk_placement"),
        ("stages: 3", "line 1: stages must be a list of orders"),
        ("- F0", "line 1: a schedule is `stages:`"),
        ("", "line 1: a schedule is `stages:`"),
        ("{}", "line 1: the key 'stages' is missing"),
        ("stages: [F0", "the schedule .*, line 2: not YAML"),
        ("stages: !!python/object/apply:os.system ['true']", "the tag .* is not read"),
        ("stages: [F0 F1 B0 B1]", "orders of 1 stages, the plan has pp 2: take --pp 1"),
        ("stages: [F0 F1 B0 B1, F0 B0 F1]", "stage 1 does not run B1"),
        ("stages: [F0 F1 B0 B1, F0 B0 F1 B1 F1]", "stage 1 runs F1 twice"),
        ("stages: [F0 F1 F2 B0 B1 B2, F0 B0 F1 B1]", "stage 0 runs F2: this plan has micro-batches 0 to 1"),
        ("stages: [F0 F1 B0 B1, F0 I0 W0 F1 B1]", "stage 1 does not run I1"),
        ("stages: [F0 F1 I0 I1 W0 W1, F0 W0 I0 F1 I1 W1]", "stage 1 waits to run weight_gradient of micro-batch 0"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "order.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        Plan.from_mapping(words(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the schedule .*none\.yaml"):
        read_schedule_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"schedule": "zb-h1"}, "pp 1 has no bubble to fill: take --pp 2, or --schedule 1f1b"),
        ({"virtual_stages": 2}, "nothing: take --pp 2 --global-batch-size 2, or leave --virtual-stages out"),
        ({"schedule": "interleaved", "pp": 2}, "take --virtual-stages 2 --global-batch-size 2, or --schedule 1f1b"),
        (
            {"schedule": "gpipe", "pp": 2, "virtual_stages": 2},
            "take --schedule interleaved --global-batch-size 2, or leave --virtual-stages",
        ),
        ({"schedule": "zb-h1", "pp": 2, "virtual_stages": 2}, "zb-h1 has one chunk a stage"),
        ({"pp": 4, "virtual_stages": 2}, "groups of pp 4, .* plan's 1: the nearest is --global-batch-size 4"),
        (
            {"pp": 4, "virtual_stages": 2, "dp": 2, "global_batch_size": 20},
            "plan's 10: the nearest is --global-batch-size 16 or --global-batch-size 24",
        ),
        (
            {"schedule": "breadth-first", "pp": 2},
            "breadth-first needs several chunks a stage: take --virtual-stages 2, or --schedule 1f1b",
        ),
        (
            {"schedule": "breadth-first", "virtual_stages": 2},
            "2 with pp 1 has no bubble to shrink: take --pp 2, or leave --virtual-stages and --schedule out",
        ),
        ({"schedule": "explicit"}, "needs an order of tasks"),
        ({"task_order": ONE_FORWARD}, "task_order goes with --schedule explicit"),
        (
            {"schedule": "zero"},
            "unknown schedule 'zero': --schedule is one of gpipe, 1f1b, interleaved, zb-h1,",
        ),
    ],
)
def test_a_schedule_that_does_not_suit_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Plan.from_mapping(words)


V_ORDERS = "F0 F0.1 B0.1 B0, F0 F0.1 B0.1 B0"


def test_a_file_places_its_chunks(tmp_path: Path) -> None:
    path = tmp_path / "order.yaml"
    found = []
    for placement in ("v", "[0, 1, 1, 0]", '"0,1,1,0"'):
        path.write_text(f"chunk_placement: {placement}\nstages: [{V_ORDERS}]")
        found.append(Plan.from_mapping(words(path, global_batch_size=1)))
    assert {plan.chunk_placement for plan in found} == {"v"}
    assert len({plan.digest for plan in found}) == 1
    assert Plan.from_mapping(found[0].to_dict()) == found[0]
    with pytest.raises(UsageError, match="places its chunks twice"):
        Plan.from_mapping(words(path, global_batch_size=1, chunk_placement="v"))
    path.write_text(f"stages: [{V_ORDERS}]")
    assert Plan.from_mapping(words(path, global_batch_size=1)).chunk_placement is None
    assert Plan.from_mapping(words(path, global_batch_size=1, chunk_placement=[0, 1, 1, 0])) == found[0]


TWICE = {"pp": 2, "virtual_stages": 2, "global_batch_size": 4, "schedule": "breadth-first"}


@pytest.mark.parametrize(("given", "kept"), [("loop", None), ("0,1,0,1", None), ("v", "v"), ("0, 1,1,0", "v")])
def test_a_placement_has_one_form(given: str, kept: str | None) -> None:
    plan = Plan.from_mapping({**TWICE, "chunk_placement": given})
    assert plan.chunk_placement == kept
    assert (plan.digest == Plan.from_mapping(TWICE).digest) == (kept is None)
    assert plan.chunk_layers(8) == (2, 2, 2, 2)


def test_layers_of_a_stage_follow_its_chunks() -> None:
    plan = Plan.from_mapping({**TWICE, "chunk_placement": "v", "layers_per_stage": (6, 2)})
    assert plan.chunk_layers(8) == (3, 1, 1, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"chunk_placement": "w"}, "unknown chunk_placement 'w': --chunk-placement is loop or v, or the stage of each"),
        ({"chunk_placement": "0,1,1"}, "has 1 chunks of stage 0: --chunk-placement has each of the stages 0 to 1"),
        ({"chunk_placement": "0,1,1,0,2"}, "has 5 chunks: --chunk-placement has each"),
        (
            {"chunk_placement": "0,2,1,3,0,1,2,3", "pp": 4},
            "has chunk 0 on stage 0 and the next one on stage 2: a stage",
        ),
        ({"schedule": "interleaved", "chunk_placement": "v"}, "this schedule never ends: stage 0 waits"),
        (
            {"schedule": "zb-v", "chunk_placement": "loop"},
            "zb-v has a placement of its own, .*: leave --chunk-placement",
        ),
        ({"schedule": "zb-v", "virtual_stages": 3}, "zb-v has 2 chunks a stage, .*: take --virtual-stages 2, or"),
        ({"schedule": "zb-v", "virtual_stages": 1}, "zb-v needs several chunks a stage: take --virtual-stages 2, or"),
        ({"schedule": "zb-v", "pp": 1}, "zb-v with pp 1 has no bubble to fill: take --pp 2, or"),
        ({"schedule": "zb-v", "pp": 1, "virtual_stages": None}, "take --pp 2, or --schedule 1f1b$"),
        (
            {"schedule": "interleaved-zb", "global_batch_size": 5},
            "in 2 equal rounds, which do not divide the plan's 5: the nearest is --global-batch-size 4",
        ),
    ],
)
def test_a_placement_that_does_not_suit_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Plan.from_mapping({**TWICE, **words})


@pytest.mark.parametrize("name", sorted(name for name, each in SCHEDULES.items() if each.chunks is not None))
def test_a_schedule_with_one_number_of_chunks_implies_it(name: str) -> None:
    words = {"pp": 2, "schedule": name, "global_batch_size": 8}
    alone = Plan.from_mapping(words)
    assert alone.virtual_stages == SCHEDULES[name].chunks == 2
    assert alone.digest == Plan.from_mapping({**words, "virtual_stages": 2}).digest
    assert alone.changed({"schedule": "1f1b", "virtual_stages": None}).virtual_stages == 1


def test_one_interleaved_plan_in_two_ways() -> None:
    words = {"pp": 2, "virtual_stages": 3, "global_batch_size": 4}
    assert Plan.from_mapping(words).digest == Plan.from_mapping({**words, "schedule": "interleaved"}).digest


def test_layers_of_chunks() -> None:
    plan = Plan(pp=2, virtual_stages=2, global_batch_size=2)
    assert plan.chunk_layers(8) == (2, 2, 2, 2)
    uneven = Plan(pp=2, virtual_stages=2, global_batch_size=2, layers_per_stage=(4, 2))
    assert uneven.chunk_layers(6) == (2, 1, 2, 1)
    with pytest.raises(
        UsageError,
        match=r"4 virtual stages do not divide .* \(6\): the nearest is --virtual-stages 3 or --virtual-stages 6",
    ):
        Plan(pp=2, virtual_stages=4, global_batch_size=2).chunk_layers(12)
    with pytest.raises(
        UsageError,
        match=r"\(4,3\): the nearest is --virtual-stages 1 --schedule 1f1b, or --counted-ends loss, or "
        "--layers-per-chunk "
        "2,2,2,1; other numbers need another --pp",
    ):
        plan.chunk_layers(7)


@pytest.mark.parametrize(
    ("words", "layers", "first", "last"),
    [
        # NVIDIA's Llama 3.1 405B: 126 layers over 64 chunks.
        ({"pp": 8, "virtual_stages": 8}, 126, (1, 2), (2, 1)),
        # Llama 3 (arXiv 2407.21783, section 3.3.2): the first chunk has only the embedding, the last only the head.
        ({"pp": 16, "virtual_stages": 8}, 126, (0, 1), (1, 0)),
        # Qwen3 235B: 94 layers over 32 chunks.
        ({"pp": 8, "virtual_stages": 4}, 94, (2, 3), (3, 2)),
        ({"pp": 8}, 62, (7, 8), (8, 7)),
    ],
)
def test_ends_that_count_as_layers(
    words: dict[str, int], layers: int, first: tuple[int, int], last: tuple[int, int]
) -> None:
    plan = Plan.from_mapping({**words, "global_batch_size": 16, "counted_ends": "both"})
    split = plan.chunk_layers(layers)
    assert (split[:2], split[-2:], sum(split)) == (first, last, layers)
    assert sum(plan.stage_layers(layers)) == layers
    written = with_all_words(plan, {"L": layers})
    assert written.chunk_layers(layers) == split
    assert (written.counted_ends, written.stage_layers(layers)) == ("none", plan.stage_layers(layers))
    given = Plan.from_mapping({**words, "global_batch_size": 16, "layers_per_chunk": list(split)})
    assert with_all_words(given, {"L": layers}) == written


def test_an_even_split_in_other_words_is_the_same_plan() -> None:
    words = {"pp": 2, "virtual_stages": 2, "global_batch_size": 2}
    given = Plan.from_mapping({**words, "layers_per_chunk": [2, 2, 2, 2]})
    assert with_all_words(given, {"L": 8}) == with_all_words(Plan.from_mapping(words), {"L": 8})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"layers_per_chunk": [2, 2, 4]}, "has 3 chunks, --pp 2 with --virtual-stages 2 has 4: they must agree"),
        ({"layers_per_chunk": [2, 0, 4, 2]}, "has chunk 1 with 0 layers: each needs at least 1, the first one"),
        ({"layers_per_chunk": [-1, 3, 4, 2]}, "has chunk 0 with -1 layers"),
        ({"layers_per_chunk": [2, 2, 2, 1]}, "has 7 layers, the model has 8; an even split is 2,2,2,2"),
        (
            {"layers_per_chunk": [2, 2, 2, 2], "layers_per_stage": [5, 3]},
            "gives the stages 4,4 layers, --layers-per-stage 5,3: leave --layers-per-stage out",
        ),
        (
            {"counted_ends": "both", "layers_per_stage": [5, 3]},
            "is for an even split, and --layers-per-stage gives the split: leave --counted-ends out, or leave --layers",
        ),
        ({"counted_ends": "both"}, r"layers of each stage \(5\): the nearest is --virtual-stages 1 --schedule 1f1b"),
        ({"counted_ends": "head"}, "unknown counted_ends 'head': --counted-ends is none, embedding, loss or both"),
    ],
)
def test_refusals_of_splits(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Plan.from_mapping({"pp": 2, "virtual_stages": 2, "global_batch_size": 2, **words}).chunk_layers(8)


@pytest.mark.parametrize(
    "words",
    [
        {"schedule": "zb-h1"},
        {"schedule": "zb-v", "virtual_stages": 2},
        {"schedule": "dualpipev", "virtual_stages": 2},
        {"schedule": "interleaved-zb", "virtual_stages": 2},
        {"schedule": "explicit", "task_order": ("F0 F1 I0 W0 I1 W1", "F0 I0 W0 F1 I1 W1")},
    ],
)
def test_split_backwards_that_recompute_are_those_of_megatron(words: dict[str, Any]) -> None:
    """torch differentiates each group of weights on its own: a checkpoint runs for each of them, or raises an error."""
    words = {"pp": 2, "global_batch_size": 4 if "task_order" not in words else 2, **words}
    assert Plan.from_mapping(words).options.recompute == "none"
    for what in ("full", "pointwise"):
        with pytest.raises(UsageError, match=r"splits the backward.*--recompute none.*--schedule 1f1b"):
            Plan.from_mapping({**words, "recompute": what})
        assert Plan.from_mapping({**words, "recompute": what, "recipe": "megatron"}).options.recompute == what
    assert Plan.from_mapping({"pp": 2, "global_batch_size": 4, "recompute": "full"}).options.recompute == "full"


@pytest.mark.parametrize(
    ("orders", "placement", "runs"),
    [
        # The first chunk of the pipeline, which torch runs whole; then the second, which it splits.
        (("F0 F1 I0 W0 I1 W1", "F0 B0 F1 B1"), "loop", True),
        (("F0 F1 B0 B1", "F0 I0 W0 F1 I1 W1"), "loop", False),
        (("F0 F1 F0.1 B0.1 I0 W0 F1.1 B1.1 I1 W1", "F0 F0.1 B0.1 B0 F1 F1.1 B1.1 B1"), "v", True),
        (("F0 F1 F0.1 I0.1 W0.1 B0 F1.1 I1.1 W1.1 B1", "F0 F0.1 B0.1 B0 F1 F1.1 B1.1 B1"), "v", False),
    ],
)
def test_a_split_that_torch_runs_whole_may_recompute(orders: tuple[str, ...], placement: str, runs: bool) -> None:
    words = {"pp": 2, "global_batch_size": 2, "schedule": "explicit", "task_order": orders, "recompute": "full"}
    words |= {"chunk_placement": placement}
    if runs:
        plan = Plan.from_mapping(words)
        assert not any(map(splits, plan.tasks()))
    else:
        with pytest.raises(UsageError, match=r"splits the backward.*--recompute none"):
            Plan.from_mapping(words)
