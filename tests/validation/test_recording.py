"""The generator of records: configurations are drawn by seed over products; a step becomes a record that is read."""

import json
import random
from itertools import islice, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts._record import main
from scripts.recording.configurations import DEFAULTS, Config, completed, drawn, drawn_orders, world
from scripts.recording.record_format import row
from scripts.recording.steps import Held, Sent, Step, Work, run_length
from stagedb.plans import Plan
from stagedb.validation import CountedMessage, read_records
from stagedb.validation.op_order import expand
from stagedb.validation.records import card_of, plan_words

MANY = list(drawn(7, 600))
NAMED = {"izb": "interleaved-zb", "zbv": "zb-v"}


def test_a_seed_gives_the_same_configurations_and_a_longer_list_begins_with_a_shorter() -> None:
    assert list(drawn(7, 5)) == MANY[:5]
    assert list(drawn(8, 5)) != MANY[:5]


def test_what_is_drawn_fits() -> None:
    for config in MANY:
        rows = config["seq"] // config["cp"]
        assert config["heads"] % config["kv_heads"] == 0
        assert config["kv_heads"] % config["tp"] == 0
        assert config["seq"] % (2 * config["cp"]) == 0
        assert rows % config["tp"] == 0
        assert config["rank"] < world(config)
        assert config["layers"] >= config["pp"] * config["virtual"]
        if config["experts"]:
            assert config["experts"] % config["ep"] == 0
            assert config["topk"] <= config["experts"]


def test_drawn_orders_run_each_task_once_and_differ() -> None:
    """That they end is shown by the plan that reads them."""
    found = drawn_orders([0, 1, 1, 0], 3, {1, 3}, random.Random(1))
    halves = {f"{kind}{turn}{chunk}" for kind in "IW" for turn in range(3) for chunk in (".1", "")}
    first = {word for word in found[0].split() if word[0] in "IW"}
    second = {word for word in found[1].split() if word[0] in "IW"}
    assert first == {word for word in halves if word.endswith(".1")}
    assert second == halves - first
    assert all(len(order.split()) == len(set(order.split())) == 3 * (2 + 3) for order in found)
    assert found != drawn_orders([0, 1, 1, 0], 3, {1, 3}, random.Random(2))
    plan = {"pp": 2, "global_batch_size": 3, "schedule": "explicit", "task_order": found, "chunk_placement": "v"}
    assert Plan.from_mapping(plan).virtual_stages == 2


def test_tokens_are_dealt_to_experts_evenly() -> None:
    routed = [config for config in MANY if config["experts"]]
    assert routed
    for config in routed:
        assert config["batch"] * config["seq"] // config["cp"] * config["topk"] % config["experts"] == 0, config[
            "label"
        ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"pp": (2, 3, 4)}, {"reshard": (True, False), "dp_kind": ("fsdp",)}),
        ({"tp": (2, 3, 4)}, {"sp": (True, False), "mixed": ("none", "fp32master")}),
        ({"cp_impl": ("allgather-kv", "ring-allgather", "ring-alltoall")}, {"recompute": ("none", "full", "sac")}),
        ({"pp_schedule": ("1f1b", "gpipe", "interleaved", "bfs", "izb", "orders")}, {"style": ("llama", "gpt", "moe")}),
        ({"pp_schedule": ("interleaved", "bfs", "orders")}, {"virtual": (2, 3), "dp_kind": ("none", "fsdp")}),
        ({"reduce_bf16": (True, False)}, {"mixed": ("fp32master",)}),
        ({"cp": (2, 3, 4)}, {"tp": (1, 2)}),
        ({"accumulate": ("last", "every")}, {"dp_kind": ("fsdp", "ddp")}),
        ({"tied": (True,)}, {"dp_kind": ("none", "fsdp", "ddp")}),
        ({"ep": (2, 4)}, {"ep_sync": (True, False)}),
    ],
)
def test_products_are_drawn(one: dict[str, tuple[object, ...]], other: dict[str, tuple[object, ...]]) -> None:
    fields = {**one, **other}
    found = {tuple(config[field] for field in fields) for config in MANY}
    assert set(product(*fields.values())) <= found


def test_stagedb_reads_what_is_drawn() -> None:
    for config in MANY:
        words = plan_words(config)
        if config["pp_schedule"] in NAMED:
            # The recorder has their orders from torch.
            words |= {"schedule": NAMED[config["pp_schedule"]], "virtual_stages": config["virtual"], "task_order": []}
        card = card_of(config)
        assert card.layers == config["layers"]
        assert Plan.from_mapping(words).world == world(config), config["label"]


@given(st.lists(st.sampled_from("ab"), max_size=60))
def test_an_order_is_coded_without_loss(words: list[str]) -> None:
    assert expand(run_length(words)) == words


def test_repetitions_are_coded_once() -> None:
    assert run_length(["m0", "c1", "c1", *["m2", "c3"] * 5]) == "m0 (c1)x2 (m2 c3)x5"


def small() -> tuple[Config, Step]:
    """A step with one matmul, one message, a weight, a saved tensor, and a temporary at the peak."""
    config = completed(DEFAULTS | {"tp": 2})
    weight = Held(100, "forward", "param")
    saved, temporary = Held(40, "forward"), Held(30, "backward")
    step = Step(start={weight: 100})
    step.events += [
        Work("forward", "mm", (4, 5, 6), 240, 0),
        Sent("backward", "all_reduce", "tp", 2, "bfloat16", 40, 40),
    ]
    step.changes += [(saved, 40)]
    step.mark("forward_end")
    step.changes += [(temporary, 30), (saved, 0), (temporary, 0)]
    step.mark("backward_end")
    step.mark("optimizer_end")
    return config, step


def test_a_step_becomes_a_record_that_is_read(tmp_path: Path) -> None:
    config, step = small()
    about = {"params": {"local_bytes": 100}}
    found = row(config, step, about, {"total": 40, "one_layer": 40})
    assert found["memory"]["peak"] == 170
    assert found["memory"]["peak_during"] == "backward"
    assert found["memory"]["peak_breakdown"] == {"activation": 40, "backward_temporary": 30, "param": 100}
    assert found["memory"]["at"]["forward_end"]["breakdown"] == {"activation": 40, "param": 100}
    file = tmp_path / "records.json"
    file.write_text(json.dumps([found]), encoding="utf-8")
    (record,) = read_records(file)
    assert record.counts.flops == {("forward", "matmul"): 240}
    assert record.counts.messages == {CountedMessage("backward", "all_reduce", "tp", "bf16", 40, 40): 1}
    assert record.events is not None
    assert [event[0] for event in record.events] == ["matmul", "backward"]
    assert record.memory is not None
    assert (record.memory.peak, record.memory.saved, record.memory.recorder) == (170, 40, 0)


def test_a_seed_or_a_file_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "exactly one of --seed and --config" in capsys.readouterr().err


def test_labels_show_what_is_special() -> None:
    labels = [config["label"] for config in islice(drawn(7, 40), 40)]
    assert len(set(labels)) == len(labels)
    assert any("tp=" in label for label in labels)
