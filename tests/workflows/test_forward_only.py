"""A step of forwards alone: what it runs, sends, holds and takes, held against the forwards of a training step."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering import Program
from stagedb.lowering.columns import TASK_KINDS
from stagedb.memory import Category, memory_of
from stagedb.models.card import Card
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.traces import validate_traces
from stagedb.workflows import WORKFLOWS
from tests import lowered
from tests.ir.tiny import card

PLANS: dict[str, tuple[Card, dict[str, Any]]] = {
    "tp": (card("llama"), {"tp": 2, "dp": 2, "sp": True}),
    "stages": (card("gpt", layers=4, tied=True), {"pp": 2, "dp": 2, "tp": 2, "global_batch_size": 8}),
    "chunks": (card("llama", layers=4), {"pp": 2, "virtual_stages": 2, "tp": 2, "global_batch_size": 4}),
    "zero 3": (card("llama", layers=3), {"dp": 4, "zero": 3, "global_batch_size": 8}),
    "zero 3, stages": (card("llama", layers=4), {"dp": 4, "hsdp": 2, "pp": 2, "zero": 3, "global_batch_size": 12}),
    "experts": (card("deepseek", layers=4), {"dp": 4, "ep": 2, "tp": 2, "pp": 2, "zero": 3, "global_batch_size": 8}),
    "ring": (card("llama"), {"recipe": "megatron", "cp": 2, "cp_kind": "ring-p2p", "tp": 2}),
    "ulysses": (card("llama"), {"cp": 2, "cp_kind": "ulysses", "dp": 2}),
    "parts": (
        card("llama", layers=4, kv_heads=4),
        {"recipe": "megatron", "tp": 2, "pp": 2, "scatter_gather": True, "global_batch_size": 4},
    ),
    "fp8": (card("llama"), {"tp": 2, "sp": True, "matmul_dtype": "fp8", "dp": 2}),
}


def made(name: str, workflow: str, **more: Any) -> Program:
    model, words = PLANS[name]
    return lowered.program(model, **{**lengths(name), **words, "workflow": workflow, **more})


def lengths(name: str) -> dict[str, int]:
    return {"seq_len": 8 if PLANS[name][0].positions == "learned" else 32}


def stored(store: Store, name: str, workflow: str) -> str:
    model, words = PLANS[name]
    return Stagedb(store).instantiate(model, **{**lengths(name), **words, "workflow": workflow}).id


COLUMNS = (
    "phase", "chunk", "position", "name", "type", "kind", "runs", "flops", "bytes", "bytes_read", "temporary", "axis",
    "size", "result", "dtype", "peer", "dims",
)  # fmt: skip


def rows(name: str, workflow: str) -> Counter[tuple[Any, ...]]:
    """What each stage runs: its number, the place of the class among experts and sequences, and `COLUMNS`."""
    model, words = PLANS[name]
    copied = lowered.copied_rows(model, **{**lengths(name), **words, "workflow": workflow})
    found: Counter[tuple[Any, ...]] = Counter()
    for each in copied.classes:
        for op in copied.ops[each["class"]].values():
            values = (tuple(op[column]) if column == "dims" else op[column] for column in COLUMNS)
            row = (each["cp"], each["ep"], *values)
            found.update((stage, *row) for stage in each["stages"])
    return found


PHASE, NAME, RUNS, FLOPS = (3 + COLUMNS.index(column) for column in ("phase", "name", "runs", "flops"))
"""Places in a row."""


def edges(program: Program) -> set[tuple[Any, ...]]:
    """What a forward waits for, by stage, with the names of gathers without their numbers."""
    found: set[tuple[Any, ...]] = set()
    for each in program.workload.classes:
        name, phase = [any_gather(one) for one in each.ops.name], each.ops.phase
        for source, target, kind in zip(*(getattr(each.edges, end).tolist() for end in ENDS), strict=True):
            if phase[source] == phase[target] == "forward":
                row = (each.origins.member, int(each.ops.chunk[source]), name[source], name[target], kind)
                found |= {(stage, *row) for stage in each.stages}
    return found


ENDS = ("source", "target", "kind")


def any_gather(name: str) -> str:
    """The name of a gather without its number, by whichever forwards run it."""
    return re.sub(r"\.gather(\.closed|\.first)?(.*)\.[0-9]+$", r".gather\2", name)


@pytest.mark.parametrize("name", PLANS)
def test_it_runs_the_forward_operators_of_training_and_nothing_else(name: str) -> None:
    trained, forward = (rows(name, each) for each in ("training", "forward-only"))
    assert {row[PHASE] for row in trained} == {"forward", "backward", "optimizer"}
    assert {row[PHASE] for row in forward} == {"forward"}
    assert sum(row[FLOPS] for row in forward) > 0
    sides = [
        Counter({row: count for row, count in side.items() if row[PHASE] == "forward" and ".gather." not in row[NAME]})
        for side in (trained, forward)
    ]
    assert sides[0] == sides[1]
    # Under a pipeline a backward leaves a unit gathered, so that training gathers less often.
    gathers = [
        {(*row[:NAME], any_gather(row[NAME]), *row[NAME + 1 : RUNS], *row[RUNS + 1 :]): row[RUNS] for row in side}
        for side in (
            [row for row in side if row[PHASE] == "forward" and ".gather." in row[NAME]] for side in (trained, forward)
        )
    ]
    assert gathers[0].keys() == gathers[1].keys()
    assert all(gathers[0][row] <= gathers[1][row] for row in gathers[0])


@pytest.mark.parametrize("name", PLANS)
def test_what_waits_for_what_is_as_in_the_forwards_of_training(name: str) -> None:
    trained, forward = (edges(made(name, each)) for each in ("training", "forward-only"))
    assert forward == trained
    assert forward


@pytest.mark.parametrize("name", ["stages", "chunks", "zero 3, stages"])
def test_a_stage_runs_the_forwards_of_its_schedule_in_order(name: str) -> None:
    def tasks(workflow: str) -> list[tuple[Any, ...]]:
        found = [
            (stage, index, TASK_KINDS[kind], int(microbatch), int(chunk))
            for each in made(name, workflow).workload.classes
            for stage in each.stages
            for index, (kind, microbatch, chunk) in enumerate(
                zip(each.tasks.kind, each.tasks.microbatch, each.tasks.chunk, strict=True)
            )
        ]
        return sorted(found)

    forward = tasks("forward-only")
    assert {row[2] for row in forward} == {"forward"}
    of_training = [row for row in tasks("training") if row[2] == "forward"]
    assert [(row[0], *row[3:]) for row in forward] == [(row[0], *row[3:]) for row in of_training]
    if PLANS[name][1].get("virtual_stages", 1) == 1:
        batches = [row[3] for row in forward if row[0] == 0]
        assert batches == sorted(batches)
        assert len(batches) > 1


OWN = [(name, words.get("recipe", "torch")) for name, (_, words) in PLANS.items()]


@pytest.mark.parametrize(("name", "recipe"), [*OWN, ("tp", "megatron"), ("zero 3, stages", "megatron")])
def test_no_rank_holds_gradients_or_what_an_optimizer_keeps(name: str, recipe: str) -> None:
    trained, forward = (memory_of(made(name, each, recipe=recipe)) for each in ("training", "forward-only"))
    starts = [(stage, each.usage.before()) for each in trained for stage in each.rank_class.stages]
    parameters = {stage: start[Category.PARAMETERS] for stage, start in starts}
    peaks = {stage: sum(each.usage.at(each.peak).values()) for each in trained for stage in each.rank_class.stages}
    for each in forward:
        held = {category for task in range(len(each.usage.tasks)) for category in _held(each.usage.levels(task))}
        assert not held & {Category.GRADIENTS, Category.OPTIMIZER, Category.MASTER, Category.RECOMPUTED}
        # When all is over, only what was there before is left, and the loss.
        over = each.usage.after(len(each.usage.tasks) - 1)
        assert sum(over.values()) - sum(each.usage.before().values()) in (0, 4)
        for stage in each.rank_class.stages:
            assert each.usage.before()[Category.PARAMETERS] == parameters[stage]
            assert sum(each.usage.at(each.peak).values()) < peaks[stage]


def _held(levels: Any) -> set[Category]:
    return {category for category, row in zip(Category, levels, strict=True) if row.any()}


def test_more_micro_batches_hold_no_more() -> None:
    def peak(batch: int) -> dict[int, dict[Category, int]]:
        found = memory_of(made("stages", "forward-only", global_batch_size=batch))
        return {stage: each.usage.at(each.peak) for each in found for stage in each.rank_class.stages}

    few, many = peak(4), peak(16)
    for stage, held in few.items():
        for category in (Category.PARAMETERS, Category.TEMPORARIES):
            assert many[stage][category] == held[category]


def test_memory_profile_query_and_report_know_it(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    trained, forward = (stored(store, "stages", each) for each in ("training", "forward-only"))
    found = db.memory(forward)
    assert {row["moment"] for row in found.levels} == {"start", "forward_peak", "forward_end", "step_end", "peak"}
    assert {row["phase"] for row in found.peaks} == {"forward"}
    timed, other = db.profile(forward), db.profile(trained)
    assert 0 < timed.merit.step < other.merit.step
    assert timed.instance.plan["workflow"] == "forward-only"
    assert list(db.diff(trained, forward).plan) == [{"word": "workflow", "first": "training", "second": "forward-only"}]
    by_layer = db.query("flops_by_layer", instance=forward)
    assert {row["backward_flops"] for row in by_layer} == {0} != {row["forward_flops"] for row in by_layer}
    assert db.export(forward, out=tmp_path / "traces").world == 8
    assert validate_traces(tmp_path / "traces").faults == ()
    db.report(forward, out=tmp_path / "report.html")
    db.timeline(forward, out=tmp_path / "timeline.pftrace")
    both = "MATCH (i:Instance {id: $i})-[:OF]->(g:Graph) RETURN i.workflow AS i, g.workflow AS g"
    assert store.query(both, {"i": forward}).rows == (("forward-only", "forward-only"),)


def test_model_flops_are_those_of_the_forward() -> None:
    """Two FLOPs a token for each weight of a matmul, and the scores and sums of attention; a training step has three
    times as many."""
    model = card("llama")
    words: dict[str, Any] = {"dp": 2, "seq_len": 8, "global_batch_size": 4}
    both = (lowered.workload(model, workflow=each, **words) for each in ("training", "forward-only"))
    trained, forward = (profile_job(each, load_system("h100")).merit for each in both)
    width = model.heads * model.head_dim
    projections = model.hidden * (2 * width + 2 * model.kv_heads * model.head_dim)
    weights = model.layers * (projections + 3 * model.hidden * model.ffn) + model.hidden * model.vocab
    tokens, attention = 4 * 8, model.layers * 4 * 4 * 8 * 8 * width
    assert forward.model_flops == forward.hardware_flops == 2 * weights * tokens + attention
    assert trained.model_flops == 6 * weights * tokens + 3 * attention + attention // 2
    assert forward.tokens == trained.tokens == tokens


@pytest.mark.parametrize("name", PLANS)
def test_what_is_exported_is_sound_and_runs(name: str, tmp_path: Path) -> None:
    workload = made(name, "forward-only").workload
    report = validate_traces(lowered.export(workload, tmp_path / "traces"))
    assert report.faults == ()
    assert report.replayed
    assert report.nodes > 0
    assert report.world == len(workload.ranks)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            {"recompute": "full"},
            "has no gradients, which --recompute is for: leave it out, or take --workflow training",
        ),
        ({"zero": 1, "dp": 2}, "zero 1 shards the optimizer, which it does not have: take --zero 0 or --zero 3"),
        ({"zero": 2, "dp": 2}, "zero 2 shards gradients too, which it does not have: take --zero 0 or --zero 3"),
        ({"zero": 3, "dp": 2, "reshard": False}, "which --no-reshard is for"),
        ({"grad_sync": True}, "which --grad-sync is for"),
        ({"ep_sync": False, "dp": 2, "ep": 2}, "which --no-ep-sync is for"),
        ({"cp_grad_sync": False, "cp": 2}, "which --no-cp-grad-sync is for"),
        ({"dropout": 0.1}, "which --dropout is for"),
        ({"grad_dtype": "fp32", "param_dtype": "fp32"}, None),
        ({"reduce_dtype": "fp32"}, "has no gradients, which --reduce-dtype is for"),
        ({"opt_dtype": "fp32"}, "has no optimizer, which --opt-dtype is for"),
        ({"master_dtype": "fp32"}, "has no optimizer, which --master-dtype is for"),
        (
            {"pp": 2, "schedule": "zb-h1"},
            "schedule zb-h1 splits the backward, and the workflow forward-only has none: take --schedule 1f1b, or "
            "--workflow training",
        ),
        (
            {"pp": 2, "schedule": "explicit", "task_order": ("F0 B0", "F0 B0")},
            r"stage 0 runs B0: .* nothing else \(--workflow forward-only\)",
        ),
        (
            {"workflow": "forward"},
            "unknown workflow 'forward': --workflow is training, forward-only, prefill, mixed, decode or speculative",
        ),
    ],
)
def test_what_makes_no_sense_without_a_backward_is_refused(words: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        Plan.from_mapping({"workflow": "forward-only", **words})
        return
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping({"workflow": "forward-only", **words})
    Plan.from_mapping({**words, "workflow": "training"}) if "B0" not in str(words) else None


def test_an_order_of_its_own_has_forwards_alone() -> None:
    words = {"workflow": "forward-only", "pp": 2, "schedule": "explicit", "global_batch_size": 2}
    plan = Plan.from_mapping({**words, "task_order": ("F1 F0", "F1 F0")})
    assert [[str(task.kind) for task in order] for order in plan.orders()] == [["forward", "forward"]] * 2
    assert Plan.from_mapping(plan.to_dict()) == plan


def test_graphs_of_training_keep_their_identity() -> None:
    graphs = {each: build_graph(card("llama"), GraphOptions(workflow=each)) for each in WORKFLOWS}
    assert len({graph.key for graph in graphs.values()}) == len(WORKFLOWS)
    assert graphs["training"].key == build_graph(card("llama"), GraphOptions()).key
