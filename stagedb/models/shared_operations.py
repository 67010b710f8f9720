"""Operations for the forwards of all kinds: linear layers, norms, dropout, the residual stream."""

from stagedb.ir.operators import (
    E4M3,
    Add,
    Cast,
    Dropout,
    Einsum,
    LayerNorm,
    MeanSquare,
    Multiply,
    Quantize,
    RMSNorm,
    Rsqrt,
)
from stagedb.ir.tensors import Tensor, Tracer
from stagedb.models.kinds.part import HIDDEN, Architecture, Branch
from stagedb.models.style import Style


def linear(
    t: Tracer,
    name: str,
    x: Tensor,
    weight_axes: tuple[str, ...],
    out: tuple[str, ...],
    bias: bool,
    fp8: bool = False,
) -> Tensor:
    """A linear layer over named axes; the weight has the output's features first, as torch registers it."""
    features = tuple(axis for axis in weight_axes if axis in out)
    weight = t.weight(f"{name}.weight", weight_axes, rows=len(features))
    y = t.activation(name, out)
    inputs: tuple[Tensor, ...] = (x, weight)
    if fp8:
        inputs = tuple(
            t.narrow(f"{name}.{word}", operand, Quantize(), E4M3)
            for word, operand in (("cast_input", x), ("cast_weight", weight))
        )
    if bias:
        inputs = (*inputs, t.weight(f"{name}.bias", features, rows=len(features)))
    t.emit(name, Einsum(x.axes, weight_axes, out, bias), inputs, y)
    return y


def row_linear(
    t: Tracer, card: Architecture, style: Style, name: str, x: Tensor, weight_axes: tuple[str, ...]
) -> Branch:
    """The matmul back to the hidden axis, and the bias if it is added later."""
    inside = card.linear_bias and style.row_bias == "inside"
    y = linear(t, name, x, weight_axes, HIDDEN, inside, style.fp8)
    late = card.linear_bias and not inside
    return Branch(y, t.weight(f"{name}.bias", ("hidden",)) if late else None)


def norm(t: Tracer, card: Architecture, style: Style, name: str, x: Tensor) -> Tensor:
    """The tensor normalised over the last axis."""
    token, last = x.axes[:-1], x.axes[-1:]
    weight = t.weight(f"{name}.weight", last)
    y = t.activation(name, x.axes)
    if card.norm == "layernorm":
        bias = t.weight(f"{name}.bias", last)
        mean, rstd = t.activation(f"{name}.mean", token, "fp32"), t.activation(f"{name}.rstd", token, "fp32")
        t.emit(name, LayerNorm(), (x, weight, bias), y, mean, rstd)
        return y
    if not style.eager:
        t.emit(name, RMSNorm(), (x, weight), y, t.activation(f"{name}.rstd", token, "fp32"))
        return y
    wide = t.activation(f"{name}.wide", x.axes, "fp32")
    square, rstd = t.activation(f"{name}.mean_square", token, "fp32"), t.activation(f"{name}.rstd", token, "fp32")
    normal, scaled = t.activation(f"{name}.normal", x.axes, "fp32"), t.activation(f"{name}.scaled", x.axes, "fp32")
    t.emit(f"{name}.wide", Cast(), (x,), wide)
    t.emit(f"{name}.mean_square", MeanSquare(), (wide,), square)
    t.emit(f"{name}.rstd", Rsqrt(), (square,), rstd)
    t.emit(f"{name}.normal", Multiply(), (wide, rstd), normal)
    t.emit(f"{name}.scaled", Multiply(), (normal, weight), scaled)
    t.emit(name, Cast(), (scaled,), y)
    return y


def dropout(t: Tracer, style: Style, name: str, x: Tensor) -> Tensor:
    """Dropout; `x` itself if nothing is dropped."""
    if style.dropout == 0:
        return x
    y = t.activation(name, x.axes)
    t.emit(name, Dropout(style.dropout), (x,), y, t.activation(f"{name}.mask", x.axes, "bool"))
    return y


def add(t: Tracer, name: str, *terms: Tensor) -> Tensor:
    """The sum, of the first term's axes."""
    y = t.activation(name, terms[0].axes)
    t.emit(name, Add(), terms, y)
    return y


def residual(t: Tracer, style: Style, name: str, x: Tensor, branch: Branch) -> Tensor:
    """`x + dropout(branch + bias)`, one kernel where there is no dropout."""
    t.enter("between")
    made, bias = branch.result, branch.bias
    if style.dropout == 0:
        return add(t, name, *((made, x) if bias is None else (made, x, bias)))
    if bias is not None:
        made = add(t, f"{name}.bias", made, bias)
    return add(t, name, dropout(t, style, f"{name}.dropout", made), x)
