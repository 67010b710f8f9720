"""The attention of DeepSeek V4: one head of keys, which are the values too, in a window and compressed behind it.

Queries pass a latent. Rotary positions turn the last part of each head, and turn it back in the result, because values
have them too. Heads are projected back in groups, each to a latent of its own. Three mixers: `shared_keys` sees a
window alone; behind it `heavily_compressed` sees all blocks of `heavy_ratio` tokens, and `compressed_sparse` those
blocks of `sparse_ratio` tokens that an indexer chooses, each made from its own tokens and those of the block before.

The weights that make queries' latents, keys and blocks are whole on every rank of tp; heads and groups are partitioned.
Blocks, and their keys, are made from the whole sequence on every rank of tp and cp: what matmuls make for them of parts
of the sequence is gathered over cp, and gradients are scattered there. Each rank's are those of its own heads, or of
its queries in an indexer, so that all of them in between, also of weights, are shares.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.ir.facts import Tag
from stagedb.lazy_names import DeferredModule
from stagedb.mentions import Word
from stagedb.models.kinds.attention import ATTENTION
from stagedb.models.kinds.attention_core import HeadAxes, core_of, rescaled
from stagedb.models.kinds.part import (
    Architecture,
    Branch,
    Buffers,
    Forward,
    KindWord,
    LayerPart,
    ShardingChoices,
    SizeSymbol,
    Table,
    Values,
)
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir import tensors
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    tensors = DeferredModule("stagedb.ir.tensors")
    shared = DeferredModule("stagedb.models.shared_operations")

HEADS = HeadAxes(kv_heads="one")
QUERY, KEY = HEADS.query, ("batch", "seq", "one", "head_dim")
GROUPED = ("batch", "seq", "out_groups", "group_heads", "head_dim")
KEY_BLOCKS = "key_blocks"
"""The region of keys of the whole sequence, and of those of its blocks. Gradients are shares over cp in it."""


@dataclass(frozen=True)
class _Blocks:
    """Keys of blocks. ratio: the word with their tokens. blocks, joined, top: axes. chosen: an indexer chooses some."""

    ratio: str
    blocks: str
    joined: str
    chosen: bool

    def series(self, size: str) -> str:
        """The axis of what a token gives to blocks of keys of a size."""
        return f"two_{size}" if self.chosen else size


HEAVY = _Blocks("heavy_ratio", "heavy_blocks", "heavy_keys", False)
SPARSE = _Blocks("sparse_ratio", "sparse_blocks", "sparse_keys", True)


def _forward_with(behind: _Blocks | None) -> Forward:
    def forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
        if style.attention == "math":
            raise UsageError(
                f"{card.name} has shared keys, whose attention is one kernel: take {Word('attention', 'fused')}"
            )
        if style.core is not None or style.explicit_mask:
            raise UsageError(
                f"{card.name} has shared keys, whose attention is one kernel: take {Word('cp_kind', 'ulysses')}"
            )
        t.enter("attention")
        sinks = t.weight("attn.sinks", ("heads",))
        size = int(values["rope_dim"])
        q, latent = _queries(t, card, style, size, x)
        keys = _keys(t, card, style, size, x)
        if behind is None:
            rules = {"softcap": 0.0, "scale": 0.0, "sinks": True, "window": values["window"]}
            context = core_of(t, card, style, (q, keys, keys, sinks), rules, HEADS)
        else:
            context = _with_blocks(t, card, style, values, behind, (x, latent, q, keys, sinks))
        t.enter("attention")
        return Branch(_back(t, style, size, context))

    return forward


def _turned(t: "Tracer", name: str, x: "Tensor", size: int, inverse: bool = False, stride: int = 0) -> "Tensor":
    y = t.activation(name, x.axes)
    t.emit(name, ops.Rotary(inverse=inverse, size=size, last=True, stride=stride), (x,), y)
    return y


def _queries(t: "Tracer", card: Architecture, style: "Style", size: int, x: "Tensor") -> "tuple[Tensor, Tensor]":
    """Queries, and the latent that they are made from."""
    t.enter(style.latents)
    latent = shared.linear(t, "attn.wq_a", x, ("q_rank", "hidden"), ("batch", "seq", "q_rank"), form=style.linear)
    latent = shared.norm(t, card, style, "attn.q_a_norm", latent)
    t.enter("attention")
    q = shared.linear(t, "attn.wq", latent, ("heads", "head_dim", "q_rank"), QUERY, form=style.linear)
    normal = t.activation("attn.q_norm", QUERY)
    t.emit("attn.q_norm", ops.UnitRMS(), (q,), normal, t.activation("attn.q_norm.rstd", QUERY[:-1], "fp32"))
    return _turned(t, "attn.rotary_q", normal, size), latent


def _keys(t: "Tracer", card: Architecture, style: "Style", size: int, x: "Tensor") -> "Tensor":
    """The keys of the sequence, which are its values."""
    t.enter(style.latents)
    k = shared.linear(t, "attn.wkv", x, ("one", "head_dim", "hidden"), KEY, form=style.linear)
    k = shared.norm(t, card, style, "attn.kv_norm", k)
    t.enter("attention")
    return _turned(t, "attn.rotary_kv", k, size)


def _compressed(
    t: "Tracer", card: Architecture, style: "Style", values: Values, of: _Blocks, name: str, axis: str, x: "Tensor"
) -> "Tensor":
    """Keys of blocks, of a size (`axis`): (batch, blocks, size)."""
    ratio, series = int(values[of.ratio]), of.series(axis)
    t.enter(style.latents)
    made = [
        shared.linear(t, f"{name}.{word}", x, (series, "hidden"), ("batch", "seq", series), form=style.linear)
        for word in ("wkv", "gate")
    ]
    t.enter(KEY_BLOCKS)
    added = t.weight(f"{name}.added.weight", (of.ratio, series))
    out = ("batch", of.blocks, axis)
    y = t.activation(f"{name}.blocks", out)
    t.emit(f"{name}.blocks", ops.compressed.Compress(ratio, of.chosen), (*made, added), y)
    return _turned(
        t, f"{name}.rotary", shared.norm(t, card, style, f"{name}.norm", y), int(values["rope_dim"]), stride=ratio
    )


def _with_blocks(
    t: "Tracer", card: Architecture, style: "Style", values: Values, behind: _Blocks, given: "tuple[Tensor, ...]"
) -> "Tensor":
    """Attention over a window and blocks. given: the input, the latent of queries, queries, keys, sinks."""
    x, latent, q, keys, sinks = given
    blocks = _compressed(t, card, style, values, behind, "attn.compressed", "head_dim", x)
    chosen = _chosen(t, card, style, values, behind, x, latent) if behind.chosen else ()
    t.enter(KEY_BLOCKS)
    joined = t.activation("attn.keys", ("batch", behind.joined, "one", "head_dim"))
    t.emit("attn.keys", ops.compressed.JoinKeys(), (keys, blocks), joined)
    t.enter("attention_core", Tag.ATTENTION_CORE)
    rescales = style.sinks == "rescaled"
    operator = ops.compressed.BlockAttention(
        window=int(values["window"]),
        sinks=not rescales,
        kv_heads="one",
        chosen=behind.chosen,
        ratio=int(values[behind.ratio]),
        blocks=behind.blocks,
        top="block_top" if behind.chosen else "",
    )
    context, lse = t.activation("attn.core", QUERY), t.activation("attn.lse", ("batch", "heads", "seq"), "fp32")
    operands = (q, joined, joined, *(() if rescales else (sinks,)), *chosen)
    t.emit("attn.core", operator, operands, context, lse)
    return rescaled(t, context, lse, sinks, HEADS) if rescales else context


def _chosen(
    t: "Tracer", card: Architecture, style: "Style", values: Values, of: _Blocks, x: "Tensor", latent: "Tensor"
) -> "tuple[Tensor, Tensor]":
    """The scores and places of each query's blocks, by small heads that send no gradient back."""
    query, heads = ("batch", "seq", "index_heads", "index_dim"), ("batch", "seq", "index_heads")
    ratio, size, name = int(values[of.ratio]), int(values["rope_dim"]), "attn.index"
    t.enter("attention")
    q = _detached(t, f"{name}.wq", latent, ("index_heads", "index_dim", "q_rank"), query)
    q = _turned(t, f"{name}.rotary_q", q, size)
    series = of.series("index_dim")
    made = [_detached(t, f"{name}.{word}", x, (series, "hidden"), ("batch", "seq", series)) for word in ("wkv", "gate")]
    t.enter(KEY_BLOCKS)
    added = t.weight(f"{name}.added.weight", (of.ratio, series))
    k = t.activation(f"{name}.blocks", ("batch", of.blocks, "index_dim"))
    t.emit(f"{name}.blocks", ops.compressed.Compress(ratio, True), (*made, added), k)
    k = _turned(t, f"{name}.rotary", shared.norm(t, card, style, f"{name}.norm", k), size, stride=ratio)
    t.enter("attention")
    weights = _detached(t, f"{name}.weights", x, ("index_heads", "hidden"), heads)
    top = ("batch", "seq", "block_top")
    best, places = t.activation(f"{name}.best", top, "fp32"), t.activation(f"{name}.chosen", top, "int64")
    t.emit(name, ops.compressed.BlockIndex(ratio, of.blocks, "block_top"), (q, k, weights), best, places)
    return best, places


