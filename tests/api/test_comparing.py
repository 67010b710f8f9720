"""The rows of `diff`, compared with the instances and the steps in memory, on both engines."""

import dataclasses
import math
from collections import defaultdict
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.api.comparing import share_of
from stagedb.errors import UsageError
from stagedb.lowering.columns import RECV, TYPES
from stagedb.models import load_card
from stagedb.reports import StepView, sums_of, verdict
from stagedb.reports.step_difference import TERMS
from stagedb.store import Input, Store
from stagedb.store.contents.stored_programs import read_workload
from stagedb.timing import JobProfile, node_graph_of
from tests.ir.tiny import card

Key = tuple[str, str, str | None, str]


def worked(store: Store, instance: str) -> dict[Key, list[int]]:
    """Calls, FLOPs and bytes of all ranks, counted node by node."""
    found: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0])
    net = node_graph_of(read_workload(store, instance))
    for node, op in enumerate(net.op.tolist()):
        lane = net.lanes[net.lane[node]]
        ops = net.columns[lane.number].ops
        if ops.type[op] == RECV:
            continue
        row = found[TYPES[ops.type[op]], ops.kind[op], ops.axis[op] or None, ops.phase[op]]
        for at, each in enumerate((1, int(ops.flops[op]), int(ops.bytes[op] + ops.size[op]))):
            row[at] += lane.ranks * each
    return found


def test_only_work_that_differs_is_listed(store: Store) -> None:
    db = Stagedb(store)
    one = db.instantiate(card("llama"), tp=2, pp=2, seq_len=8, global_batch_size=4)
    other = db.instantiate(card("llama"), tp=2, dp=2, zero=1, seq_len=8, global_batch_size=4)
    sides = [worked(store, each.id) for each in (one, other)]
    expected = {
        key: (*ours, *theirs)
        for key in sides[0].keys() | sides[1].keys()
        for ours, theirs in [[side.get(key, [0, 0, 0]) for side in sides]]
        if ours != theirs
    }
    rows = db.query("diff_work", {"other": other.id}, instance=one.id)
    names = ("calls", "flops", "bytes")
    found = {
        (row["type"], row["kind"], row["axis"], row["phase"]): tuple(
            [row[name] for name in names] + [row[f"other_{name}"] for name in names]
        )
        for row in rows
    }
    assert found == expected
    assert {key[2] for key in expected} == {None, "pp", "dp"}
    assert db.diff(one.id, one.id).same


def test_steps_of_more_flops_than_64_bits_hold_are_compared(store: Store) -> None:
    db = Stagedb(store)
    huge = dataclasses.replace(card("llama"), hidden=1 << 16, ffn=1 << 18, max_positions=1 << 20)
    one, other = (
        db.instantiate(huge, dp=dp, micro_batch_size=64, seq_len=1 << 17, global_batch_size=64 * dp) for dp in (64, 128)
    )
    sides = [worked(store, each.id) for each in (one, other)]
    rows = db.query("diff_work", {"other": other.id}, instance=one.id)
    assert max(row["other_flops"] for row in rows) > 1 << 63
    for row in rows:
        key = (row["type"], row["kind"], row["axis"], row["phase"])
        expected = [side.get(key, [0, 0, 0])[1] for side in sides]
        assert [row["flops"], row["other_flops"]] == pytest.approx(expected, rel=1e-12)
    assert "2 times the FLOPs" in db.diff(one.id, other.id).verdict


def spent(job: JobProfile) -> dict[Key, list[int]]:
    """ns of all ranks, exposed, and on the path, by what is compared."""
    found: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0])
    net = job.times.network
    for lane, columns, times in zip(net.lanes, net.columns, job.times.lanes, strict=True):
        ops = columns.ops
        for op in range(len(ops)):
            if ops.type[op] != RECV:
                row = found[TYPES[ops.type[op]], ops.kind[op], ops.axis[op] or None, ops.phase[op]]
                row[0] += lane.ranks * int(times.ops.time[op])
                row[1] += lane.ranks * int(times.ops.exposed[op])
                row[2] += int(times.ops.critical[op])
    return found


