"""Steps that check drafts: FLOPs and caches against closed forms, what requests gain, and what is refused."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.api.forward_flops import forward_flops
from stagedb.api.memory_rows import RequestWords
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store
from stagedb.traces import validate_traces
from stagedb.validation.model_check import cache_bytes
from tests import lowered
from tests.ir.tiny import card
from tests.workflows.test_serving import PER_TOKEN, flops, pairs

WORDS: dict[str, Any] = {"workflow": "speculative", "cache_len": 31}


def drafting(model: Card, layers: int) -> Card:
    return dataclasses.replace(model, multi_token_prediction=layers)


@pytest.mark.parametrize("name", ["llama3-8b", "gemma-2-9b", "gpt-oss-20b", "mixtral-8x7b", "gpt2"])
@pytest.mark.parametrize("checked", [2, 5])
def test_flops_of_a_checked_draft_are_the_closed_form(name: str, checked: int) -> None:
    model = load_card(name)
    keys, batch = (1_000 if model.positions == "learned" else 20_000), max(model.experts, 1)
    graph = build_graph(model, GraphOptions(workflow="speculative"))
    of_tokens = forward_flops(model, batch * checked).counted - pairs(model, batch * checked, batch * checked)
    assert flops(graph, batch, checked, keys) == of_tokens + batch * pairs(model, checked, keys)


def test_a_layer_for_further_tokens_adds_itself_and_the_logits_of_one_token() -> None:
    model, batch, checked, keys = load_card("llama3-8b"), 3, 2, 4_000
    alone, own = (
        flops(build_graph(each, GraphOptions(workflow="speculative")), batch, checked, keys)
        for each in (model, drafting(model, 1))
    )
    shorter = dataclasses.replace(model, layers=model.layers - 1, parameters=0)
    layer = alone - flops(build_graph(shorter, GraphOptions(workflow="speculative")), batch, checked, keys)
    projection = 2 * batch * checked * 2 * model.hidden * model.hidden
    logits = 2 * batch * model.padded_vocab * model.hidden
    assert own - alone == layer + projection + logits


def test_a_layer_for_further_tokens_keeps_latents_of_its_own() -> None:
    graph = build_graph(drafting(load_card("deepseek-v3"), 1), GraphOptions(workflow="speculative"))
    few, many = (cache_bytes(graph, on_one_rank(graph, 1, 2, keys)) for keys in (10_000, 10_001))
    assert many - few == PER_TOKEN["deepseek-v3"] // 61 * 62


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ({"seq_len": 2, "acceptance": 0.85}, 8 * Fraction(37, 20)),
        ({"seq_len": 4, "acceptance": 0.5}, 8 * Fraction(15, 8)),
        ({"seq_len": 4, "acceptance": 1}, 8 * 4),
        ({"seq_len": 4, "acceptance": 0}, 8),
        ({"seq_len": 4}, None),
        ({"requests": ["3x4+9", "2x4+30"], "acceptance": 0.5}, 5 * Fraction(15, 8)),
    ],
)
def test_a_request_gains_a_token_and_those_that_are_accepted(words: dict[str, Any], tokens: Fraction | None) -> None:
    batch = {} if "requests" in words else {"cache_len": 31, "micro_batch_size": 8}
    assert Plan.from_mapping({"workflow": "speculative", **batch, **words}).tokens == tokens
    assert Plan.from_mapping({"micro_batch_size": 2, "seq_len": 5}).tokens == 10


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (WORDS, "a draft behind it: give their number with --seq-len, such as --seq-len 4 for drafts of 3 tokens"),
        ({"workflow": "speculative", "seq_len": 3}, "give their number with --cache-len"),
        ({**WORDS, "seq_len": 3, "acceptance": 1.5}, "acceptance is 1.5: --acceptance takes a probability"),
        ({**WORDS, "seq_len": 3, "cp": 2, "cp_kind": "ring-p2p"}, "speculative takes --cp-kind allgather-lse"),
        ({"workflow": "decode", "cache_len": 9, "acceptance": 0.5}, "no draft, which --acceptance is for"),
        ({"workflow": "decode", "cache_len": 9, "draft": "other"}, "no draft, which --draft is for"),
        ({"workflow": "speculative", "requests": ["2x1+9"]}, "take --workflow decode"),
        ({"workflow": "speculative", "requests": ["2x3+9", "2x2+9"]}, "take --workflow prefill"),
        ({"workflow": "decode", "requests": ["decode n=2 q=8 k=99 qq=32 qk=396"]}, "take --workflow speculative"),
        ({"workflow": "mixed", "requests": ["decode n=2 q=8 k=99 qq=34 qk=396"]}, "those of drafts are in a step of"),
    ],
)
def test_what_is_no_step_that_checks_drafts_is_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping(words)


def test_layers_draft_a_token_each() -> None:
    model = drafting(card("llama"), 2)
    model = dataclasses.replace(model, max_positions=64)
    assert lowered.plan_of(model, **WORDS).seq_len == 3, "its layers draft two"
    with pytest.raises(UsageError, match="together 2 of a request in a step, not 4: take --seq-len 3, --draft"):
        lowered.plan_of(model, **WORDS, seq_len=5)
    assert lowered.plan_of(model, **WORDS, seq_len=5, draft="other").seq_len == 5
    assert lowered.plan_of(model, workflow="decode", cache_len=31).seq_len == 1


def test_states_of_scans_cannot_be_taken_back() -> None:
    with pytest.raises(UsageError, match=r"rejected ones cannot be taken back.*take --workflow decode --seq-len 1"):
        lowered.plan_of(load_card("qwen3-next-80b-a3b"), **WORDS, seq_len=3)


def test_memory_profile_and_export_know_it(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    model = dataclasses.replace(drafting(card("deepseek", layers=4), 1), max_positions=64)
    made = db.instantiate(model, tp=1, pp=2, dp=2, ep=2, global_batch_size=8, acceptance=0.5, **WORDS)
    assert (made.plan["seq_len"], made.plan["acceptance"]) == (2, 0.5)
    drafts = "MATCH (:Graph {drafting_layers: 1})-[:HAS_OP]->(o:SymOp {depth: 1, kind: 'cache'}) RETURN count(*)"
    assert store.query(drafts).rows[0][0] > 0
    timed = db.profile(made.id)
    assert timed.merit.tokens == 8 * 2
    assert timed.merit.tokens_per_second == pytest.approx(8 * 1.5e9 / timed.merit.step)
    assert db.export(made.id, out=tmp_path / "out").world == 4
    assert validate_traces(tmp_path / "out").faults == ()


def test_requests_that_fit_have_the_caches_of_layers_that_draft(embedded_store: Store) -> None:
    """Two layers keep keys and values of 2 heads of 4 in 2 bytes, and the one that drafts a third of them more."""
    db = Stagedb(embedded_store)
    words: dict[str, Any] = {"cache_len": 46, "seq_len": 2, "workflow": "speculative", "acceptance": 0.5}
    model = dataclasses.replace(card("llama"), max_positions=64)
    asked = RequestWords(share=Fraction(9, 10), block=16, held=0, capacity=10**7)
    fits = []
    drafts: list[tuple[Card, dict[str, Any]]] = [
        (model, {}),
        (drafting(model, 1), {"draft": "own"}),
        (drafting(model, 1), {"draft": "other"}),
    ]
    for each, more in drafts:
        room = db.memory(model=each, keep=False, fitting=asked, **words, **more).requests
        assert room is not None
        fits.append(room.fit)
    assert [(each.tokens, each.block) for each in fits] == [(48, 16 * 2 * 2 * 2 * 4 * layers) for layers in (2, 3, 2)]
