"""Embeddings for each layer (Gemma 3n, Gemma 4 E2B and E4B): a token has a narrow row for each layer in a second table.

Before the first layer, the rows of a token and a projection of its embedding, normalised row by row, are added. Each
layer ends with a gate: the stream is projected to the width of a row, multiplies the layer's row after the activation,
and what is projected back and normalised is added to the stream.

The table's rows are cut over tp as those of the vocabulary; the projections are whole on each rank, as in vLLM's
`gemma4.py` (`VocabParallelEmbedding`, `ReplicatedLinear`; the one before the first layer is cut and gathered there).

Sources: `modeling_gemma4.py` of transformers 5.24 (`get_per_layer_inputs`, `project_per_layer_inputs`).
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.experts import token_ids
from stagedb.models.kinds.part import HIDDEN, Architecture, Branch, norm_parameters, norm_values

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")

VOCABULARY, LAYERS, WIDTH = "layer_vocab", "stack_layers", "layer_width"
AXES = {LAYERS: "LS", WIDTH: "HL"}
"""The sizes of its axes, but for that of the table's rows, as texts of symbols."""

ROWS = ("batch", "seq", LAYERS, WIDTH)
ROW = ("batch", "seq", WIDTH)


def layer_inputs(t: "Tracer", card: Architecture, style: "Style", x: "Tensor") -> "tuple[Tensor, ...]":
    """What each layer gets in addition to the stream: (batch, seq, width). x: the embedded tokens."""
    t.enter("embedding")
    table = t.weight("layer_word.weight", (VOCABULARY, LAYERS, WIDTH))
    rows = t.activation("layer_word", ROWS)
    t.emit("layer_word", ops.LayerEmbedding(), (token_ids(t), table), rows)
    rows = shared.scaled(t, "layer_word.scaled", rows, card.layer_input**0.5)
    t.enter("between")
    made = shared.linear(t, "layer_rows", x, (LAYERS, WIDTH, "hidden"), ROWS, form=style.linear)
    made = shared.scaled(t, "layer_rows.scaled", made, card.hidden**-0.5)
    made = shared.norm(t, card, style, "layer_rows_norm", made)
    both = shared.scaled(t, "layer_inputs.scaled", shared.add(t, "layer_inputs", made, rows), 2**-0.5)
    views = tuple(t.activation(f"layer_input.{number}", ROW) for number in range(card.layers))
    t.emit("layer_inputs.views", ops.LayerViews(), (both,), *views)
    return views


def with_layer_input(t: "Tracer", card: Architecture, style: "Style", x: "Tensor") -> "Tensor":
    """The residual stream plus what the layer makes of its own input (`layer_inputs`); the stream alone in models
    without such inputs.
    """
    if t.layer_input is None:
        return x
    t.enter("between")
    gate = shared.linear(t, "input.gate", x, (WIDTH, "hidden"), ROW, form=style.linear)
    gated = t.activation("input.gated", ROW)
    if style.eager:
        active = t.activation("input.activation", ROW)
        t.emit("input.activation", ops.Activation(card.activation), (gate,), active)
        t.emit("input.gated", ops.Multiply(), (active, t.layer_input), gated)
    else:
        t.emit("input.gated", ops.Gate(card.activation), (gate, t.layer_input), gated)
    back = shared.linear(t, "input.back", gated, ("hidden", WIDTH), HIDDEN, form=style.linear)
    normal = shared.norm(t, card, style, "input.post_norm", back)
    return shared.residual(t, card, style, "input.add", x, Branch(normal))


def layer_input_parameters(card: Architecture) -> int:
    """The parameters of the table, of the projection and its norm, and of each layer's gate."""
    width = card.layer_input
    if not width:
        return 0
    table, projection = card.layer_input_vocab * card.layers * width, card.hidden * card.layers * width
    each = 2 * card.hidden * width + norm_parameters(card)
    return table + projection + width * norm_values(card) + card.layers * each
