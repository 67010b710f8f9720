"""The mixer of Mamba-1 (Gu and Dao 2023): a matmul in, a short convolution, steps, B and C of its result, a scan, a
matmul out.

The matmul in makes values and gates, channel by channel, so that ranks of tp have whole channels. Each of them has a
part of the sums that make B, C and the latent of the steps, which all channels read: they are reduced. The latent, B
and C may be normalised (Jamba, Falcon-Mamba).
"""

from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Architecture, Branch, KindWord, LayerPart, SizeSymbol, Values
from stagedb.models.kinds.state_space import CONVOLUTION, LEFT, UNDIVIDED, cached, convolved, scan_rows

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

CHANNELS = ("batch", "seq", "scan_inner")
READ = (("step_latent", "scan_rank"), ("b", "scan_state"), ("c", "scan_state"))
"""What a matmul makes of the values of a token, with the axis of each."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("scan")
    bias = values["scan_bias"] is True
    rows = ("scan_inner", "two")
    made = shared.linear(t, "attn.in_proj", x, (*rows, "hidden"), (*CHANNELS, "two"), bias, style.linear)
    channels, gate = (t.activation(f"attn.{word}", CHANNELS) for word in ("channels", "gate"))
    t.emit("attn.split", ops.selective_scan.SplitPair(), (made,), channels, gate)
    t.enter("scan_core")
    channels = convolved(t, style, values, channels, "")
    latent, b, c = _read(t, card, style, values, channels)
    dt = shared.linear(t, "attn.dt_proj", latent, ("scan_inner", "scan_rank"), CHANNELS, False, style.linear)
    y = _scanned(t, style, (channels, dt, gate, b, c))
    t.enter("scan")
    return shared.row_linear(t, style, "attn.wo", y, ("hidden", "scan_inner"), bias)


def _read(
    t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor"
) -> "tuple[Tensor, Tensor, Tensor]":
    """The latent of the steps, B and C."""
    whole = ("batch", "seq", "scan_read")
    made = shared.linear(t, "attn.x_proj", x, ("scan_read", "scan_inner"), whole, False, style.linear)
    parts = [t.activation(f"attn.{word}", (*whole[:2], axis)) for word, axis in READ]
    t.emit("attn.split_read", ops.selective_scan.SplitShared(tuple(axis for _, axis in READ)), (made,), *parts)
    named = zip((word for word, _ in READ), parts, strict=True)
    latent, b, c = (_normalised(t, card, style, values, f"attn.{word}_norm", part) for word, part in named)
    return latent, b, c


def _normalised(t: "Tracer", card: Architecture, style: "Style", values: Values, name: str, x: "Tensor") -> "Tensor":
    if values["scan_norm"] == "none":
        return x
    if values["scan_norm"] == "weighted":
        return shared.norm(t, card, style, name, x)
    y = t.activation(name, x.axes)
    t.emit(name, ops.UnitRMS(), (x,), y, t.activation(f"{name}.rstd", x.axes[:-1], "fp32"))
    return y


def _scanned(t: "Tracer", style: "Style", read: "tuple[Tensor, ...]") -> "Tensor":
    """The gated result of the scan. read: values, steps, gates, B and C."""
    state = ("scan_inner", "scan_state")
    held = [t.weight("attn.a_log", state, rows=1)]
    held += [t.weight(f"attn.{word}", ("scan_inner",)) for word in ("skip", "step_bias")]
    y = t.activation("attn.gated", CHANNELS)
    if style.serves:
        further = [cached(t, "attn.scan", ("batch", *state), "fp32")]
    else:
        pieces = ("batch", "scan_inner", "scan_pieces", "two", "scan_state")
        further = [t.activation("attn.scan", CHANNELS), t.activation("attn.states", pieces, "fp32")]
    t.emit("attn.scan", ops.selective_scan.SelectiveScan(style.serves), (*read, *held), y, *further)
    return y


def _parameters(card: Architecture, values: Values) -> int:
    inner, state, rank = (int(values[word]) for word in ("scan_inner", "scan_state", "scan_rank"))
    biases = (2 * inner + card.hidden if values["scan_bias"] else 0) + (inner if values["conv_bias"] else 0)
    norms = rank + 2 * state if values["scan_norm"] == "weighted" else 0
    matmuls = 3 * card.hidden + (rank + 2 * state) + rank
    return inner * (matmuls + int(values["conv_width"]) + state + 2) + biases + norms


def _check(card: Architecture, values: Values) -> None:
    if values["scan_norm"] == "weighted" and card.norm != "rmsnorm":
        raise UsageError(f"{card.name}: scan_norm: weighted is with norm: rmsnorm, not {card.norm}")


SELECTIVE_SCAN = LayerPart(
    name="selective_scan",
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={
        "scan_inner": KindWord("the channels of the scan"),
        "scan_state": KindWord("the size of the state of each channel"),
        "scan_rank": KindWord("the size of the latent of the steps"),
        "scan_norm": KindWord(
            "whether the latent, B and C are normalised, and with weights", "none", ("none", "weighted", "unweighted")
        ),
        "scan_bias": KindWord("whether the matmuls in and out have biases", False),
        **CONVOLUTION,
    },
    symbols={
        "SI": SizeSymbol("scan_inner", "channels of a selective scan", lambda card: card.word("scan_inner")),
        "SL": SizeSymbol("scan_rank", "latent of the steps of a selective scan", lambda card: card.word("scan_rank")),
    },
    axes={
        "scan_inner": "SI",
        "scan_rank": "SL",
        "scan_read": "SL + 2*SN",
        "scan_pieces": "ceil(S/2048)",
    },
    rows=scan_rows,
    left=LEFT,
    alone=UNDIVIDED,
    exchanged="channels",
)