def test_steps_of_two_models_are_named(store: Store) -> None:
    db = Stagedb(store)
    one, other = (
        db.profile(db.instantiate(dataclasses.replace(card("llama", layers=layers), name=name), seq_len=8).id).info.id
        for name, layers in (("small", 1), ("large", 2))
    )
    end = "; these are steps of 2 models: small, large"
    assert db.diff(one, other).verdict.endswith(end) and db.compare(one, other).verdict.endswith(end)
    assert "models" not in db.diff(one, one).verdict


def test_time_that_differs_is_listed(store: Store) -> None:
    db = Stagedb(store)
    instance = db.instantiate(card("llama"), tp=2, pp=2, seq_len=8, global_batch_size=4)
    one, other = (db.profile(instance.id, system=system) for system in ("h100", "a100-80gb"))
    sides = [spent(each.job) for each in (one, other)]
    rows = db.query("diff_time", {"profile": one.info.id, "other": other.info.id})
    for row in rows:
        key = (row["type"], row["kind"], row["axis"], row["phase"])
        for side, prefix in zip(sides, ("", "other_"), strict=True):
            total, exposed, critical = side[key]
            assert [row[f"{prefix}{name}"] for name in ("time", "exposed", "critical")] == [
                total // instance.ranks,
                exposed // instance.ranks,
                critical,
            ]
    assert len(rows) > 10
    found = db.diff(one.info.id, other.info.id)
    assert found.plan.rows == ()
    assert found.work.rows == ()
    step = found.time.rows[0]
    assert step == ("step", "ns", one.step, other.step, pytest.approx(other.step / one.step))
    views = [StepView.of(each.job) for each in (one, other)]
    ours, theirs = (sums_of(view, instance.name) for view in views)
    assert found.verdict == verdict(ours, theirs)
    assert "the first is " in found.verdict
    terms = {row[0]: row[2:4] for row in found.time.rows if row[0] in TERMS.values()}
    assert terms == {
        what: (round(ours.terms[term]), round(theirs.terms[term]))
        for term, what in TERMS.items()
        if round(ours.terms[term]) != round(theirs.terms[term])
    }


def test_the_verdict_on_two_instances_is_about_their_work(store: Store) -> None:
    db = Stagedb(store)
    words: dict[str, Any] = {"tp": 2, "seq_len": 8, "global_batch_size": 4}
    one = db.instantiate(card("llama"), name="plain", **words)
    other = db.instantiate(card("llama"), name="again", recompute="full", **words)
    found = db.diff(one.id, other.id)
    flops = [sum(each[1] for each in worked(store, side.id).values()) for side in (one, other)]
    sent = [sum(each[2] for key, each in worked(store, side.id).items() if key[2]) for side in (one, other)]
    assert flops[0] < flops[1] < 1.1 * flops[0]
    more = f"{flops[1] / flops[0] - 1:.2%} more FLOPs"
    assert found.verdict.startswith(
        f"compared with plain, again does {more} (most of this matmul recompute) and sends "
    )
    assert f"sends {sent[1] / sent[0]:.3g} times the bytes (most of this tp all_reduce recompute)" in found.verdict
    alone = db.instantiate(card("llama"), name="alone", seq_len=8, micro_batch_size=8)
    text = db.diff(one.id, alone.id).verdict
    assert "sends no bytes instead of" in text
    assert "for 64 tokens a step instead of 32" in text


