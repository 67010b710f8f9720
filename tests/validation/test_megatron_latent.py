"""Latent attention against Megatron-LM (commit d98e8a64ddf3): weights, matmuls and messages of a rank, as integers.

`megatron/training/theoretical_memory_usage.py` (commit 00caa53af309) has the form of a layer's weights, and none of its
activations. Who computes what follows from `megatron/core/transformer/multi_latent_attention.py`: the projections to
latents are duplicated over tp, and with sequence parallelism each rank makes the latents of its own tokens. The
column-parallel projections behind them gather the latents, again for their weight gradients, and reduce-scatter the
latents' gradients; the keys' shared part is gathered and its gradient reduce-scattered
(`gather_from_sequence_parallel_region`). Queries without a latent come from the gathered hidden state.
"""

from collections import Counter
from math import prod

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.symbolic_graph import Collective, Compute, SymGraph
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions
from tests.ir.environments import environment

NAMES = ("deepseek-v3", "kimi-k2", "deepseek-v2-lite", "glm-5")
BATCH, SEQ, WIDTH = 2, 1024, 2
"""Sequences, their tokens, and bytes of an element."""


def sizes(card: Card) -> tuple[int, ...]:
    return tuple(card.word(word) for word in ("q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"))


def graph_of(card: Card, tp: int, sp: bool) -> tuple[SymGraph, dict[str, int]]:
    graph = build_graph(card, GraphOptions(recipe="megatron", sp=sp))
    return graph, environment(graph, tp=tp) | {"B": BATCH, "S": SEQ, "SK": SEQ}


def weights_of_a_layer(card: Card) -> int:
    """Megatron's form of the weights of attention."""
    q, kv, nope, rope, value = sizes(card)
    h, heads = card.hidden, card.heads
    queries = q * (h + heads * (nope + rope) + 1) if q else h * heads * (nope + rope)
    return queries + kv * (h + heads * (nope + value) + 1) + h * rope + heads * value * h


def weights_of_a_rank(card: Card, tp: int) -> int:
    """Those of a rank: what makes latents, and their norms, is whole."""
    q, kv, _, rope, _ = sizes(card)
    whole = q * (card.hidden + 1) + kv * (card.hidden + 1) + card.hidden * rope
    return whole + (weights_of_a_layer(card) - whole) // tp


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_has_the_weights_of_the_form(name: str, tp: int) -> None:
    card = load_card(name)
    graph, env = graph_of(card, tp, sp=tp > 1)
    block = graph.blocks[1].name
    found = [
        prod(evaluate(size, env) for size in tensor.local)
        for tensor in graph.tensors
        if tensor.role == "weight" and tensor.name.startswith(f"{block}.attn.") and "index" not in tensor.name
    ]
    assert sum(found) == weights_of_a_rank(card, tp)
    if tp == 1:
        assert sum(found) == weights_of_a_layer(card)


def messages(card: Card, tp: int) -> Counter[tuple[str, str, int]]:
    """The messages over tp of a layer's attention with sequence parallelism: phase, kind, and bytes of the whole."""
    q, kv, _, rope, _ = sizes(card)
    tokens = BATCH * SEQ * WIDTH
    found: Counter[tuple[str, str, int]] = Counter()
    for width in (q or card.hidden, kv):
        found += Counter({("forward", "all_gather", tokens * width): 1, ("backward", "all_gather", tokens * width): 1})
        found["backward", "reduce_scatter", tokens * width] += 1
    found["forward", "all_gather", tokens * rope] += 1
    found["backward", "reduce_scatter", tokens * rope] += 1
    found["forward", "reduce_scatter", tokens * card.hidden] += 1
    found["backward", "all_gather", tokens * card.hidden] += 1
    return found


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2", "deepseek-v2-lite"])
def test_latents_are_gathered_and_not_what_they_are_made_from(name: str, tp: int) -> None:
    card = load_card(name)
    graph, env = graph_of(card, tp, sp=True)
    block = graph.blocks[1].name
    parts = (f"{block}.attn.", f"{block}.attn_norm.")
    found = Counter(
        (op.phase, op.kind, max(evaluate(op.work.comm_bytes, env), evaluate(op.work.comm_out_bytes, env)))
        for op in graph.ops
        if isinstance(op.work, Collective) and op.work.axis == "tp" and op.phase != "optimizer"
        if op.block == block and not op.template.once
        if op.name.startswith(parts)
    )
    # The gradient of the layer's result is gathered where the residual stream's sum is made.
    sums = [op for op in graph.ops if op.name.startswith(f"{block}.attn.add.") and op.kind == "all_gather"]
    assert len(sums) == 1
    assert found == messages(card, tp)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_rank_makes_the_latents_of_its_own_tokens(name: str, sp: bool) -> None:
    card = load_card(name)
    graph, env = graph_of(card, 8, sp)
    block, tokens = graph.blocks[1].name, BATCH * SEQ // (8 if sp else 1)
    q, kv, _, rope, _ = sizes(card)
    made = {"attn.wkv_a": kv + rope} | ({"attn.wq_a": q} if q else {})
    found = {op.name.removeprefix(f"{block}."): op for op in graph.ops if op.block == block}
    for word, width in made.items():
        for suffix in ("", ".input_gradient", ".weight_gradient"):
            work = found[word + suffix].work
            assert isinstance(work, Compute)
            assert evaluate(work.flops, env) == 2 * tokens * card.hidden * width