def _detached(t: "Tracer", name: str, x: "Tensor", weight: tuple[str, ...], out: tuple[str, ...]) -> "Tensor":
    y = t.activation(name, out)
    own = t.weight(f"{name}.weight", weight, rows=len(weight) - 1)
    t.emit(name, ops.DetachedEinsum(x.axes, weight, out), (x, own), y)
    return y


def _back(t: "Tracer", style: "Style", size: int, context: "Tensor") -> "Tensor":
    """The result of all heads, turned back, by groups to latents, and to the hidden size."""
    turned = _turned(t, "attn.rotary_back", context, size, inverse=True)
    grouped, latent = t.activation("attn.groups", GROUPED), ("batch", "seq", "out_groups", "out_rank")
    t.emit("attn.groups", ops.compressed.GroupHeads(), (turned,), grouped)
    axes = ("out_groups", "out_rank", "group_heads", "head_dim")
    weight = t.weight("attn.wo_a.weight", axes, rows=2)
    made = shared.projected(t, "attn.wo_a", grouped, (weight,), latent, style.linear)
    return shared.row_linear(t, style, "attn.wo", made, ("hidden", "out_groups", "out_rank"), False).result


def _parameters(behind: _Blocks | None, card: Architecture, values: Values) -> int:
    rank, hidden, head = int(values["q_rank"]), card.hidden, card.head_dim
    groups, out = int(values["out_groups"]), int(values["out_rank"])
    queries = rank * (hidden + 1 + card.heads * head) + card.heads
    back = card.heads * head * out + groups * out * hidden
    found = queries + head * (hidden + 1) + back
    if behind is None:
        return found
    ratio, series = int(values[behind.ratio]), 2 if behind.chosen else 1
    found += series * head * (2 * hidden + ratio) + head
    if not behind.chosen:
        return found
    heads, size = int(values["index_heads"]), int(values["index_dim"])
    return found + rank * heads * size + 2 * size * (2 * hidden + ratio) + size + hidden * heads


