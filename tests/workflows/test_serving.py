"""Steps of serving: what they compute, keep in the cache and refuse, against closed forms and published bytes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.api.forward_flops import forward_flops
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.ir.symbolic_graph import Compute
from stagedb.memory import Category, memory_of
from stagedb.models import Card, card_names, load_card
from stagedb.models.kinds.head_sizes import head_sizes
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store
from stagedb.traces import validate_traces
from stagedb.validation.model_check import cache_bytes
from tests import lowered
from tests.ir.tiny import card


def served(model: Card, workflow: str = "decode") -> SymGraph:
    """Its graph, in which keys are made of all latents."""
    latent = any("kv_rank" in kind.settings for kind in model.kinds.values())
    return build_graph(model, GraphOptions(workflow=workflow, latents="expanded" if latent else "usual"))


def flops(graph: SymGraph, batch: int, queries: int, keys: int) -> int:
    """FLOPs of a step of all layers on one rank."""
    env = on_one_rank(graph, batch, queries, keys)
    repeats = {block.name: evaluate(block.repeat, env) for block in graph.blocks}
    return sum(
        evaluate(op.work.flops, env) * repeats[op.block]
        for op in graph.ops
        if isinstance(op.work, Compute) and op.block in repeats
    )


def pairs(model: Card, queries: int, keys: int) -> int:
    """FLOPs that grow with the keys of a request, by hand: scores and their sums over values; with latents the keys and
    values that are made of them, and an indexer's scores."""
    total = 0
    for name in model.sequence:
        if model.kinds[name].mixer == "selective_scan":
            continue  # it goes token by token
        values = model.kinds[name].settings
        if model.kinds[name].mixer == "short_convolution":
            continue
        limit = int(values.get("window") or values.get("chunk") or values.get("index_top") or keys)
        if "kv_rank" not in values:
            made = head_sizes(model, values)
            total += 2 * made.heads * queries * min(keys, limit) * (made.head_dim + made.value_dim)
            continue
        nope, rope, value = (int(values[f"{word}_dim"]) for word in ("nope", "rope", "value"))
        halves = 2 if model.kinds[name].mixer == "shortcut_experts" else 1
        total += halves * 2 * model.heads * queries * min(keys, limit) * (nope + rope + value)
        total += halves * 2 * keys * int(values["kv_rank"]) * model.heads * (nope + value)
        if "index_heads" in values:
            total += 2 * queries * keys * int(values["index_heads"]) * (int(values["index_dim"]) + 1)
    return total


CHUNKED = {"state_space", "attention_and_scan", "gated_delta", "kimi_delta", "lightning_attention"}
"""The mixers whose scans have other FLOPs in chunks than token by token (`tests/semantics/test_scans.py`)."""


def is_chunked(name: str) -> bool:
    """Whether some layer of a model of the library has such a scan."""
    return any(kind.mixer in CHUNKED for kind in load_card(name).kinds.values())


STATES = {
    # name: (layers with attention, layers with scans, values of a convolution, elements of the states of a layer)
    "nemotron-h-8b": (4, 24, 128 * 64 + 2 * 8 * 128, 128 * 64 * 128),
    "qwen3-next-80b-a3b": (12, 36, (2 * 16 + 32) * 128, 32 * 128 * 128),
    "jamba-v0.1": (4, 28, 8192, 8192 * 16),
    "jamba-1.5-large": (9, 63, 16384, 16384 * 16),
    "falcon-h1-7b": (44, 44, 24 * 128 + 2 * 256, 24 * 128 * 256),
}


@pytest.mark.parametrize("name", STATES)
def test_states_are_as_large_for_every_length(name: str) -> None:
    full, layers, channels, states = STATES[name]
    model = load_card(name)
    graph = served(model)
    keys = 2 * 2 * model.kv_heads * model.head_dim * full
    for tokens in (1_000, 5_000):
        found = cache_bytes(graph, on_one_rank(graph, 3, 1, tokens))
        assert found == 3 * (tokens * keys + layers * (channels * 4 * 2 + states * 4))


