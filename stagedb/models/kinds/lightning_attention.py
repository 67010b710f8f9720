"""The mixer of MiniMax-01: linear attention with constant decays, a norm over all heads, a gate, one matmul out.

One matmul makes queries, keys and values of each head, which pass the model's activation before the scan. The norm is
over the results of all heads, so that ranks of tp, which have whole heads, add their squares; vllm does it so
(`MiniMaxText01RMSNormTP`).
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.feed_forward import LEARNED
from stagedb.models.kinds.part import (
    Architecture,
    Branch,
    KindWord,
    LayerPart,
    ShardingChoices,
    SizeSymbol,
    Table,
    Values,
)
from stagedb.models.kinds.state_space import UNDIVIDED, cached, left_regions, scanned_rows
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

HEADS = ("batch", "seq", "lightning_heads")
OF_HEAD = (*HEADS, "lightning_dim")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("lightning")
    rows = (*HEADS, "lightning_rows")
    made = shared.linear(t, "attn.in_qkv", x, (*rows[2:], "hidden"), rows, form=style.linear)
    qkv = t.activation("attn.qkv", rows)
    t.emit("attn.qkv", ops.Activation(card.activation), (made,), qkv)
    t.enter("lightning_core")
    y = t.activation("attn.scan", OF_HEAD)
    kept = ("batch", "lightning_heads", "lightning_dim", "lightning_value")
    further = (cached(t, "attn.scan", kept, "act"),) if style.serves else ()
    scan = ops.lightning.LightningScan(
        int(values["lightning_chunk"]), card.layers, keeps=style.serves, one=style.one_token
    )
    t.emit("attn.scan", scan, (qkv,), y, *further)
    t.enter("lightning")
    normal = shared.norm_over(t, "attn.scan_norm", y, 2)
    gates = shared.linear(t, "attn.wg", x, (*OF_HEAD[2:], "hidden"), OF_HEAD, form=style.linear)
    shares, gated = t.activation("attn.gates.shares", OF_HEAD), t.activation("attn.gated", OF_HEAD)
    t.emit("attn.gates.shares", ops.Activation("sigmoid", from_result=True), (gates,), shares)
    t.emit("attn.gated", ops.Multiply(), (normal, shares), gated)
    return shared.row_linear(t, style, "attn.wo", gated, ("hidden", *OF_HEAD[2:]), False)


def _parameters(card: Architecture, values: Values) -> int:
    inner = int(values["lightning_heads"]) * int(values["lightning_dim"])
    return 5 * card.hidden * inner + inner


def _check(card: Architecture, values: Values) -> None:
    if card.activation in (LEARNED, "clamped_swiglu"):
        raise UsageError(
            f"{card.name}: queries, keys and values of lightning_attention pass the model's activation, and "
            f"{card.activation} is for feed-forwards: take another one, such as silu"
        )


def _rows(choices: ShardingChoices) -> Table:
    """Ranks of tp have whole heads, those of sp gather the sequence."""
    return scanned_rows(choices, "lightning", "lightning_heads")


LIGHTNING_ATTENTION = LayerPart(
    name="lightning_attention",
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={
        "lightning_heads": KindWord("the heads of linear attention with constant decays"),
        "lightning_dim": KindWord("the size of a query, a key and values of such a head"),
        "lightning_chunk": KindWord("the tokens of a chunk of the scan", 256, most=MOST_TOKENS),
    },
    symbols={
        "NH": SizeSymbol("lightning_heads", "heads of lightning attention", lambda card: card.word("lightning_heads")),
        "ND": SizeSymbol(
            "lightning_dim", "size of a head of lightning attention", lambda card: card.word("lightning_dim")
        ),
    },
    axes={
        "lightning_heads": "NH",
        "lightning_dim": "ND",
        "lightning_value": "ND",
        "lightning_rows": "3*ND",
    },
    rows=_rows,
    left=left_regions("lightning", "ranks of tp have whole heads"),
    alone=UNDIVIDED,
    exchanged="heads",
)