def _check(behind: _Blocks | None, card: Architecture, values: Values) -> None:
    size, groups = int(values["rope_dim"]), int(values["out_groups"])
    if size % 2 or size > card.head_dim or (behind is SPARSE and size > int(values["index_dim"])):
        raise UsageError(
            f"{card.name}: rope_dim={size} must be even, and at most the size of a head (and of index_dim)"
        )
    if card.heads % groups:
        raise UsageError(f"{card.name}: heads={card.heads} do not divide into out_groups={groups}")
    if card.norm != "rmsnorm" or card.positions != "rotary":
        raise UsageError(
            f"{card.name}: shared keys are for rmsnorm and rotary positions, not {card.norm} and {card.positions}"
        )


def _planned(choices: ShardingChoices, table: Table) -> Table:
    """Groups of heads are partitioned as heads are."""
    return {"attention": {**table["attention"], "out_groups": table["attention"].get("heads", ())}}


def _rows(choices: ShardingChoices) -> Table:
    """Whole sequences, also of keys."""
    return {KEY_BLOCKS: {"batch": ("dp",)}}


def _buffers(card: Architecture, style: "Style") -> Buffers:
    return tuple(
        (tensors.Tensor(f"stage.{name}", axes, dtype, "buffer"), "attention")
        for name, axes, dtype in (("positions", ("seq",), "int64"), ("rotary", ("seq", "rope_dim"), "act"))
    )