def test_what_cannot_be_compared_is_refused(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    instance = db.instantiate(card("llama"), seq_len=8)
    made = db.profile(instance.id)
    with pytest.raises(UsageError, match=r"is an instance and .* a profile: compare two instances"):
        db.diff(instance.id, made.info.id)
    with pytest.raises(UsageError, match="is a graph"):
        db.diff(instance.graph, instance.id)
    with pytest.raises(UsageError, match="no graph, instance, profile, search or run"):
        db.diff("nothing", instance.id)


def test_a_step_that_got_longer_fails_with_the_term_that_grew(store: Store) -> None:
    db = Stagedb(store)
    words: dict[str, Any] = {"model": card("llama"), "tp": 2, "pp": 2, "seq_len": 8, "global_batch_size": 4}
    one, other = db.profile(**words), db.profile(**words, scale=["collective:tp=3"])
    share = other.step / one.step - 1
    assert share > 0.01
    found = db.diff(one.info.id, other.info.id, fail_above=share / 2)
    assert found.failed and found.longer == pytest.approx(share)
    assert found.failure.startswith(f"the second step is {share:.2%} longer than the first, by more than ")
    assert ": exposed communication over tp takes " in found.failure
    for limit in (share * 1.01, "900%"):
        kept = db.diff(one.info.id, other.info.id, fail_above=limit)
        assert not kept.failed and kept.failure == "" and kept.longer == found.longer
    assert not db.diff(other.info.id, one.info.id, fail_above="0%").failed
    assert not db.diff(one.info.id, one.info.id, fail_above=0).failed
    assert not db.diff(one.info.id, other.info.id).failed
    twice = db.profile(one.instance.id, global_batch_size=8)
    tokens = db.diff(one.info.id, twice.info.id, fail_above="3%")
    assert tokens.longer == pytest.approx(twice.step / (2 * one.step) - 1) and not tokens.failed


def test_instances_have_no_step_that_could_be_longer(store: Store) -> None:
    db = Stagedb(store)
    one = db.instantiate(card("llama"), seq_len=8)
    with pytest.raises(UsageError, match=r"fail_above compares steps, and .* are instances: name two profiles"):
        db.diff(one.id, one.id, fail_above="3%")
    assert db.diff(one.id, one.id).longer is None


@pytest.mark.parametrize(
    ("value", "share"),
    [("3%", 0.03), (" 2.5 % ", 0.025), ("0%", 0), (0.03, 0.03), ("0.03", 0.03), (0, 0), ("150%", 1.5), ("1000%", 10)],
)
def test_a_share_is_a_percentage_or_a_part(value: str | float, share: float) -> None:
    assert share_of(value) == pytest.approx(share)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (each, "is no share of a step: it takes a percentage")
            for each in ("", "x", "-3%", "3 percent", "nan", "1e2%")
        ),
        *((each, "is no share of a step") for each in (-0.1, math.nan, math.inf, True, None, [3])),
        ("3", "may mean 3 % or 300 %: write 3% or 300%"),
        (3, "may mean 3 % or 300 %"),
        ("1001%", "is more than 1000%"),
    ],
)
def test_what_is_no_share_is_refused(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        share_of(value)


def test_a_comparison_has_the_inputs_of_both(store: Store) -> None:
    db = Stagedb(store)
    words: dict[str, Any] = {"tp": 2, "seq_len": 64, "global_batch_size": 4}
    made = [db.profile(model="gpt2", system=system, **words) for system in ("h100", "a100-80gb")]
    found = db.diff(made[0].info.id, made[1].info.id).provenance
    inputs = {(each["kind"], each["name"]): each["digest"] for each in found.inputs}
    assert inputs["card", "gpt2"] == load_card("gpt2").digest[:32]
    for each in made:
        assert inputs["system", each.info.system] == Input.of("system", each.job.system.to_dict()).id
        assert {each.info.id, each.instance.id} <= {row["digest"] for row in found.inputs}
    *profiles, compared = found.commands
    assert compared == f"stagedb diff {made[0].info.id} {made[1].info.id}"
    assert len(profiles) == 2
    for command, each in zip(profiles, made, strict=True):
        assert command.startswith("stagedb profile --model gpt2 --tp 2 ")
        assert command.endswith("" if each.info.system == "h100" else "--system a100-80gb")
    instances = db.diff(made[0].instance.id, db.instantiate("gpt2", tp=4, seq_len=64).id).provenance
    assert len(instances.commands) == 3
    assert instances.commands[1].startswith("stagedb instantiate gpt2 --tp 4 ")
