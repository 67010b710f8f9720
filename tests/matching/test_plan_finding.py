"""Plans that are found from recorded runs alone, against what was run."""

import pytest

from stagedb.lowering import program_of
from stagedb.matching.plan_finding import FoundPlan, find_plan, plan_of
from stagedb.matching.run_match import match_run
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.validation.records import card_of
from tests.matching.recorded import CLEAN, config_of, match_of, run_of
from tests.matching.recorded import program_of as planned_program
from tests.matching.test_gloo_matches import FAULTS
from tests.runs.recordings import small_run
from tests.runs.stored_rows import stored

SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "top_k", "mlp", "norm")
SAME = ("tp", "pp", "dp", "cp", "hsdp", "micro_batch_size", "global_batch_size", "seq_len")


def made(found: FoundPlan) -> tuple[Card, Plan]:
    assert found.sizes is not None
    return plan_of(found.sizes, found.words)


@pytest.mark.parametrize("name", CLEAN)
def test_the_plan_of_a_clean_run_is_found(name: str) -> None:
    found = find_plan(stored(run_of(name)))
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
    run = stored(run_of(name))
    found = find_plan(run)
    match = match_run(run, program_of(*made(found)))
    assert match.findings == [] and all(not each.missing and not each.changed for each in match.ranks.values())


@pytest.mark.parametrize("name", [*FAULTS, "fsdp-sleep"])
def test_faults_are_found_against_the_plan_that_was_found(name: str) -> None:
    run = stored(run_of(name))
    found = find_plan(run)
    match = match_run(run, program_of(*made(found)))
    assert match.findings == match_of(name).findings


def test_what_stays_open_is_named() -> None:
    found = find_plan(stored(run_of("fsdp")))
    assert any("recompute none may be recompute pointwise" in tie for tie in found.ties)
    run = stored(small_run())
    found = find_plan(run)
    assert found.card is None and "record with record_shapes=True" in " ".join(found.ties)
    assert (found.degrees.tp, found.degrees.dp) == (1, 2)