def test_kimi_delta_attention_keeps_states_next_to_latents() -> None:
    """Twenty layers with three convolved parts and a state for each of 32 heads, seven with latents of 576."""
    graph = served(load_card("kimi-linear-48b-a3b"))
    for tokens in (1_000, 5_000):
        found = cache_bytes(graph, on_one_rank(graph, 3, 1, tokens))
        assert found == 3 * (tokens * 576 * 2 * 7 + 20 * (3 * 4096 * 4 * 2 + 32 * 128 * 128 * 4))


def test_lightning_attention_keeps_a_matrix_for_each_head() -> None:
    """MiniMax-Text-01: ten layers with keys and values, seventy with a state of 128 by 128 for each of 64 heads."""
    graph = served(load_card("minimax-text-01"))
    for tokens in (1_000, 5_000):
        found = cache_bytes(graph, on_one_rank(graph, 3, 1, tokens))
        assert found == 3 * 2 * (tokens * 2 * 8 * 128 * 10 + 70 * 64 * 128 * 128)


def test_a_short_convolution_keeps_its_taps_of_gated_values() -> None:
    """LFM2 1.2B: six layers with keys and values, ten with three values of each of 2,048 channels."""
    graph = served(load_card("lfm2-1.2b"))
    for tokens in (1_000, 5_000):
        found = cache_bytes(graph, on_one_rank(graph, 3, 1, tokens))
        assert found == 3 * (tokens * 2 * 2 * 8 * 64 * 6 + 10 * 2048 * 3 * 2)


@pytest.mark.parametrize("name", [name for name in card_names() if not is_chunked(name)])
def test_flops_of_a_token_grow_with_its_keys_as_the_closed_form(name: str) -> None:
    model = dataclasses.replace(load_card(name), multi_token_prediction=0)
    keys, batch = (1_000 if model.positions == "learned" else 20_000), max(model.experts, 1)  # each expert as often
    graph = served(model)
    of_tokens = forward_flops(model, batch).counted - pairs(model, batch, batch)
    assert flops(graph, batch, 1, 1) == of_tokens + batch * pairs(model, 1, 1)
    assert flops(graph, 3 * batch, 1, keys) == 3 * (of_tokens + batch * pairs(model, 1, keys))


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "kimi-k2", "glm-5"])
def test_flops_of_a_token_that_reads_latents_grow_as_the_closed_form(name: str) -> None:
    """A query reads a latent and the shared part of its key, and adds up latents: DeepSeek-AI 2024, appendix C."""
    model, keys = dataclasses.replace(load_card(name), multi_token_prediction=0), 20_000
    graph, batch = build_graph(model, GraphOptions(workflow="decode")), model.experts
    few, many = (flops(graph, batch, 1, each) for each in (keys, keys + 1))
    values = model.kinds[model.sequence[-1]].settings
    rank, rope, heads, size = (int(values[word]) for word in ("kv_rank", "rope_dim", "index_heads", "index_dim"))
    seen = 0 if heads else 2 * model.heads * (2 * rank + rope)
    assert many - few == batch * model.layers * (seen + 2 * heads * (size + 1))
    expanded = flops(served(model), batch, 1, 1)
    nope, value = int(values["nope_dim"]), int(values["value_dim"])
    per_layer = 2 * model.heads * (2 * rank - nope - value)  # of one pair, whose up-projection costs as much either way
    assert flops(graph, batch, 1, 1) - expanded == batch * model.layers * per_layer


@pytest.mark.parametrize("name", ["llama3-8b", "gpt-oss-20b", "deepseek-v2-lite", "mixtral-8x7b"])
def test_flops_of_a_prefill_are_those_of_a_forward_with_logits_of_last_tokens_alone(name: str) -> None:
    model, tokens = load_card(name), 2_048
    logits = 2 * model.padded_vocab * model.hidden
    found = flops(served(model, "prefill"), 4, tokens, tokens)
    assert found == 4 * (forward_flops(model, tokens).counted - (tokens - 1) * logits)


