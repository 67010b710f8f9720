"""Steps whose caches ranks of cp share: what each rank holds, computes, sends and takes, and what is refused."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.lowering.columns import COLLECTIVE
from stagedb.lowering.windows import window
from stagedb.memory import Category, memory_of
from stagedb.models import Card, load_card
from stagedb.plans import Plan
from stagedb.store import Store
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.traces import validate_traces
from stagedb.traces.node_durations import window_timing
from tests import lowered
from tests.ir.tiny import card
from tests.timing.replayed import Run, Traces
from tests.traces.simulated import timing_of
from tests.traces.written import export_workload

DECODE: dict[str, Any] = {"workflow": "decode", "cache_len": 4_096}


def kept(model: str, **words: Any) -> list[int]:
    """Bytes of caches on each rank of cp, where the world has no other axis."""
    program = lowered.program(load_card(model), **{**DECODE, **words})
    classes, memory = program.workload.classes, memory_of(program)
    held = {
        columns.number: dict(each.usage.at(each.peak))[Category.CACHE]
        for columns, each in zip(classes, memory, strict=True)
    }
    return [held[number] for number in program.workload.ranks.number.tolist()]


def positions(keys: int, cp: int, last: int | None = None) -> list[int]:
    """How many of the last positions of a request each rank of cp has, counted one by one."""
    first = 0 if last is None else max(keys - last, 0)
    return [sum(position % cp == rank for position in range(first, keys)) for rank in range(cp)]


@pytest.mark.parametrize("cp", [2, 3, 5, 8])
def test_a_rank_keeps_the_positions_that_are_its_own(cp: int) -> None:
    of_token = 131_072  # 2 x 32 layers x 8 heads x 128 values x 2 bytes
    for length in (4_095, 4_096, 4_099):
        found = kept("llama3-8b", cp=cp, cache_len=length, micro_batch_size=16)
        assert found == [16 * of_token * each for each in positions(length + 1, cp)]
        assert found[0] == max(found) == 16 * of_token * -(-(length + 1) // cp)


def test_a_window_and_latents_are_shared_by_position_too() -> None:
    found = kept("gpt-oss-20b", cp=3, micro_batch_size=6)
    each = 2 * 8 * 64 * 2  # keys and values of 8 heads of 64, in bf16
    whole, window = positions(4_097, 3), positions(4_097, 3, 128)
    assert found == [6 * 12 * each * (whole[rank] + window[rank]) for rank in range(3)]
    latents = kept("deepseek-v2-lite", cp=4, micro_batch_size=8)
    assert latents == [8 * 27 * 2 * 576 * each for each in positions(4_097, 4)]


def test_requests_of_several_lengths_are_each_shared() -> None:
    requests = "3x1+1000,2x1+4094,1x1+777"
    found = kept("llama3-8b", cp=4, requests=requests, cache_len=None)
    lengths = {1_001: 3, 4_095: 2, 778: 1}
    by_rank = [sum(n * positions(keys, 4)[rank] for keys, n in lengths.items()) * 131_072 for rank in range(4)]
    assert found == by_rank
    assert len({*found}) == 4


def test_a_rank_computes_its_own_keys_and_sends_log_sum_exps_and_contexts() -> None:
    """Llama 3 8B with 16 requests, tp 2 x cp 4: 16 heads of 128 on a rank, and a layer's messages in bytes."""
    made = lowered.workload(load_card("llama3-8b"), **DECODE, tp=2, cp=4, micro_batch_size=16)
    alone = lowered.workload(load_card("llama3-8b"), **DECODE, tp=2, micro_batch_size=16)
    keys = positions(4_097, 4)
    for rank, own in enumerate(keys):
        ops = made.class_of(2 * rank).ops
        parts = [row for row, name in enumerate(ops.name) if name.endswith(".attn.part")]
        assert len(parts) == 32
        assert {int(ops.flops[row]) for row in parts} == {4 * 16 * 16 * 128 * own}
        read, written = 2 * 16 * own * 4 * 128 * 2 + 16 * 16 * 128 * 2, 16 * 16 * (128 * 2 + 4)
        assert {int(ops.bytes[row]) for row in parts} == {read + written}
        calls = [row for row, kind in enumerate(ops.type) if kind == COLLECTIVE and ops.axis[row] == "cp"]
        sent = Counter((ops.kind[row], int(ops.size[row])) for row in calls)
        assert sent == {("all_gather", 16 * 16 * 4): 32, ("all_reduce", 16 * 16 * 128 * 2): 32}
    (whole,) = alone.classes
    shared = sum(int(each) for each in whole.ops.flops) - 32 * 4 * 16 * 16 * 128 * 4_097
    for rank, own in enumerate(keys):
        assert sum(map(int, made.class_of(2 * rank).ops.flops)) == shared + 32 * 4 * 16 * 16 * 128 * own


def test_a_rank_routes_the_tokens_of_its_part_of_the_requests() -> None:
    """Mixtral 8x7B: each of 4 ranks routes 4 of 16 requests of a place on dp, with two choices of 8 experts."""
    words = {**DECODE, "cp": 4, "dp": 2, "ep": 8, "micro_batch_size": 16}
    made = lowered.workload(load_card("mixtral-8x7b"), **words)
    for columns in made.classes:
        ops = columns.ops
        row = {name.removeprefix("layer.0.ffn"): at for at, name in enumerate(ops.name) if ".0.ffn" in name}
        assert int(ops.flops[row[".router"]]) == 2 * 4 * 4_096 * 8
        assert int(ops.size[row[".dispatch.all_to_all.ep"]]) == 4 * 2 * 4_096 * 2
        assert int(ops.flops[row[".experts.w13"]]) == 2 * (2 * 16 * 2 // 8) * 4_096 * 2 * 14_336
        gathers = [at for name, at in row.items() if name.endswith("all_gather.cp")]
        assert [int(ops.size[at]) for at in gathers] == [4 * 4_096 * 2]


def model(style: str = "llama") -> Card:
    return dataclasses.replace(card(style, layers=4), max_positions=64)


STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("llama", {"cp": 3, "micro_batch_size": 32}),
    "tp, pp, dp": ("llama", {"tp": 2, "pp": 2, "dp": 2, "cp": 2, "micro_batch_size": 32, "global_batch_size": 128}),
    "experts": ("deepseek", {"cp": 2, "dp": 2, "ep": 4, "micro_batch_size": 16}),
}


