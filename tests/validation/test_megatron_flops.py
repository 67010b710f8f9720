"""FLOPs of a step against Megatron-LM's `num_floating_point_operations`, as integers with every difference named.

The form is that of `transformer_flops` in `megatron/training/training.py` (commit d98e8a64ddf3): three times the
forward's matmuls, attention with half of its pairs, and the norms of latents, and of layers that predict further
tokens, as one multiply an element. Such a layer is one more of the last kind, with a projection of twice the hidden
size and logits of its own. The form has no router. That of hybrids is `hybrid_flops` of the same file (commit
001b00c2734d), and that of gated delta rules is `transformer_flops` with `experimental_attention_variant` (as
`tests/unit_tests/test_training.py` has it too, in August 2026).

Here attention counts all pairs, its backward makes the scores again, a router is a matmul, norms count nothing, and all
experts have as many slots as the one with most tokens.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.symbolic_graph import Compute
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions
from tests.ir.environments import environment

BATCH = 2
WHOLE = 3 * 2
"""Forward and two backwards of a matmul, a multiply and an add each."""


def with_experts(card: Card) -> int:
    """The layers with experts, those for further tokens included."""
    kinds = [card.kinds[name] for name in (*card.sequence, *card.sequence[-1:] * card.multi_token_prediction)]
    return sum(kind.routes for kind in kinds)


def megatron(card: Card, seq: int) -> Fraction:
    """Megatron's form for a batch."""
    sparse, layers = with_experts(card), card.layers + card.multi_token_prediction
    dense, gated = layers - sparse, 3 if card.mlp == "gated" else 2
    channels = card.ffn * gated * dense + (card.expert_ffn * card.top_k + card.shared_ffn) * gated * sparse
    further = card.multi_token_prediction * (3 * card.hidden + 2 * card.hidden**2)
    logits = card.hidden * card.padded_vocab * (card.multi_token_prediction + 1)
    total = card.hidden * channels + layers * attention(card, seq) + further + logits
    return WHOLE * BATCH * seq * total


def attention(card: Card, seq: int) -> Fraction:
    """The multiplies of a layer's attention for a token."""
    h, heads, half = card.hidden, card.heads, Fraction(seq, 2)
    if not card.word("kv_rank"):
        width = heads * card.head_dim
        return h * (2 * width + 2 * card.kv_heads * card.head_dim) + 2 * half * width
    q, kv = card.word("q_rank"), card.word("kv_rank")
    nope, rope, value = (card.word(word) for word in ("nope_dim", "rope_dim", "value_dim"))
    queries = q * (h + heads * (nope + rope) + 1) if q else h * heads * (nope + rope)
    keys = kv * (h + heads * (nope + value) + 1) + h * rope
    return queries + keys + heads * value * h + half * heads * (nope + rope + value)


def differences(card: Card, seq: int) -> dict[str, Fraction]:
    """What stagedb counts in addition to that form."""
    tokens, sparse, layers = BATCH * seq, with_experts(card), card.layers + card.multi_token_prediction
    latent = bool(card.word("kv_rank"))
    size = card.word("nope_dim") + card.word("rope_dim") if latent else card.head_dim
    value = card.word("value_dim") if latent else card.head_dim
    empty = -tokens * card.top_k % card.experts if card.experts else 0
    pairs = Fraction(layers * card.heads * tokens * seq)
    return {
        "pairs above the diagonal": WHOLE * pairs * (size + value) / 2,
        "scores made again in the backward": 2 * pairs * size,
        "routers": Fraction(WHOLE * tokens * card.hidden * card.experts * sparse),
        "slots of experts that stay empty": Fraction(WHOLE * empty * 3 * card.expert_ffn * card.hidden * sparse),
        "norms of latents": Fraction(-WHOLE * tokens * layers * (card.word("q_rank") + card.word("kv_rank"))),
        "norms for further tokens": Fraction(-WHOLE * tokens * card.multi_token_prediction * 3 * card.hidden),
    }


def counted(card: Card, seq: int) -> int:
    """The FLOPs of a step of one micro-batch on one rank."""
    graph = build_graph(card, GraphOptions(recipe="megatron"))
    env = environment(graph) | {"B": BATCH, "S": seq, "SK": seq}
    repeats = {block.name: evaluate(block.repeat, env) for block in graph.blocks}
    return sum(
        repeats[op.block] * evaluate(op.work.flops, env)
        for op in graph.ops
        if isinstance(op.work, Compute) and op.block in repeats and op.phase != "optimizer"
    )


