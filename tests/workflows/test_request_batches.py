"""Batches of requests of different lengths: their sums, and what they cost, against each request on its own."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.lowering import Program
from stagedb.memory import Category, memory_of
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.plans.request_batches import RequestSums, batch_of, engine_batch, read_requests
from stagedb.store import Store
from stagedb.systems import Costs, load_system
from stagedb.systems.cost_model import Work
from stagedb.traces import validate_traces
from tests import lowered
from tests.ir.tiny import card

MIXED = ("2x512+0", "1x700+300", "64x1+4096", "3x1+77")


def test_the_sums_of_a_list_are_those_over_its_requests() -> None:
    batch = batch_of(MIXED)
    requests = [(512, 512)] * 2 + [(700, 1000)], [(1, 4097)] * 64 + [(1, 78)] * 3
    for sums, own in zip((batch.prefill, batch.decode), requests, strict=True):
        by_hand = (sum(1 for _ in own), sum(q for q, _ in own), sum(k for _, k in own))
        assert (sums.n, sums.q, sums.k) == by_hand
        assert (sums.qq, sums.qk) == (sum(q * q for q, _ in own), sum(q * k for q, k in own))
    assert batch.longest == 4097
    assert batch_of(("1x512", "1x512+0")).texts == ("2x512+0",)


ENGINES = {
    "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)": (
        (2, 6144, 7144, 20971520, 23019520),
        (3, 3, 6144, 3, 6144),
    ),
    "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)": (
        (0, 0, 0, 0, 0),
        (64, 64, 131072, 64, 131072),
    ),
    "step[EXTEND bs=2 toks=14721 c_sq=14721 c_sqsq=108745533 c_sqsk=108745533 c_sk=14721]": (
        (2, 14721, 14721, 108745533, 108745533),
        (0, 0, 0, 0, 0),
    ),
    "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]": (
        (1, 5, 8, 25, 40),
        (1, 1, 12, 1, 12),
    ),
    "prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=108745533 sqsk=108745533 sk=14721]": (
        (2, 14721, 14721, 108745533, 108745533),
        (0, 0, 0, 0, 0),
    ),
    "decode[bs=117/128 tok=117 d=117 sqsq=117 sqsk=262144 sk=262144]": (
        (0, 0, 0, 0, 0),
        (117, 117, 262144, 117, 262144),
    ),
}
"""Names of iterations as the engines write them, with n, Σq, Σk, Σq² and Σq·k of prefills and decodes."""


@pytest.mark.parametrize("name", ENGINES)
def test_an_iteration_of_an_engine_is_a_batch(name: str) -> None:
    batch = engine_batch(name)
    assert batch is not None
    assert (batch.prefill, batch.decode) == tuple(RequestSums(*sums) for sums in ENGINES[name])
    assert batch_of(read_requests(name.split(","))) == batch
    assert batch_of(batch.texts) == batch


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["3y5"], "is no requests"),
        (["0x5+1"], "one or more requests"),
        (["2x0+1"], "with one new token or more"),
        (["9x1+99999999999"], "is no requests"),
        (["1x1+2147483648"], "at most 2,147,483,648 positions"),
        (["9999999x1"], "at most 1,048,576 requests"),
        ([f"1x1+{n}" for n in range(5000)], "of 4,096 different lengths"),
        (["prefill n=2 q=1024"], "each once with n, q, k, qq, qk"),
        (["prefill n=1 q=2 k=2 qq=4 qk=4", "3x1+4"], "is no sums"),
        (["prefill n=2 q=4 k=4 qq=7 qk=9"], "square of q is at most n times qq"),
        (["prefill n=2 q=4 k=3 qq=8 qk=9"], "each new token has a key"),
        (["decode n=2 q=2 k=9 qq=2 qk=1"], "qk is at least qq"),
        (["decode n=0 q=0 k=0 qq=0 qk=0"], "the batch has no requests"),
        (["execute_context_2(14721)_generation_3(3)"], "has not all sums"),
        (["step[DECODE bs=64]"], "has not all sums"),
        (["4x1+normal:1:2:3"], "is no length"),
        (["4xuniform:5+0"], "is no length"),
    ],
)
def test_what_no_requests_are_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping({"workflow": "mixed", "requests": texts})


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"workflow": "mixed"}, "list them with --requests"),
        ({"workflow": "mixed", "requests": ["2x512+0"]}, "0 decodes.*--workflow prefill"),
        ({"workflow": "prefill", "requests": ["2x512+0", "1x1+5"]}, "1 decodes.*--workflow mixed"),
        ({"workflow": "decode", "requests": ["2x512+0"]}, "runs requests with one new token.*--workflow prefill"),
        ({"workflow": "decode", "requests": ["2x1+0"]}, "have none"),
        ({"workflow": "decode", "requests": ["2x1+9"], "seq_len": 1}, "--seq-len is 2 here and not 1"),
        ({"workflow": "prefill", "requests": ["2x9"], "micro_batch_size": 2}, "leave --micro-batch-size out"),
        ({"workflow": "prefill", "requests": ["2x9"], "attention": "math"}, "fused attention.*--attention fused"),
        ({"requests": ["2x9"]}, "the workflow training has no cache"),
    ],
)
def test_what_a_workflow_does_not_run_is_refused_with_a_way(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping(words)


def test_requests_come_from_files_and_draws(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("new,cached,requests\n512,0,2\n1,4096,3\n")
    (tmp_path / "r.yaml").write_text("- {new: 512, requests: 2}\n- {new: 1, cached: 4096, requests: 3}\n")
    (tmp_path / "r.json").write_text('["2x512+0", "3x1+4096"]')
    for name in ("r.csv", "r.yaml", "r.json"):
        assert read_requests(str(tmp_path / name)) == ("3x1+4096", "2x512+0")
    drawn = batch_of(read_requests(["500x1+lognormal:4000:1500", "2x7"]))
    assert drawn.decode.n == 500
    assert 3800 * 500 < drawn.decode.k < 4200 * 500, "the mean of the lengths"
    assert read_requests(["9x1+normal:500:9@3"]) == read_requests(["9x1+normal:500:9@3"])
    assert read_requests(["9x1+normal:500:9@3"]) != read_requests(["9x1+normal:500:9@4"])
    (tmp_path / "r.csv").write_text("tokens\n512\n")
    with pytest.raises(UsageError, match="has not new"):
        read_requests(str(tmp_path / "r.csv"))


def costs(program: Program, kind: str) -> Counter[str]:
    """FLOPs and bytes of the operators of a kind on a rank."""
    found = Counter[str]()
    for columns in program.workload.classes:
        for row, own in enumerate(columns.ops.kind):
            if own.startswith(kind):
                found["flops"] += int(columns.ops.flops[row])
                found["bytes"] += int(columns.ops.bytes[row])
    return found


def cached(program: Program) -> int:
    return max(dict(each.usage.at(each.peak))[Category.CACHE] for each in memory_of(program))


@pytest.mark.parametrize("name", ["llama3-8b", "gpt-oss-20b", "deepseek-v2-lite", "llama4-scout-text", "gemma-2-9b"])
def test_a_batch_costs_what_its_requests_cost_alone(name: str) -> None:
    """Attentions and caches are sums over requests. Matmuls of weights are those of all tokens together."""
    model, texts = dataclasses.replace(load_card(name), multi_token_prediction=0), ("3x384+0", "2x100+900", "5x1+3000")
    whole = lowered.program(model, workflow="mixed", requests=list(texts))
    alone = Counter[str]()
    kept = 0
    for text in texts:
        for group in batch_of((text,)).groups:
            one = lowered.program(
                model, workflow="prefill", seq_len=group.new, cache_len=group.cached, micro_batch_size=group.count
            )
            alone += costs(one, "attention") + costs(one, "cache")
            kept += cached(one)
    assert costs(whole, "attention") + costs(whole, "cache") == alone
    assert cached(whole) == kept
    tokens = 3 * 384 + 2 * 100 + 5
    same = lowered.program(model, workflow="prefill", seq_len=tokens)
    if "kv_rank" not in next(iter(model.kinds.values())).settings:
        assert costs(whole, "norm") == costs(same, "norm")
        logits = 2 * model.padded_vocab * model.hidden
        assert costs(whole, "matmul")["flops"] == costs(same, "matmul")["flops"] + 9 * logits


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
def test_sums_are_enough_without_windows(name: str) -> None:
    model = dataclasses.replace(load_card(name), multi_token_prediction=0)
    batch = batch_of(MIXED)
    sums = [batch.prefill.written("prefill"), batch.decode.written("decode")]
    one, other = (lowered.program(model, workflow="mixed", requests=list(each)) for each in (MIXED, sums))
    for kind in ("attention", "cache", "matmul", "norm", "expert"):
        assert costs(one, kind) == costs(other, kind)
    assert cached(one) == cached(other)


def test_sums_behind_a_window_are_refused() -> None:
    with pytest.raises(UsageError, match="sums are not enough"):
        lowered.program("gpt-oss-20b", workflow="decode", requests=["decode n=2 q=2 k=900 qq=2 qk=900"])


@pytest.mark.parametrize(
    "name",
    (
        *("nemotron-h-8b", "qwen3-next-80b-a3b", "jamba-v0.1", "lfm2-1.2b", "falcon-h1-7b", "kimi-linear-48b-a3b"),
        "minimax-text-01",
    ),
)
def test_scans_take_requests_of_one_length(name: str) -> None:
    with pytest.raises(UsageError, match=r"keep a state for it.*in place of --requests"):
        lowered.program(name, workflow="decode", requests=["2x1+9"])


def test_requests_of_one_length_are_a_batch_of_them() -> None:
    listed = lowered.program("gpt-oss-20b", workflow="decode", requests=["16x1+4095"], tp=2)
    words = lowered.program("gpt-oss-20b", workflow="decode", cache_len=4095, micro_batch_size=16, tp=2)
    for one, other in zip(listed.workload.classes, words.workload.classes, strict=True):
        assert one.ops.dims == other.ops.dims
        assert (one.ops.flops == other.ops.flops).all()
        assert (one.ops.bytes == other.ops.bytes).all()


def test_an_attention_of_both_kinds_takes_as_long_as_two_kernels() -> None:
    mixed = lowered.program("llama3-8b", workflow="mixed", requests=["2x512+0", "64x1+4096"])
    columns = mixed.workload.classes[0]
    row = columns.ops.kind.index("attention")
    assert columns.ops.dims[row] == (2, 32, 8, 512, 512, 128, 128, 64, 1, 4097)
    costs_ = Costs(load_system("h100"), 1)
    dims, flops, moved = columns.ops.dims[row], int(columns.ops.flops[row]), int(columns.ops.bytes[row])
    whole = costs_.work(Work("attention", "bf16", flops, moved, dims))
    pair, other = 4 * 32 * 128 * 2 * 512 * 512, 4 * 32 * 128 * 64 * 4097
    assert flops == pair + other
    heads = 2 * (8 * 512 + 32 * 512), 64 * (8 * 4097 + 32)
    first = costs_.work(Work("attention", "bf16", pair, moved * heads[0] // sum(heads), dims[:7]))
    rest = (64, 32, 8, 1, 4097, 128, 128)
    second = costs_.work(Work("attention", "bf16", other, moved - moved * heads[0] // sum(heads), rest))
    assert whole.ns == first.ns + second.ns


def test_a_store_has_such_a_batch_too(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    model = dataclasses.replace(card("llama", layers=4), max_positions=64)
    made = db.instantiate(model, workflow="mixed", requests=["2x8+0", "4x1+31"], tp=2, pp=2, dp=2)
    assert (made.plan["seq_len"], made.plan["cache_len"], made.plan["micro_batch_size"]) == (20, 124, 1)
    held = {row["bytes"] for row in db.memory(made.id).levels if row["category"] == "cache"}
    assert held == {2 * (2 * 8 + 4 * 32) * 2 * 1 * 4 * 2}, "layers, positions, keys and values, a head, size, bytes"
    assert db.profile(made.id).merit.tokens == 2 * 20
    db.export(made.id, out=tmp_path / "traces")
    assert validate_traces(tmp_path / "traces").faults == ()
    known = db.instantiate(model, workflow="mixed", requests=["4x1+31", "1x8", "1x8+0"], tp=2, pp=2, dp=2)
    assert known.id == made.id