PER_TOKEN = {
    "deepseek-v3": 70_272,
    "kimi-k2": 70_272,
    "llama3-8b": 131_072,
    "llama3.1-70b": 327_680,
    "qwen3-235b-a22b": 192_512,
    "longcat-flash": 28 * 2 * 2 * (512 + 64),
    "minimax-m2": 253_952,
    "gpt-oss-120b": 36_864,
    "deepseek-v3.2": 70_272 + 61 * 2 * 128,
    "glm-5": 89_856 + 78 * 2 * 128,
}
"""Bytes of a token in a bf16 cache, beyond windows: the elements that technical reports and configs give. Indexers have
one key of 128 elements a layer."""


@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_token_has_so_many_bytes_in_the_cache(name: str) -> None:
    graph = served(load_card(name))
    few, many = (cache_bytes(graph, on_one_rank(graph, 1, 1, keys)) for keys in (10_000, 10_001))
    assert many - few == PER_TOKEN[name]
    windows = 18 * 128 * 2 * 2 * 8 * 64 if name == "gpt-oss-120b" else 0
    assert few == 10_000 * PER_TOKEN[name] + windows


def held(model: str, **words: Any) -> list[dict[Category, int]]:
    program = lowered.program(load_card(model), workflow="decode", **words)
    return [dict(each.usage.at(each.peak)) for each in memory_of(program)]


def test_a_rank_holds_the_cache_of_all_its_requests_and_no_gradients() -> None:
    (alone,) = held("llama3-8b", cache_len=4_095, micro_batch_size=16)
    assert alone[Category.CACHE] == 16 * 4_096 * 131_072
    assert not {Category.GRADIENTS, Category.OPTIMIZER, Category.ACTIVATIONS} & {each for each, n in alone.items() if n}
    (heads,) = held("llama3-8b", cache_len=4_095, micro_batch_size=16, tp=8)
    assert heads[Category.CACHE] == alone[Category.CACHE] // 8
    (repeated,) = held("llama3-8b", cache_len=4_095, micro_batch_size=16, tp=16)
    assert repeated[Category.CACHE] == heads[Category.CACHE], "a key/value head is repeated"
    first, last = held("llama3-8b", cache_len=4_095, micro_batch_size=4, global_batch_size=16, pp=2)
    assert first[Category.CACHE] == last[Category.CACHE] == alone[Category.CACHE] // 2


def test_ranks_of_tp_each_have_all_latents() -> None:
    found = [held("deepseek-v2-lite", cache_len=1_023, micro_batch_size=8, tp=tp)[0] for tp in (1, 4)]
    assert {each[Category.CACHE] for each in found} == {8 * 1_024 * 27 * 2 * (512 + 64)}