@pytest.mark.parametrize(
    ("name", "further"),
    [
        *((name, 0) for name in ("deepseek-v3", "kimi-k2", "deepseek-v2-lite", "llama3-8b", "gpt3-175b")),
        *((name, 0) for name in ("mixtral-8x7b", "qwen3-30b-a3b")),
        *(("deepseek-v3", further) for further in (1, 2)),
        *((name, 1) for name in ("deepseek-v2-lite", "llama3-8b", "glm-4.5")),
    ],
)
@pytest.mark.parametrize("seq", [1024, 4096])
def test_flops_are_megatrons_with_named_differences(name: str, further: int, seq: int) -> None:
    card = replace(load_card(name), multi_token_prediction=further)
    assert counted(card, seq) == megatron(card, seq) + sum(differences(card, seq).values())


def hybrid(card: Card, seq: int) -> Fraction:
    """The form of `hybrid_flops` for a batch, of layers that are a mixer, a feed-forward or experts alone.

    A scan is 7 FLOPs for each value of each state (its own note calls that an estimate), over twice as many channels as
    the hidden size has, even where a model has others. Experts behind a latent are of its size.
    """
    layers, h = Counter(kind_of(card, name) for name in card.sequence), card.hidden
    inner, state, groups = 2 * h, card.word("scan_state"), card.word("scan_groups")
    width, gated = card.heads * card.head_dim, 6 if card.mlp == "gated" else 4
    query = width * (2 * h + 2 * h * Fraction(card.kv_heads, card.heads) + Fraction(2 * seq, 2))
    latent = card.word("expert_latent")
    routed = gated * (latent or h) * card.expert_ffn * card.top_k + 4 * h * latent
    total = (
        layers["attention"] * 2 * query
        + layers["feed-forward"] * gated * h * card.ffn
        + layers["scan"] * (2 * h * (2 * inner + 2 * groups * state + card.word("scan_heads")) + 7 * inner * state)
        + layers["scan"] * 2 * inner * h
        + layers["experts"] * (routed + gated * h * card.shared_ffn)
        + 2 * h * card.padded_vocab
    )
    return 3 * BATCH * seq * total


def kind_of(card: Card, name: str) -> str:
    """What a layer of a hybrid is."""
    kind = card.kinds[name]
    names = {"state_space": "scan", "attention": "attention", "experts": "experts", "feed_forward": "feed-forward"}
    return names[kind.channel_mixer if kind.mixer == "none" else kind.mixer]


def hybrid_differences(card: Card, seq: int) -> dict[str, Fraction]:
    """What stagedb counts in addition to that form: a scan as the matmuls of its chunks."""
    layers, tokens = Counter(kind_of(card, name) for name in card.sequence), BATCH * seq
    heads, dim, state = (card.word(f"scan_{word}") for word in ("heads", "dim", "state"))
    inner, estimated = heads * dim, 2 * card.hidden
    channels = inner + 2 * card.word("scan_groups") * state
    pairs = Fraction(layers["attention"] * card.heads * tokens * seq * card.head_dim)
    empty = -tokens * card.top_k % card.experts if card.experts else 0
    width = card.word("expert_latent") or card.hidden
    gated = 6 if card.mlp == "gated" else 4
    return {
        "pairs above the diagonal": WHOLE * pairs,
        "scores made again in the backward": 2 * pairs,
        "channels of scans": Fraction(3 * layers["scan"] * tokens * 6 * card.hidden * (inner - estimated)),
        # Forward, two in the backward, and once again for the silu behind it.
        "short convolutions": Fraction(4 * layers["scan"] * tokens * 2 * card.word("conv_width") * channels),
        "scans": layers["scan"] * scan(card, seq) - 3 * layers["scan"] * tokens * 7 * estimated * state,
        "routers": Fraction(WHOLE * tokens * card.hidden * card.experts * layers["experts"]),
        "slots of experts that stay empty": Fraction(3 * empty * gated * card.expert_ffn * width * layers["experts"]),
    }


