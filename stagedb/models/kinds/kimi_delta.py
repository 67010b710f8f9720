"""The mixer of Kimi Linear (KDA): matmuls in, a short convolution, a delta rule, a gated norm, one matmul out.

Each head has queries, keys and values of one size, and a decay for each channel of a key. Decays and the gates of
results are made through narrow matmuls, whose weights are whole on every rank of tp, as in vllm
(`KimiDeltaAttention`); ranks of tp have whole heads.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
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
from stagedb.models.kinds.state_space import CONVOLUTION, UNDIVIDED, cached, convolved, left_regions, scanned_rows
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

HEADS = ("batch", "seq", "kda_heads")
OF_HEAD = (*HEADS, "kda_dim")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("kda")
    made = tuple(_projected(t, style, f"in_{word}", x, "hidden") for word in ("q", "k", "v"))
    joined = t.activation("attn.joined", (*HEADS, "kda_channels"))
    t.emit("attn.joined", ops.state_space.JoinParts(("kda_dim",) * 3), made, joined)
    t.enter("kda_core")
    channels = convolved(t, style, values, joined, "kda_heads")
    t.enter("kda")
    forget = _narrow(t, style, "f", x)
    b = shared.linear(t, "attn.in_b", x, ("kda_heads", "hidden"), HEADS, form=style.linear)
    t.enter("kda_core")
    held = (t.weight("attn.a_log", ("kda_heads",)), t.weight("attn.step_bias", OF_HEAD[2:], rows=2))
    y = t.activation("attn.scan", OF_HEAD)
    scan = ops.kimi_delta.KimiDeltaScan(int(values["kda_chunk"]), keeps=style.serves, one=style.one_token)
    t.emit("attn.scan", scan, (channels, b, forget, *held), y, *_scan_extras(t, style))
    t.enter("kda")
    gate = _narrow(t, style, "g", x)
    normal, rstd = t.activation("attn.gated_norm", OF_HEAD), t.activation("attn.gated_norm.rstd", HEADS, "fp32")
    weight = t.weight("attn.gated_norm.weight", ("kda_dim",))
    norm = ops.state_space.GatedNorm(first=True, function="sigmoid")
    t.emit("attn.gated_norm", norm, (y, gate, weight), normal, rstd)
    return shared.row_linear(t, style, "attn.wo", normal, ("hidden", "kda_heads", "kda_dim"), False)


def _projected(t: "Tracer", style: "Style", word: str, x: "Tensor", axis: str) -> "Tensor":
    """A matmul to the values of each head."""
    return shared.linear(t, f"attn.{word}", x, ("kda_heads", "kda_dim", axis), OF_HEAD, form=style.linear)


def _narrow(t: "Tracer", style: "Style", word: str, x: "Tensor") -> "Tensor":
    """Values of each head by two matmuls: to a narrow tensor of the size of a head, and from that to all heads."""
    rows = ("batch", "seq", "kda_rank")
    narrow = shared.linear(t, f"attn.{word}_a", x, ("kda_rank", "hidden"), rows, form=style.linear)
    return _projected(t, style, f"{word}_b", narrow, "kda_rank")


def _scan_extras(t: "Tracer", style: "Style") -> "tuple[Tensor, ...]":
    """What the scan makes in addition: the states of requests, or what its backward reads."""
    if style.serves:
        return (cached(t, "attn.scan", ("batch", "kda_heads", "kda_dim", "kda_value"), "fp32"),)
    decay = t.activation("attn.decay", OF_HEAD, "fp32")
    return decay, *(t.activation(f"attn.{word}", (*HEADS, "kda_chunk")) for word in ("inverse", "scores"))


def _parameters(card: Architecture, values: Values) -> int:
    heads, dim = int(values["kda_heads"]), int(values["kda_dim"])
    inner = heads * dim
    conv = 3 * inner * (int(values["conv_width"]) + (1 if values["conv_bias"] else 0))
    narrow = 2 * (card.hidden * dim + dim * inner)
    return card.hidden * (4 * inner + heads) + conv + narrow + heads + inner + dim


def _rows(choices: ShardingChoices) -> Table:
    """Ranks of tp have whole heads, those of sp gather the sequence."""
    return scanned_rows(choices, "kda", "kda_heads")


KIMI_DELTA = LayerPart(
    name="kimi_delta",
    forward=_forward,
    parameters=_parameters,
    words={
        "kda_heads": KindWord("the heads of the delta rule"),
        "kda_dim": KindWord("the size of a query, a key and values of a head, and of what decays and gates pass"),
        "kda_chunk": KindWord("the tokens of a chunk of the scan", 64, most=MOST_TOKENS),
        **CONVOLUTION,
    },
    symbols={
        "KH": SizeSymbol("kda_heads", "heads of Kimi delta attention", lambda card: card.word("kda_heads")),
        "KD": SizeSymbol("kda_dim", "size of a head of Kimi delta attention", lambda card: card.word("kda_dim")),
        "KC": SizeSymbol("kda_chunk", "tokens of a chunk of Kimi delta attention", lambda card: card.word("kda_chunk")),
    },
    axes={
        "kda_heads": "KH",
        "kda_dim": "KD",
        "kda_value": "KD",
        "kda_rank": "KD",
        "kda_channels": "3*KD",
        "kda_chunk": "KC",
    },
    rows=_rows,
    left=left_regions("kda", "ranks of tp have whole heads"),
    alone=UNDIVIDED,
    exchanged="heads",
)
