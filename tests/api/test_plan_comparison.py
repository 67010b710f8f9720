"""Two to eight plans compared in Python, on both engines."""

from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.store.many import copies

WORDS: dict[str, Any] = {"seq_len": 8, "global_batch_size": 8}
PLANS: dict[str, dict[str, Any]] = {"tensor": {"tp": 2, "dp": 2}, "deep": {"pp": 2, "dp": 2}, "data": {"dp": 4}}


def stock(store: Store) -> None:
    found = Stagedb(store)
    for name, plan in PLANS.items():
        found.profile(found.instantiate(card("llama"), name=name, **plan, **WORDS).id)


@pytest.fixture
def reading(fill: Fill) -> Stagedb:
    return Stagedb(fill(stock).store)


@pytest.fixture
def db(store: Store) -> Stagedb:
    """One that a test may write to."""
    stock(store)
    return Stagedb(store)


def test_three_instances_have_the_times_of_their_profiles(reading: Stagedb) -> None:
    found = reading.compare(*PLANS)
    assert found.names == tuple(PLANS)
    plan = {row[0]: row[1:] for row in found.plan.rows}
    assert plan == {"dp": (2, 2, 4), "pp": (1, 2, 1), "tp": (2, 1, 1)}
    terms = {row[0]: row[1:] for row in found.terms.rows}
    steps = terms.pop("step")
    assert steps == tuple(each.step for each in found.profiles)
    for at, step in enumerate(steps):
        assert sum(values[at] for values in terms.values()) == pytest.approx(step, abs=len(terms))
    assert terms["exposed communication over tp"][1:] == (0, 0)
    best = min(zip(steps, PLANS, strict=True))[1]
    assert found.verdict.startswith(f"{best} is the fastest of 3: ")
    others = [name for name in PLANS if name != best]
    assert all(any(name in text for text in found.sentences) for name in others) and len(found.sentences) == 2
    with_diff = {reading.diff(name, best).verdict for name in others}
    assert {*found.sentences} == with_diff


def test_memory_is_that_of_the_fullest_rank(reading: Stagedb, fill: Fill) -> None:
    found = reading.compare(*PLANS)
    for at, name in enumerate(PLANS, 1):
        assert sum(row[at] for row in found.memory.rows) == max(
            row["peak"] for row in reading.memory(name, keep=False).peaks
        )
    assert found.memory.rows[0][0] == "parameters"
    assert fill(stock).store.query("MATCH (m:ClassMemory) RETURN count(m) AS n").rows == ((0,),)


def test_work_is_that_of_diff(reading: Stagedb) -> None:
    found = {row[:2]: row[2:] for row in reading.compare(*PLANS).work.rows}
    for at, name in ((1, "deep"), (2, "data")):
        of_two = {row[:2]: row[2:4] for row in reading.diff("tensor", name).work.rows}
        assert {key: (values[0], values[at]) for key, values in found.items() if values[0] != values[at]} == of_two


def test_the_sentence_on_two_is_that_of_diff_and_the_report(reading: Stagedb) -> None:
    found = reading.compare("tensor", "deep")
    assert found.verdict == reading.diff("tensor", "deep").verdict and found.sentences == ()
    one, other = (each.id for each in found.profiles)
    assert found.verdict == reading.diff(one, other).verdict == reading.compare(one, other).verdict
    assert f"{found.verdict}." in reading.report_page(one, other)
    assert found.provenance.commands[-1] == f"stagedb diff {one} {other}"
    assert reading.compare("deep", "deep").same and not found.same


def test_profiles_on_two_systems_differ_in_the_system(db: Stagedb) -> None:
    other = db.profile("deep", system="a100-80gb", blocking="pp")
    found = db.compare("deep", "tensor")
    assert {each.system for each in found.profiles} == {"h100"}
    of_deep = next(each for each in db.profiles() if each.instance_name == "deep" and each.system == "h100")
    pair = db.compare(of_deep.id, other.info.id)
    assert pair.names == ("deep (first)", "deep (second)")
    assert pair.plan.rows == (("system", "h100", "a100-80gb"), ("waits for communication on", "", "pp"))
    assert pair.work.rows == ()


def test_an_instance_has_the_newest_profile_without_scaled_times(db: Stagedb) -> None:
    plain = db.compare("deep", "tensor").sums[0].step
    assert db.profile("deep", scale=["compute=2"]).step > plain
    assert db.compare("deep", "tensor").sums[0].step == db.diff("deep", "tensor").time.rows[0][2] == plain


def test_instances_without_times_are_compared_by_work(db: Stagedb) -> None:
    db.instantiate(card("llama"), name="untimed", dp=2, **WORDS)
    found = db.compare("untimed", "tensor", "deep")
    assert found.profiles == () and found.terms.rows == () and len(found.work) > 10
    assert found.verdict.startswith("compared with untimed, tensor does ") and len(found.sentences) == 1
    assert found.verdict == db.diff("untimed", "tensor").verdict
    assert sum(row[1] for row in found.memory.rows) > 0


def test_what_does_not_go_together_is_refused(reading: Stagedb) -> None:
    profile = reading.profiles()[0].id
    with pytest.raises(UsageError, match="takes 2 to 8 instances or profiles, and 1 are given"):
        reading.compare("deep")
    with pytest.raises(UsageError, match="takes 2 to 8 instances or profiles, and 9 are given"):
        reading.compare(*["deep"] * 9)
    assert len(reading.compare(*["deep"] * 8).names) == 8
    with pytest.raises(UsageError, match=r"'tensor' is an instance and .* a profile: compare instances, or profiles"):
        reading.compare("tensor", profile, "deep")
    with pytest.raises(UsageError, match="is a graph"):
        reading.compare("tensor", reading.graphs()[0].id)
    with pytest.raises(UsageError, match="no graph, instance, profile, search or run"):
        reading.compare("tensor", "nothing")


def test_a_profile_without_times_is_named(db: Stagedb, store: Store) -> None:
    copies(store, db.show("deep").id, 1)
    with pytest.raises(StagedbError, match="has no times of its lanes: remove it with"):
        db.compare("deep", f"{1:020x}")