def scan(card: Card, seq: int) -> Fraction:
    """The FLOPs of a scan of Mamba-2 in whole chunks, forward and backward, as transformers' own code has them.

    Each head of a chunk of c tokens has C·B, their product with values, the state that it makes of B and values, and C
    times the state that arrives; what passes from chunk to chunk is one product over all pairs of them, the one that
    arrives first among them. The backward has two for each, and makes C·B, states and what passes again.
    """
    heads, dim, state, chunk = (card.word(f"scan_{word}") for word in ("heads", "dim", "state", "chunk"))
    chunks, rest = divmod(seq, chunk)
    assert not rest
    products, values, states = chunk * chunk * state, chunk * chunk * dim, chunk * dim * state
    passing = (chunks + 1) ** 2 * dim * state
    return Fraction(2 * BATCH * heads * (chunks * (4 * products + 3 * values + 4 * states + 3 * states) + 4 * passing))


@pytest.mark.parametrize(
    "name", ["nemotron-h-8b", "nemotron-h-56b", "nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b"]
)
def test_flops_of_hybrids_are_megatrons_with_named_differences(name: str) -> None:
    card, seq = load_card(name), 1024
    assert counted(card, seq) == hybrid(card, seq) + sum(hybrid_differences(card, seq).values())


def delta(card: Card, seq: int) -> Fraction:
    """The form for a batch where most layers have a gated delta rule and the others gated attention.

    A scan is 4 products of a head's values with themselves, as large as a state whose keys are as wide as its values.
    """
    scans = sum(card.kinds[name].mixer == "gated_delta" for name in card.sequence)
    others, sparse, gated = card.layers - scans, with_experts(card), 3
    heads, value = card.word("delta_heads"), card.word("delta_value_dim")
    keys, values = card.word("delta_key_heads") * card.word("delta_key_dim"), heads * value
    h, channels = card.hidden, 2 * keys + values
    scan = h * (channels + values + 2 * heads) + card.word("conv_width") * channels + 4 * heads * value**2 + h * values
    inner = card.ffn * gated * (card.layers - sparse)
    inner += (card.expert_ffn * card.top_k + card.shared_ffn) * gated * sparse
    gates = h * card.heads * card.head_dim
    total = scans * scan + others * (attention(card, seq) + gates) + h * (inner + card.padded_vocab)
    return WHOLE * BATCH * seq * total


def delta_differences(card: Card, seq: int) -> dict[str, Fraction]:
    """What stagedb counts in addition to that form: a scan as the matmuls of its chunks."""
    scans = sum(card.kinds[name].mixer == "gated_delta" for name in card.sequence)
    others, sparse, tokens = card.layers - scans, with_experts(card), BATCH * seq
    heads, key, value = (card.word(f"delta_{word}") for word in ("heads", "key_dim", "value_dim"))
    channels = 2 * card.word("delta_key_heads") * key + heads * value
    pairs = Fraction(others * card.heads * tokens * seq * card.head_dim)
    empty = -tokens * card.top_k % card.experts if card.experts else 0
    scale = sum(bool(card.kinds[name].settings.get("shared_gate")) for name in card.sequence)
    return {
        "pairs above the diagonal": WHOLE * pairs,
        "scores made again in the backward": 2 * pairs,
        "short convolutions made again in the backward": Fraction(
            2 * scans * tokens * card.word("conv_width") * channels
        ),
        "scans": scans * (delta_scan(card, seq) - WHOLE * tokens * 4 * heads * value**2),
        "routers": Fraction(WHOLE * tokens * card.hidden * card.experts * sparse),
        "gates of shared experts": Fraction(WHOLE * tokens * card.hidden * scale),
        "slots of experts that stay empty": Fraction(WHOLE * empty * 3 * card.expert_ffn * card.hidden * sparse),
    }


def delta_scan(card: Card, seq: int) -> Fraction:
    """The FLOPs of a gated delta rule in whole chunks, forward and backward, as the code of transformers and fla has
    them.

    Each head of a chunk of c tokens has keys with keys, queries with keys, what the state predicts, what it gives to
    results, what the chunk gives to results, and the update of the state. The backward has two for each, and makes all
    again but what is given to results.
    """
    heads, key, value, chunk = (card.word(f"delta_{word}") for word in ("heads", "key_dim", "value_dim", "chunk"))
    chunks, rest = divmod(seq, chunk)
    assert not rest
    products, state, inside = chunk * chunk * key, chunk * key * value, chunk * chunk * value
    return Fraction(2 * BATCH * heads * chunks * (2 * 4 * products + 4 * state + 3 * state + 3 * inside + 4 * state))


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3.5-397b-a17b"])
def test_flops_of_delta_rules_are_megatrons_with_named_differences(name: str) -> None:
    card, seq = load_card(name), 1024
    assert counted(card, seq) == delta(card, seq) + sum(delta_differences(card, seq).values())
