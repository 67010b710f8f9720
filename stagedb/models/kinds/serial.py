"""Serial layers: the mixer, then the channel mixer; each is added to the stream.

A pre-norm layer normalises what its parts read. A post-norm layer normalises their results (OLMo 2), a sandwich both
(Gemma 2); it may multiply the stream by a number of the layer (Gemma 4). With `serial_ffn_post_norm` the result of the
channel mixer alone has a norm too (A.X K1). With norms after sums the stream itself is normalised (Vaswani et al.
2017), and in a normed stream what a part reads, which its result is added to, each times a factor (MiniMax-01).
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.layer_inputs import with_layer_input
from stagedb.models.kinds.part import Architecture, Branch, KindWord, Part, Residual, Values

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")


def _serial(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    t.enter("between")
    x = shared.residual(t, card, style, "attn.add", x, mixer(shared.norm(t, card, style, "attn_norm", x)))
    return shared.residual(t, card, style, "ffn.add", x, channel_mixer(shared.norm(t, card, style, "ffn_norm", x)))


def _post_norm(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    for word, part in (("attn", mixer), ("ffn", channel_mixer)):
        x = shared.residual(t, card, style, f"{word}.add", x, normed_branch(t, card, style, f"{word}_norm", part(x)))
    return x


def _sandwich(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    for word, part in (("attn", mixer), ("ffn", channel_mixer)):
        t.enter("between")
        made = part(shared.norm(t, card, style, f"{word}_norm", x))
        x = shared.residual(t, card, style, f"{word}.add", x, normed_branch(t, card, style, f"{word}_post_norm", made))
    return x


def _ffn_post_norm(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    t.enter("between")
    x = shared.residual(t, card, style, "attn.add", x, mixer(shared.norm(t, card, style, "attn_norm", x)))
    made = channel_mixer(shared.norm(t, card, style, "ffn_norm", x))
    return shared.residual(t, card, style, "ffn.add", x, normed_branch(t, card, style, "ffn_post_norm", made))


def _sandwich_scaled(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    return _ended(t, card, style, _sandwich(t, card, style, mixer, channel_mixer, x, values))


def _sandwich_of_stream(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    t.enter("between")
    made = mixer(shared.norm(t, card, style, "attn_norm", x))
    x = shared.residual(t, card, style, "attn.add", x, normed_branch(t, card, style, "attn_post_norm", made))
    made = normed_branch(t, card, style, "ffn_post_norm", channel_mixer(x))
    return _ended(t, card, style, shared.residual(t, card, style, "ffn.add", x, made))


def _ended(t: "Tracer", card: Architecture, style: "Style", x: "Tensor") -> "Tensor":
    """The stream with what the layer makes of its own input, where it has one (`layer_inputs`), times a number of the
    layer, which is no parameter: a checkpoint sets it, and training starts at 1."""
    x = with_layer_input(t, card, style, x)
    t.enter("between")
    y = t.activation("scaled", x.axes)
    t.emit("scaled", ops.Multiple(1.0), (x,), y)
    return y


def normed_branch(t: "Tracer", card: Architecture, style: "Style", name: str, made: Branch) -> Branch:
    """A part's result after its norm, with its bias added before. name: of the norm. made: the part's result."""
    t.enter("between")
    result = made.result if made.bias is None else shared.add(t, f"{name}.biased", made.result, made.bias)
    return Branch(shared.norm(t, card, style, name, result))


def _after_sum(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    for word, part in (("attn", mixer), ("ffn", channel_mixer)):
        x = shared.residual(t, card, style, f"{word}.add", x, part(x))
        x = shared.norm(t, card, style, f"{word}_norm", x)
    return x


def _normed_stream(
    t: "Tracer", card: Architecture, style: "Style", mixer: Part, channel_mixer: Part, x: "Tensor", values: Values
) -> "Tensor":
    for word, part in (("attn", mixer), ("ffn", channel_mixer)):
        t.enter("between")
        normal = shared.norm(t, card, style, f"{word}_norm", x)
        made = part(normal)
        t.enter("between")
        result = made.result if made.bias is None else shared.add(t, f"{word}.biased", made.result, made.bias)
        result = shared.scaled(t, f"{word}.result", result, float(values[f"{word}_result_scale"]))
        kept = shared.scaled(t, f"{word}.stream", normal, float(values[f"{word}_stream_scale"]))
        x = shared.residual(t, card, style, f"{word}.add", kept, Branch(result))
    return x


_FACTORS = {
    f"{word}_{side}_scale": KindWord(f"the factor of {about} (0: none)", 0.0)
    for word, part in (("attn", "the mixer"), ("ffn", "the channel mixer"))
    for side, about in (
        ("stream", f"the normalised stream that {part}'s result is added to"),
        ("result", f"the result of {part}"),
    )
}

SERIAL = Residual("serial", 2, _serial)
POST_NORM = Residual("post_norm", 2, _post_norm)
SANDWICH = Residual("sandwich", 4, _sandwich)
FFN_POST_NORM = Residual("serial_ffn_post_norm", 3, _ffn_post_norm)
SANDWICH_SCALED = Residual("sandwich_scaled", 4, _sandwich_scaled, layer_input=True)
SANDWICH_OF_STREAM = Residual("sandwich_of_stream", 3, _sandwich_of_stream, reads_stream=True, layer_input=True)
AFTER_SUM = Residual("after_sum", 2, _after_sum)
NORMED_STREAM = Residual("normed_stream", 2, _normed_stream, words=_FACTORS)
