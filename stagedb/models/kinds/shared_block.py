"""A block of attention and a feed-forward whose weights several layers share, then a scan (Zamba2).

The block reads the stream and the embedded tokens side by side, which are twice as wide as the stream. Layers take the
blocks of a model in turn. What a layer has of its own are low-rank adapters of the block's matmul up (in some models
also adapters of the matmuls to queries, keys and values), a matmul behind the block, whose result is added to what the
scan reads, and the scan. The block has no residual stream inside.

Sources: arXiv 2411.15242; `modeling_zamba2.py` of transformers 5.24.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.attention import ATTENTION
from stagedb.models.kinds.attention_core import KEY, QUERY, core_of
from stagedb.models.kinds.feed_forward import FEED_FORWARD, INNER
from stagedb.models.kinds.part import HIDDEN, Architecture, Branch, KindWord, LayerPart, SizeSymbol, Values
from stagedb.models.kinds.state_space import STATE_SPACE

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

JOINED = ("batch", "seq", "joined")
MADE = ("batch", "seq", "block_hidden")

SCAN = "scan"
"""The part of the layer under whose name the scan is."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    owner = f"block_{t.turn % int(values['shared_blocks'])}"
    t.enter("between")
    joined = t.activation("joined", JOINED)
    t.emit("joined", ops.JoinLast(), (x, x if t.entry is None else t.entry), joined)
    with t.sharing(owner):
        normal = shared.norm(t, card, style, "joined_norm", joined)
    made = _fed_forward(t, card, style, values, owner, _attended(t, card, style, values, owner, normal))
    t.enter("between")
    back = shared.linear(t, "behind", made, ("hidden", "block_hidden"), HIDDEN, form=style.linear)
    read = shared.add(t, "behind.add", x, back)
    normal = shared.norm(t, card, style, "attn_norm", read)
    with t.within(SCAN):
        return STATE_SPACE.forward(t, card, style, values, normal)


def _attended(t: "Tracer", card: Architecture, style: "Style", values: Values, owner: str, x: "Tensor") -> "Tensor":
    """Attention of the block. x: (batch, seq, joined)."""
    qkv = []
    for word, heads, axes in (("q", "heads", QUERY), ("k", "kv_heads", KEY), ("v", "kv_heads", KEY)):
        t.enter("attention")
        with t.sharing(owner):
            y = shared.linear(t, f"attn.w{word}", x, (heads, "head_dim", "joined"), axes, form=style.linear)
        if values["attention_adapters"]:
            y = _adapted(t, style, f"attn.w{word}", x, (heads, "head_dim"), y)
        if card.positions == "rotary" and word != "v":
            turned = t.activation(f"attn.rotary_{word}", axes)
            t.emit(f"attn.rotary_{word}", ops.Rotary(), (y,), turned)
            y = turned
        qkv.append(y)
    scores = {"scale": (card.head_dim / 2) ** -0.5, "softcap": 0.0, "sinks": False}
    context = core_of(t, card, style, tuple(qkv), scores)
    t.enter("attention")
    with t.sharing(owner):
        return shared.row_linear(t, style, "attn.wo", context, ("hidden", "heads", "head_dim"), False).result


def _fed_forward(t: "Tracer", card: Architecture, style: "Style", values: Values, owner: str, x: "Tensor") -> "Tensor":
    """The feed-forward of the block: (batch, seq, hidden) to (batch, seq, block_hidden)."""
    bias = values["ffn_bias"] == "all"
    t.enter("between")
    with t.sharing(owner):
        normal = shared.norm(t, card, style, "ffn_norm", x)
        t.enter("ffn")
        up = shared.linear(t, "ffn.w13", normal, ("ffn", "two", "hidden"), (*INNER, "two"), bias, style.linear)
    up = _adapted(t, style, "ffn.w13", normal, ("ffn", "two"), up)
    inner = t.activation("ffn.gate", INNER)
    t.emit("ffn.gate", ops.Gate(card.activation), (up,), inner)
    with t.sharing(owner):
        late = bias and style.row_bias != "inside"
        made = shared.linear(t, "ffn.w2", inner, ("block_hidden", "ffn"), MADE, bias and not late, style.linear)
        if not late:
            return made
        added = t.weight("ffn.w2.bias", MADE[2:])
    t.enter("between")
    return shared.add(t, "ffn.biased", made, added)


def _adapted(t: "Tracer", style: "Style", name: str, x: "Tensor", rows: tuple[str, ...], y: "Tensor") -> "Tensor":
    """The result `y` of a shared matmul, and what the layer's own two narrow ones make of the same input."""
    narrow = (*x.axes[:-1], "adapter")
    down = shared.linear(t, f"{name}.down", x, ("adapter", x.axes[-1]), narrow, form=style.linear)
    wide = shared.linear(t, f"{name}.up", down, (*rows, "adapter"), y.axes, form=style.linear)
    return shared.add(t, f"{name}.adapted", y, wide)


def _heads(card: Architecture) -> tuple[int, int]:
    """How wide queries are, and how wide keys are, and values."""
    return card.heads * card.head_dim, card.kv_heads * card.head_dim


def _shared(card: Architecture, values: Values) -> int:
    queries, keys = _heads(card)
    attention = 2 * card.hidden * (queries + 2 * keys) + queries * card.hidden
    biases = 2 * card.ffn + card.hidden if values["ffn_bias"] == "all" else 0
    return attention + 3 * card.hidden * card.ffn + biases + 3 * card.hidden


def _own(card: Architecture, values: Values) -> int:
    queries, keys = _heads(card)
    rank = int(values["adapter_rank"])
    attention = rank * (6 * card.hidden + queries + 2 * keys) if values["attention_adapters"] else 0
    adapters = attention + rank * (card.hidden + 2 * card.ffn)
    return adapters + card.hidden**2 + card.hidden + STATE_SPACE.parameters(card, values)


def _check_values(card: Architecture, values: Values) -> None:
    STATE_SPACE.check_values(card, values)
    if not card.ffn:
        raise UsageError(f"{card.name}: ffn must be positive, because shared blocks have a feed-forward, not 0")
    if card.mlp != "gated" or card.norm != "rmsnorm" or card.positions not in ("rotary", "none"):
        raise UsageError(
            f"{card.name}: {SHARED_BLOCK.name} is with mlp: gated, norm: rmsnorm and rotary positions or none"
        )


SHARED_BLOCK = LayerPart(
    name="shared_block",
    forward=_forward,
    parameters=_own,
    shared=_shared,
    check_values=_check_values,
    words={
        **STATE_SPACE.words,
        "shared_blocks": KindWord("the blocks whose weights layers share, which take them in turn", 1),
        "adapter_rank": KindWord("the rank of a layer's adapters of the block's matmul up"),
        "attention_adapters": KindWord("whether queries, keys and values have adapters too", False),
        "ffn_bias": FEED_FORWARD.words["ffn_bias"],
    },
    symbols={
        "AR": SizeSymbol("adapter_rank", "rank of adapters of shared blocks", lambda card: card.word("adapter_rank"))
    },
    axes={"adapter": "AR", "block_hidden": "H"},
    buffers=ATTENTION.buffers,
    reads_stream=True,
    alone=STATE_SPACE.alone,
    exchanged=STATE_SPACE.exchanged,
)
