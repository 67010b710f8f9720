"""Differential attention (Ye et al. 2024): two calls of attention, whose results are subtracted by pairs of heads.

Both calls have the same queries and keys; the first has the values of the first K/V head of each pair, the second those
of the second, as DiffLlama computes it. Heads of a pair are next to each other (`stagedb.ir.operators.differential`):
checkpoints have the first heads of all pairs, then the second ones. So ranks of tp have whole pairs of K/V heads.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.attention import ATTENTION, WORDS, bias_of, queries_keys_values
from stagedb.models.kinds.attention_core import KEY, core_of, split
from stagedb.models.kinds.part import Architecture, Branch, LayerPart, ShardingChoices, SizeSymbol, Table, Values

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

NAME, REGION = "differential_attention", "differential"
PAIRS = ("batch", "seq", "head_pairs", "pair_dim")

TAKEN = ("bias", "qkv", "rotary", "rotary_dim", "scale")
"""The words of attention that this mixer takes too."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    values = _whole(values)
    t.enter("attention")
    vectors = tuple(t.weight(f"attn.lambda_{word}", ("head_dim",)) for word in ("q1", "k1", "q2", "k2"))
    qkv, _ = queries_keys_values(t, card, style, values, x)
    q, k, v = split(t, qkv)
    t.enter(REGION)
    # In serving the values of all positions are copied, as the models' own code does it.
    axes = ("batch", "kseq", *KEY[2:]) if t.caches else KEY
    halves = t.activation("attn.first_values", axes), t.activation("attn.second_values", axes)
    t.emit("attn.pair_values", ops.differential.PairValues(), (v,), *halves)
    contexts = []
    for word, half in zip(("first", "second"), halves, strict=True):
        t.enter("attention")
        with t.within(word):
            contexts.append(core_of(t, card, style, (q, k, half), values))
    t.enter(REGION)
    y, normal, scaled = (t.activation(f"attn.{word}", PAIRS) for word in ("difference", "pair_norm", "pair_factor"))
    t.emit("attn.difference", ops.differential.HeadDifference(), (*contexts, *vectors), y)
    t.emit("attn.pair_norm", ops.UnitRMS(), (y,), normal, t.activation("attn.pair_norm.rstd", PAIRS[:-1], "fp32"))
    t.emit("attn.pair_factor", ops.differential.LambdaFactor(), (normal,), scaled)
    bias = bias_of(card, values) in ("all", "out")
    return shared.row_linear(t, style, "attn.wo", scaled, ("hidden", *PAIRS[2:]), bias)


def _whole(values: Values) -> Values:
    """These values, with those of attention that the mixer does not take at their defaults."""
    usual = {name: word.default for name, word in WORDS.items() if word.default is not None}
    return {**usual, **values}


def _parameters(card: Architecture, values: Values) -> int:
    return ATTENTION.parameters(card, _whole(values)) + 4 * card.head_dim


def _check(card: Architecture, values: Values) -> None:
    ATTENTION.check_values(card, _whole(values))
    if card.kv_heads % 2:
        raise UsageError(f"{card.name}: {NAME} has pairs of heads: kv_heads={card.kv_heads} must be even")


def _rows(choices: ShardingChoices) -> Table:
    """Ranks of tp have whole pairs of K/V heads, with the pairs of their queries."""
    cut = dict.fromkeys(("heads", "kv_heads", "head_pairs"), ("tp",))
    return {REGION: {"batch": ("dp",), "seq": ("cp",), **cut}}


DIFFERENTIAL_ATTENTION = LayerPart(
    name=NAME,
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={name: WORDS[name] for name in TAKEN},
    symbols={
        "HP": SizeSymbol(
            "key_pairs",
            "pairs of heads of keys and values of differential attention",
            lambda card: card.kv_heads // 2 if card.has(NAME) else 0,
        ),
    },
    axes={"head_pairs": "A / 2", "pair_dim": "2 * D"},
    rows=_rows,
    left={REGION: "in which ranks of tp have whole pairs of heads"},
    buffers=ATTENTION.buffers,
)