class OneStream(Run):
    """Traces with durations, run with one stream for compute and one for communication."""

    def cost_of(self, number: int, node: int) -> int:
        return self.ranks[number].value(node, "duration_ns")


@pytest.mark.parametrize("name", STEPS)
def test_traces_pass_all_rules_and_take_as_long_as_the_profile(name: str, tmp_path: Path) -> None:
    style, words = STEPS[name]
    system = load_system("h100")
    system = dataclasses.replace(system, overlap=dataclasses.replace(system.overlap, streams="one"))
    prefill = {"workflow": "prefill", "seq_len": 16, **words}
    steps = [lowered.workload(model(style), **each) for each in (prefill, {**DECODE, "cache_len": 16, **words})]
    jobs = [profile_job(each, system) for each in steps]
    for number, (each, job) in enumerate(zip(steps, jobs, strict=True)):
        export_workload(each, tmp_path / str(number), system=system, times=timing_of(job))
        assert validate_traces(tmp_path / str(number)).faults == ()
        assert OneStream(Traces(tmp_path / str(number), each.model), len, as_issued=True).run() == job.step
    times = window_timing([timing_of(each) for each in jobs], steps, window(steps))
    export_workload(window(steps), tmp_path / "window", system=system, times=times)
    assert validate_traces(tmp_path / "window").faults == ()
    assert OneStream(Traces(tmp_path / "window", steps[0].model), len, as_issued=True).run() == times.step


def test_a_store_has_them_too(store: Store, tmp_path: Path) -> None:
    style, words = STEPS["experts"]
    db = Stagedb(store)
    prefill = db.instantiate(model(style), workflow="prefill", seq_len=16, **words)
    decode = db.instantiate(model(style), workflow="decode", cache_len=16, **words)
    assert decode.plan["cp_kind"] == "allgather-lse"
    db.export(prefill.id, then=[decode.id], steps=3, durations_in_traces=True, out=tmp_path / "window")
    assert validate_traces(tmp_path / "window").faults == ()
    held = {row["bytes"] for row in db.memory(decode.id).levels if row["category"] == "cache"}
    keys = 2 * 2 * 4 * 2  # keys and values of 2 heads of 4, in bf16
    assert held == {16 * 4 * keys * each for each in positions(17, 2)}
    assert db.profile(decode.id).merit.tokens == 32


def test_ranks_of_cp_take_less_time_over_a_long_cache(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    words: dict[str, Any] = {"workflow": "decode", "cache_len": 120_000, "micro_batch_size": 8}
    long = dataclasses.replace(load_card("llama3-8b"), max_positions=131_072)
    steps = [db.profile(db.instantiate(long, **words, tp=2, cp=cp).id).merit.step for cp in (1, 2, 4)]
    assert steps[0] > steps[1] > steps[2]


def test_a_small_gather_is_refused_with_what_makes_it_larger(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    made = db.instantiate(model(), workflow="decode", cache_len=16, cp=2)
    with pytest.raises(StagedbError, match="take more requests at once or a lower tp, as a rank gathers 4 bytes"):
        db.export(made.id, out=tmp_path / "small")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"cp": 11, "cache_len": 9}, "11 ranks of cp share the 10 positions of a request.*the nearest is --cp 10"),
        ({"cp": 4, "requests": "2x1+900,1x1+2"}, "4 ranks of cp share the 3 positions of a request"),
        ({"cp": 2, "requests": "2x1+900/512"}, "requests share a prefix, and ranks of cp their caches.*take --cp 1"),
        ({"cp": 2, "cache_len": 9, "cp_kind": "ulysses"}, "decode takes --cp-kind allgather-lse, or leave"),
        ({"cp": 2, "cache_len": 9, "attention": "math"}, "needs --attention fused"),
        ({"cp": 2, "cache_len": 9, "cp_chunks": "balanced"}, "every cp-th position of the cache: leave --cp-chunks"),
        ({"cache_len": 9, "cp_kind": "allgather-lse"}, "allgather-lse with cp 1 has no ranks that share"),
        ({"workflow": "training", "cp": 2, "cp_kind": "allgather-lse"}, "shares the cache of each request"),
    ],
)
def test_what_cannot_be_shared_is_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping({"workflow": "decode", **words})


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            {"cp": 2, "micro_batch_size": 3, "cache_len": 9},
            "a micro-batch of 3 is not divisible by the 2 ranks of cp.*: take",
        ),
        ({"cp": 2, "requests": "4x1+900"}, "give --micro-batch-size, --seq-len and --cache-len in place of --requests"),
    ],
)
def test_tokens_that_ranks_cannot_deal_to_experts_are_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        lowered.program(load_card("mixtral-8x7b"), workflow="decode", **words)


def test_sums_over_requests_are_not_enough_for_shared_caches() -> None:
    with pytest.raises(UsageError, match="or ranks of cp share them: sums are not enough"):
        lowered.program(load_card("llama3-8b"), workflow="decode", cp=2, requests="decode n=4 q=4 k=4000 qq=4 qk=4000")
