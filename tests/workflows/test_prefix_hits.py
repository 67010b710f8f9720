"""Prefixes that requests share: tokens that are not computed, and that a cache has once. Oracle: sets of positions."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.memory.request_blocks import RequestFit
from stagedb.models import load_card
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.request_batches import batch_of, read_requests
from stagedb.store import Store
from tests import lowered
from tests.ir.tiny import card
from tests.semantics.test_serving import ABSORBED, KEYS, Serving, model
from tests.workflows.test_request_batches import cached, costs

LAYERS: dict[str, tuple[int, list[int]]] = {
    "llama3-8b": (2 * 8 * 128 * 2, [0] * 32),
    "deepseek-v2-lite": ((512 + 64) * 2, [0] * 27),
    "gpt-oss-20b": (2 * 8 * 64 * 2, [128, 0] * 12),
    "gemma-2-9b": (2 * 8 * 256 * 2, [4096, 0] * 21),
}
"""Bytes of a token in a layer by the models' own configs, and the window of each layer; 0 without one."""

BATCHES: list[list[str]] = [
    ["8x1+5000/4000"],
    ["3x1+5000/4800", "2x1+300/200", "1x1+4900", "4x1+7000/4950"],
    ["3x1+5000/4800", "2x1+300/300#2", "4x1+400/350#2", "5x1+77/16#3"],
    ["2x1+130/130", "2x1+258/130"],
]


def positions(texts: list[str], window: int, microbatches: int) -> int:
    """Positions that a layer keeps: those of a request's own, and each of a prefix once."""
    kept: set[tuple[Any, ...]] = set()
    for microbatch in range(microbatches):
        for text in texts:
            requests, rest = text.split("x1+")
            tokens, _, ends = rest.partition("/")
            shared, _, prefix = ends.partition("#")
            for request in range(int(requests)):
                keys = int(tokens) + 1
                for at in range(max(0, keys - window) if window else 0, keys):
                    of = ("prefix", prefix or "1") if at < int(shared or 0) else (microbatch, text, request)
                    kept.add((of, at))
    return len(kept)


@pytest.mark.parametrize("texts", BATCHES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_cache_has_each_position_of_a_prefix_once(name: str, texts: list[str]) -> None:
    of_card = dataclasses.replace(load_card(name), multi_token_prediction=0)
    program = lowered.program(of_card, workflow="decode", requests=texts)
    token, windows = LAYERS[name]
    by_window = {each: positions(texts, each, 1) for each in set(windows)}
    assert cached(program) == token * sum(by_window[each] for each in windows)


def test_micro_batches_share_a_prefix_too() -> None:
    words: dict[str, Any] = {"workflow": "decode", "pp": 2, "dp": 2, "global_batch_size": 6, "tp": 2}
    program = lowered.program("llama3-8b", requests=BATCHES[0], **words)
    token, windows = LAYERS["llama3-8b"]
    assert cached(program) == token // 2 * (len(windows) // 2) * positions(BATCHES[0], 0, 3)


def test_sums_have_the_tokens_that_are_kept_once() -> None:
    sums = ["decode n=8 q=8 k=40008 qq=8 qk=40008 s=28000"]
    listed, summed = (lowered.program("llama3-8b", workflow="decode", requests=each) for each in (BATCHES[0], sums))
    assert cached(listed) == cached(summed)
    plan = Plan.from_mapping({"workflow": "decode", "requests": sums})
    assert batch_of(plan.requests).texts == tuple(sums)


def test_tokens_of_a_hit_are_not_computed() -> None:
    """A prompt of 4,096 tokens, of which 1,024 are there, costs what 3,072 tokens behind a cache of 1,024 cost."""
    assert read_requests(["8x4096-1024"]) == ("8x3072+1024/1024",)
    assert read_requests(["8x4096-1024+512#2"]) == ("8x3072+1536/1536#2",)
    hit, apart = (
        lowered.program("llama3-8b", workflow="prefill", requests=[each]) for each in ("8x4096-1024", "8x3072+1024")
    )
    for kind in ("attention", "cache", "matmul", "norm"):
        assert costs(hit, kind) == costs(apart, kind)
    assert cached(apart) - cached(hit) == 7 * 1024 * 32 * LAYERS["llama3-8b"][0]
    batch = batch_of(read_requests(["8x4096-1024"]))
    assert (batch.prefill.n, batch.prefill.q, batch.prefill.k) == (8, 8 * 3072, 8 * 4096)
    assert (batch.prefill.qq, batch.prefill.qk) == (8 * 3072**2, 8 * 3072 * 4096)


def test_hits_are_drawn_and_come_from_files(tmp_path: Path) -> None:
    drawn = batch_of(read_requests(["500xlognormal:400:300-uniform:0:300#2@5"]))
    assert 360 * 500 < drawn.sums.k < 440 * 500, "the mean of the prompts, hits included"
    assert 100 * 500 < sum(each.count * each.shared for each in drawn.groups) < 150 * 500, "a mean of 150 or less"
    assert drawn.sums.n == 500
    assert all(0 <= each.shared == each.cached <= 300 for each in drawn.groups)
    assert {each.prefix for each in drawn.groups if each.shared} == {2}
    (tmp_path / "r.csv").write_text("new,hit,cached,shared,prefix,requests\n4096,1024,0,0,2,8\n1,0,500,100,1,2\n")
    (tmp_path / "r.yaml").write_text(
        "- {new: 4096, hit: 1024, prefix: 2, requests: 8}\n- {new: 1, cached: 500, shared: 100, requests: 2}\n"
    )
    for name in ("r.csv", "r.yaml"):
        assert read_requests(str(tmp_path / name)) == ("2x1+500/100", "8x3072+1024/1024#2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8x4096-4096", "one new token or more that is not found in the cache"),
        ("8x1+50/51", "which have 50 and not 51"),
        ("8x10-5+4/3", "write one of them"),
        ("8x1+50#2", "a numbered prefix"),
        ("8x1+50/5#0", "numbered from 1"),
        ("decode n=2 q=2 k=9 qq=2 qk=9 s=8", "s is at most what is in caches"),
        ("decode n=2 q=2 k=9 qq=2 qk=9 t=8", "each once with n, q, k, qq, qk"),
    ],
)
def test_what_no_prefix_is_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_requests([text])