def test_formats_of_caches_and_of_stored_weights() -> None:
    wide = held("llama3-8b", cache_len=4_095, micro_batch_size=16)[0]
    narrow = held("llama3-8b", cache_len=4_095, micro_batch_size=16, cache_dtype="fp8_e4m3", matmul_dtype="fp8")[0]
    assert narrow[Category.CACHE] * 2 == wide[Category.CACHE]
    of_layers = 32 * (4096 * (4096 + 1024) * 2 + 3 * 4096 * 14_336)
    assert wide[Category.PARAMETERS] - narrow[Category.PARAMETERS] == of_layers, "a byte of each weight of a matmul"
    latents = held("deepseek-v2-lite", cache_len=1_023, micro_batch_size=8, cache_dtype="fp8_e4m3")[0]
    assert latents[Category.CACHE] == 8 * 1_024 * 27 * (512 + 64)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"latents": "absorbed"}, "--workflow prefill or --workflow mixed or --workflow decode"),
        ({"workflow": "prefill", "latents": "absorbed", "attention": "math"}, "needs --attention fused"),
        ({"cache_dtype": "fp8_e4m3"}, "has no cache, which --cache-dtype"),
        (
            {"workflow": "decode"},
            "reads the cache of each request, which has no tokens: give their number with --cache-len",
        ),
        ({"workflow": "decode", "cache_len": 9, "seq_len": 4}, "adds 1 token to each request, not 4"),
        ({"workflow": "decode", "cache_len": 9, "cp": 11}, r"11 ranks of cp share the 10 .*: the nearest is --cp 10"),
        ({"workflow": "prefill", "seq_len": 8, "cp": 2, "cp_kind": "ulysses"}, "prefill takes --cp-kind allgather-lse"),
        ({"workflow": "forward-only", "cache_len": 9}, "the workflow forward-only has no cache, which --cache-len is"),
        ({"cache_len": 9}, "the workflow training has no cache, which --cache-len is"),
        ({"workflow": "decode", "cache_len": -1}, "takes 0 or more"),
        ({"workflow": "decode", "cache_len": 9, "dropout": 0.1}, "has no gradients"),
        ({"workflow": "decode", "cache_len": 9, "pp": 2, "schedule": "zb-h1"}, "splits the backward"),
    ],
)
def test_what_no_step_of_serving_can_be_is_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping(words)


def test_a_context_beyond_learned_positions_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a sequence of 1025 tokens is longer than .* 1024 learned positions"):
        lowered.program(load_card("gpt2"), workflow="decode", cache_len=1_024)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"workflow": "decode", "cache_len": 8_192}, r"llama3-8b has 8,192 positions, and these requests 8,193: "
         r"cache_len takes at most 8191; a card"),
        ({"workflow": "prefill", "seq_len": 8_193}, r"these requests 8,193: take less seq_len"),
    ],
)  # fmt: skip
def test_contexts_beyond_the_model_are_refused(embedded_store: Store, words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Stagedb(embedded_store).instantiate("llama3-8b", **words)
    Stagedb(embedded_store).instantiate("llama3-8b", workflow="decode", cache_len=8_191)


def test_memory_profile_export_and_report_know_it(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    model = dataclasses.replace(card("llama", layers=4), max_positions=64)
    words: dict[str, Any] = {"tp": 2, "pp": 2, "dp": 2, "global_batch_size": 8}
    prefill = db.instantiate(model, workflow="prefill", seq_len=16, **words).id
    made = db.instantiate(model, workflow="decode", cache_len=31, **words)
    assert made.plan["seq_len"] == 1
    decode = made.id
    found = db.memory(decode)
    held = {row["bytes"] for row in found.levels if row["category"] == "cache"}
    assert held == {4 * 2 * 32 * 2 * 1 * 4 * 2}, "requests, layers, positions, keys and values, a head, its size, bytes"
    timed, other = db.profile(decode), db.profile(prefill)
    assert 0 < timed.merit.step < other.merit.step
    assert (timed.merit.tokens, other.merit.tokens) == (8, 8 * 16)
    for each in (prefill, decode):
        assert db.export(each, out=tmp_path / each).world == 8
        assert validate_traces(tmp_path / each).faults == ()
    db.report(timed.info.id, out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "cache" in page and "a step of decode" in page
    assert "<h2>More requests at once</h2>" in page and "this plan" in page and "time a token" in page.lower()
    trained = db.profile(db.instantiate(model, seq_len=16, **words).id)
    db.report(trained.info.id, out=tmp_path / "trained.html")
    assert "More requests" not in (tmp_path / "trained.html").read_text(encoding="utf-8")
    caches = "MATCH (t:SymTensor {role: 'cache'})<-[:WRITES]-(o:SymOp {kind: 'cache'}) RETURN count(*) AS n"
    assert store.query(caches).rows == ((4,),)
