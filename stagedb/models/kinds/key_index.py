"""The sparse indexer of latent attention (DeepSeek-V3.2): small heads choose the keys that each query sees.

Its projections are whole on every rank of tp. They read the latent of queries and the hidden state, and send no
gradient back: `stagedb.ir.operators.sparse` has the loss that trains them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.lazy_names import DeferredModule
from stagedb.models.kinds.part import Architecture, KindWord, SizeSymbol, Values
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
else:
    ops = DeferredModule("stagedb.ir.operators")

WORDS: Mapping[str, KindWord] = {
    "index_heads": KindWord("the heads of the indexer that chooses the keys of each query (0: all keys are seen)", 0),
    "index_dim": KindWord("the size of a head of the indexer", 0),
    "index_top": KindWord("the number of keys that the indexer chooses", 0, most=MOST_TOKENS),
}

SYMBOLS: Mapping[str, SizeSymbol] = {
    "IH": SizeSymbol("index_heads", "heads of the indexer", lambda card: card.word("index_heads")),
    "ID": SizeSymbol("index_dim", "size of a head of the indexer", lambda card: card.word("index_dim")),
    "IT": SizeSymbol("index_top", "keys that the indexer chooses", lambda card: card.word("index_top")),
}

AXES: Mapping[str, str] = {"index_heads": "IH", "index_dim": "ID", "index_top": "min(IT, SK)"}

QUERY, KEY = ("batch", "seq", "index_heads", "index_dim"), ("batch", "seq", "index_dim")
HEADS, CHOSEN = ("batch", "seq", "index_heads"), ("batch", "seq", "index_top")


def chosen_keys(t: "Tracer", values: Values, x: "Tensor", latent: "Tensor") -> "tuple[Tensor, Tensor]":
    """The scores and places of each query's keys. x: the part's input. latent: that of queries."""
    size = int(values["rope_dim"])
    q = _linear(t, "attn.index.wq", latent, ("index_heads", "index_dim", "q_rank"), QUERY)
    k = _linear(t, "attn.index.wk", x, ("index_dim", "hidden"), KEY)
    normal = t.activation("attn.index.k_norm", KEY)
    held = (t.weight("attn.index.k_norm.weight", ("index_dim",)), t.weight("attn.index.k_norm.bias", ("index_dim",)))
    mean, rstd = (t.activation(f"attn.index.k_norm.{word}", ("batch", "seq"), "fp32") for word in ("mean", "rstd"))
    t.emit("attn.index.k_norm", ops.LayerNorm(), (k, *held), normal, mean, rstd)
    turned = []
    for word, each in (("q", q), ("k", normal)):
        turned.append(t.activation(f"attn.index.rotary_{word}", each.axes))
        t.emit(f"attn.index.rotary_{word}", ops.Rotary(size=size), (each,), turned[-1])
    weights = _linear(t, "attn.index.weights", x, ("index_heads", "hidden"), HEADS)
    best, places = t.activation("attn.index.best", CHOSEN, "fp32"), t.activation("attn.index.chosen", CHOSEN, "int64")
    # Each rank chooses for its queries, among the keys of all ranks.
    t.enter("index")
    t.emit("attn.index", ops.KeyIndex(), (*turned, weights), best, places)
    return best, places


def _linear(t: "Tracer", name: str, x: "Tensor", weight: tuple[str, ...], out: tuple[str, ...]) -> "Tensor":
    y = t.activation(name, out)
    t.emit(
        name, ops.DetachedEinsum(x.axes, weight, out), (x, t.weight(f"{name}.weight", weight, rows=len(weight) - 1)), y
    )
    return y


def parameters(card: Architecture, values: Values) -> int:
    """The parameters of the indexer of a layer."""
    heads, size = int(values["index_heads"]), int(values["index_dim"])
    if not heads:
        return 0
    return int(values["q_rank"]) * heads * size + card.hidden * (size + heads) + 2 * size


def check(card: Architecture, values: Values) -> None:
    """Raise UsageError for words of the indexer that do not go together."""
    given = [word for word in WORDS if values[word]]
    if not given:
        return
    lacking = [word for word in (*WORDS, "q_rank") if not values[word]]
    if lacking:
        raise UsageError(f"{card.name}: an indexer needs {lacking[0]}, which is 0, and {given[0]} is not")
    if int(values["index_dim"]) < int(values["rope_dim"]):
        raise UsageError(f"{card.name}: index_dim={values['index_dim']} is below rope_dim={values['rope_dim']}")
