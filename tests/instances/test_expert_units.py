"""Where units of experts are gathered and reduced, in the order that torchtitan's prefetch sets for FSDP2's hooks."""

import dataclasses
import re

import pytest

from stagedb.errors import UsageError
from stagedb.lowering import program_of
from stagedb.lowering.columns import TEMPLATES, ClassColumns
from stagedb.models.card import Card
from stagedb.plans import Plan
from tests.ir.tiny import card


def classes(model: Card, **words: object) -> tuple[ClassColumns, ...]:
    plan = Plan.from_mapping({"seq_len": 8, "zero": 3, "expert_unit": True, **words})
    return tuple(program_of(model, plan).workload.classes)


def order(columns: ClassColumns, *templates: str) -> list[str]:
    """The buckets and exchanges of a chunk: `dense 1` is what is outside the experts of the layer at position 1."""
    ops = columns.ops
    rows = [row for row in range(len(ops)) if TEMPLATES[int(ops.template[row])] in templates]
    found = []
    for row in sorted(rows, key=lambda row: int(ops.order[row])):
        name, place = ops.name[row], int(columns.origins.position[row])
        if ".all_to_all." in name:
            found.append(f"exchange {place}")
        elif (bucket := re.match(r"bucket\.\w+\.(\w+)[.\w]*?\.(dense|experts)(\.again)?", name)) is not None:
            number, whole = name.rpartition(".")[2], int(ops.result[row])
            verb = {"gather": "", "regather": "", "scatter": "reduce "}[bucket[1]]
            assert whole and number.isdigit()
            found.append(f"{verb}{bucket[2]} {place}{' again' if bucket[3] else ''}")
    return found


BACKWARD = ("input_gradient", "weight_gradient")


def test_the_next_layers_units_are_gathered_where_a_layer_begins() -> None:
    """The embedding has position 0, layers those from 1 to 3; the model's own unit is at 0 as well."""
    (columns,) = classes(card("moe", layers=3), dp=4, ep=2)
    assert order(columns, "forward") == [
        *("dense 0", "dense 1", "dense 2", "experts 2", "experts 1", "exchange 1", "exchange 1"),
        *("dense 3", "experts 3", "exchange 2", "exchange 2", "exchange 3", "exchange 3"),
    ]
    assert order(columns, *BACKWARD) == [
        *("dense 3", "dense 2", "experts 2", "experts 3"),
        *("exchange 3", "exchange 3", "reduce experts 3", "reduce dense 3", "dense 1", "experts 1"),
        *("exchange 2", "exchange 2", "reduce experts 2", "reduce dense 2"),
        *("exchange 1", "exchange 1", "reduce experts 1", "reduce dense 1", "reduce dense 0"),
    ]


def test_experts_that_are_computed_again_are_gathered_there() -> None:
    (columns,) = classes(card("moe", layers=3), dp=4, ep=2, recompute="full")
    backward = order(columns, *BACKWARD)
    assert backward[:6] == ["dense 3", "dense 2", "experts 2", "experts 3 again", "exchange 3", "exchange 3"]
    assert [each for each in backward if each.startswith("experts")] == ["experts 2", "experts 3 again", "experts 1"]
    # Every second layer computes again, so that the last one does not.
    (columns,) = classes(card("moe", layers=3), dp=4, ep=2, recompute="full", recompute_every=2)
    assert order(columns, *BACKWARD)[:4] == ["dense 3", "dense 2", "experts 2", "experts 3"]


def test_a_single_layer_gathers_its_experts_where_its_backward_begins() -> None:
    (columns,) = classes(card("moe", layers=1), dp=4, ep=2, recompute="full")
    assert order(columns, *BACKWARD)[:3] == ["dense 1", "experts 1", "exchange 1"]


def test_a_pipeline_reduces_a_layer_and_then_its_experts_at_its_end() -> None:
    first, *_ = classes(card("moe", layers=4), dp=4, ep=2, pp=2, global_batch_size=8)
    backward = order(first, *BACKWARD)
    assert backward[:4] == ["dense 2", "dense 1", "experts 1", "experts 2"]
    assert backward[-5:] == ["reduce dense 0", *(f"reduce {unit} {place}" for place in (1, 2) for unit in UNITS)]


UNITS = ("dense", "experts")


@pytest.mark.parametrize("words", [{"dp": 4}, {"dp": 4, "tp": 2}, {"dp": 4, "hsdp": 2}])
def test_experts_that_no_ranks_divide_are_shared_as_other_weights(words: dict[str, object]) -> None:
    (columns,) = classes(card("moe", layers=2), **words)
    axes = {
        columns.ops.axis[row] for row, name in enumerate(columns.ops.name) if ".experts." in name and "bucket" in name
    }
    assert axes == {"dp", *(["dp_replicate"] if "hsdp" in words else [])}


def test_layers_for_further_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="leave --expert-unit out"):
        classes(dataclasses.replace(card("moe"), multi_token_prediction=1), dp=4, ep=2)
