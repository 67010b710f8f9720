"""The FLOPs of a model's forward, with and without the pairs of queries and keys that a mask leaves out."""

from collections import Counter
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import Attention, KeyIndex, ScoredPairs, compressed, key_blocks, load
from stagedb.ir.symbolic_graph import Compute, SymOp
from stagedb.models import Card
from stagedb.plans import GraphOptions

SCORES = ("attention", "attention_index")
"""Kinds of operators that score pairs of a query and a key."""


@dataclass(frozen=True)
class ForwardFlops:
    """FLOPs of the forward of one sequence of `tokens` tokens.

    counted: those of the graph, as the field's counters have them: attention scores all pairs but those that a window
    or a chunk leaves out as whole blocks. attention: the part of scores and their sums over values. seen: as
    `attention`, of the pairs that no mask leaves out; a causal mask leaves out almost half.
    """

    tokens: int
    counted: int
    attention: int
    seen: int

    @property
    def without_masked(self) -> int:
        """All FLOPs but those of pairs that a mask leaves out."""
        return self.counted - self.attention + self.seen


def forward_flops(card: Card, tokens: int) -> ForwardFlops:
    """The FLOPs of a model's forward on one rank, with one sequence of `tokens` tokens. It needs no store.

    Raises UsageError for a sequence without tokens, or longer than learned positions.
    """
    if tokens < 1:
        raise UsageError(f"a sequence of {tokens} tokens is not possible: it has at least 1")
    if card.positions == "learned" and tokens > card.max_positions:
        raise UsageError(
            f"a sequence of {tokens:,} tokens is too long for {card.name}: it has {card.max_positions:,} positions"
        )
    graph = build_graph(card, GraphOptions())
    env = on_one_rank(graph, 1, tokens)
    repeats = {block.name: evaluate(block.repeat, env) for block in graph.blocks}
    found = Counter[str]()
    for op in graph.ops:
        if op.phase == "forward" and isinstance(op.work, Compute) and op.block in repeats:
            flops = evaluate(op.work.flops, env) * repeats[op.block]
            found["counted"] += flops
            if op.kind in SCORES and flops:
                found["attention"] += flops
                found["seen"] += _seen(op, op.work, flops, env)
    return ForwardFlops(tokens, found["counted"], found["attention"], found["seen"])


def _seen(op: SymOp, work: Compute, flops: int, env: dict[str, int]) -> int:
    """The FLOPs of the pairs that no mask leaves out."""
    operator, tokens = load(op.semantics), env["S"]
    if isinstance(operator, KeyIndex | key_blocks.KeyBlockIndex):
        return flops * ScoredPairs().pairs_seen(tokens) // tokens**2
    if isinstance(operator, compressed.BlockIndex):
        blocks = evaluate(work.dims[2], env)
        return flops // (tokens * blocks) * compressed.ended_pairs(tokens, operator.ratio, blocks)
    if not isinstance(operator, Attention):
        return flops
    keys = evaluate(work.dims[4], env)
    if isinstance(operator, compressed.BlockAttention):
        own = min(tokens, operator.window or tokens)
        seen = operator.pairs_seen(tokens) + compressed.ended_pairs(tokens, operator.ratio, keys - own)
        return flops // (tokens * keys) * seen
    pairs = ScoredPairs(window=keys) if operator.chosen else operator
    return flops // (tokens * keys) * pairs.pairs_seen(tokens)
