"""The mixer of Mamba-2 (Dao and Gu 2024): one matmul in, a short convolution, a scan, a gated norm, one matmul out.

Heads are in groups, which share B and C. The rows of the matmul in are those of each group together: gates, values, B,
C, and the steps dt of its heads. So ranks of tp have whole groups, as Megatron-LM deals them
(`megatron/core/ssm/mamba_mixer.py`, which wants a tp that divides the groups).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
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
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

GROUPED = ("batch", "seq", "scan_groups")
OF_HEADS = ("scan_groups", "scan_heads")
VALUES = (*GROUPED, "scan_values")

SCALED = ("gate", "value", "b", "c", "step")
"""The parts of what the matmul in makes, as in the words of their factors."""


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    t.enter("scan")
    bias = values["scan_bias"] is True
    made = shared.linear(
        t, "attn.in_proj", x, ("scan_groups", "scan_rows", "hidden"), (*GROUPED, "scan_rows"), bias, style.linear
    )
    # Ranks of cp exchange all rows, gates among them, as in Megatron-LM (`megatron/core/ssm/mamba_context_parallel.py`,
    # which sends gates, values, B, C and steps one after the other).
    t.enter("scan_core")
    made = _scaled(t, values, made)
    parts = ("scan_values", "scan_channels", "scan_heads")
    gate, channels, dt = (
        t.activation(f"attn.{word}", (*GROUPED, axis))
        for word, axis in zip(("gate", "channels", "dt"), parts, strict=True)
    )
    t.emit("attn.split", ops.state_space.SplitParts(parts), (made,), gate, channels, dt)
    y = _scanned(t, style, values, convolved(t, style, values, channels, "scan_groups"), dt)
    bias = values["scan_out_bias"] == "yes" if values["scan_out_bias"] else bias
    normal = _gated(t, values, y, gate)
    return shared.row_linear(t, style, "attn.wo", normal, ("hidden", "scan_groups", "scan_values"), bias)


def _scaled(t: "Tracer", values: Values, made: "Tensor") -> "Tensor":
    """What the matmul in makes, each part times its factor; itself if there are none."""
    factors = tuple(float(values[f"scan_{word}_scale"]) or 1.0 for word in SCALED)
    if set(factors) == {1.0}:
        return made
    y = t.activation("attn.scaled", made.axes)
    parts = ("scan_values", "scan_values", "", "", "scan_heads")
    t.emit("attn.scaled", ops.state_space.ScaledParts(parts, factors), (made,), y)
    return y


def _gated(t: "Tracer", values: Values, y: "Tensor", gate: "Tensor") -> "Tensor":
    """The results of the scan with their gates, and a norm of all heads of a token if there is one."""
    if values["scan_norm"] == "none":
        gated = t.activation("attn.gated", VALUES)
        t.emit("attn.gated", ops.Gate("silu"), (gate, y), gated)
        t.enter("scan")
        return gated
    t.enter("scan")
    normal, rstd = t.activation("attn.gated_norm", VALUES), t.activation("attn.gated_norm.rstd", GROUPED, "fp32")
    weight = t.weight("attn.gated_norm.weight", VALUES[2:], rows=2)
    operator = ops.state_space.GatedNorm(first=values["scan_norm"] == "first")
    t.emit("attn.gated_norm", operator, (y, gate, weight), normal, rstd)
    return normal


def convolved(t: "Tracer", style: "Style", values: Values, x: "Tensor", groups: str) -> "Tensor":
    """Each channel of (batch, seq, groups, channels) convolved over the sequence, then silu. groups: empty if it has
    no such axis."""
    own = x.axes[2:]
    held = [t.weight("attn.conv.weight", (*own, "conv_width"), rows=len(own))]
    if values["conv_bias"]:
        held.append(t.weight("attn.conv.bias", own, rows=len(own)))
    y = t.activation("attn.conv", x.axes)
    kept = (cached(t, "attn.conv", ("batch", "conv_width", *own), "act"),) if style.serves else ()
    operator = ops.state_space.ShortConvolution("silu", groups, own[-1], "conv_width", keeps=style.serves)
    t.emit("attn.conv", operator, (x, *held), y, *kept)
    return y


def cached(t: "Tracer", name: str, axes: tuple[str, ...], dtype: str) -> "Tensor":
    """The tensor that requests keep of an operator from step to step.

    name: the operator's. axes: of the tensor. dtype: its class of formats.
    """
    return t.tensor(f"{name}.cache", axes, dtype, "cache")


def _scanned(t: "Tracer", style: "Style", values: Values, x: "Tensor", dt: "Tensor") -> "Tensor":
    held = [t.weight(f"attn.{word}", OF_HEADS, rows=2) for word in ("a_log", "skip", "step_bias")]
    y = t.activation("attn.scan", VALUES)
    if style.serves:
        state = ("batch", *OF_HEADS, "scan_dim", "scan_state")
        further = cached(t, "attn.scan", state, "fp32")
    else:
        further = t.activation("attn.decay", dt.axes, "fp32")
    chunk, least = int(values["scan_chunk"]), float(values["scan_least"])
    operator = ops.state_space.StateScan(chunk, least, keeps=style.serves, one=style.one_token)
    t.emit("attn.scan", operator, (x, dt, *held), y, further)
    return y


def _parameters(card: Architecture, values: Values) -> int:
    heads, groups, state = (int(values[word]) for word in ("scan_heads", "scan_groups", "scan_state"))
    inner = heads * int(values["scan_dim"])
    channels = inner + 2 * groups * state
    rows = inner + channels + heads
    out = values["scan_out_bias"] == "yes" if values["scan_out_bias"] else values["scan_bias"]
    biases = (
        (rows if values["scan_bias"] else 0) + (card.hidden if out else 0) + (channels if values["conv_bias"] else 0)
    )
    norm = 0 if values["scan_norm"] == "none" else inner
    return card.hidden * (rows + inner) + channels * int(values["conv_width"]) + biases + 3 * heads + norm


def _check(card: Architecture, values: Values) -> None:
    if int(values["scan_heads"]) % int(values["scan_groups"]):
        raise UsageError(
            f"{card.name}: scan_heads={values['scan_heads']} do not divide into scan_groups={values['scan_groups']}"
        )


def scan_rows(choices: ShardingChoices) -> Table:
    """Ranks of tp have whole groups, or channels, those of sp gather the sequence."""
    return scanned_rows(choices, "scan", "scan_groups", "scan_inner", "delta_groups", "recurrence_blocks")


def scanned_rows(choices: ShardingChoices, region: str, *divided: str) -> Table:
    """The rows of a mixer that reads a sequence from its first token on.

    choices: the options of the graph. region: its own, of matmuls and norms; what reads the sequence is in
    `REGION_core`, where ranks of cp have the whole sequence of some heads or channels (Ulysses). divided: the axes of
    these. Returns the rules of both.
    """
    rule = {"batch": ("dp",), **dict.fromkeys(divided, ("tp",))}
    if choices.cp_kind != "ulysses":
        return {region: rule, f"{region}_core": rule}
    core = {"batch": ("dp",), **dict.fromkeys(divided, ("tp", "cp"))}
    return {region: {**rule, "seq": ("cp",)}, f"{region}_core": core}


def left_regions(region: str, why: str) -> Mapping[str, str]:
    """The two regions of `scanned_rows`, which no strategy of a user names.

    region: its own. why: what ranks of tp have in it.
    """
    return {region: f"in which {why}", f"{region}_core": f"in which {why}, and ranks of cp some of them"}


LEFT = left_regions("scan", "ranks of tp have whole groups of heads, or channels")
"""The regions of scans."""

UNDIVIDED = "passes its state from token to token"
"""Why ranks of cp cannot divide its sequence."""


def _heads_of_group(card: Architecture) -> int:
    groups = card.word("scan_groups")
    return card.word("scan_heads") // groups if groups else 0


CONVOLUTION = {
    "conv_width": KindWord("the positions that the short convolution reads", 4, most=64),
    "conv_bias": KindWord("whether the short convolution has a bias", True),
}
"""The words of a short convolution."""

STATE_SPACE = LayerPart(
    name="state_space",
    forward=_forward,
    parameters=_parameters,
    check_values=_check,
    words={
        "scan_heads": KindWord("the heads of the scan"),
        "scan_dim": KindWord("the values of a head of the scan"),
        "scan_groups": KindWord("the groups of heads, each with its own B and C", 1),
        "scan_state": KindWord("the size of the state of each value of a head"),
        "scan_chunk": KindWord("the tokens of a chunk of the scan", 256, most=MOST_TOKENS),
        "scan_bias": KindWord("whether the matmuls in and out have biases", False),
        "scan_least": KindWord("the least step of a token (0: none)", 0.0),
        "scan_norm": KindWord(
            "whether a norm is over gated values of each group, or over values before their gates, or none is",
            "gated",
            ("gated", "first", "none"),
        ),
        "scan_out_bias": KindWord("whether the matmul out has a bias; without it scan_bias decides", "", ("yes", "no")),
        **{
            f"scan_{word}_scale": KindWord(f"the factor of {about} (0: none)", 0.0)
            for word, about in (
                ("gate", "gates of the scan"),
                ("value", "values before the convolution"),
                ("b", "B before the convolution"),
                ("c", "C before the convolution"),
                ("step", "steps before their bias"),
            )
        },
        **CONVOLUTION,
    },
    symbols={
        "SG": SizeSymbol("scan_groups", "groups of heads of a scan", lambda card: card.word("scan_groups")),
        "SH": SizeSymbol("scan_heads", "heads of a group of a scan", _heads_of_group),
        "SP": SizeSymbol("scan_dim", "values of a head of a scan", lambda card: card.word("scan_dim")),
        "SN": SizeSymbol("scan_state", "size of the state of a scan", lambda card: card.word("scan_state")),
        "CW": SizeSymbol("conv_width", "width of a short convolution", lambda card: card.word("conv_width")),
    },
    axes={
        "scan_groups": "SG",
        "scan_heads": "SH",
        "scan_dim": "SP",
        "scan_state": "SN",
        "scan_values": "SH*SP",
        "scan_channels": "SH*SP + 2*SN",
        "scan_rows": "2*SH*SP + 2*SN + SH",
        "conv_width": "CW",
    },
    rows=scan_rows,
    left=LEFT,
    alone=UNDIVIDED,
    exchanged="groups of heads",
)