_WORDS: Mapping[str, KindWord] = {
    "q_rank": KindWord("the size of the latent of queries"),
    "rope_dim": KindWord("the last part of a head, which has rotary positions"),
    "window": KindWord("the number of keys that a query sees, its own included", most=MOST_TOKENS),
    "out_groups": KindWord("the groups of heads that are projected back on their own"),
    "out_rank": KindWord("the size of the latent of each group"),
}

_SYMBOLS: Mapping[str, SizeSymbol] = {
    "OG": SizeSymbol("out_groups", "groups of heads in the projection back", lambda card: card.word("out_groups")),
    "GH": SizeSymbol(
        "group_heads",
        "heads of a group in the projection back",
        lambda card: card.heads // card.word("out_groups") if card.word("out_groups") else 0,
    ),
    "OR": SizeSymbol("out_rank", "size of the latent of a group of heads", lambda card: card.word("out_rank")),
}


def _part(
    name: str, behind: _Blocks | None, words: Mapping[str, KindWord] | None = None, **fields: object
) -> LayerPart:
    made = LayerPart(
        name=name,
        forward=_forward_with(behind),
        parameters=lambda card, values: _parameters(behind, card, values),
        check_values=lambda card, values: _check(behind, card, values),
        words={**_WORDS, **(words or {})},
        planned=_planned,
        user=ATTENTION.user,
        buffers=_buffers,
        rows=_rows,
        left={**ATTENTION.left, KEY_BLOCKS: "in which each rank has the keys of whole sequences"},
        alone="reads blocks of the whole sequence" if behind else "",
        exchanged="heads" if behind else "",
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]  # fields of several types, each of its own


SHARED_KEYS = _part(
    "shared_keys",
    None,
    symbols=_SYMBOLS,
    axes={"out_groups": "OG", "out_rank": "OR", "group_heads": "GH"},
)
HEAVILY_COMPRESSED = _part(
    "heavily_compressed",
    HEAVY,
    {HEAVY.ratio: KindWord("the tokens of a block, all of which are seen")},
    symbols={
        "HR": SizeSymbol("heavy_ratio", "tokens of a heavily compressed block", lambda card: card.word("heavy_ratio"))
    },
    axes={"heavy_ratio": "HR", "heavy_blocks": "SK // HR", "heavy_keys": "SK + SK // HR"},
)
COMPRESSED_SPARSE = _part(
    "compressed_sparse",
    SPARSE,
    {
        SPARSE.ratio: KindWord("the tokens of a block, of which an indexer chooses some"),
        "index_heads": KindWord("the heads of the indexer"),
        "index_dim": KindWord("the size of a head of the indexer"),
        "index_top": KindWord("the number of blocks that the indexer chooses", most=MOST_TOKENS),
    },
    symbols={
        "SR": SizeSymbol("sparse_ratio", "tokens of a block that is chosen", lambda card: card.word("sparse_ratio"))
    },
    axes={
        "sparse_ratio": "SR",
        "sparse_blocks": "SK // SR",
        "sparse_keys": "SK + SK // SR",
        "block_top": "min(IT, SK // SR)",
        "two_head_dim": "2*D",
        "two_index_dim": "2*ID",
    },
)
