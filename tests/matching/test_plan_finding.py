"""Plans that are found from recorded runs alone, against what was run."""

import dataclasses
from functools import cache

import pytest

from stagedb.api.answer_hints import other_system
from stagedb.api.client import Stagedb
from stagedb.api.importing import trace_files
from stagedb.lowering import program_of
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.runs.plan_finding import FoundPlan, Undecided, find_plan, first_of_wire, plan_of
from stagedb.runs.run_files import RunFiles
from stagedb.runs.run_match import match_run
from stagedb.store import Store
from stagedb.validation.records import card_of
from tests.matching.recorded import CLEAN, FOLDER, OF_TWO, config_of, match_of, run_of
from tests.matching.recorded import program_of as planned_program
from tests.matching.test_gloo_matches import FAULTS
from tests.runs.recordings import measured, small_run
from tests.runs.stored_rows import stored

SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "top_k", "mlp", "norm")
SAME = ("tp", "pp", "dp", "cp", "hsdp", "micro_batch_size", "global_batch_size", "seq_len")


def made(found: FoundPlan) -> tuple[Card, Plan]:
    assert found.sizes is not None
    return plan_of(found.sizes, found.words)


@cache
def found_in(name: str) -> FoundPlan:
    """What a recorded run of `tests/matching/recorded.py` shows of its plan: several tests ask for the same ones."""
    return find_plan(stored(run_of(name)))


@pytest.mark.parametrize("name", (*CLEAN, *OF_TWO))
def test_the_plan_of_a_clean_run_is_found(name: str) -> None:
    found = found_in(name)
    card, plan = made(found)
    ran = planned_program(name).plan
    assert {word: getattr(plan, word) for word in SAME} == {word: getattr(ran, word) for word in SAME}
    assert (plan.ep, plan.options.zero) == (ran.ep, ran.options.zero)
    if ran.tp > 1:
        assert (plan.options.sp, plan.options.loss_parallel) == (ran.options.sp, ran.options.loss_parallel)
    wanted = card_of(config_of(name))
    assert {size: getattr(card, size) for size in SIZES} == {size: getattr(wanted, size) for size in SIZES}
    assert found.left == 0


@pytest.mark.parametrize("name", CLEAN)
def test_a_run_has_no_finding_against_the_plan_that_was_found(name: str) -> None:
    match = match_run(stored(run_of(name)), program_of(*made(found_in(name))))
    assert match.findings == [] and all(not each.missing and not each.changed for each in match.ranks.values())


@pytest.mark.parametrize("name", [*FAULTS, "fsdp-sleep"])
def test_faults_are_found_against_the_plan_that_was_found(name: str) -> None:
    match = match_run(stored(run_of(name)), program_of(*made(found_in(name))))
    assert match.findings == match_of(name).findings


def test_what_stays_open_is_named() -> None:
    found = found_in("fsdp")
    assert Undecided({"recompute": "none"}, ({"recompute": "pointwise"},)) in found.undecided
    run = stored(small_run())
    found = find_plan(run)
    assert found.card is None and "record with record_shapes=True" in " ".join(found.ties)
    assert (found.degrees.tp, found.degrees.dp) == (1, 2)


def test_a_run_is_compared_with_a_profile_of_its_plan(embedded_store: Store) -> None:
    """`diff` of a profile and a run: what differs between them, and the time of a call by what it is."""
    db = Stagedb(embedded_store)
    db.import_run(FOLDER / "fsdp-no-reduction", name="dropped")
    for query in ("run_against_plan", "seen_and_planned"):
        answer = db.query(query, run="dropped")
        assert not answer.rows and "`stagedb match " in " ".join(answer.hints)
    found = db.match("dropped")
    answer = db.query("seen_and_planned", run="dropped")
    assert answer.rows == () and answer.hints == (
        "the instance that the run was compared with has no times yet: "
        f"`stagedb profile {found.instance.id[:12]}` makes them, on a system",
    )
    assert db.query("run_against_plan", run="dropped").hints == ()
    profile = db.profile(found.instance.id, system="h100", name="expected")
    difference = db.diff("expected", "dropped")
    assert (difference.first.id, difference.second.id) == (profile.info.id, found.run.id)
    run, instance = found.run.id[:12], found.instance.id
    assert difference.remark == (
        "the plan is timed on h100, and the run was recorded on CPUs: their times differ by that, too; "
        f"`stagedb systems calibrate {run}` fits a system to runs like it"
    )
    assert db.query("seen_and_planned", run="dropped").hints == (difference.remark,)
    for device, system, better in (
        ("NVIDIA H100 80GB HBM3", "h100", None),
        ("NVIDIA H100 80GB HBM3", "my-own", None),
        ("GPU", "h100", None),
        ("NVIDIA H100 80GB HBM3", "a100-80gb", "h100"),
        ("NVIDIA A100-SXM4-80GB", "h100", "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", "h100", ""),
    ):
        text = other_system(dataclasses.replace(found.run, devices=(device,)), instance, system)
        assert (f"recorded on {device}: " in text) == (better is not None)
        assert (f"`stagedb profile {instance[:12]} --system {better}` times it there" in text) == bool(better)
    ((kind, module, phase, ranks, expected, seen),) = difference.work.rows
    assert (kind, module, phase, ranks, seen) == ("missing", "layer.1", "backward", [0, 1, 2, 3], "")
    assert expected.startswith("reduce_scatter of 7,080,960 B over dp")
    assert {"step", "matmul forward", "all_gather backward"} <= {row[0] for row in difference.time.rows}
    assert all(row[3] > row[2] for row in difference.time.rows)


def test_a_rank_that_differs_alone_is_named(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    db.import_run(FOLDER / "fsdp-sleep", name="slow")
    found = db.match("slow")
    assert found.odd_rank == (2, 1) and str(found).endswith("1 finding, on rank 2 alone")
    assert db.diff(found.instance.id, "slow").verdict == str(found)
    db.import_run(FOLDER / "fsdp-no-reduction", name="dropped")
    assert db.match("dropped").odd_rank is None


def test_a_stage_that_was_not_recorded_is_named() -> None:
    files = [path for path in trace_files([FOLDER / "pp"]) if not path.name.startswith("rank3")]
    found = find_plan(stored(measured(RunFiles.of(files))))
    assert found.card is None and "no rank of some stage was recorded" in found.ties


@pytest.mark.parametrize(
    ("sent", "dtype"), [({"fp32"}, "fp32"), ({"bf16"}, "bf16"), ({"bf16", "fp32"}, "bf16"), (set(), "bf16")]
)
def test_the_format_of_all_that_is_sent_is_tried_first(sent: set[str], dtype: str) -> None:
    values = ({"dtype": "bf16"}, {"dtype": "fp32"}, {"dtype": "fp32", "reduce_dtype": "bf16"})
    assert first_of_wire(values, sent)[0] == {"dtype": dtype}


def test_a_plan_that_is_refused_under_all_choices_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagedb.runs.plan_finding._Trial.left", lambda trial, words: None)
    found = find_plan(stored(run_of("ddp")))
    assert found.card is None and found.words["dp"] == 4
    assert found.ties[-1].startswith("no plan was tried on a model of ")
