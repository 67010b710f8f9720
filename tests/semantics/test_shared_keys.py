"""The attention of DeepSeek V4: gradients, partitioned runs, what a query sees, and what is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.api.forward_flops import forward_flops
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.interpreter import run_block
from stagedb.ir.operators import Array, RankPlace, compressed
from stagedb.ir.symbolic_graph import Collective
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.symbolic_rows import flops

SHARED = {"q_rank": 6, "rope_dim": 2, "window": 3, "out_groups": 4, "out_rank": 3}
HEAVY = {**SHARED, "mixer": "heavily_compressed", "heavy_ratio": 3}
SPARSE = {**SHARED, "mixer": "compressed_sparse", "sparse_ratio": 2, "index_heads": 3, "index_dim": 2, "index_top": 2}

KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "window": {"layer": {**SHARED, "mixer": "shared_keys"}},
    "heavy": {"layer": HEAVY},
    "blocks longer than the sequence": {"layer": {**HEAVY, "heavy_ratio": 9}},
    "sparse": {"layer": SPARSE},
    "sparse, all blocks": {"layer": {**SPARSE, "index_top": 30}},
    "both, in streams": {
        "layer": {**HEAVY, "residual": "hyper_connections"},
        "other": {**SPARSE, "residual": "hyper_connections"},
    },
}


def model(name: str, layers: int = 2) -> Card:
    """Layers of each kind in turn."""
    kinds: Any = KINDS[name]
    several = "streams" in name
    usual = dataclasses.replace(card("llama"), kv_heads=4)
    return dataclasses.replace(
        usual, layers=layers, layer_kinds=kinds, pattern=tuple(kinds)[:layers], hyper_connections=3 if several else 0
    )


STYLES = {
    "torch": GraphOptions(),
    "eager": GraphOptions(kernels="eager"),
    "megatron": GraphOptions(recipe="megatron"),
}


@pytest.mark.parametrize(
    ("name", "words"),
    [(name, words) for name in KINDS for words in STYLES if words == "torch" or "streams" not in name],
)
def test_gradients_are_the_slopes_of_the_loss(name: str, words: str) -> None:
    made = model(name)
    case = example(build_graph(made, STYLES[words]))
    assert sum(value.size for value in case.weights.values()) == made.count_parameters()
    analytic, rng, step = case.run().gradients, np.random.default_rng(1), 1e-5
    assert set(analytic) == set(case.weights)
    for key, weight in case.weights.items():
        direction = rng.normal(size=weight.shape)
        ends = [case.loss(key, weight + sign * step * direction) for sign in (1, -1)]
        # The indexer learns from a loss of its own.
        slope = 0.0 if ".index." in str(key) else float((analytic[key] * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("words", STYLES)
@pytest.mark.parametrize("name", ["sparse", "sparse, all blocks"])
def test_an_indexer_learns_how_far_it_is_from_the_attention(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    divergences: list[float] = []
    plain = compressed.BlockIndexLossGradient.run

    def noted(self: compressed.BlockIndexLossGradient, place: RankPlace, inputs: list[Array]) -> list[Array]:
        scores, target = inputs
        ended = np.isfinite(scores).any(axis=-1)
        scores, target = scores[ended], target[ended]
        share, seen = target / target.sum(axis=-1, keepdims=True), np.isfinite(scores)
        own = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        divergences.append(float((share[seen] * (np.log(share[seen]) - own[seen])).sum()) / ended.size)
        return plain(self, place, inputs)

    monkeypatch.setattr(compressed.BlockIndexLossGradient, "run", noted)
    case = example(build_graph(model(name, layers=1), STYLES[words]))
    case = dataclasses.replace(case, weights={key: 3 * weight for key, weight in case.weights.items()})
    analytic, rng, step = case.run().gradients, np.random.default_rng(1), 1e-6
    assert divergences.pop() > 0.01
    learnt = [key for key in case.weights if ".index." in str(key)]
    assert len(learnt) == 6
    for key in learnt:
        direction = rng.normal(size=case.weights[key].shape)
        for sign in (1, -1):
            case.run(weights={**case.weights, key: case.weights[key] + sign * step * direction})
        slope = (divergences[-2] - divergences[-1]) / (2 * step)
        assert slope == pytest.approx(float((analytic[key] * direction).sum()), rel=1e-4, abs=1e-7), key


MESHES: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp": ({}, {"tp": 2, "dp": 2}),
    "tp 4, sp": ({"sp": True}, {"tp": 4}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "zero 2, pointwise": ({"zero": 2, "recompute": "pointwise"}, {"dp": 4}),
    "megatron": ({"recipe": "megatron", "zero": 1}, {"tp": 2, "dp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 3}, {"tp": 2, "dp": 2}),
    "cp": ({"cp_kind": "ulysses"}, {"cp": 2}),
    "cp, dp, zero 3": ({"cp_kind": "ulysses", "zero": 3}, {"cp": 2, "dp": 2}),
    "cp, tp, zero 1": ({"cp_kind": "ulysses", "zero": 1}, {"cp": 2, "tp": 2}),
    "cp, sp, tp": ({"cp_kind": "ulysses", "sp": True, "recompute": "full"}, {"cp": 2, "tp": 2}),
    # Parts of two tokens: blocks of three are those of two ranks.
    "cp 4": ({"cp_kind": "ulysses"}, {"cp": 4}),
    "megatron, cp, sp": ({"recipe": "megatron", "cp_kind": "ulysses", "sp": True, "zero": 1}, {"tp": 2, "cp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("name", KINDS)
def test_partitioned_layers_compute_the_same(name: str, words: str) -> None:
    options, degrees = MESHES[words]
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(build_graph(model(name), GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model(name), GraphOptions(**options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


def test_a_window_alone_is_divided_over_a_context() -> None:
    whole = example(build_graph(model("window"), GraphOptions()))
    graph = build_graph(model("window"), GraphOptions(cp_kind="ulysses"))
    assert_same(dataclasses.replace(whole, graph=graph).run(cp=2, tp=2), whole.run_whole())


def test_ranks_of_a_context_gather_what_blocks_are_made_of() -> None:
    """An all-gather over cp of keys and of what blocks are made of, and a reduce-scatter of its gradient.

    Of 2 ranks each has half of 4 heads: all-to-alls of queries and results. The indexer's scores and places are those
    of a rank's own queries, and the attention reads all.
    """
    for name, series, index in (("heavy", 4, 0), ("sparse", 2 * 4, 2 * 2)):
        graph = build_graph(model(name, layers=1), GraphOptions(cp_kind="ulysses"))
        env = {**environment(graph), "cp": 2, "tp": 1}
        tokens = env["B"] * env["S"]
        assert (env["A"], env["D"]) == (4, 4)
        found = [
            (op.kind, evaluate(op.work.comm_bytes, env) // tokens)
            for op in graph.ops
            if isinstance(op.work, Collective) and op.work.axis == "cp"
        ]
        made = [4, series, series, *([index, index] if index else [])]
        # In bytes a token: two each, which a rank has for half of the tokens; shares are of all of them.
        wanted = [("all_gather", each) for each in made] + [("reduce_scatter", 2 * each) for each in made]
        wanted += 4 * [("all_to_all", 4 * 4)]
        if index:
            top = 2
            wanted += [("all_gather", 4 * top // 2), ("all_gather", 8 * top // 2), ("all_reduce", 4 * top)]
        assert sorted(found) == sorted(wanted), name
        # All gradients are shares, so that one bucket sums them over dp and cp.
        assert {op.name for op in graph.ops if op.name.startswith("bucket.gradients")} == {"bucket.gradients.dp"}


@pytest.mark.parametrize("name", ["window", "heavy", "sparse, all blocks"])
def test_a_query_sees_its_window_and_the_blocks_that_have_ended(name: str) -> None:
    graph = build_graph(model(name, layers=1), GraphOptions())
    env, made, rng = environment(graph), example(graph), np.random.default_rng(0)
    weights = {key: value for (key, place), value in made.weights.items() if place == 1}
    x = rng.normal(size=(env["B"], env["S"], env["H"]))
    ratio = {"window": 0, "heavy": 3, "sparse, all blocks": 2}[name]

    def result(stream: Any) -> Any:
        return run_block(graph, env, "layer", weights, {"layer.input": stream})["layer.attn.wo"]

    plain = result(x)
    for token in range(env["S"]):
        changed = x.copy()
        changed[:, token] += rng.normal(size=env["H"])
        moved = np.abs(result(changed) - plain).max(axis=(0, 2)) > 1e-9
        near = [token <= query < token + 3 for query in range(env["S"])]
        ends = (token // ratio + 1) * ratio - 1 if ratio else env["S"]
        inside = bool(ratio) and token < env["S"] // ratio * ratio
        assert list(moved) == [seen or (inside and query >= ends) for query, seen in enumerate(near)]


def test_a_kernel_counts_its_window_and_the_blocks() -> None:
    found: dict[tuple[str, str], int] = {}
    for name in ("window", "heavy", "sparse"):
        graph = build_graph(model(name, layers=1), GraphOptions())
        env = environment(graph)
        found |= {(name, op.name): evaluate(flops(op), env) for op in graph.ops}
    pairs = 4 * env["B"] * env["A"] * env["S"] * env["D"]
    assert found["window", "layer.attn.core"] == pairs * 3
    assert found["heavy", "layer.attn.core"] == pairs * (3 + 8 // 3)
    assert found["sparse", "layer.attn.core"] == pairs * (3 + 2)
    assert found["sparse", "layer.attn.index"] == 2 * env["B"] * env["S"] * 3 * (8 // 2) * 2
    assert found["window", "layer.attn.wo_a"] == 2 * env["B"] * env["S"] * env["A"] * env["D"] * 3


@pytest.mark.parametrize(("name", "ratio", "top"), [("heavy", 3, 99), ("sparse", 2, 2), ("sparse, all blocks", 2, 99)])
@pytest.mark.parametrize("tokens", [4, 8, 11])
def test_flops_without_masked_pairs_are_those_of_the_mask(name: str, ratio: int, top: int, tokens: int) -> None:
    card = model(name, layers=1)
    found = forward_flops(card, tokens)
    blocks = tokens // ratio
    ended = [min((token + 1) // ratio, blocks) for token in range(tokens)]
    near = [min(token + 1, 3) for token in range(tokens)]
    seen = sum(own + min(each, top) for own, each in zip(near, ended, strict=True))
    index = (2 * 3 * 2) if "sparse" in name else 0
    pair = 4 * card.heads * card.head_dim
    assert found.attention == pair * tokens * (min(tokens, 3) + min(blocks, top)) + index * tokens * blocks
    assert found.seen == pair * seen + index * sum(ended)


WHOLE = "which reads blocks of the whole sequence"


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("heavy", GraphOptions(cp_kind="ring-p2p"), rf"heavily_compressed, {WHOLE}: take --cp-kind ulysses, or --cp 1"),
        ("sparse", GraphOptions(cp_kind="allgather-kv"), rf"compressed_sparse, {WHOLE}: take --cp-kind ulysses, or"),
        ("sparse", GraphOptions(cp_kind="allgather-lse", workflow="decode"), "cannot be served with a cache, because"),
        ("window", GraphOptions(cp_kind="ring-alltoall"), "whose attention is one kernel: take --cp-kind ulysses"),
        ("window", GraphOptions(attention="math"), "take --attention fused"),
    ],
)
def test_what_is_not_built_is_refused(name: str, options: GraphOptions, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        build_graph(model(name), options)


@pytest.mark.parametrize("name", ["heavy", "sparse"])
def test_a_plan_names_the_kind_of_context_that_blocks_take(name: str) -> None:
    sizes = build_graph(model(name), GraphOptions()).sizes
    words = {"micro_batch_size": 4, "global_batch_size": 4, "seq_len": 16}
    assert plan_for({**words, "cp": 4, "cp_kind": "ulysses"}, sizes).cp == 4
    for kind in ("allgather-kv", "ring-p2p", "ulysses-ring"):
        more = {"ulysses": 2} if kind == "ulysses-ring" else {}
        with pytest.raises(UsageError, match=rf"{kind} with .*blocks of .*keys, .*: take --cp-kind ulysses"):
            plan_for({**words, "cp": 4, "cp_kind": kind, **more}, sizes)
    with pytest.raises(UsageError, match=r"x cp 4 = 8, which does not divide both: the nearest is --cp 2, or --cp 1\Z"):
        plan_for({**words, "tp": 2, "cp": 4, "cp_kind": "ulysses"}, sizes)
    with pytest.raises(UsageError, match=r"tp 4 x cp 2 = 8, which does not divide both: take --cp 1\Z"):
        plan_for({**words, "tp": 4, "cp": 2, "cp_kind": "ulysses"}, sizes)


def test_words_that_do_not_suit_are_refused() -> None:
    card = model("sparse")
    for words, reason in (
        ({"out_groups": 3}, "heads=4 do not divide into out_groups=3"),
        ({"rope_dim": 3}, "rope_dim=3 must be even"),
        ({"rope_dim": 4}, "rope_dim=4 must be even, and at most the size"),
    ):
        kinds: Any = {"layer": {**SPARSE, **words}}
        with pytest.raises(UsageError, match=reason):
            dataclasses.replace(card, layer_kinds=kinds)
    with pytest.raises(UsageError, match="tp 8 does not divide the 4 out_groups"):
        card.check_tp(8)
