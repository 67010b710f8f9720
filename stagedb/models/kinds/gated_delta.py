"""The mixer of Qwen3-Next and OLMo Hybrid: matmuls in, a short convolution, the gated delta rule, a gated norm, one
matmul out.

Heads of values are in groups, which share a query and a key. The rows of the matmuls in are those of each group
together: query, key, values and gates, as checkpoints of Qwen3-Next have them. So ranks of tp have whole groups.
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Architecture, Branch, KindWord, LayerPart, SizeSymbol, Values
from stagedb.models.kinds.state_space import CONVOLUTION, LEFT, UNDIVIDED, cached, convolved, scan_rows
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

GROUPED = ("batch", "seq", "delta_groups")
VALUES, STEPS = (*GROUPED, "delta_values"), (*GROUPED, "delta_heads")
OF_HEADS = ("delta_groups", "delta_heads")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("scan")
    read = {"joined": _joined, "apart": _apart, "each": _each}[str(values["delta_projections"])]
    channels, gate, b, a = read(t, style, x)
    t.enter("scan_core")
    held = [t.weight(f"attn.{word}", OF_HEADS, rows=2) for word in ("a_log", "step_bias")]
    made, y = convolved(t, style, values, channels, "delta_groups"), t.activation("attn.scan", VALUES)
    scan = ops.delta_rule.DeltaScan(
        int(values["delta_chunk"]), keeps=style.serves, one=style.one_token, negative=bool(values["delta_negative"])
    )
    t.emit("attn.scan", scan, (made, b, a, *held), y, *_scan_extras(t, style))
    t.enter("scan")
    normal, rstd = t.activation("attn.gated_norm", VALUES), t.activation("attn.gated_norm.rstd", STEPS, "fp32")
    weight = t.weight("attn.gated_norm.weight", ("delta_value",))
    t.emit("attn.gated_norm", ops.state_space.GatedNorm(by_head=True), (y, gate, weight), normal, rstd)
    return shared.row_linear(t, style, "attn.wo", normal, ("hidden", "delta_groups", "delta_values"), False)


def _scan_extras(t: "Tracer", style: "Style") -> "tuple[Tensor, ...]":
    """What the scan makes in addition: the states of requests, or what its backward reads."""
    if style.serves:
        return (cached(t, "attn.scan", ("batch", *OF_HEADS, "delta_key", "delta_value"), "fp32"),)
    decay = t.activation("attn.decay", STEPS, "fp32")
    return decay, t.activation("attn.inverse", (*STEPS, "delta_chunk"))


def _joined(t: "Tracer", style: "Style", x: "Tensor") -> "tuple[Tensor, ...]":
    """Queries, keys and values; gates; b; a: from two matmuls."""
    made = []
    for word, rows, parts in (
        ("qkvz", "delta_rows", (("channels", "delta_channels"), ("gate", "delta_values"))),
        ("ba", "delta_steps", (("b", "delta_heads"), ("a", "delta_heads"))),
    ):
        whole = _projected(t, style, word, x, rows)
        found = [t.activation(f"attn.{name}", (*GROUPED, axis)) for name, axis in parts]
        t.emit(f"attn.split_{word}", ops.SplitLastViews(*(axis for _, axis in parts)), (whole,), *found)
        made += found
    return tuple(made)


def _apart(t: "Tracer", style: "Style", x: "Tensor") -> "tuple[Tensor, ...]":
    """Queries, keys and values; gates; b; a: from four matmuls, one for each."""
    rows = (("qkv", "delta_channels"), ("z", "delta_values"), ("b", "delta_heads"), ("a", "delta_heads"))
    return tuple(_projected(t, style, word, x, axis) for word, axis in rows)


def _each(t: "Tracer", style: "Style", x: "Tensor") -> "tuple[Tensor, ...]":
    """Queries, keys and values; gates; b; a: from six matmuls, of which the first three are joined."""
    rows = ("delta_key", "delta_key", "delta_values")
    made = tuple(_projected(t, style, word, x, axis) for word, axis in zip("qkv", rows, strict=True))
    joined = t.activation("attn.joined", (*GROUPED, "delta_channels"))
    t.emit("attn.joined", ops.state_space.JoinParts(rows), made, joined)
    others = (("z", "delta_values"), ("b", "delta_heads"), ("a", "delta_heads"))
    return joined, *(_projected(t, style, word, x, axis) for word, axis in others)


def _projected(t: "Tracer", style: "Style", word: str, x: "Tensor", rows: str) -> "Tensor":
    return shared.linear(t, f"attn.in_{word}", x, ("delta_groups", rows, "hidden"), (*GROUPED, rows), form=style.linear)


def _parameters(card: Architecture, values: Values) -> int:
    heads, groups = int(values["delta_heads"]), int(values["delta_key_heads"])
    inner, channels = heads * int(values["delta_value_dim"]), 2 * groups * int(values["delta_key_dim"])
    channels += inner
    conv = channels * (int(values["conv_width"]) + (1 if values["conv_bias"] else 0))
    made = channels + inner + 2 * heads
    return card.hidden * (made + inner) + conv + 2 * heads + int(values["delta_value_dim"])


def _check(card: Architecture, values: Values) -> None:
    if int(values["delta_heads"]) % int(values["delta_key_heads"]):
        raise UsageError(
            f"{card.name}: delta_heads={values['delta_heads']} do not divide into "
            f"delta_key_heads={values['delta_key_heads']}"
        )


def _heads_of_group(card: Architecture) -> int:
    groups = card.word("delta_key_heads")
    return card.word("delta_heads") // groups if groups else 0


GATED_DELTA = LayerPart(
    name="gated_delta",
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={
        "delta_heads": KindWord("the heads of values"),
        "delta_key_heads": KindWord("the heads of queries and keys, each of a group of heads of values"),
        "delta_key_dim": KindWord("the size of a query and of a key"),
        "delta_value_dim": KindWord("the size of a head of values"),
        "delta_chunk": KindWord("the tokens of a chunk of the scan", 64, most=MOST_TOKENS),
        "delta_projections": KindWord(
            "whether two matmuls make what the scan reads, four, or one for each of queries, keys, values, gates, b, a",
            "joined",
            ("joined", "apart", "each"),
        ),
        "delta_negative": KindWord("whether β is up to 2, so that states may change their sign along a key", False),
        **CONVOLUTION,
    },
    symbols={
        "LG": SizeSymbol("delta_key_heads", "heads of keys of a delta rule", lambda card: card.word("delta_key_heads")),
        "LR": SizeSymbol("delta_heads", "heads of values for each key of a delta rule", _heads_of_group),
        "LK": SizeSymbol("delta_key_dim", "size of a key of a delta rule", lambda card: card.word("delta_key_dim")),
        "LV": SizeSymbol(
            "delta_value_dim", "size of a head of values of a delta rule", lambda card: card.word("delta_value_dim")
        ),
        "LC": SizeSymbol("delta_chunk", "tokens of a chunk of a delta rule", lambda card: card.word("delta_chunk")),
    },
    axes={
        "delta_groups": "LG",
        "delta_heads": "LR",
        "delta_key": "LK",
        "delta_value": "LV",
        "delta_values": "LR*LV",
        "delta_channels": "2*LK + LR*LV",
        "delta_rows": "2*LK + 2*LR*LV",
        "delta_steps": "2*LR",
        "delta_chunk": "LC",
    },
    rows=scan_rows,
    left=LEFT,
    alone=UNDIVIDED,
    exchanged="groups of heads",
)