def test_blocks_of_a_prefix_are_counted_once() -> None:
    """100 blocks: 4 of a prefix, and 6 of each request behind it, against 10 of each."""
    words: dict[str, Any] = {"block_tokens": 16, "block": 7, "tokens": 150, "request": 70}
    apart, found = RequestFit(700, **words), RequestFit(700, **words, shared=64, prefix=28)
    assert (apart.requests, found.requests) == (10, 16)
    for other in (found, dataclasses.replace(found, even=False)):
        assert other.requests == 16
        more, less = (dataclasses.replace(other, cache=700 + other.missing - each) for each in (0, 1))
        assert (more.requests, less.requests) == (17, 16)
    limited = dataclasses.replace(found, limit=40)
    assert (limited.requests, limited.missing) == (6, (4 + 7 * 6 - 40) * 7)


def test_caches_with_a_prefix_are_not_sent(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    of_card = dataclasses.replace(card("llama", layers=2), max_positions=64)
    prefill = db.instantiate(of_card, workflow="prefill", requests=["2x16-8"])
    decode = db.instantiate(of_card, workflow="decode", cache_len=16, micro_batch_size=2)
    with pytest.raises(UsageError, match="share a prefix, and each request's cache is sent whole"):
        db.export(prefill.id, send_to=decode.id, out=tmp_path / "traces")
    held = {row["bytes"] for row in db.memory(prefill.id).levels if row["category"] == "cache"}
    assert held == {2 * (16 + 8) * 2 * 2 * 4 * 2}, "layers, positions, keys and values, heads, size, bytes"


@pytest.mark.parametrize("name", ["grouped", "packed", "latent", "absorbed", "indexer", "window", "chunks"])
def test_requests_behind_a_prefix_of_another_make_what_one_forward_makes(name: str) -> None:
    """In numpy: the prefix of all requests is computed in the first one alone, whose cache they read."""
    hits = 6
    graph = build_graph(model(name), GraphOptions(workflow="prefill", **ABSORBED.get(name, {})))
    plain, other = Serving(graph), Serving(graph)
    plain.tokens[1:, :hits] = plain.tokens[0, :hits]
    expected, following = plain.step(0, KEYS)
    other.tokens = plain.tokens.copy()
    other.tokens[1:, :hits] = (other.tokens[1:, :hits] + 1) % graph.sizes["V"]  # of no use to the others
    other.step(0, hits)
    other.caches = {
        key: [np.repeat(part[:1], len(part), axis=0) for part in value] for key, value in other.caches.items()
    }
    logits, tokens = other.step(hits, KEYS)
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(tokens, following)
